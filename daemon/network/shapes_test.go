package network_test

import (
	"net/netip"
	"strings"
	"testing"

	"onerule/test/wired"
)

// vxlan gives the MTU with what VXLAN puts before a packet, by IPv4 or IPv6.
func vxlan(f wired.Family) int { return []int{1450, 1430}[f] }

// What nodes have of addresses, and what their daemons are told, decides how pods reach each
// other. Everywhere every pod reaches every other one, with packets as long as can be.
func TestPodsReachEachOtherWhateverNodesHave(t *testing.T) {
	four, six, both := []wired.Family{wired.IPv4}, []wired.Family{wired.IPv6}, wired.Dual().Pods
	for _, c := range []struct {
		name    string
		shape   wired.Shape
		flags   []string
		longest mtu
		prepare func(*testing.T, *world)
		look    func(*testing.T, *host)
	}{
		{name: "--encapsulation=never, where routers know the pods", shape: wired.Dual(), flags: []string{"--encapsulation=never"},
			longest: func(_, _ *host, _ netip.Addr) int { return 1500 }, prepare: routersKnow, look: hasNoDevice},
		{name: "D20 --encapsulation=always", shape: wired.Dual(), flags: []string{"--encapsulation=always"},
			longest: func(_, _ *host, _ netip.Addr) int { return vxlan(wired.IPv4) }, look: routesByDeviceOnly},
		{name: "D20 nodes and pods with IPv6 only", shape: wired.Shape{Nodes: six, Pods: six},
			longest: func(a, b *host, _ netip.Addr) int {
				if a.Routed(b.Member) {
					return vxlan(wired.IPv6)
				}
				return 1500
			}},
		{name: "D20 nodes with IPv6 only, pods with both", shape: wired.Shape{Nodes: six, Pods: both},
			longest: func(a, b *host, to netip.Addr) int {
				if a.Routed(b.Member) || to.Is4() { // no node has an address for a route to these
					return vxlan(wired.IPv6)
				}
				return 1500
			}},
		{name: "D20 nodes with IPv4 only, pods with both", shape: wired.Shape{Nodes: four, Pods: both},
			longest: func(a, b *host, to netip.Addr) int {
				if a.Routed(b.Member) || to.Is6() {
					return vxlan(wired.IPv4)
				}
				return 1500
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorldOf(t, c.shape, nil, c.flags...)
			if c.prepare != nil {
				c.prepare(t, w)
			}
			w.start(t)
			w.reach(t, c.longest)
			for _, h := range w.nodes {
				if c.look != nil {
					c.look(t, h)
				}
				if got := h.daemon.Metric("onerule_node_problems"); got != 0 {
					t.Errorf("node %s finds %v problems:\n%s", h.name, got, h.daemon.Log())
				}
			}
			a, c := w.nodes[0], w.nodes[2]
			t.Run("with a daemon killed", func(t *testing.T) {
				c.daemon.Kill()
				for _, to := range c.pods {
					if err := wired.Transfer(a.pod, netip.AddrPortFrom(to, echoPort)); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// routersKnow gives the router the ways to all pods, as a network has that needs no VXLAN.
func routersKnow(t *testing.T, w *world) {
	for _, h := range w.nodes {
		for i, r := range h.Ranges {
			w.router.Route(t, r.String(), h.addrs[i].String())
		}
	}
}

func hasNoDevice(t *testing.T, h *host) {
	if links := h.ns.Run(t, "ip", "-br", "link"); strings.Contains(links, "vxlan") {
		t.Errorf("node %s has a VXLAN device:\n%s", h.name, links)
	}
}

func routesByDeviceOnly(t *testing.T, h *host) {
	for _, family := range []string{"-4", "-6"} {
		for line := range strings.Lines(h.ns.Run(t, "ip", family, "route", "show", "proto", "112")) {
			if !strings.Contains(line, "dev vxlan-onerule") && !strings.HasPrefix(line, "unreachable") {
				t.Errorf("node %s has %s", h.name, line)
			}
		}
	}
}
