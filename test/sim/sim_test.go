package sim_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"onerule/nft"
	"onerule/test/addr"
	"onerule/test/sim"
)

const (
	tcp  = 6
	udp  = 17
	icmp = 1
	bit  = 14
	// otherBits are marks of others: no rule of ours may change them.
	otherBits = 0xf00f0001
)

func plan(f nft.Family) addr.Plan {
	if f == nft.IPv6 {
		return addr.IPv6()
	}
	return addr.IPv4()
}

// counts are the numbers of endpoints that the tests use, not in order.
func counts() []int { return []int{2, 5, 1, 3} }

func compile(t *testing.T, c nft.Config) *sim.Program {
	t.Helper()
	c.MasqueradeBit = bit
	p, err := sim.Compile(nft.NewSkeleton(c), counts()...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// serve makes a frontend of the state go to pods of the node, n of them from the
// pod with the given number on.
func serve(s nft.State, p addr.Plan, front nft.Frontend, from, n int) {
	s.Addrs[nft.ClusterIPs][front.Addr] = true
	var endpoints []netip.AddrPort
	for i := range n {
		endpoints = append(endpoints, netip.AddrPortFrom(p.Pod(from+i), 8080))
		s.Addrs[nft.Hairpins][p.Pod(from+i)] = true
	}
	s.Set(front, nft.Route{Endpoints: endpoints})
	s.Ranges[nft.PodCIDRs] = []netip.Prefix{p.ClusterCIDR}
	s.Ranges[nft.ServiceCIDRs] = []netip.Prefix{p.ServiceCIDR}
}

func translated(to netip.Addr, masqueraded bool) sim.Outcome {
	return sim.Outcome{Verdict: sim.Translated, Endpoint: netip.AddrPortFrom(to, 8080), Masqueraded: masqueraded, Mark: otherBits}
}

func TestSkeletonInWords(t *testing.T) {
	accepted := sim.Outcome{Mark: otherBits}
	refused, dropped := sim.Outcome{Verdict: sim.Refused}, sim.Outcome{Verdict: sim.Dropped}
	tests := []struct {
		name   string
		config nft.Config
		packet func(p addr.Plan) sim.Packet
		want   func(p addr.Plan) []sim.Outcome
	}{
		{"A2: a pod keeps its address", nft.Config{Detector: nft.DetectCIDR},
			func(p addr.Plan) sim.Packet { return sim.Packet{Src: p.Pod(5), Dst: p.VIP(1), Protocol: tcp, Port: 80} },
			func(p addr.Plan) []sim.Outcome {
				return []sim.Outcome{translated(p.Pod(0), false), translated(p.Pod(1), false)}
			}},
		{"A2, A2.7: outside is masqueraded and other marks stay", nft.Config{Detector: nft.DetectCIDR},
			func(p addr.Plan) sim.Packet {
				return sim.Packet{Src: p.Outside(), Dst: p.VIP(1), Protocol: tcp, Port: 80}
			},
			func(p addr.Plan) []sim.Outcome {
				return []sim.Outcome{translated(p.Pod(0), true), translated(p.Pod(1), true)}
			}},
		{"A2.1: without a detector outside keeps its address", nft.Config{},
			func(p addr.Plan) sim.Packet {
				return sim.Packet{Src: p.Outside(), Dst: p.VIP(1), Protocol: tcp, Port: 80}
			},
			func(p addr.Plan) []sim.Outcome {
				return []sim.Outcome{translated(p.Pod(0), false), translated(p.Pod(1), false)}
			}},
		{"A2.2: masqueradeAll masquerades pods", nft.Config{Detector: nft.DetectCIDR, MasqueradeAll: true},
			func(p addr.Plan) sim.Packet { return sim.Packet{Src: p.Pod(5), Dst: p.VIP(1), Protocol: tcp, Port: 80} },
			func(p addr.Plan) []sim.Outcome {
				return []sim.Outcome{translated(p.Pod(0), true), translated(p.Pod(1), true)}
			}},
		{"A2.4: a pod that reaches itself is masqueraded", nft.Config{Detector: nft.DetectCIDR},
			func(p addr.Plan) sim.Packet { return sim.Packet{Src: p.Pod(0), Dst: p.VIP(1), Protocol: tcp, Port: 80} },
			func(p addr.Plan) []sim.Outcome {
				return []sim.Outcome{translated(p.Pod(0), true), translated(p.Pod(1), false)}
			}},
		{"A2.10: the node's own packets go the same way", nft.Config{Detector: nft.DetectCIDR},
			func(p addr.Plan) sim.Packet {
				return sim.Packet{Local: true, Src: p.Node(), Dst: p.VIP(1), Protocol: tcp, Port: 80}
			},
			func(p addr.Plan) []sim.Outcome {
				return []sim.Outcome{translated(p.Pod(0), true), translated(p.Pod(1), true)}
			}},
		{"A1.3: another protocol is refused", nft.Config{Detector: nft.DetectCIDR},
			func(p addr.Plan) sim.Packet { return sim.Packet{Src: p.Pod(5), Dst: p.VIP(1), Protocol: udp, Port: 80} },
			func(addr.Plan) []sim.Outcome { return []sim.Outcome{refused} }},
		{"A1.4: an echo is refused", nft.Config{Detector: nft.DetectCIDR},
			func(p addr.Plan) sim.Packet {
				return sim.Packet{Src: p.Pod(5), Dst: p.VIP(1), Protocol: icmp, Port: 80}
			},
			func(addr.Plan) []sim.Outcome { return []sim.Outcome{refused} }},
		{"A1.5: an unused address is dropped", nft.Config{Detector: nft.DetectCIDR},
			func(p addr.Plan) sim.Packet { return sim.Packet{Src: p.Pod(5), Dst: p.VIP(2), Protocol: tcp, Port: 80} },
			func(addr.Plan) []sim.Outcome { return []sim.Outcome{dropped} }},
		{"A3.1: a frontend without endpoints is refused", nft.Config{Detector: nft.DetectCIDR},
			func(p addr.Plan) sim.Packet { return sim.Packet{Src: p.Pod(5), Dst: p.VIP(3), Protocol: udp, Port: 53} },
			func(addr.Plan) []sim.Outcome { return []sim.Outcome{refused} }},
		{"what is not ours is left alone", nft.Config{Detector: nft.DetectCIDR},
			func(p addr.Plan) sim.Packet {
				return sim.Packet{Src: p.Outside(), Dst: p.Pod(1), Protocol: tcp, Port: 80}
			},
			func(addr.Plan) []sim.Outcome { return []sim.Outcome{accepted} }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, family := range []nft.Family{nft.IPv4, nft.IPv6} {
				p := plan(family)
				s := nft.NewState()
				serve(s, p, nft.Frontend{Addr: p.VIP(1), Protocol: tcp, Port: 80}, 0, 2)
				serve(s, p, nft.Frontend{Addr: p.VIP(3), Protocol: udp, Port: 53}, 0, 0)
				test.config.Family = family
				packet := test.packet(p)
				packet.Mark = otherBits
				got, err := compile(t, test.config).Run(packet, sim.Constant(s))
				if err != nil {
					t.Fatal(err)
				}
				want := map[sim.Outcome]bool{}
				for _, o := range test.want(p) {
					want[o] = true
				}
				if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
					t.Errorf("%s: want -, got +:\n%s", family, diff)
				}
			}
		})
	}
}

