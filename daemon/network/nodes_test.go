package network_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/test/netns"
	"onerule/test/rig"
	"onerule/test/wired"
)

// service gives a Service of the pod of node c.
func service() (manifests []string, vips []netip.Addr) {
	vips = addrs("10.96.0.10", "fd00:96::10")
	manifests = []string{rig.Service("web", vips, "web/TCP/80", "web-udp/UDP/80")}
	for i, a := range addrs("10.1.3.2", "fd00:1:0:3::2") {
		manifests = append(manifests, rig.Slice(fmt.Sprintf("web-%d", i), "web", []netip.Addr{a}, "web/TCP/7", "web-udp/UDP/7"))
	}
	return manifests, vips
}

// An mtu says how long packets between the pods of two nodes can be.
type mtu func(a, b *host, to netip.Addr) int

// byRouter is that of nodes that are encapsulated where a router is between them.
func byRouter(a, b *host, _ netip.Addr) int {
	if a.Routed(b.Member) {
		return 1450
	}
	return 1500
}

// reach checks that every pod reaches every pod of the others with its own address, with
// packets as long as the way allows.
func (w *world) reach(t *testing.T, longest mtu) {
	t.Helper()
	for _, a := range w.nodes {
		for _, b := range w.nodes {
			if a == b {
				continue
			}
			for i, to := range b.pods {
				at := netip.AddrPortFrom(to, echoPort)
				size := longest(a, b, to)
				rig.Eventually(t, fmt.Sprintf("%d bytes from %s to %s", size, a.pod.Name(), to), func() error {
					_, err := wired.Whole(a.pod, at, size, time.Second)
					return err
				})
				if got, err := wired.Whole(a.pod, at, size+1, 100*time.Millisecond); err == nil || size < 1500 && got != size {
					t.Errorf("%d bytes pass from %s to %s, or its MTU is %d: %v", size+1, a.pod.Name(), to, got, err)
				}
				if err := wired.Transfer(a.pod, at); err != nil {
					t.Error(err)
				}
				hears(t, a.pod, netip.Addr{}, netip.AddrPortFrom(to, sawPort), fmt.Sprintf("pod-%s saw %s", b.name, a.pods[i]))
			}
		}
	}
}

// serves checks Services and the outside, from the pod of a and from node a.
func (w *world) serves(t *testing.T, vips []netip.Addr) {
	t.Helper()
	a := w.nodes[0]
	for i, vip := range vips {
		hears(t, a.pod, netip.Addr{}, netip.AddrPortFrom(vip, 80), "pod-c saw "+a.pods[i].String())
		// The node's own connections come back by VXLAN only if they have its address there.
		first := a.Ranges[i].Addr().String()
		hears(t, a.ns, netip.Addr{}, netip.AddrPortFrom(vip, 80), "pod-c saw "+first)
		hears(t, a.pod, netip.Addr{}, netip.AddrPortFrom(outside()[i], sawPort), "outside saw "+a.addrs[i].String())
	}
}

func TestThreeNodes(t *testing.T) {
	manifests, vips := service()
	w := newWorld(t, manifests)
	w.start(t)
	a, b := w.nodes[0], w.nodes[1]
	t.Run("D20 D43 every pod reaches every pod, Services and the outside", func(t *testing.T) {
		w.reach(t, byRouter)
		w.serves(t, vips)
	})
	t.Run("a node that binds its uplink's address reaches pods behind VXLAN", func(t *testing.T) {
		for i, to := range w.nodes[2].pods {
			first := a.Ranges[i].Addr().String()
			hears(t, a.ns, a.addrs[i], netip.AddrPortFrom(to, sawPort), "pod-c saw "+first)
		}
	})
	t.Run("what carries VXLAN is not masqueraded", func(t *testing.T) {
		carriers := 0
		for line := range strings.Lines(a.ns.Run(t, "conntrack", "-L", "-p", "udp", "--dport", "8472")) {
			fields := strings.Fields(line)
			var ports []string
			for _, f := range fields {
				if p, ok := strings.CutPrefix(f, "sport="); ok {
					ports = append(ports, p)
				}
				if p, ok := strings.CutPrefix(f, "dport="); ok {
					ports = append(ports, p)
				}
			}
			if len(ports) != 4 || !strings.Contains(line, "src="+a.addrs[0].String()+" ") {
				continue
			}
			if carriers++; ports[0] != ports[3] {
				t.Errorf("masqueraded: %s", line)
			}
		}
		if carriers == 0 {
			t.Error("no flow of VXLAN is seen")
		}
	})
	t.Run("with a daemon killed", func(t *testing.T) {
		b.daemon.Kill()
		w.reach(t, byRouter)
	})
	t.Run("after all daemons are gone nothing has changed", func(t *testing.T) {
		before := a.kernel(t)
		for _, h := range w.nodes {
			h.daemon.Stop()
		}
		if diff := cmp.Diff(before, a.kernel(t)); diff != "" {
			t.Errorf("the kernel (-before +after):\n%s", diff)
		}
		w.reach(t, byRouter)
		w.serves(t, vips)
	})
	t.Run("and a daemon that begins again changes nothing", func(t *testing.T) {
		before := a.kernel(t)
		a.daemon.Run()
		a.daemon.AwaitHealthy()
		rig.Eventually(t, "the pod network is in the kernel", func() error {
			if a.daemon.Metric("onerule_pod_network_failing") != 0 || a.daemon.Metric("onerule_route_operations_total", "operation", "read") == 0 {
				return fmt.Errorf("it is not yet")
			}
			return nil
		})
		if diff := cmp.Diff(before, a.kernel(t)); diff != "" {
			t.Errorf("the kernel (-before +after):\n%s", diff)
		}
		for _, operation := range []string{"set", "delete", "setting"} {
			if n := a.daemon.Metric("onerule_route_operations_total", "operation", operation); n != 0 {
				t.Errorf("%v operations %s, want none", n, operation)
			}
		}
	})
	t.Run("--cleanup removes what is ours and nothing else", func(t *testing.T) { a.cleanUp(t) })
}

