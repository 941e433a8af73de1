package commands_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"onerule/test/hosts"
	"onerule/test/netns"
	"onerule/test/rig"
)

// bare is a node on which no daemon runs.
func bare(t *testing.T) *world {
	t.Helper()
	return &world{h: &hosts.Hosts{Node: netns.New(t, "node")}, bin: rig.Binary(t, "oneruled", "onerule/daemon/oneruled")}
}

// Whoever mistypes a flag of the daemon finds the node as it was.
func TestWhatIsWrongIsFoundBeforeAnythingIsChanged(t *testing.T) {
	w, nowhere := bare(t), filepath.Join(t.TempDir(), "nowhere")
	const setting = "net.netfilter.nf_conntrack_tcp_timeout_established"
	w.h.Node.Run(t, "sysctl", "-qw", setting+"=4321")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"a folder of manifests": {[]string{"--manifests", nowhere}, "--manifests: open " + nowhere + ": no such file or directory"},
		"a kubeconfig":          {[]string{"--kubeconfig", nowhere}, fmt.Sprintf("read kubeconfig %q: stat %s: no such file or directory", nowhere, nowhere)},
		"a command":             {[]string{"servces"}, `there is no command "servces": did you mean oneruled services? (oneruled --help lists the commands)`},
	} {
		t.Run(name, func(t *testing.T) {
			if r := w.run(t, c.args...); r.code != 1 || !strings.HasSuffix("\n"+r.errs, "\noneruled: "+c.want+"\n") {
				t.Errorf("exit code %d and %q, want 1 and %q", r.code, r.errs, c.want)
			}
			if got := w.h.Node.Run(t, "sysctl", "-n", setting); strings.TrimSpace(got) != "4321" {
				t.Errorf("%s is %s", setting, got)
			}
			if got := w.h.Node.Run(t, "nft", "list", "tables"); got != "" {
				t.Errorf("there are tables: %s", got)
			}
		})
	}
}

// Bash asks the program itself what a word can become, by a function that the script defines.
func TestShellsCompleteCommandsAndFlags(t *testing.T) {
	w := bare(t)
	for line, want := range map[string]string{
		"sta":                   "status",
		"services --li":         "--limit",
		"status -o ":            "text json",
		"install --pre":         "--preflight",
		"--external-ip":         "--external-ip-cidrs",
		"completion ":           "bash zsh fish",
		"explain 10.0.0.1 --i":  "--in",
		"uninstall --cni-conf-": "--cni-conf-dir",
	} {
		t.Run(line, func(t *testing.T) {
			r := w.run(t, append([]string{"__complete"}, strings.Split(line, " ")...)...)
			var got []string
			for text := range strings.Lines(r.out) {
				word, _, _ := strings.Cut(strings.TrimSpace(text), "\t")
				got = append(got, strings.TrimSuffix(word, "="))
			}
			for _, word := range strings.Fields(want) {
				if r.code != 0 || !strings.Contains(" "+strings.Join(got, " ")+" ", " "+word+" ") {
					t.Errorf("exit code %d: %q, want %s among them", r.code, got, word)
				}
			}
		})
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if r := w.run(t, "completion", shell); r.code != 0 || !strings.Contains(r.out, "oneruled") || !strings.Contains(r.out, "__complete") {
			t.Errorf("%s: exit code %d, %d bytes, %s", shell, r.code, len(r.out), r.errs)
		}
	}
	script := filepath.Join(t.TempDir(), "oneruled.bash")
	write(t, script, w.run(t, "completion", "bash").out)
	if got := w.h.Node.Run(t, "bash", "-c", "source "+script+" && complete -p oneruled"); !strings.Contains(got, "__start_oneruled oneruled") {
		t.Errorf("bash has taken %q", got)
	}
	if r := w.run(t, "completion", "csh"); r.code != 1 || !strings.Contains(r.errs, "completion takes bash, zsh or fish") {
		t.Errorf("exit code %d, %q", r.code, r.errs)
	}
}
