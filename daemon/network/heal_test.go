package network_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/nft/hostport"
	"onerule/test/rig"
	"onerule/test/wired"
)

// single is a world of which only node a's daemon runs.
func single(t *testing.T, flags ...string) *host {
	t.Helper()
	w := newWorld(t, nil, flags...)
	a := w.nodes[0]
	a.daemon.Run()
	a.daemon.AwaitHealthy()
	a.awaitStatus(t)
	a.has(t, "nft list tables", "onerule-guard", true)
	return a
}

// has waits until what a command prints has a text, or has it no more.
func (h *host) has(t *testing.T, command, text string, want bool) {
	t.Helper()
	rig.Eventually(t, fmt.Sprintf("%s has %q: %t", command, text, want), func() error {
		fields := strings.Fields(command)
		out, err := h.ns.Output(fields[0], fields[1:]...)
		if strings.Contains(out, text) != want {
			return fmt.Errorf("%s: %w", out, err)
		}
		return nil
	})
}

// says waits until the daemon has said something so often.
func (h *host) says(t *testing.T, text string, times int) {
	t.Helper()
	rig.Eventually(t, fmt.Sprintf("%q is said %d times", text, times), func() error {
		if n := strings.Count(h.daemon.Log(), text); n != times {
			return fmt.Errorf("it is said %d times", n)
		}
		return nil
	})
}

func (h *host) foreign(t *testing.T, kind string) float64 {
	t.Helper()
	return h.daemon.Metric("onerule_foreign_changes_total", "kind", kind)
}

func TestWhatOthersChangeIsPutRightAndCounted(t *testing.T) {
	a := single(t)
	var repairs wired.Repairs
	for _, c := range []struct {
		name, kind, harm, look, text string
	}{
		{"D11 a route is deleted", "route", "ip route del 10.1.2.0/24", "ip route show proto 112", "10.1.2.0/24 via 172.16.1.2"},
		{"D11 all rules are flushed", "rule", "ip rule flush", "ip rule show", "32766:\tfrom all lookup main"},
		{"D11 all IPv6 rules are flushed", "rule", "ip -6 rule flush", "ip -6 rule show", "32766:\tfrom all lookup main"},
		{"D10 a neighbour is deleted", "neighbour", "ip neigh del 10.1.3.0 dev vxlan-onerule", "ip neigh show dev vxlan-onerule", "10.1.3.0 lladdr"},
		{"a forwarding entry is deleted", "forwarding entry", "bridge fdb del $MAC dev vxlan-onerule dst 172.16.2.1", "bridge fdb show dev vxlan-onerule", "dst 172.16.2.1"},
		{"D11 an address is deleted", "address", "ip addr del 10.1.1.0/32 dev vxlan-onerule", "ip addr show dev vxlan-onerule", "10.1.1.0/32"},
		{"the device is deleted", "link", "ip link del vxlan-onerule", "ip -br link", "vxlan-onerule"},
		{"D27 forwarding is switched off", "forwarding", "sysctl -w net.ipv4.ip_forward=0", "sysctl net.ipv4.ip_forward", "= 1"},
		{"D26 rp_filter is strict", "rp_filter", "sysctl -w net.ipv4.conf.vxlan-onerule.rp_filter=1", "sysctl net.ipv4.conf.vxlan-onerule.rp_filter", "= 2"},
		{"D13 the guard's table is deleted", "guard", "nft delete table ip onerule-guard", "nft list tables", "table ip onerule-guard"},
		{"D13 a chain of the guard is flushed", "guard", "nft flush chain ip6 onerule-guard from-pods", "nft list chain ip6 onerule-guard from-pods", "spoofed"},
		{"D13 a range is deleted", "guard", "nft flush set ip onerule-guard pod-ranges", "nft list set ip onerule-guard pod-ranges", "10.1.1.0/24"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if strings.Contains(c.harm, "$MAC") {
				c.harm = strings.ReplaceAll(c.harm, "$MAC", a.entryTo(t, "172.16.2.1"))
			}
			repairs.Try(t, c.name, func() {
				a.counts(t, c.kind, strings.Fields(c.harm)...)
				a.has(t, c.look, c.text, true)
			})
		})
	}
	t.Run("D13 nft flush ruleset", func(t *testing.T) {
		repairs.Try(t, "flush ruleset", func() {
			a.ns.Run(t, "nft", "flush", "ruleset")
			for _, table := range []string{"ip onerule\n", "ip6 onerule\n", "ip onerule-guard", "ip6 onerule-guard"} {
				a.has(t, "nft list tables", "table "+table, true)
			}
			a.has(t, "nft list set ip6 onerule-guard pod-ranges", "fd00:1:0:1::/112", true)
		})
	})
	repairs.Tell(t)
	t.Run("nothing of it is left to tell", func(t *testing.T) {
		a.awaitStatus(t)
		if n := a.daemon.Metric("onerule_pod_network_failing"); n != 0 {
			t.Errorf("failing is %v", n)
		}
	})
}

