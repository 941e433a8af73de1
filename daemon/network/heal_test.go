package network_test

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"onerule/nft/hostport"
	"onerule/test/rig"
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
	for _, c := range []struct {
		name, kind, harm, look, text string
	}{
		{"D11 a route is deleted", "route", "ip route del 10.1.2.0/24", "ip route show proto 112", "10.1.2.0/24 via 172.16.1.2"},
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
			before := a.foreign(t, c.kind)
			fields := strings.Fields(c.harm)
			a.ns.Run(t, fields[0], fields[1:]...)
			rig.Eventually(t, c.kind+" is counted", func() error {
				if a.foreign(t, c.kind) == before {
					return fmt.Errorf("it is not")
				}
				return nil
			})
			a.has(t, c.look, c.text, true)
		})
	}
	t.Run("D13 nft flush ruleset", func(t *testing.T) {
		a.ns.Run(t, "nft", "flush", "ruleset")
		for _, table := range []string{"ip onerule\n", "ip6 onerule\n", "ip onerule-guard", "ip6 onerule-guard"} {
			a.has(t, "nft list tables", "table "+table, true)
		}
		a.has(t, "nft list set ip6 onerule-guard pod-ranges", "fd00:1:0:1::/112", true)
	})
	t.Run("nothing of it is left to tell", func(t *testing.T) {
		a.awaitStatus(t)
		if n := a.daemon.Metric("onerule_pod_network_failing"); n != 0 {
			t.Errorf("failing is %v", n)
		}
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
	harm := func(args ...string) {
		t.Helper()
		before := a.foreign(t, "hostports")
		a.ns.Run(t, "nft", args...)
		rig.Eventually(t, "it is counted", func() error {
			if a.foreign(t, "hostports") == before {
				return fmt.Errorf("it is not")
			}
			return nil
		})
		port()
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
}

func TestWhatIsInTheWayOfPodsIsTold(t *testing.T) {
	a := single(t)
	t.Run("D14 a foreign chain that drops", func(t *testing.T) {
		a.ns.Run(t, "nft", "add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }")
		const words = "chain FORWARD of table ip filter at the forward hook drops by its policy"
		a.awaitStatus(t, words)
		a.says(t, words, 1)
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
	t.Run("D18 route_localnet", func(t *testing.T) {
		a.ns.Sysctl(t, "net.ipv4.conf.eth0.route_localnet", "1")
		a.ns.Run(t, "nft", "add table ip anything") // else it is seen half a minute later
		a.says(t, "route_localnet is set on eth0", 1)
		if n := a.daemon.Metric("onerule_route_localnet_devices"); n != 1 {
			t.Errorf("the metric is %v", n)
		}
		a.awaitStatus(t)
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
