package fabric_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"onerule/daemon/fabric"
	"onerule/test/netns"
	"onerule/test/wired"
)

// bridge gives a node another pod, behind a bridge, as the plugin of that name wires it.
func (h *host) bridge(t *testing.T) (pod *netns.NS, at []netip.Addr) {
	t.Helper()
	pod = wired.Quiet(t, "old-"+h.node.Name)
	h.ns.Run(t, "ip", "link", "add", "cni0", "type", "bridge")
	h.ns.Run(t, "ip", "link", "set", "cni0", "up")
	netns.Wire(t, h.ns, "vethold", pod, "eth0")
	h.ns.Run(t, "ip", "link", "set", "vethold", "master", "cni0")
	for _, p := range h.node.PodCIDRs {
		gateway := p.Addr().Next()
		a := gateway
		for range 49 {
			a = a.Next()
		}
		h.ns.Addr(t, "cni0", netip.PrefixFrom(gateway, p.Bits()).String())
		pod.Addr(t, "eth0", netip.PrefixFrom(a, p.Bits()).String())
		pod.Route(t, "default", gateway.String())
		wired.Echo(t, pod, netip.AddrPortFrom(a, echoPort))
		at = append(at, a)
	}
	return pod, at
}

// A node moves from the plugin bridge under its running pods: the range of both is the same,
// and the kernel's own route to the bridge must go on to count before the one that refuses.
func TestPodsBehindAnOldBridgeAreReached(t *testing.T) {
	w := newWorld(t)
	a, b := w.nodes[0], w.nodes[1]
	old, at := a.bridge(t)
	w.start(t, config())
	for _, to := range at {
		if got := a.ns.Run(t, "ip", "route", "get", to.String()); !strings.Contains(got, "dev cni0") {
			t.Errorf("the way to %s is %q, want by the bridge", to, got)
		}
	}
	// The node's own new pods are another matter: for the old ones they are on the bridge.
	t.Run("by the node and by the pods of another one", func(t *testing.T) {
		for _, from := range []*netns.NS{a.ns, b.pod} {
			for _, to := range at {
				wired.Eventually(t, func() error { _, err := ask(from, to, 1400, time.Second); return err })
			}
		}
	})
	t.Run("and reach the pods of the other one", func(t *testing.T) {
		for _, to := range b.podAddrs() {
			wired.Eventually(t, func() error { _, err := ask(old, to, 1400, time.Second); return err })
		}
	})
}

// Before, IPv6 routes that refuse had the metric of all others.
func TestRoutesOfAnEarlierMetricGo(t *testing.T) {
	w := newWorld(t)
	a := w.nodes[0]
	_, at := a.bridge(t)
	a.ns.Run(t, "ip", "-6", "route", "add", "unreachable", "fd00:1:0:1::/112", "metric", "112", "proto", "112")
	a.start(t, config(), w.list())
	want := "unreachable fd00:1:0:1::/112 dev lo metric 2147483647"
	if got := a.holds(t); !strings.Contains(got, want) || strings.Count(got, "fd00:1:0:1::/112") != 1 {
		t.Errorf("got\n%s\nwant %s, and no other to this range", got, want)
	}
	if _, err := ask(a.ns, at[1], 1400, patience); err != nil {
		t.Error(err)
	}
	if got := a.changed(); len(got) > 0 {
		t.Errorf("told were %q: nobody changed anything", got)
	}
	a.stop()
	if err := a.ns.Do(fabric.Remove); err != nil {
		t.Fatal(err)
	}
	if got := a.holds(t); strings.Contains(got, "metric") {
		t.Errorf("after all was removed there is still\n%s", got)
	}
}
