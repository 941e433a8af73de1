package guard_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"onerule/nft"
	"onerule/nft/guard"
	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/wired"
)

func families() []nft.Family { return []nft.Family{nft.IPv4, nft.IPv6} }

func each(t *testing.T, f func(*testing.T, nft.Family, addr.Plan)) {
	t.Helper()
	for _, family := range families() {
		t.Run(family.String(), func(t *testing.T) { f(t, family, plan(family)) })
	}
}

func plan(f nft.Family) addr.Plan {
	if f == nft.IPv6 {
		return addr.IPv6()
	}
	return addr.IPv4()
}

func ranges(p addr.Plan) guard.Ranges {
	return guard.Ranges{Pods: []netip.Prefix{p.NodePods}, AllPods: []netip.Prefix{p.OtherPods}, Cluster: []netip.Prefix{p.ClusterCIDR}}
}

func open(t *testing.T, ns *netns.NS, f nft.Family) (p *guard.Program) {
	t.Helper()
	wired.Do(t, ns, func() (err error) {
		p, err = guard.Open(f)
		return err
	})
	p.VXLAN(vxlanPort)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func load(t *testing.T, ns *netns.NS, p *guard.Program, want guard.Ranges) (found guard.Repair) {
	t.Helper()
	wired.Do(t, ns, func() (err error) {
		found, err = p.Load(context.Background(), want)
		return err
	})
	return found
}

// guarded makes a world with the table loaded.
func guarded(t *testing.T, f nft.Family, p addr.Plan) (*wired.World, *guard.Program) {
	t.Helper()
	w := wired.New(t, 2)
	program := open(t, w.Node, f)
	load(t, w.Node, program, ranges(p))
	return w, program
}

func dropped(t *testing.T, ns *netns.NS, p *guard.Program) (counted map[guard.Counter]uint64) {
	t.Helper()
	wired.Do(t, ns, func() (err error) {
		counted, err = p.Dropped()
		return err
	})
	return counted
}

// ip puts a network header before a payload.
func ip(src, dst netip.Addr, proto uint8, payload []byte) []byte {
	if dst.Is4() {
		h := make([]byte, 20, 20+len(payload))
		h[0], h[8], h[9] = 0x45, 255, proto
		binary.BigEndian.PutUint16(h[2:], uint16(20+len(payload)))
		copy(h[12:], src.AsSlice())
		copy(h[16:], dst.AsSlice())
		binary.BigEndian.PutUint16(h[10:], checksum(h))
		return append(h, payload...)
	}
	h := make([]byte, 40, 40+len(payload))
	h[0], h[6], h[7] = 0x60, proto, 255
	binary.BigEndian.PutUint16(h[4:], uint16(len(payload)))
	copy(h[8:], src.AsSlice())
	copy(h[24:], dst.AsSlice())
	return append(h, payload...)
}

func checksum(parts ...[]byte) uint16 {
	var sum uint32
	for _, b := range parts {
		for i := 0; i+1 < len(b); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// udp gives a datagram without a checksum, which only a receiver would miss.
func udp(src, dst netip.AddrPort) []byte {
	b := make([]byte, 12)
	binary.BigEndian.PutUint16(b, src.Port())
	binary.BigEndian.PutUint16(b[2:], dst.Port())
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	return ip(src.Addr(), dst.Addr(), unix.IPPROTO_UDP, b)
}

// icmp6 gives an ICMPv6 message, of an even length, as a router sends it.
func icmp6(src, dst netip.Addr, kind byte, body ...byte) []byte {
	b := append([]byte{kind, 0, 0, 0}, body...)
	pseudo := append(append(src.AsSlice(), dst.AsSlice()...), 0, 0, 0, byte(len(b)), 0, 0, 0, unix.IPPROTO_ICMPV6)
	binary.BigEndian.PutUint16(b[2:], checksum(pseudo, b))
	return ip(src, dst, unix.IPPROTO_ICMPV6, b)
}

// advertisement is one of a router that wants to be the default for half an hour.
func advertisement(src netip.Addr) []byte {
	return icmp6(src, netip.MustParseAddr("ff02::1"), 134, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0)
}

// observe counts what the guard lets pass of the packets that the tests send, by their
// kind: the kernels send neighbour solicitations now and then.
func observe(t *testing.T, ns *netns.NS) (passed func(packet []byte) int) {
	t.Helper()
	ns.Run(t, "nft", `table inet observer {
	counter datagrams { }
	counter icmp133 { }
	counter icmp134 { }
	counter icmp135 { }
	counter icmp137 { }
	chain prerouting {
		type filter hook prerouting priority -300; policy accept;
		iifname "one*" meta l4proto udp counter name datagrams
		iifname "one*" icmpv6 type 133 counter name icmp133
		iifname "one*" icmpv6 type 134 counter name icmp134
		iifname "one*" ip6 saddr :: icmpv6 type 135 counter name icmp135
		iifname "one*" icmpv6 type 137 counter name icmp137
	}
}`)
	return func(packet []byte) (n int) {
		name := "datagrams"
		if packet[0]>>4 == 6 && packet[6] == unix.IPPROTO_ICMPV6 {
			name = fmt.Sprintf("icmp%d", packet[40])
		}
		listing := ns.Run(t, "nft", "list", "counter", "inet", "observer", name)
		_, packets, _ := strings.Cut(listing, "packets ")
		if _, err := fmt.Sscan(packets, &n); err != nil {
			t.Fatalf("read counter: %v in %q", err, listing)
		}
		return n
	}
}

// A sending is a packet that pod 0 sends, and the counter that counts it, or "".
type sending struct {
	name    string
	packet  []byte
	dropped guard.Counter
}

func sendings(f nft.Family, p addr.Plan) []sending {
	at := netip.AddrPortFrom
	echo := at(p.Outside(), 7)
	from := func(a netip.Addr) []byte { return udp(at(a, 40000), echo) }
	list := []sending{
		{"its own address", from(p.Pod(0)), ""},
		{"another pod's address", from(p.Pod(1)), guard.Spoofed},
		{"the address of a pod that does not exist", from(p.Pod(7)), guard.Spoofed},
		{"the node's address", from(p.Node()), guard.Spoofed},
		{"an address of elsewhere", from(p.Outside()), guard.Spoofed},
		{"an address of the other node's pods", from(p.OtherPod(0)), guard.Spoofed},
		{"no address, to elsewhere", from(netip.IPv6Unspecified()), guard.Spoofed},
	}
	if f == nft.IPv4 {
		broadcast := netip.MustParseAddr("255.255.255.255")
		list[6].packet = from(netip.IPv4Unspecified())
		return append(list,
			sending{"a request for DHCP without an address", udp(at(netip.IPv4Unspecified(), 68), at(broadcast, 67)), ""},
			sending{"an answer of a DHCP server", udp(at(p.Pod(0), 67), at(broadcast, 68)), guard.DHCPServers},
			sending{"multicast", udp(at(p.Pod(0), 40000), at(netip.MustParseAddr("224.0.0.251"), 53)), ""},
			sending{"a loopback address", from(netip.MustParseAddr("127.0.0.1")), guard.Spoofed},
			sending{"its own address to a loopback address", udp(at(p.Pod(0), 40000), at(netip.MustParseAddr("127.0.0.1"), 53)), guard.Localnet},
		)
	}
	own, routers, nodes := netip.MustParseAddr("fe80::a:1"), netip.MustParseAddr("ff02::2"), netip.MustParseAddr("ff02::1")
	return append(list,
		sending{"its link-local address", udp(at(own, 40000), at(netip.MustParseAddr("fe80::1"), 7)), ""},
		sending{"the link-local address of its gateway", udp(at(netip.MustParseAddr("fe80::1"), 40000), at(nodes, 7)), ""},
		sending{"a router solicitation", icmp6(own, routers, 133, 0, 0, 0, 0), ""},
		sending{"duplicate address detection", icmp6(netip.IPv6Unspecified(), netip.MustParseAddr("ff02::1:ff0a:1"), 135, append(make([]byte, 4), own.AsSlice()...)...), ""},
		sending{"D16 a router advertisement", advertisement(own), guard.RouterAdvertisements},
		sending{"D16 a redirect", icmp6(own, nodes, 137, make([]byte, 36)...), guard.RouterAdvertisements},
		sending{"a request for DHCPv6", udp(at(own, 546), at(netip.MustParseAddr("ff02::1:2"), 547)), ""},
		sending{"D16 an answer of a DHCPv6 server", udp(at(own, 547), at(nodes, 546)), guard.DHCPServers},
		sending{"multicast", udp(at(own, 40000), at(netip.MustParseAddr("ff02::fb"), 53)), ""},
	)
}

func TestD26_PodsSendWithTheirOwnAddressesOnly(t *testing.T) {
	each(t, func(t *testing.T, f nft.Family, p addr.Plan) {
		w, program := guarded(t, f, p)
		passed := observe(t, w.Node)
		for _, s := range sendings(f, p) {
			t.Run(s.name, func(t *testing.T) {
				before, beforeDropped := passed(s.packet), dropped(t, w.Node, program)
				wired.Send(t, w.Pods[0], "eth0", nil, s.packet)
				want := map[guard.Counter]uint64{}
				for c, n := range beforeDropped {
					want[c] = n
				}
				if s.dropped != "" {
					want[s.dropped]++
				}
				wired.Eventually(t, func() error {
					if s.dropped == "" && passed(s.packet) == before {
						return fmt.Errorf("did not pass")
					}
					if diff := cmp.Diff(want, dropped(t, w.Node, program)); diff != "" {
						return fmt.Errorf("dropped (-want +got):\n%s", diff)
					}
					return nil
				})
				if got := passed(s.packet); s.dropped != "" && got != before {
					t.Errorf("%d passed beside the drop", got-before)
				}
			})
		}
	})
}

// Devices of ours that are no pod's have names that begin in the same way.
func TestOtherDevicesOfOursAreNoPods(t *testing.T) {
	each(t, func(t *testing.T, f nft.Family, p addr.Plan) {
		w, program := guarded(t, f, p)
		tunnel := netns.New(t, "tunnel")
		netns.Wire(t, w.Node, "onerule.vxlan", tunnel, "eth0")
		passed := observe(t, w.Node)
		packet := udp(netip.AddrPortFrom(p.OtherPod(3), 40000), netip.AddrPortFrom(p.Pod(0), 7))
		wired.Send(t, tunnel, "eth0", nil, packet)
		wired.Eventually(t, func() error {
			if passed(packet) != 1 {
				return fmt.Errorf("did not pass")
			}
			return nil
		})
		if n := dropped(t, w.Node, program)[guard.Spoofed]; n != 0 {
			t.Errorf("spoofed counts %d", n)
		}
	})
}

// An address that somebody routes to a pod is the pod's: a second address, or a range
// behind a pod that is a router.
func TestWhatIsRoutedToAPodMayComeFromIt(t *testing.T) {
	each(t, func(t *testing.T, f nft.Family, p addr.Plan) {
		w, program := guarded(t, f, p)
		more := addr.Nth(p.NodePods, 250)
		w.Pods[0].Addr(t, "eth0", fmt.Sprintf("%s/%d", more, more.BitLen()))
		wired.Serve(t, w.Outside, "outside", netip.AddrPortFrom(p.OtherPod(0), 7))
		ask := func() (string, error) {
			return wired.Ask(w.Pods[0], "udp", netip.AddrPortFrom(more, 0), netip.AddrPortFrom(p.OtherPod(0), 7))
		}
		if answer, err := ask(); err == nil {
			t.Errorf("before the route: %q", answer)
		}
		w.Node.Run(t, "ip", "route", "add", more.String(), "dev", wired.Link(0))
		answer, err := ask()
		if want := "outside saw " + more.String(); err != nil || answer != want {
			t.Errorf("after it: %q, %v, want %q", answer, err, want)
		}
		if n := dropped(t, w.Node, program)[guard.Spoofed]; n != 1 {
			t.Errorf("spoofed counts %d, want 1", n)
		}
	})
}

// With accept_ra the node would take a default route from its pod (D16).
func TestD16_TheNodeTakesNoRouteFromAPod(t *testing.T) {
	w := wired.New(t, 1)
	link := wired.Link(0)
	w.Node.Sysctl(t, "net/ipv6/conf/"+link+"/accept_ra", "2")
	route := func() string { return w.Node.Run(t, "ip", "-6", "route", "show", "default", "dev", link) }
	wired.Send(t, w.Pods[0], "eth0", nil, advertisement(netip.MustParseAddr("fe80::a:1")))
	wired.Eventually(t, func() error { // or the rest would prove nothing
		if !strings.Contains(route(), "fe80::a:1") {
			return fmt.Errorf("without the guard no route came: %q", route())
		}
		return nil
	})
	w.Node.Run(t, "ip", "-6", "route", "flush", "default", "dev", link)
	program := open(t, w.Node, nft.IPv6)
	load(t, w.Node, program, ranges(addr.IPv6()))
	wired.Send(t, w.Pods[0], "eth0", nil, advertisement(netip.MustParseAddr("fe80::a:1")))
	wired.Eventually(t, func() error {
		if n := dropped(t, w.Node, program)[guard.RouterAdvertisements]; n != 1 {
			return fmt.Errorf("counted %d, want 1", n)
		}
		return nil
	})
	if r := route(); strings.Contains(r, "fe80::a:1") {
		t.Errorf("a default route came: %s", r)
	}
}

func TestD18_LoopbackStaysOnTheNode(t *testing.T) {
	w := wired.New(t, 1)
	p := addr.IPv4()
	secret := netip.MustParseAddrPort("127.0.0.1:7")
	wired.Serve(t, w.Node, "the node", secret)
	for _, key := range []string{"all", "eth0", wired.Link(0)} {
		w.Node.Sysctl(t, "net/ipv4/conf/"+key+"/route_localnet", "1")
	}
	neighbours := map[string]struct {
		ns  *netns.NS
		via netip.Addr
	}{"outside": {w.Outside, p.Node()}, "pod": {w.Pods[0], netip.MustParseAddr("169.254.1.1")}}
	for _, n := range neighbours {
		n.ns.Sysctl(t, "net/ipv4/conf/all/route_localnet", "1")
		n.ns.Run(t, "ip", "addr", "del", "127.0.0.1/8", "dev", "lo")
		n.ns.Run(t, "ip", "route", "add", "127.0.0.0/8", "via", n.via.String(), "dev", "eth0", "onlink")
	}
	for name, n := range neighbours {
		if answer, err := wired.Ask(n.ns, "udp", netip.AddrPort{}, secret); err != nil { // or the rest would prove nothing
			t.Fatalf("from %s without the guard: %q, %v", name, answer, err)
		}
	}
	program := open(t, w.Node, nft.IPv4)
	load(t, w.Node, program, ranges(p))
	for name, n := range neighbours {
		if answer, err := wired.Ask(n.ns, "udp", netip.AddrPort{}, secret); err == nil {
			t.Errorf("from %s: %q", name, answer)
		}
	}
	if n := dropped(t, w.Node, program)[guard.Localnet]; n != 2 {
		t.Errorf("localnet counts %d, want 2", n)
	}
	if answer, err := wired.Ask(w.Node, "udp", netip.AddrPort{}, secret); err != nil {
		t.Errorf("on the node itself: %q, %v", answer, err)
	}
	t.Run("and the devices are named", func(t *testing.T) {
		var got []string
		wired.Do(t, w.Node, func() (err error) {
			got, err = guard.RouteLocalnet()
			return err
		})
		want := []string{"all", "eth0", wired.Link(0)}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("devices (-want +got):\n%s", diff)
		}
	})
}
