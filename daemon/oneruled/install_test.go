package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
	ns           *netns.NS
	root         string
	self, plugin string // the programs
}

// newPlace builds the programs once: that takes seconds.
func newPlace(t *testing.T) place {
	t.Helper()
	p := place{
		netns.New(t, "node"), t.TempDir(),
		rig.Binary(t, "oneruled", "onerule/daemon/oneruled"), rig.Binary(t, "onerule", "onerule/plugin/onerule"),
	}
	t.Setenv("ONERULE_BIN", filepath.Dir(p.self)) // of a daemon that the test starts, too
	return p
}

func (p place) at(name string) string { return filepath.Join(p.root, name) }

// run gives what the program wrote on stdout and on stderr, and its exit code.
func (p place) run(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return p.runBy(t, nil, args...)
}

// runBy has the program run by another one.
func (p place) runBy(t *testing.T, by []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	line := slices.Concat(by, []string{p.self}, args, []string{
		"--cni-bin-dir", p.at("bin"), "--cni-conf-dir", p.at("net.d"), "--etc-dir", p.at("etc"), "--cni-state", p.at("state"),
		"--socket", p.at("socket"),
	})
	cmd := exec.Command(line[0], line[1:]...)
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
	return p.run(t, append([]string{"install", "--cni-plugin", p.plugin, "--network-status-file", p.at("network.json")}, args...)...)
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
	p := newPlace(t)
	cidrs := []string{"--pod-cidrs", "10.1.1.0/24,fd00:1::/112", "--wait", "1ms"}
	t.Run("nothing with --dry-run, which says what would be written", func(t *testing.T) {
		stdout, stderr, code := p.install(t, append(cidrs, "--dry-run", "--wait", "1h")...)
		want := "/bin/onerule would be written\nit would wait for 1h0m0s at most, since the daemon has not said that pods can be served: "
		if code != 0 || !strings.HasPrefix(stdout, want) || !strings.HasSuffix(stdout, "\n/net.d/10-onerule.conflist would be written\n") {
			t.Errorf("code %d: %s%s", code, stdout, stderr)
		}
		if there, err := filepath.Glob(p.at("*")); err != nil || len(there) > 0 {
			t.Errorf("there is %q, %v", there, err)
		}
	})
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
	p.dryRunLater(t, cidrs)
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
	t.Run("also to programs", func(t *testing.T) {
		var got struct {
			Files  []placed
			Others []install.Other
		}
		stdout, stderr, code := p.install(t, append(cidrs, "-o", "json")...)
		err := json.Unmarshal([]byte(stdout), &got)
		if want := []placed{{"/bin/onerule", false}, {"/net.d/10-onerule.conflist", false}}; code != 2 || err != nil || !cmp.Equal(got.Files, want) {
			t.Errorf("code %d, %v: %s%s", code, err, stdout, stderr)
		}
		if len(got.Others) != 1 || !got.Others[0].First {
			t.Errorf("others: %+v", got.Others)
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

// dryRunLater is about a node on which all is as it should be, but for what is asked for.
func (p place) dryRunLater(t *testing.T, cidrs []string) {
	before, err := os.ReadFile(p.at("net.d/" + install.ListName))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"of what is there":    {cidrs, "/bin/onerule is as it should be\n/net.d/10-onerule.conflist is as it should be\n"},
		"of another list":     {append(slices.Clone(cidrs), "--cni-mtu", "1400"), "/bin/onerule is as it should be\n/net.d/10-onerule.conflist would be written\n"},
		"of the plugin alone": {nil, "/bin/onerule is as it should be\nno list of plugins would be published: the daemon does that with --install-cni, or give --pod-cidrs\n"},
	} {
		t.Run("a dry run "+name, func(t *testing.T) {
			if stdout, stderr, code := p.install(t, append([]string{"--dry-run"}, c.args...)...); code != 0 || stdout != c.want {
				t.Errorf("code %d: %s%s", code, stdout, stderr)
			}
		})
	}
	if after, err := os.ReadFile(p.at("net.d/" + install.ListName)); err != nil || string(after) != string(before) {
		t.Errorf("the list has changed (%v):\n%s", err, after)
	}
}

func (p place) uninstall(t *testing.T) {
	t.Run("D6 uninstalling while a pod is attached takes the list only", func(t *testing.T) {
		p.ns.Run(t, "ip", "link", "add", "onepod", "type", "bridge")
		p.ns.Run(t, "nft", "add table ip onerule; add table ip others")
		record := p.at("state/pods/attachments/pod:eth0.json")
		if err := errors.Join(os.MkdirAll(filepath.Dir(record), 0o700), os.WriteFile(record, []byte(`{"hostLink": "onepod"}`), 0o600)); err != nil {
			t.Fatal(err)
		}
		want := "05-other.conflist is back\nthe list of plugins is gone; 1 interface of a pod is attached, so the rest stays: run it again when they are gone\n"
		if stdout, stderr, code := p.run(t, "uninstall"); code != 2 || stdout != want {
			t.Errorf("code %d: %s%s", code, stdout, stderr)
		}
		if got := p.ns.Run(t, "nft", "list", "tables"); !strings.Contains(got, "table ip onerule\n") {
			t.Errorf("tables: %s", got)
		}
	})
	t.Run("and says so to programs", func(t *testing.T) {
		var got uninstalled
		stdout, stderr, code := p.run(t, "uninstall", "-o", "json")
		if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 2 || got.Done || got.Attached != 1 || !strings.Contains(got.Why, "1 interface of a pod is attached") {
			t.Errorf("code %d, %v: %s%s", code, err, stdout, stderr)
		}
	})
	t.Run("and not even that if there is no other list, without which the pod could not end", func(t *testing.T) {
		ours, others := p.at("net.d/"+install.ListName), p.at("net.d/05-other.conflist")
		if err := errors.Join(os.WriteFile(ours, []byte("{}"), 0o600), os.Rename(others, p.at("elsewhere"))); err != nil {
			t.Fatal(err)
		}
		stdout, stderr, code := p.run(t, "uninstall")
		if code != 2 || !strings.HasPrefix(stdout, "1 interface of a pod is attached, and there is no other list of plugins") {
			t.Errorf("code %d: %s%s", code, stdout, stderr)
		}
		if got, want := p.lists(t), []string{install.ListName}; !cmp.Equal(got, want) {
			t.Errorf("there is %q, want %q", got, want)
		}
		if err := os.Rename(p.at("elsewhere"), others); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("and everything when it is gone", func(t *testing.T) {
		p.ns.Run(t, "ip", "link", "del", "onepod")
		if stdout, stderr, code := p.run(t, "uninstall"); code != 0 || stdout != "the list of plugins, our tables and routes, and the plugin are gone\n" {
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
	t.Run("of what is not there it says where it looked", func(t *testing.T) {
		want := "our tables and routes are gone; there was no list of plugins at /net.d/10-onerule.conflist, and no plugin at /bin/onerule\n"
		if stdout, stderr, code := p.run(t, "uninstall"); code != 0 || stdout != want {
			t.Errorf("code %d: %s%s", code, stdout, stderr)
		}
		var got uninstalled
		stdout, stderr, code := p.run(t, "uninstall", "-o", "json")
		if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 || !got.Done || !cmp.Equal(got.Missing, []string{"/net.d/10-onerule.conflist", "/bin/onerule"}) {
			t.Errorf("code %d, %v: %s%s", code, err, stdout, stderr)
		}
	})
}

// Of several tries the list goes in one and the plugin in another.
func TestUninstallingSaysWhatWasThere(t *testing.T) {
	for name, c := range map[string]struct {
		tries []install.Removed
		want  string
	}{
		"all at once":      {[]install.Removed{{List: true, Plugin: true}}, "the list of plugins, our tables and routes, and the plugin are gone"},
		"the list earlier": {[]install.Removed{{List: true}, {Plugin: true}}, "the list of plugins, our tables and routes, and the plugin are gone"},
		"no list":          {[]install.Removed{{Plugin: true}}, "our tables and routes, and the plugin are gone; there was no list of plugins at /l/10-onerule.conflist"},
		"no plugin":        {[]install.Removed{{List: true}}, "the list of plugins, and our tables and routes are gone; there was no plugin at /b/onerule"},
	} {
		t.Run(name, func(t *testing.T) {
			var before gone
			var said strings.Builder
			for i, r := range c.tries {
				d := uninstalled{w: &said, gone: &before}
				if d.went(r); i == len(c.tries)-1 {
					d.all(install.Places{Lists: "/l", Binaries: "/b"})
				}
			}
			if got := said.String(); got != c.want+"\n" {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// As a pod on each node it has nobody who runs it again.
func TestUninstallingWithStayGoesOnUntilItIsDone(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	tries := 0
	var said strings.Builder
	untilDone(ctx, &said, time.Millisecond, func(w io.Writer) error {
		switch tries++; tries {
		case 1:
			return errors.New("the daemon runs")
		case 2, 3:
			fmt.Fprintln(w, "1 is attached")
			return errors.New("found")
		}
		fmt.Fprintln(w, "gone")
		stop()
		return nil
	})
	if want := "the daemon runs\n1 is attached\ngone\n"; said.String() != want || tries != 4 {
		t.Errorf("%d tries said %q, want 4 and %q", tries, said.String(), want)
	}
}

func TestPreflight(t *testing.T) {
	p := newPlace(t)
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
	t.Run("in a container, which sees its own /proc/sys read-only", func(t *testing.T) {
		dir := t.TempDir()
		contained := []string{"unshare", "--mount", "sh", "-c", "mount --bind /proc/sys " + dir + " && mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && exec \"$@\"", "sh"}
		p.ns.Run(t, "sysctl", "-qw", "net.ipv4.ip_forward=0")
		look := []string{"install", "--preflight", "--cni-plugin", p.plugin}
		if stdout, stderr, code := p.runBy(t, contained, look...); code != 2 || !strings.Contains(stdout, "FAIL  forward IPv4    off, and /proc/sys/net/ipv4/ip_forward can't be written") {
			t.Errorf("without --sysctl-dir: code %d:\n%s%s", code, stdout, stderr)
		}
		if stdout, stderr, code := p.runBy(t, contained, append(look, "--sysctl-dir", dir)...); code != 0 || !strings.Contains(stdout, "OK    forward IPv4    off: the first pod turns it on") {
			t.Errorf("with it: code %d:\n%s%s", code, stdout, stderr)
		}
	})
	t.Run("a daemon that runs would put back what is taken away", func(t *testing.T) {
		d := rig.New(t, p.ns, "--socket", p.at("socket"))
		d.Run()
		d.AwaitHealthy()
		if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err == nil { // its own counting is no obstacle
			if stdout, _, _ := p.install(t, "--preflight"); !strings.Contains(stdout, "OK    BPF             connections are counted already") {
				t.Errorf("got:\n%s", stdout)
			}
		}
		rig.Eventually(t, "it is refused", func() error {
			if _, stderr, code := p.run(t, "uninstall"); code != 1 || !strings.Contains(stderr, "stop it first") {
				return errors.New(stderr)
			}
			return nil
		})
	})
}