// kernel gives what the node has of rules, routes and devices, without what passes.
func (h *host) kernel(t *testing.T) string {
	t.Helper()
	// A table is written as it stands, but for elements that a timeout ends.
	text := h.ns.Run(t, "nft", "-s", "list", "ruleset") +
		h.ns.Run(t, "ip", "-4", "route", "show", "table", "main") + h.ns.Run(t, "ip", "-6", "route", "show", "table", "main") +
		h.ns.Run(t, "ip", "-br", "link") + h.ns.Run(t, "bridge", "fdb", "show", "dev", "vxlan-onerule") +
		h.ns.Run(t, "ip", "neigh", "show", "dev", "vxlan-onerule", "nud", "permanent")
	return text
}

func (h *host) cleanUp(t *testing.T) {
	h.daemon.Stop()
	h.ns.Run(t, "nft", "add table inet foreign; add chain inet foreign x")
	podRoutes := func() string { return h.ns.Run(t, "ip", "route", "show", "proto", "111") }
	before := podRoutes()
	h.ns.Run(t, rig.Binary(t, "oneruled", "onerule/daemon/oneruled"), "--cleanup")
	if got := h.ns.Run(t, "nft", "list", "tables"); strings.TrimSpace(got) != "table inet foreign" {
		t.Errorf("tables: %s", got)
	}
	for _, args := range [][]string{{"-4", "route", "show", "proto", "112"}, {"-6", "route", "show", "proto", "112"}} {
		if got := h.ns.Run(t, "ip", args...); strings.TrimSpace(got) != "" {
			t.Errorf("ip %q: %s", args, got)
		}
	}
	if got := h.ns.Run(t, "ip", "-br", "link"); strings.Contains(got, "vxlan") {
		t.Errorf("devices: %s", got)
	}
	if got := podRoutes(); got != before || got == "" {
		t.Errorf("routes to pods: %s, were %s", got, before)
	}
}

// A drop-in for kube-proxy touches no routes.
func TestWithoutPodNetworkNothingOfItIsThere(t *testing.T) {
	ns := netns.New(t, "node")
	netns.Wire(t, ns, "eth0", netns.New(t, "peer"), "eth0")
	ns.Addr(t, "eth0", "172.16.1.1/24")
	routes := ns.Run(t, "ip", "route")
	d := rig.New(t, ns, "--hostname-override", "a")
	d.Write("nodes.yaml", node("a", 1, []string{"10.1.1.0/24", "fd00:1:0:1::/112"}, addrs("172.16.1.1")...),
		node("b", 2, []string{"10.1.2.0/24", "fd00:1:0:2::/112"}, addrs("172.16.1.2")...))
	d.Run()
	d.AwaitHealthy()
	if got := ns.Run(t, "ip", "route"); got != routes {
		t.Errorf("routes: %s, were %s", got, routes)
	}
	if got := ns.Run(t, "nft", "list", "tables"); strings.Contains(got, "onerule-") {
		t.Errorf("tables: %s", got)
	}
	if _, there := d.Metrics()["onerule_pod_network_failing"]; there {
		t.Error("there are metrics of a pod network")
	}
}
