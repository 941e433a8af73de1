package nft_test

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"onerule/nft"
	"onerule/test/netns"
)

// I4: of all flows, just those to a frontend that are not translated go.
func TestUntranslatedFlowsAreDeletedAndNoOthers(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		p := program(t, ns, config(family))
		f := nft.Frontend{Addr: vip(family, 1), Protocol: 17, Port: 53}
		other := nft.Frontend{Addr: vip(family, 2), Protocol: 17, Port: 53}
		peer := endpoint(family, 1)
		// Everything is at this host: its addresses answer nothing, which leaves a flow.
		for _, a := range []netip.Addr{f.Addr, other.Addr, peer.Addr()} {
			ns.Addr(t, "lo", netip.PrefixFrom(a, a.BitLen()).String())
		}
		load(t, ns, p, nft.NewState())
		for _, to := range []nft.Frontend{f, other, {Addr: f.Addr, Protocol: 17, Port: 54}} {
			for range 3 {
				send(t, ns, netip.AddrPortFrom(to.Addr, to.Port))
			}
		}
		state := nft.NewState()
		balance(state, f, []netip.AddrPort{peer})
		load(t, ns, p, state)
		send(t, ns, netip.AddrPortFrom(f.Addr, f.Port))
		count := func(want map[netip.AddrPort]int, when string) {
			t.Helper()
			got := flows(t, ns, family)
			for to, n := range want {
				if got[to] != n {
					t.Errorf("%s: got %d flows to %s, want %d", when, got[to], to, n)
				}
			}
		}
		at := func(f nft.Frontend) netip.AddrPort { return netip.AddrPortFrom(f.Addr, f.Port) }
		elsewhere := netip.AddrPortFrom(f.Addr, 54)
		count(map[netip.AddrPort]int{at(f): 4, at(other): 3, elsewhere: 3}, "before")
		do(t, ns, func() error {
			n, err := nft.DeleteUntranslated(context.Background(), family, func(to nft.Frontend) bool { return to == f })
			if n != 3 {
				t.Errorf("deleted %d, want 3", n)
			}
			return err
		})
		count(map[netip.AddrPort]int{at(f): 1, at(other): 3, elsewhere: 3}, "after")
	})
}

// send sends a datagram from a port of its own.
func send(t *testing.T, ns *netns.NS, to netip.AddrPort) {
	t.Helper()
	do(t, ns, func() error {
		c, err := net.Dial("udp", to.String())
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_, err = c.Write([]byte("x"))
		return err
	})
}

// flows counts UDP flows by original destination.
func flows(t *testing.T, ns *netns.NS, family nft.Family) map[netip.AddrPort]int {
	t.Helper()
	counts := map[netip.AddrPort]int{}
	do(t, ns, func() error {
		inet := netlink.InetFamily(unix.AF_INET)
		if family == nft.IPv6 {
			inet = unix.AF_INET6
		}
		list, err := netlink.ConntrackTableList(netlink.ConntrackTable, inet)
		for _, flow := range list {
			a, _ := netip.AddrFromSlice(flow.Forward.DstIP)
			if flow.Forward.Protocol == unix.IPPROTO_UDP {
				counts[netip.AddrPortFrom(a.Unmap(), flow.Forward.DstPort)]++
			}
		}
		return err
	})
	return counts
}
