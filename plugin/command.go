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
STATE is the plugin's folder of all networks, as ` + defaultDataDir + `.
`

// Command does what the arguments ask for, or what CNI_COMMAND does, and gives the exit
// code. A runtime gives no arguments; with CNI_COMMAND those that nobody knows are passed
// over.
func (p Process) Command(args []string) int {
	if len(args) == 0 || p.Getenv("CNI_COMMAND") != "" && !isOwn(args[0]) {
		return p.Run()
	}
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
	return nil
}

func (p Process) about(to io.Writer) {
	_, _ = fmt.Fprintf(to, "CNI plugin onerule %s: wires pods to their node, point to point\n"+
		"CNI protocol versions supported: %s\n", p.Version, strings.Join(supportedVersions(), ", "))
}
