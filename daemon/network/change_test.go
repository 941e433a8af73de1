package network_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"onerule/test/rig"
	"onerule/test/wired"
)

// told gives all daemons a Node, in place of the one that they know.
func (w *world) told(manifest, name string) {
	for _, h := range w.nodes {
		h.daemon.Write("node-"+name+".yaml", manifest)
	}
}

func TestANodeWithoutPodCIDRs(t *testing.T) {
	w := newWorld(t, nil)
	a, b := w.nodes[0], w.nodes[1]
	w.told(node("a", 1, nil, a.addrs...), "a")
	for _, h := range w.nodes {
		h.daemon.Run()
	}
	for _, h := range w.nodes {
		h.daemon.AwaitHealthy()
		h.awaitStatus(t)
	}
	t.Run("the others reach each other", func(t *testing.T) {
		for _, to := range w.nodes[2].pods {
			hears(t, b.pod, netip.Addr{}, netip.AddrPortFrom(to, sawPort), "pod-c saw "+b.pods[wired.Of(to)].String())
		}
	})
	t.Run("it has routes to them, and nobody has one to it", func(t *testing.T) {
		a.has(t, "ip route show proto 112", "10.1.2.0/24 via 172.16.1.2", true)
		a.has(t, "nft list set ip onerule-guard cluster-ranges", "10.1.2.0/23", true)
		for _, h := range w.nodes {
			h.has(t, "ip route show proto 112", "10.1.1.0/24", false)
			h.has(t, "nft list set ip onerule-guard cluster-ranges", "10.1.1.0/24", false)
		}
	})
	t.Run("until it has some", func(t *testing.T) {
		w.told(a.object(), "a")
		w.reach(t, byRouter)
		a.has(t, "nft list set ip onerule-guard pod-ranges", "10.1.1.0/24", true)
		if n := a.daemon.Metric("onerule_node_problems"); n != 0 {
			t.Errorf("problems are %v", n)
		}
	})
}

func TestTheAddressOfANodeChanges(t *testing.T) {
	w := newWorld(t, nil)
	w.start(t)
	w.reach(t, byRouter)
	b, c := w.nodes[1], w.nodes[2]
	for _, change := range []struct {
		node     *host
		four     string
		six      string
		gateways []string
	}{
		{b, "172.16.1.22", "fd00:16:1::22", []string{"172.16.1.254", "fd00:16:1::fe"}},
		{c, "172.16.2.33", "fd00:16:2::33", []string{"172.16.2.254", "fd00:16:2::fe"}},
	} {
		t.Run("of "+change.node.name, func(t *testing.T) {
			h, old := change.node, change.node.addrs
			h.ns.Addr(t, "eth0", change.four+"/24", change.six+"/64")
			h.ns.Run(t, "ip", "addr", "del", old[0].String()+"/24", "dev", "eth0")
			h.ns.Run(t, "ip", "addr", "del", old[1].String()+"/64", "dev", "eth0")
			h.ns.Run(t, "ip", "addr", "replace", change.four+"/24", "dev", "eth0") // it may have gone with the other
			for _, via := range change.gateways {
				h.ns.Run(t, "ip", "route", "replace", "default", "via", via)
			}
			h.addrs = addrs(change.four, change.six)
			w.told(h.object(), h.name)
			w.reach(t, byRouter)
			for _, other := range w.nodes {
				for _, command := range []string{"ip route show proto 112", "ip -6 route show proto 112", "bridge fdb show dev vxlan-onerule"} {
					for _, a := range old {
						other.has(t, command, " "+a.String()+" ", false)
					}
				}
			}
		})
	}
}

// Of two nodes that claim one range, the older keeps it everywhere but on the younger
// itself: only that one's pods are cut off.
func TestTwoNodesWithOneRange(t *testing.T) {
	w := newWorld(t, nil)
	w.start(t)
	a, b, c := w.nodes[0], w.nodes[1], w.nodes[2]
	between := func(t *testing.T) {
		t.Helper()
		for _, pair := range [][2]*host{{a, b}, {b, a}} {
			for i, to := range pair[1].pods {
				hears(t, pair[0].pod, netip.Addr{}, netip.AddrPortFrom(to, sawPort), "pod-"+pair[1].name+" saw "+pair[0].pods[i].String())
			}
		}
	}
	w.told(node("c", c.Number, b.ranges(), c.addrs...), "c")
	for _, h := range []*host{a, b} {
		h.says(t, `problem="podCIDR 10.1.2.0/24 overlaps with one, or with an address, of node b"`, 1)
		h.has(t, "ip route show proto 112", "10.1.3.0/24", false)
	}
	a.has(t, "ip route show proto 112", "10.1.2.0/24 via 172.16.1.2", true)
	between(t)
	t.Run("the younger one believes itself", func(t *testing.T) {
		c.has(t, "ip route show proto 112", "unreachable 10.1.2.0/24", true)
		between(t)
	})
	t.Run("when it has its own again all is well", func(t *testing.T) {
		w.told(c.object(), "c")
		w.reach(t, byRouter)
		for _, h := range w.nodes {
			if n := h.daemon.Metric("onerule_node_problems"); n != 0 {
				t.Errorf("node %s: problems are %v", h.name, n)
			}
		}
	})
	t.Run("when the older one goes the younger has it", func(t *testing.T) {
		w.told(node("c", c.Number, b.ranges(), c.addrs...), "c")
		a.has(t, "ip route show proto 112", "10.1.3.0/24", false)
		for _, h := range []*host{a, c} {
			h.daemon.Remove("node-b.yaml")
		}
		a.has(t, "ip route show proto 112", "10.1.2.0/24 via 10.1.2.0 dev vxlan-onerule", true)
	})
}

// The link of a pod that comes while the daemon runs is looked after like the others, also
// where new links are not to forward.
func TestD27_LinksOfPodsThatComeLaterForward(t *testing.T) {
	a := single(t)
	for _, key := range []string{"net/ipv4/conf/default/forwarding", "net/ipv6/conf/default/forwarding"} {
		a.ns.Sysctl(t, key, "0")
	}
	for _, verb := range []string{"DEL", "ADD"} {
		if out, err := a.plugin(t, verb); err != nil {
			t.Fatalf("%s: %v: %s", verb, err, out)
		}
	}
	dev := a.podLink(t)
	forwards := func(key string) {
		t.Helper()
		rig.Eventually(t, key, func() error {
			if got := strings.TrimSpace(a.ns.Run(t, "cat", "/proc/sys/"+key)); got != "1" {
				return fmt.Errorf("it is %s", got)
			}
			return nil
		})
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		key := "net/" + family + "/conf/" + dev + "/forwarding"
		forwards(key)
		before := a.foreign(t, "forwarding")
		rig.Eventually(t, key+" is counted", func() error {
			a.ns.Sysctl(t, key, "0") // at first it may be younger than what is known
			forwards(key)
			if a.foreign(t, "forwarding") == before {
				return fmt.Errorf("it is not")
			}
			return nil
		})
	}
}
