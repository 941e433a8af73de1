package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/network"
	"onerule/install"
	"onerule/test/netns"
	"onerule/test/rig"
)

// A place is a node with directories of its own, and the real program on it.
type place struct {
	ns   *netns.NS
	root string
}

func (p place) at(name string) string { return filepath.Join(p.root, name) }

// run gives what the program wrote on stdout and on stderr, and its exit code.
func (p place) run(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.Command(rig.Binary(t, "oneruled", "onerule/daemon/oneruled"), append(args,
		"--cni-bin-dir", p.at("bin"), "--cni-conf-dir", p.at("net.d"), "--cni-state", p.at("state"),
		"--network-manager-dir", p.at("nm"), "--socket", p.at("socket"))...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := p.ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return strings.ReplaceAll(out.String(), p.root, ""), strings.ReplaceAll(errs.String(), p.root, ""), cmd.ProcessState.ExitCode()
}

func (p place) install(t *testing.T, args ...string) (stdout, stderr string, code int) {
	return p.run(t, append([]string{"install", "--cni-plugin", rig.Binary(t, "onerule", "onerule/plugin/onerule"), "--network-status-file", p.at("network.json")}, args...)...)
}

// told writes what a daemon says.
func (p place) told(t *testing.T, s network.Status) {
	t.Helper()
	b, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(p.at("network.json"), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (p place) lists(t *testing.T) []string {
	t.Helper()
	list, err := filepath.Glob(p.at("net.d/*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		list[i] = filepath.Base(list[i])
	}
	return list
}

func TestInstall(t *testing.T) {
	p := place{netns.New(t, "node"), t.TempDir()}
	cidrs := []string{"--pod-cidrs", "10.1.1.0/24,fd00:1::/112", "--wait", "1ms"}
	t.Run("D6 the plugin alone", func(t *testing.T) {
		stdout, stderr, code := p.install(t)
		if code != 0 || !strings.HasPrefix(stdout, "/bin/onerule written\nno list of plugins is published") {
			t.Errorf("code %d: %s%s", code, stdout, stderr)
		}
	})
	for name, c := range map[string]struct {
		says *network.Status
		want string
	}{
		"nobody says so":        {nil, "the daemon has not said that pods can be served"},
		"what is said is old":   {&network.Status{Served: true, Time: time.Now().Add(-time.Hour)}, "what the daemon says in /network.json is of"},
		"not all is loaded yet": {&network.Status{Time: time.Now()}, "the daemon has not loaded everything yet"},
		"something is wrong":    {&network.Status{Served: true, Time: time.Now(), Conditions: []network.Condition{{Code: 51, Message: "no routes"}}}, "no routes"},
	} {
		t.Run("D8 no list if "+name, func(t *testing.T) {
			if c.says != nil {
				p.told(t, *c.says)
			}
			_, stderr, code := p.install(t, cidrs...)
			if code != 1 || !strings.HasPrefix(stderr, "oneruled: no list of plugins is published: "+c.want) {
				t.Errorf("code %d: %s", code, stderr)
			}
			if got := p.lists(t); len(got) > 0 {
				t.Errorf("there is %q", got)
			}
		})
		_ = os.Remove(p.at("network.json")) // the next one begins without
	}
	p.told(t, network.Status{Served: true, Time: time.Now(), Conditions: []network.Condition{}})
	t.Run("D8 the list, once pods can be served", func(t *testing.T) {
		want := "/bin/onerule is as it should be\n/net.d/10-onerule.conflist written\n"
		if stdout, stderr, code := p.install(t, cidrs...); code != 0 || stdout != want {
			t.Errorf("code %d: %s%s", code, stdout, stderr)
		}
	})
	other := p.at("net.d/05-other.conflist")
	if err := os.WriteFile(other, []byte(`{"name": "old", "plugins": [{"type": "bridge"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Run("D42 a list that comes first is told", func(t *testing.T) {
		stdout, stderr, code := p.install(t, cidrs...)
		if code != 2 || !strings.HasSuffix(stdout, "\n05-other.conflist (network old of bridge) comes before 10-onerule.conflist: pods get its network, not ours\n") {
			t.Errorf("code %d: %s%s", code, stdout, stderr)
		}
	})
	t.Run("D42 or set aside, until it is brought back", func(t *testing.T) {
		if stdout, stderr, code := p.install(t, append(cidrs, "--cni-exclusive")...); code != 0 || !strings.HasSuffix(stdout, "\n05-other.conflist set aside\n") {
			t.Errorf("code %d: %s%s", code, stdout, stderr)
		}
		if got, want := p.lists(t), []string{"05-other.conflist.onerule.bak", install.ListName}; !cmp.Equal(got, want) {
			t.Errorf("there is %q, want %q", got, want)
		}
	})
	p.uninstall(t)
}

func (p place) uninstall(t *testing.T) {
	t.Run("D6 uninstalling while a pod is attached takes the list only", func(t *testing.T) {
		p.ns.Run(t, "ip", "link", "add", "onepod", "type", "bridge")
		p.ns.Run(t, "nft", "add table ip onerule; add table ip others")
		record := p.at("state/pods/attachments/pod:eth0.json")
		if err := errors.Join(os.MkdirAll(filepath.Dir(record), 0o700), os.WriteFile(record, []byte(`{"hostLink": "onepod"}`), 0o600)); err != nil {
			t.Fatal(err)
		}
		want := "05-other.conflist is back\nthe list of plugins is gone; 1 interfaces of pods are attached, so the rest stays: run it again when they are gone\n"
		if stdout, stderr, code := p.run(t, "uninstall"); code != 2 || stdout != want {
			t.Errorf("code %d: %s%s", code, stdout, stderr)
		}
		if got := p.ns.Run(t, "nft", "list", "tables"); !strings.Contains(got, "table ip onerule\n") {
			t.Errorf("tables: %s", got)
		}
	})
	t.Run("and everything when it is gone", func(t *testing.T) {
		p.ns.Run(t, "ip", "link", "del", "onepod")
		if stdout, stderr, code := p.run(t, "uninstall"); code != 0 {
			t.Errorf("code %d: %s%s", code, stdout, stderr)
		}
		if got := p.ns.Run(t, "nft", "list", "tables"); strings.TrimSpace(got) != "table ip others" {
			t.Errorf("tables: %s", got)
		}
		if _, err := os.Stat(p.at("bin/onerule")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the plugin: %v", err)
		}
		if got := p.lists(t); !cmp.Equal(got, []string{"05-other.conflist"}) {
			t.Errorf("there is %q", got)
		}
	})
}

func TestPreflight(t *testing.T) {
	p := place{netns.New(t, "node"), t.TempDir()}
	t.Run("in words", func(t *testing.T) {
		stdout, stderr, code := p.install(t, "--preflight")
		for _, want := range []string{"OK    nft  ", "OK    tables ip  ", "OK    tables ip6  ", "OK    kernel  ", "OK    plugin  ", "  other lists  ", "  boot ID  "} {
			if !strings.Contains(stdout, want) {
				t.Errorf("no %q", want)
			}
		}
		if code != 0 || t.Failed() {
			t.Errorf("code %d:\n%s%s", code, stdout, stderr)
		}
	})
	t.Run("for programs, and with a code for what is lacking", func(t *testing.T) {
		stdout, stderr, code := p.install(t, "--preflight", "-o", "json", "--cni-plugin", "/bin/false")
		var got struct {
			Failed int
			Checks install.Report
		}
		if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 2 || got.Failed != 1 || len(got.Checks) < 15 {
			t.Errorf("code %d, %v:\n%s%s", code, err, stdout, stderr)
		}
	})
	t.Run("a daemon that runs would put back what is taken away", func(t *testing.T) {
		d := rig.New(t, p.ns, "--socket", p.at("socket"))
		d.Run()
		d.AwaitHealthy()
		rig.Eventually(t, "it is refused", func() error {
			if _, stderr, code := p.run(t, "uninstall"); code != 1 || !strings.Contains(stderr, "stop it first") {
				return errors.New(stderr)
			}
			return nil
		})
	})
}
