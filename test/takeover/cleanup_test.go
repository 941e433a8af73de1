package takeover_test

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/test/addr"
	"onerule/test/bpffs"
	"onerule/test/netns"
	"onerule/test/rig"
)

// A cleaned is a node on which the real program is asked for --cleanup.
type cleaned struct {
	ns   *netns.NS
	bin  string
	pins string // where counters are pinned
}

// run gives whether it succeeded, and what it said. wrapper runs it, if there is any.
func (c cleaned) run(t *testing.T, env string, wrapper ...string) (ok bool, said string) {
	t.Helper()
	line := append(wrapper, c.bin, "--cleanup", "--hostname-override", rig.NodeName, "--bpf-dir", c.pins)
	cmd, out := exec.Command(line[0], line[1:]...), &rig.Output{}
	cmd.Stdout, cmd.Stderr = out, out
	if env != "" {
		cmd.Env = []string{env}
	}
	if err := c.ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	return cmd.Wait() == nil, out.String()
}

// ours lets the daemon write tables with a Service, and ends it.
func (c cleaned) ours(t *testing.T) {
	t.Helper()
	p := addr.IPv4()
	d := rig.New(t, c.ns, "--bpf-dir", c.pins)
	d.Write("web.yaml", rig.Service("web", []netip.Addr{p.VIP(0)}, "web/TCP/80"))
	d.Run()
	d.AwaitHealthy()
	d.Stop()
}

// theirs writes what a kube-proxy in each mode leaves.
func (c cleaned) theirs(t *testing.T) {
	t.Helper()
	c.ns.Run(t, "nft", `
		table ip kube-proxy { chain services { type nat hook prerouting priority -100; }; }
		table ip6 kube-proxy { chain services { type nat hook prerouting priority -100; }; }`)
	for _, suffix := range []string{"nft", "legacy"} {
		for _, program := range []string{"iptables-" + suffix, "ip6tables-" + suffix} {
			c.ns.Run(t, program, "-t", "nat", "-N", "KUBE-SERVICES")
			c.ns.Run(t, program, "-t", "nat", "-A", "PREROUTING", "-m", "comment", "--comment", "kubernetes service portals", "-j", "KUBE-SERVICES")
		}
	}
}

// traces gives what is there of ours and of kube-proxy.
func (c cleaned) traces(t *testing.T) []string {
	t.Helper()
	text := c.ns.Run(t, "nft", "list", "ruleset")
	for _, save := range []string{"iptables-legacy-save", "ip6tables-legacy-save"} {
		text += c.ns.Run(t, save)
	}
	var found []string
	for _, name := range []string{"table ip onerule", "table ip6 onerule", "table ip kube-proxy", "table ip6 kube-proxy", "KUBE-SERVICES"} {
		if strings.Contains(text, name) {
			found = append(found, name)
		}
	}
	if _, err := os.Stat(c.pins); err == nil {
		found = append(found, "counters")
	}
	return found
}

func TestA14_10R109286CleanupLeavesNothing(t *testing.T) {
	c := cleaned{netns.New(t, "node"), rig.Binary(t, "oneruled", "onerule/daemon/oneruled"), bpffs.New(t)}
	const foreign = "table inet others { chain input { type filter hook input priority 0; tcp dport 22 accept; }; }"
	c.ns.Run(t, "nft", foreign)
	kept := c.ns.Run(t, "nft", "list", "table", "inet", "others")
	t.Run("everything of ours and of kube-proxy goes", func(t *testing.T) {
		c.ours(t)
		c.theirs(t)
		if n := len(c.traces(t)); n != 6 {
			t.Fatalf("%d traces before, want 6: the test shows nothing", n)
		}
		if ok, said := c.run(t, ""); !ok {
			t.Errorf("it fails: %s", said)
		}
		if left := c.traces(t); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
		if diff := cmp.Diff(kept, c.ns.Run(t, "nft", "list", "table", "inet", "others")); diff != "" {
			t.Errorf("a table of others (-before +after): %s", diff)
		}
	})
	t.Run("nothing is there", func(t *testing.T) {
		if ok, said := c.run(t, ""); !ok || strings.Contains(said, "removing") {
			t.Errorf("success %t, it says %q", ok, said)
		}
	})
	t.Run("no nft is there", func(t *testing.T) {
		c.ours(t)
		if ok, said := c.run(t, "PATH="+t.TempDir()); !ok {
			t.Errorf("it fails: %s", said)
		}
		if left := c.traces(t); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
	})
	t.Run("what could not be removed is said", func(t *testing.T) {
		c.ours(t)
		if ok, said := c.run(t, "", "setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"); ok || !strings.Contains(said, "oneruled: --cleanup: ") {
			t.Errorf("without privilege: success %t, it says %q", ok, said)
		}
		c.theirs(t)
		if ok, said := c.run(t, "PATH="+withoutLegacy(t)); ok || !strings.Contains(said, "iptables-legacy") {
			t.Errorf("without a program: success %t, it says %q", ok, said)
		}
		if left := c.traces(t); len(left) != 1 || left[0] != "KUBE-SERVICES" {
			t.Errorf("left: %q, want what it has no program for", left)
		}
	})
}

// withoutLegacy gives a directory with the programs of a node but for iptables-legacy.
func withoutLegacy(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"nft", "iptables-nft", "ip6tables-nft", "iptables-nft-save", "ip6tables-nft-save", "iptables-nft-restore", "ip6tables-nft-restore", "ipset"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue // which a node need not have
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
