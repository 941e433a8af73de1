package plugin

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
)

const usage = `
Container runtimes call it without arguments: CNI_COMMAND says what to do. Others:
  onerule sweep STATE           removes what is left of pods that are gone
  onerule hand-back STATE TO    gives the addresses of pods to host-local, which has its own in TO
  onerule --version             says which onerule this is
  onerule --help                prints this
STATE is the plugin's folder of all networks, as ` + defaultDataDir + `. In a container, which sees its own
/proc/sys read-only, ` + sysctlDir + ` says where the node's is: settings are put back there.
`

// sysctlDir is the variable that says below which folder the node's settings are written. It
// is no argument: a plugin of before it was read passes it over, and does the rest.
const sysctlDir = "ONERULE_SYSCTL_DIR"

// Command does what the arguments ask for, or what CNI_COMMAND does, and gives the exit
// code. A runtime gives no arguments; with CNI_COMMAND those that nobody knows are passed
// over.
func (p Process) Command(args []string) int {
	if len(args) == 0 || p.Getenv("CNI_COMMAND") != "" && !isOwn(args[0]) {
		return p.Run()
	}
	p.sysctls = p.Getenv(sysctlDir)
	err := p.own(args[0], args[1:])
	if err == nil {
		switch args[0] {
		case "sweep":
			return p.Sweep(args[1])
		case "hand-back":
			return p.HandBack(args[1], args[2])
		case "--version":
			p.about(p.Stdout)
			return 0
		}
		p.about(p.Stdout)
		_, _ = fmt.Fprint(p.Stdout, usage)
		return 0
	}
	p.warn("%s: %v", args[0], err)
	_, _ = fmt.Fprint(p.Stderr, usage)
	return 1
}

func isOwn(arg string) bool { return arg == "sweep" || arg == "hand-back" }

// own says what is wrong with the arguments of a command.
func (p Process) own(command string, folders []string) error {
	want := map[string]int{"sweep": 1, "hand-back": 2, "--version": 0, "--help": 0, "-h": 0, "help": 0}
	n, known := want[command]
	switch {
	case !known:
		return errors.New("no such command")
	case len(folders) != n:
		return fmt.Errorf("got %d arguments, want %d", len(folders), n)
	}
	for _, folder := range folders {
		if !filepath.IsAbs(folder) {
			return fmt.Errorf("%q is no absolute path", folder)
		}
	}
	if n == 0 || p.sysctls == "" {
		return nil
	}
	return checkSysctlDir(p.sysctls)
}

// checkSysctlDir wants a folder that has settings: in one that has none each bridge would seem
// to be gone.
func checkSysctlDir(dir string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("%s: %q is no absolute path", sysctlDir, dir)
	}
	if err := statError(filepath.Join(dir, "net/ipv4")); err != nil {
		return fmt.Errorf("%s: %w", sysctlDir, err)
	}
	return nil
}

func (p Process) about(to io.Writer) {
	_, _ = fmt.Fprintf(to, "CNI plugin onerule %s: wires pods to their node, point to point\n"+
		"CNI protocol versions supported: %s\n", p.Version, strings.Join(supportedVersions(), ", "))
}