func TestEveryRandomNumberIsTried(t *testing.T) {
	p := addr.IPv4()
	front := nft.Frontend{Addr: p.VIP(1), Protocol: tcp, Port: 80}
	for _, n := range counts() {
		s := nft.NewState()
		serve(s, p, front, 0, n)
		got, err := compile(t, nft.Config{Family: nft.IPv4}).Run(sim.Packet{Src: p.Outside(), Dst: front.Addr, Protocol: tcp, Port: 80}, sim.Constant(s))
		if err != nil {
			t.Fatal(err)
		}
		want := map[sim.Outcome]bool{}
		for i := range n {
			want[sim.Outcome{Verdict: sim.Translated, Endpoint: netip.AddrPortFrom(p.Pod(i), 8080)}] = true
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
			t.Errorf("%d endpoints: want -, got +:\n%s", n, diff)
		}
	}
}

func TestPacketsForTheNodeItselfAreNotMasqueraded(t *testing.T) {
	p := addr.IPv4()
	s := nft.NewState()
	front := nft.Frontend{Addr: p.VIP(1), Protocol: tcp, Port: 80}
	serve(s, p, front, 0, 1)
	s.Slots[nft.Endpoints][front] = []netip.AddrPort{netip.AddrPortFrom(p.Node(), 8080)}
	packet := sim.Packet{Src: p.Outside(), Dst: p.VIP(1), Protocol: tcp, Port: 80}
	got, err := compile(t, nft.Config{Family: nft.IPv4, Detector: nft.DetectCIDR}).Run(packet, sim.Constant(s, p.Node()))
	if err != nil {
		t.Fatal(err)
	}
	// The mark stays: the packet never comes by postrouting, where it is cleared.
	want := sim.Outcome{Verdict: sim.Translated, Endpoint: netip.AddrPortFrom(p.Node(), 8080), Mark: 1 << bit}
	if len(got) != 1 || !got[want] {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// table gives a table with the sets of the skeleton and the chains of a test.
func table(chains ...nft.Chain) nft.Skeleton {
	s := nft.NewSkeleton(nft.Config{Family: nft.IPv4})
	s.Chains = chains
	return s
}

func hooked(rules ...string) nft.Chain {
	return nft.Chain{Name: "base", Base: &nft.Hook{Hook: "prerouting", Priority: -110}, Rules: rules}
}

func TestWhatCanNotBeReadIsAnError(t *testing.T) {
	for _, test := range []struct{ name, rule, want string }{
		{"a statement nobody knows", "snat to 192.0.2.1", `unknown expression at "snat to 192.0.2.1"`},
		{"a known statement in another form", "dnat ip to 192.0.2.1", `unknown expression at "dnat ip to 192.0.2.1"`},
		{"words behind a statement", "ip daddr @cluster-ips frobnicate", `unknown expression at "frobnicate"`},
		{"the other family", "ip6 daddr @cluster-ips drop", "unknown expression"},
		{"a set that is not there", "ip daddr @nothing drop", `no set "nothing"`},
		{"a map used as a set", "ip daddr . meta l4proto . th dport @service-ips drop", "is a map"},
		{"a set used as a verdict map", "ip daddr vmap @cluster-ips", "vmap with map cluster-ips"},
		{"a key in another order", "meta l4proto . ip daddr . th dport vmap @service-ips", "look-up of"},
		{"a chain that is not there", "goto nowhere", `no chain "nowhere"`},
		{"a dnat to verdicts", "dnat ip addr . port to ip daddr . meta l4proto . th dport map @service-ips", "dnat to map service-ips"},
		{"numgen of nothing", "dnat ip addr . port to ip daddr . tcp dport . numgen random mod 0 map @endpoints-tcp", "modulus"},
		{"a constant nobody knows", "meta l4proto carp drop", `constant "carp"`},
		{"a mark set from an address", "meta mark set ip daddr", "mark set to"},
		{"an empty rule", " ", "empty rule"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := sim.Compile(table(hooked(test.rule)))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestChainsAsInTheKernel(t *testing.T) {
	p := addr.IPv4()
	chain := func(name string, rules ...string) nft.Chain { return nft.Chain{Name: name, Rules: rules} }
	for _, test := range []struct {
		name   string
		chains []nft.Chain
		want   sim.Verdict
	}{
		{"the end of a base chain accepts", []nft.Chain{hooked("counter")}, sim.Accepted},
		{"a look-up that fails ends the rule, not the chain", []nft.Chain{hooked("ip daddr @cluster-ips drop", "reject")}, sim.Refused},
		{"jump comes back", []nft.Chain{chain("a", "counter"), hooked("jump a", "drop")}, sim.Dropped},
		{"return comes back early", []nft.Chain{chain("a", "return", "reject"), hooked("jump a", "drop")}, sim.Dropped},
		{"goto does not come back", []nft.Chain{chain("a", "counter"), hooked("goto a", "drop")}, sim.Accepted},
		{"goto in a jump comes back to the jump", []nft.Chain{
			chain("b", "counter"), chain("a", "goto b", "reject"), hooked("jump a", "drop"),
		}, sim.Dropped},
		{"an empty chain comes back", []nft.Chain{chain("a"), hooked("jump a", "drop")}, sim.Dropped},
		{"a comparison that holds goes on", []nft.Chain{hooked("meta l4proto tcp drop")}, sim.Dropped},
		{"a comparison that does not hold ends the rule", []nft.Chain{hooked("meta l4proto udp drop")}, sim.Accepted},
		{"a negated look-up", []nft.Chain{hooked("ip daddr != @cluster-ips drop")}, sim.Dropped},
		{"bits of the mark", []nft.Chain{hooked("meta mark set meta mark or 0x10", "meta mark and 0x10 == 0x10 drop")}, sim.Dropped},
		{"a port of another protocol", []nft.Chain{hooked(
			"dnat ip addr . port to ip daddr . udp dport . numgen random mod 1 map @endpoints-udp", "reject")}, sim.Refused},
		{"the lower priority first", []nft.Chain{
			{Name: "late", Base: &nft.Hook{Hook: "prerouting", Priority: 0}, Rules: []string{"drop"}}, hooked("reject"),
		}, sim.Refused},
		{"a dnat ends the hook", []nft.Chain{
			hooked("dnat ip addr . port to ip daddr . tcp dport . numgen random mod 1 map @endpoints-tcp"),
			{Name: "late", Base: &nft.Hook{Hook: "prerouting", Priority: 0}, Rules: []string{"drop"}},
		}, sim.Translated},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := nft.NewState()
			serve(s, p, nft.Frontend{Addr: p.VIP(1), Protocol: tcp, Port: 80}, 0, 1)
			serve(s, p, nft.Frontend{Addr: p.VIP(1), Protocol: udp, Port: 80}, 0, 1)
			delete(s.Addrs[nft.ClusterIPs], p.VIP(1))
			program, err := sim.Compile(table(test.chains...))
			if err != nil {
				t.Fatal(err)
			}
			got, err := program.Run(sim.Packet{Src: p.Pod(1), Dst: p.VIP(1), Protocol: tcp, Port: 80}, sim.Constant(s))
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != 1 {
				t.Fatalf("got outcomes %+v, want one", got)
			}
			for o := range got {
				if o.Verdict != test.want {
					t.Errorf("got %s, want %s", o.Verdict, test.want)
				}
			}
		})
	}
}

func TestWhatTheKernelWouldRefuseIsAnError(t *testing.T) {
	p := addr.IPv4()
	chain := func(name string, rules ...string) nft.Chain { return nft.Chain{Name: name, Rules: rules} }
	for _, test := range []struct {
		name, want string
		chains     []nft.Chain
	}{
		{"a circle", "a circle?", []nft.Chain{chain("a", "goto b"), chain("b", "goto a"), hooked("goto a")}},
		{"jumps without end", "jumps deep", []nft.Chain{chain("a", "jump a"), hooked("goto a")}},
		{"a reset for UDP", "TCP reset", []nft.Chain{hooked("reject with tcp reset")}},
		{"masquerade before routing", "masquerade in prerouting", []nft.Chain{hooked("masquerade")}},
		{"a verdict to a chain that is not there", `chain "cluster-ip-udp"`, []nft.Chain{hooked("ip daddr . meta l4proto . th dport vmap @service-ips")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := nft.NewState()
			serve(s, p, nft.Frontend{Addr: p.VIP(1), Protocol: udp, Port: 80}, 0, 1)
			program, err := sim.Compile(table(test.chains...))
			if err != nil {
				t.Fatal(err)
			}
			_, err = program.Run(sim.Packet{Src: p.Pod(1), Dst: p.VIP(1), Protocol: udp, Port: 80}, sim.Constant(s))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestPacketOfTheOtherFamilyIsAnError(t *testing.T) {
	p := addr.IPv6()
	_, err := compile(t, nft.Config{Family: nft.IPv4}).Run(sim.Packet{Src: p.Pod(0), Dst: p.VIP(0)}, sim.Constant(nft.NewState()))
	if err == nil {
		t.Error("got no error")
	}
}