// counts does harm, and waits until it is counted.
func (h *host) counts(t *testing.T, kind string, harm ...string) {
	t.Helper()
	before := h.foreign(t, kind)
	h.ns.Run(t, harm[0], harm[1:]...)
	rig.Eventually(t, kind+" is counted", func() error {
		if h.foreign(t, kind) == before {
			return fmt.Errorf("it is not")
		}
		return nil
	})
}

// entryTo gives the MAC of the forwarding entry to a node.
func (h *host) entryTo(t *testing.T, remote string) string {
	t.Helper()
	for line := range strings.Lines(h.ns.Run(t, "bridge", "fdb", "show", "dev", "vxlan-onerule")) {
		if strings.Contains(line, "dst "+remote+" ") {
			return strings.Fields(line)[0]
		}
	}
	t.Fatalf("no forwarding entry to %s", remote)
	return ""
}

// A pod's link on the node is put right as the plugin made it, whoever changed it, and the
// pod is reached again.
func TestD12_LinksOfPodsArePutRightAndCounted(t *testing.T) {
	a := single(t)
	dev := a.podLink(t)
	before := a.link(t, dev)
	a.reaches(t)
	var repairs wired.Repairs
	for _, c := range []struct{ name, kind, harm string }{
		{"the link is taken down", "link", "ip link set DEV down"},
		{"its addresses are flushed and it is taken down", "link", "ip addr flush dev DEV; ip link set DEV down"},
		{"its addresses are flushed", "address", "ip addr flush dev DEV"},
		{"D11 its routes are flushed", "route", "ip route flush dev DEV; ip -6 route flush dev DEV proto 111"},
		{"D11 the route to one pod is deleted", "route", "ip route del POD"},
		{"a route to a pod leads elsewhere", "route", "ip route replace POD via 172.16.1.254"},
		{"D10 its MAC is another", "link", "ip link set DEV address 02:00:00:00:00:07"},
		{"D10 a neighbour is deleted", "neighbour", "ip neigh del POD dev DEV"},
		{"D10 a neighbour is another", "neighbour", "ip neigh replace POD lladdr 02:00:00:00:00:01 dev DEV nud permanent"},
		{"IPv6 is switched off", "sysctl", "sysctl -w net.ipv6.conf.DEV.disable_ipv6=1"},
		{"D16 accept_ra is set and the link taken down", "accept_ra", "sysctl -w net.ipv6.conf.DEV.accept_ra=2; ip link set DEV down"},
	} {
		t.Run(c.name, func(t *testing.T) {
			repairs.Try(t, c.name, func() {
				a.counts(t, c.kind, "sh", "-c", strings.NewReplacer("DEV", dev, "POD", a.pods[0].String()).Replace(c.harm))
				a.asBefore(t, dev, before)
			})
			a.reaches(t)
		})
	}
	repairs.Tell(t)
	t.Run("what is done while no daemon runs is put right by the next one", func(t *testing.T) {
		a.daemon.Stop()
		a.age(t)
		a.ns.Run(t, "sh", "-c", "ip addr flush dev "+dev+"; ip link set "+dev+" down")
		a.daemon.Run()
		a.daemon.AwaitHealthy()
		a.asBefore(t, dev, before)
		a.reaches(t)
		if n := a.foreign(t, "link"); n != 0 {
			t.Errorf("it is counted %v times, and nobody knows who did it when", n)
		}
	})
	t.Run("a pod that goes is let go", func(t *testing.T) {
		if out, err := a.plugin(t, "DEL"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		a.has(t, "ip -br link", dev, false)
		a.has(t, "ip route show proto 111", a.pods[0].String(), false)
		if n := a.foreign(t, "link") + a.foreign(t, "route"); n != 0 {
			t.Errorf("a DEL is counted as %v changes by others", n)
		}
	})
}

// podLink gives the name of the link of the node's pod.
func (h *host) podLink(t *testing.T) string {
	t.Helper()
	for _, word := range strings.Fields(h.ns.Run(t, "ip", "-br", "link", "show", "type", "veth")) {
		if name, _, ok := strings.Cut(word, "@"); ok && strings.HasPrefix(name, "one") {
			return name
		}
	}
	t.Fatal("no link of a pod")
	return ""
}

// link gives all that the node holds for the link of a pod.
func (h *host) link(t *testing.T, dev string) string {
	t.Helper()
	text := ""
	for _, args := range []string{
		"ip -br link show dev DEV", "ip -br addr show dev DEV", "ip -4 route show dev DEV", "ip -6 route show dev DEV proto 111",
		"ip neigh show dev DEV nud permanent", "sysctl net.ipv6.conf.DEV.disable_ipv6 net.ipv6.conf.DEV.accept_ra net.ipv4.conf.DEV.forwarding net.ipv6.conf.DEV.forwarding",
	} {
		f := strings.Fields(strings.ReplaceAll(args, "DEV", dev))
		lines := strings.Split(h.ns.Run(t, f[0], f[1:]...), "\n")
		slices.Sort(lines)
		text += strings.Join(lines, "\n") + "\n"
	}
	return text
}

// asBefore waits until the link of a pod is as it was.
func (h *host) asBefore(t *testing.T, dev, before string) {
	t.Helper()
	rig.Eventually(t, "all is as it was", func() error {
		if diff := cmp.Diff(before, h.link(t, dev)); diff != "" {
			return fmt.Errorf("-before +now:\n%s", diff)
		}
		return nil
	})
}

// reaches wants that the node reaches its pod.
func (h *host) reaches(t *testing.T) {
	t.Helper()
	for _, to := range h.pods {
		rig.Eventually(t, "the pod at "+to.String(), func() error {
			_, err := wired.Ask(h.ns, "udp", netip.AddrPort{}, netip.AddrPortFrom(to, sawPort))
			return err
		})
	}
}

// age makes the records of pods older than a plugin is at work on one.
func (h *host) age(t *testing.T) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(h.state, "*", "attachments", "*.json"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("records: %q, %v", paths, err)
	}
	for _, path := range paths {
		var record map[string]any
		b, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(b, &record)
		}
		if err != nil {
			t.Fatal(err)
		}
		record["created"] = time.Now().Add(-time.Hour).UTC()
		if b, err = json.Marshal(record); err == nil {
			err = os.WriteFile(path, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestHostPortsArePutRight(t *testing.T) {
	a := single(t)
	var ports *hostport.Ports
	err := a.ns.Do(func() (err error) {
		if ports, err = hostport.Open(filepath.Join(a.state, "pods", "hostports")); err != nil {
			return err
		}
		return ports.Claim(context.Background(), "pod-a:eth0", []hostport.Claim{{
			Protocol: hostport.TCP, HostPort: 8080, Pod: netip.AddrPortFrom(a.pods[0], sawPort),
		}})
	})
	if err != nil {
		t.Fatal(err)
	}
	port := func() { t.Helper(); a.has(t, "nft list map ip onerule-hostports hostports-any", "8080", true) }
	port()
	var repairs wired.Repairs
	harm := func(args ...string) {
		t.Helper()
		repairs.Try(t, strings.Join(args, " "), func() {
			a.counts(t, "hostports", append([]string{"nft"}, args...)...)
			port()
		})
	}
	// The guard's repair shows that the daemon has seen all that was before: also the claim.
	a.ns.Run(t, "nft", "flush", "set", "ip", "onerule-guard", "pod-ranges")
	a.has(t, "nft list set ip onerule-guard pod-ranges", "10.1.1.0/24", true)
	if n := a.foreign(t, "hostports"); n != 0 {
		t.Errorf("a claim by the plugin is counted as %v changes by others", n)
	}
	harm("add", "counter", "ip", "onerule-hostports", "foreign")
	harm("delete", "table", "ip", "onerule-hostports")
	harm("flush", "map", "ip", "onerule-hostports", "hostports-any")
	repairs.Tell(t)
}

func TestWhatIsInTheWayOfPodsIsTold(t *testing.T) {
	a := single(t)
	t.Run("D14 a foreign chain that drops", func(t *testing.T) {
		a.ns.Run(t, "nft", "add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }")
		const words = "chain FORWARD of table ip filter at the forward hook drops by its policy"
		a.awaitStatus(t, words)
		a.says(t, words, 1)
		for range 2 { // what may pass by itself is reported when it is seen the third time
			if out, err := a.plugin(t, "STATUS"); err != nil {
				t.Errorf("STATUS of the plugin, at once: %v, %s", err, out)
			}
		}
		if out, err := a.plugin(t, "STATUS"); err == nil || !strings.Contains(string(out), words) || !strings.Contains(string(out), `"code": 51`) {
			t.Errorf("STATUS of the plugin: %v, %s", err, out)
		}
		if n := a.daemon.Metric("onerule_forward_barriers", "family", "ip", "table", "filter", "chain", "FORWARD"); n != 1 {
			t.Errorf("the metric is %v", n)
		}
		a.ns.Run(t, "nft", "add rule ip filter FORWARD counter")
		a.ns.Run(t, "nft", `insert rule ip filter FORWARD iifname "one*" accept; insert rule ip filter FORWARD oifname "one*" accept`)
		a.awaitStatus(t)
		if out, err := a.plugin(t, "STATUS"); err != nil {
			t.Errorf("STATUS of the plugin: %v, %s", err, out)
		}
		a.says(t, words, 2) // that it is over
		if _, there := a.daemon.Metrics()["onerule_forward_barriers"]; there {
			t.Error("the metric is still there")
		}
	})
	t.Run("D18 route_localnet of a device, of a pod's link and of all", func(t *testing.T) {
		set := func(value string, want float64) {
			t.Helper()
			for _, dev := range []string{"all", "eth0", a.podLink(t)} {
				a.ns.Sysctl(t, "net/ipv4/conf/"+dev+"/route_localnet", value)
			}
			rig.Eventually(t, "the metric", func() error {
				if n := a.daemon.Metric("onerule_route_localnet_devices"); n != want {
					return fmt.Errorf("it is %v, want %v", n, want)
				}
				return nil
			})
		}
		set("1", 3)
		if text := "all, eth0, " + a.podLink(t); !strings.Contains(a.daemon.Log(), text) {
			t.Errorf("it does not say %q", text)
		}
		a.awaitStatus(t)
		set("0", 0)
	})
}

func TestABadNodeHarmsItselfAndIsTold(t *testing.T) {
	a := single(t)
	a.daemon.Write("bad.yaml", node("z", 59, []string{"10.1.2.128/25", "fd00:1:0:9::/112"}, addrs("172.16.1.9")...))
	a.says(t, `node="z"`, 1)
	a.has(t, "ip route show proto 112", "10.1.2.0/24 via 172.16.1.2", true)
	a.has(t, "ip route show proto 112", "10.1.2.128/25", false)
	if n := a.daemon.Metric("onerule_node_problems"); n == 0 {
		t.Error("the metric is 0")
	}
	a.awaitStatus(t)
	a.daemon.Remove("bad.yaml")
	rig.Eventually(t, "nothing is wrong any more", func() error {
		if n := a.daemon.Metric("onerule_node_problems"); n != 0 {
			return fmt.Errorf("the metric is %v", n)
		}
		return nil
	})
}

func TestWhatIsNotToBeMasqueradedIsNot(t *testing.T) {
	a := single(t, "--non-masquerade-cidrs=192.0.2.0/24,fd00:9::/64")
	for _, set := range []struct{ family, text string }{{"ip", "192.0.2.0/24"}, {"ip6", "fd00:9::/64"}} {
		a.has(t, "nft list set "+set.family+" onerule-guard cluster-ranges", set.text, true)
		a.has(t, "nft list set "+set.family+" onerule-guard pod-ranges", set.text, false)
	}
}
