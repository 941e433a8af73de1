// Package hosts makes the hosts of the addressing plan, each a network namespace:
// a node with pods, another node, and a host outside. Every endpoint on them says
// who it is and whom it saw, and probes say what a client sees of one packet.
package hosts

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"onerule/test/addr"
	"onerule/test/netns"
)

// Hosts are the hosts. The node is the router between all of them.
type Hosts struct {
	Node, Outside, Other *netns.NS
	Pods                 []*netns.NS
	endpoints            []netip.AddrPort
}

// New makes the hosts, with so many pods on each node, in both families. Every pod,
// of both nodes, and the node itself answer at the ports. It returns when all of
// them are reached from everywhere, and everything goes with the test.
func New(t testing.TB, pods int, ports ...uint16) *Hosts {
	t.Helper()
	h := &Hosts{Node: quiet(t, "node"), Outside: quiet(t, "outside"), Other: quiet(t, "other-node")}
	h.Node.Forward(t)
	for i := range pods {
		pod := quiet(t, fmt.Sprintf("pod-%d", i))
		h.Pods = append(h.Pods, pod)
		h.wire(t, pod, fmt.Sprintf("pod%d", i), func(p addr.Plan) (near, far netip.Addr, bits int) {
			return p.PodGateway(i), p.Pod(i), p.PodLinkBits()
		})
	}
	h.wire(t, h.Outside, "uplink", func(p addr.Plan) (near, far netip.Addr, bits int) {
		return p.Node(), p.Outside(), p.Uplink.Bits()
	})
	h.wire(t, h.Other, "between", func(p addr.Plan) (near, far netip.Addr, bits int) {
		return p.NodeBetween(), p.OtherNode(), p.Between.Bits()
	})
	for _, p := range addr.Both() {
		h.Node.Route(t, "default", p.Outside().String())
		h.Node.Route(t, p.OtherPods.String(), p.OtherNode().String())
		for i := range pods {
			h.Other.Addr(t, "eth0", netip.PrefixFrom(p.OtherPod(i), p.OtherPod(i).BitLen()).String())
		}
		for _, port := range ports {
			h.Serve(t, netip.AddrPortFrom(p.Node(), port))
			for i := range pods {
				h.Serve(t, netip.AddrPortFrom(p.Pod(i), port), netip.AddrPortFrom(p.OtherPod(i), port))
			}
		}
	}
	h.settle(t)
	return h
}

// quiet makes a host that answers from its first moment and believes no redirect.
func quiet(t testing.TB, name string) *netns.NS {
	n := netns.New(t, name)
	for _, which := range []string{"all", "default"} {
		n.Sysctl(t, "net.ipv6.conf."+which+".accept_dad", "0")
		n.Sysctl(t, "net.ipv6.conf."+which+".accept_redirects", "0")
		n.Sysctl(t, "net.ipv4.conf."+which+".send_redirects", "0")
		n.Sysctl(t, "net.ipv4.conf."+which+".rp_filter", "0")
	}
	n.Sysctl(t, "net.ipv4.ping_group_range", "0 2147483647")
	return n
}

// wire connects a host to the node and makes the node its router.
func (h *Hosts) wire(t testing.TB, far *netns.NS, dev string, ends func(addr.Plan) (near, far netip.Addr, bits int)) {
	netns.Wire(t, far, "eth0", h.Node, dev)
	for _, p := range addr.Both() {
		nearAddr, farAddr, bits := ends(p)
		h.Node.Addr(t, dev, netip.PrefixFrom(nearAddr, bits).String())
		far.Addr(t, "eth0", netip.PrefixFrom(farAddr, bits).String())
		far.Route(t, "default", nearAddr.String())
	}
}

// At gives the host that has an address: the node, if no other has it.
func (h *Hosts) At(a netip.Addr) *netns.NS {
	for _, p := range addr.Both() {
		for i, pod := range h.Pods {
			if a == p.Pod(i) {
				return pod
			}
		}
		switch {
		case p.OtherPods.Contains(a), a == p.OtherNode():
			return h.Other
		case a == p.Outside():
			return h.Outside
		}
	}
	return h.Node
}

// NodeAddrs gives the addresses that the node has, those by which masqueraded
// clients are seen.
func (h *Hosts) NodeAddrs() []netip.Addr {
	var list []netip.Addr
	for _, p := range addr.Both() {
		list = append(list, p.Node(), p.NodeBetween())
		for i := range h.Pods {
			list = append(list, p.PodGateway(i))
		}
	}
	return list
}

// Forget drops what conntrack of the node knows, so that no port that comes again
// meets an old decision. Connections that are open do not survive it.
func (h *Hosts) Forget(t testing.TB) {
	t.Helper()
	if err := h.Node.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }); err != nil {
		t.Fatalf("flush conntrack: %v", err)
	}
}
