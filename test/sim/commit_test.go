package sim_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"onerule/nft"
	"onerule/test/addr"
	"onerule/test/sim"
)

// maxLookups bounds the look-ups of one walk, and so the places where a commit can
// make a difference. TestNoWalkLooksUpMore holds it.
const maxLookups = 20

// A schedule says which state each look-up of a walk sees.
type schedule struct {
	name  string
	state func(lookup int) nft.State
}

// one gives the schedules of one commit: in front of each look-up, and into the
// middle of each.
func one(from, to nft.State) []schedule {
	var list []schedule
	between := torn(from, to)
	for at := range maxLookups + 1 {
		list = append(list,
			schedule{fmt.Sprintf("commit in front of look-up %d", at), func(lookup int) nft.State {
				if lookup < at {
					return from
				}
				return to
			}},
			schedule{fmt.Sprintf("commit into look-up %d", at), func(lookup int) nft.State {
				switch {
				case lookup < at:
					return from
				case lookup == at:
					return between
				}
				return to
			}})
	}
	return list
}

// two gives the schedules of two commits: one in front of a look-up, and another
// into it or into a later one. That both fall into look-ups of one packet is not
// asked for: then no number of repetitions would do, and a look-up takes some
// hundred nanoseconds, a commit at least ten microseconds.
func two(first, second, third nft.State) []schedule {
	var list []schedule
	between := torn(second, third)
	for early := range maxLookups + 1 {
		for late := early; late <= maxLookups; late++ {
			name := fmt.Sprintf("commit in front of look-up %d, and into %d", early, late)
			list = append(list, schedule{name, func(lookup int) nft.State {
				switch {
				case lookup < early:
					return first
				case lookup < late:
					return second
				case lookup == late:
					return between
				}
				return third
			}})
		}
	}
	return list
}

// torn is what a look-up sees when the commit falls into the look-up itself: it
// began with the old generation, in which what comes is not active yet, and what
// goes is unlinked already. A replaced element is missed both ways.
func torn(from, to nft.State) nft.State {
	s := nft.NewState()
	for name, m := range from.Addrs {
		maps.Copy(s.Addrs[name], both(m, to.Addrs[name], func(a, b bool) bool { return a == b }))
	}
	for name, m := range from.Routes {
		maps.Copy(s.Routes[name], both(m, to.Routes[name], func(a, b string) bool { return a == b }))
	}
	for name, m := range from.Slots {
		for f, list := range m {
			kept := make([]netip.AddrPort, len(list)) // the zero value: no element
			for i, now := range to.Slots[name][f] {
				if i < len(list) && list[i] == now {
					kept[i] = now
				}
			}
			s.Slots[name][f] = kept
		}
	}
	for name, m := range from.Counts {
		maps.Copy(s.Counts[name], both(m, to.Counts[name], func(a, b int) bool { return a == b }))
	}
	for set, m := range from.Members {
		s.Members[set] = both(m, to.Members[set], func(a, b bool) bool { return a == b })
	}
	maps.Copy(s.Ranges, from.Ranges)
	maps.Copy(s.Sources, from.Sources) // one look-up sees the old ranges or the new ones, never a mixture
	return s
}

func both[K comparable, V any](from, to map[K]V, same func(a, b V) bool) map[K]V {
	kept := map[K]V{}
	for k, v := range from {
		if w, ok := to[k]; ok && same(v, w) {
			kept[k] = v
		}
	}
	return kept
}

// during runs a packet under each schedule, and says which outcomes were not good.
func during(t *testing.T, program *sim.Program, packet sim.Packet, list []schedule, good func(sim.Outcome) bool, own ...netip.Addr) []string {
	t.Helper()
	var bad []string
	for _, s := range list {
		got, err := program.Run(packet, sim.Node{State: s.state, Addrs: own})
		if err != nil {
			t.Fatal(err)
		}
		for o := range got {
			if !good(o) {
				bad = append(bad, fmt.Sprintf("%s: %+v", s.name, o))
			}
		}
	}
	return bad
}

// A frontend goes through several states, with endpoints that all have, that only
// one has, and in other slots.
func states(p addr.Plan, front nft.Frontend, shift int, counts ...int) (list []nft.State, endpoints map[netip.AddrPort]bool) {
	endpoints = map[netip.AddrPort]bool{}
	for i, n := range counts {
		s := nft.NewState()
		serve(s, p, front, i*shift, n)
		for _, to := range s.Slots[nft.Endpoints][front] {
			endpoints[to] = true
		}
		list = append(list, s)
	}
	return list, endpoints
}

func eachPacket(f func(family nft.Family, p addr.Plan, packet sim.Packet)) {
	for _, family := range []nft.Family{nft.IPv4, nft.IPv6} {
		p := plan(family)
		for _, proto := range nft.Protocols() {
			f(family, p, sim.Packet{Src: p.Outside(), Dst: p.VIP(1), Protocol: proto.Number, Port: 80})
			f(family, p, sim.Packet{Local: true, Src: p.Node(), Dst: p.VIP(1), Protocol: proto.Number, Port: 80})
			f(family, p, sim.Packet{Src: p.Pod(60), Dst: p.VIP(1), Protocol: proto.Number, Port: 80})
		}
	}
}

func frontendOf(packet sim.Packet) nft.Frontend {
	return nft.Frontend{Addr: packet.Dst, Protocol: packet.Protocol, Port: packet.Port}
}

// right is what every packet of a frontend with endpoints must get.
func right(p addr.Plan, packet sim.Packet, endpoints map[netip.AddrPort]bool) func(sim.Outcome) bool {
	return func(o sim.Outcome) bool {
		return o.Verdict == sim.Translated && endpoints[o.Endpoint] && o.Masqueraded == !p.ClusterCIDR.Contains(packet.Src)
	}
}

func TestCommitInTheMiddleOfAWalk(t *testing.T) {
	eachPacket(func(family nft.Family, p addr.Plan, packet sim.Packet) {
		program := compile(t, nft.Config{Family: family, Detector: nft.DetectCIDR})
		for _, a := range counts() {
			for _, b := range counts() {
				for _, shift := range []int{0, 1, 20} {
					list, endpoints := states(p, frontendOf(packet), shift, a, b)
					for _, line := range during(t, program, packet, one(list[0], list[1]), right(p, packet, endpoints)) {
						t.Errorf("%d to %d endpoints, shift %d, %+v: %s", a, b, shift, packet, line)
					}
				}
			}
		}
	})
}

func TestTwoCommitsInTheMiddleOfAWalk(t *testing.T) {
	changes := [][]int{{5, 1, 1}, {5, 1, 3}, {3, 1, 5}, {1, 5, 1}, {2, 2, 2}}
	eachPacket(func(family nft.Family, p addr.Plan, packet sim.Packet) {
		program := compile(t, nft.Config{Family: family, Detector: nft.DetectCIDR})
		for _, c := range changes {
			for _, shift := range []int{0, 1, 20} {
				list, endpoints := states(p, frontendOf(packet), shift, c...)
				for _, line := range during(t, program, packet, two(list[0], list[1], list[2]), right(p, packet, endpoints)) {
					t.Errorf("%v endpoints, shift %d, %+v: %s", c, shift, packet, line)
				}
			}
		}
	})
}

// A frontend that gets or loses its endpoints, or comes and goes, may refuse or
// drop. It must not let a packet pass.
func TestCommitThatTakesOrGivesAFrontend(t *testing.T) {
	eachPacket(func(family nft.Family, p addr.Plan, packet sim.Packet) {
		program := compile(t, nft.Config{Family: family, Detector: nft.DetectCIDR})
		front := frontendOf(packet)
		none, some, otherPort, unheld := nft.NewState(), nft.NewState(), nft.NewState(), nft.NewState()
		serve(none, p, front, 0, 0)
		serve(some, p, front, 0, 3)
		serve(otherPort, p, nft.Frontend{Addr: front.Addr, Protocol: front.Protocol, Port: 1}, 0, 1)
		serve(unheld, p, nft.Frontend{Addr: p.VIP(9), Protocol: front.Protocol, Port: 80}, 0, 1)
		for name, other := range map[string]nft.State{"no endpoints": none, "another port": otherPort, "another address": unheld} {
			for _, list := range [][]schedule{one(other, some), one(some, other)} {
				for _, line := range during(t, program, packet, list, func(o sim.Outcome) bool { return o.Verdict != sim.Accepted }) {
					t.Errorf("%s, %+v: %s", name, packet, line)
				}
			}
		}
	})
}

// without gives the rules with some left out.
func without(t *testing.T, family nft.Family, out func(chain, rule string, index int) bool) *sim.Program {
	t.Helper()
	s := nft.NewSkeleton(nft.Config{Family: family, MasqueradeBit: bit, Detector: nft.DetectCIDR})
	cut := 0
	for i, c := range s.Chains {
		s.Chains[i].Rules = nil
		for j, r := range c.Rules {
			if out(c.Name, r, j) {
				cut++
			} else {
				s.Chains[i].Rules = append(s.Chains[i].Rules, r)
			}
		}
	}
	if cut == 0 {
		t.Fatal("no rule was left out: the fault seeds nothing")
	}
	p, err := sim.Compile(s, counts()...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Each of the rules against commits is needed: without it the tests above fail,
// and in this way.
func TestCommitIsNoticedWithoutItsRules(t *testing.T) {
	chooses := func(chain, rule string) bool {
		return strings.HasPrefix(chain, "balance-") && strings.HasPrefix(rule, "dnat")
	}
	for _, fault := range []struct {
		name string
		out  func(chain, rule string, index int) bool
		want []sim.Verdict
	}{
		{"both choices from slot 0", func(chain, rule string, _ int) bool { return chooses(chain, rule) }, []sim.Verdict{sim.Dropped}},
		{"one choice from slot 0", func(chain, rule string, index int) bool { return chooses(chain, rule) && index == 2 }, []sim.Verdict{sim.Dropped}},
		{"all but the first choice", func(chain, _ string, index int) bool {
			return strings.HasPrefix(chain, "balance-") && index > 1
		}, []sim.Verdict{sim.Accepted}},
	} {
		t.Run(fault.name, func(t *testing.T) {
			for _, family := range []nft.Family{nft.IPv4, nft.IPv6} {
				program, p := without(t, family, fault.out), plan(family)
				packet := sim.Packet{Src: p.Outside(), Dst: p.VIP(1), Protocol: tcp, Port: 80}
				list, endpoints := states(p, frontendOf(packet), 20, 5, 1, 3)
				var seen []sim.Verdict
				during(t, program, packet, two(list[0], list[1], list[2]), func(o sim.Outcome) bool {
					if !right(p, packet, endpoints)(o) {
						seen = append(seen, o.Verdict)
					}
					return true
				})
				slices.Sort(seen)
				if seen = slices.Compact(seen); !slices.Equal(seen, fault.want) {
					t.Errorf("%s: got wrong outcomes %v, want %v", family, seen, fault.want)
				}
			}
		})
	}
}

func TestNoWalkLooksUpMore(t *testing.T) {
	eachPacket(func(family nft.Family, p addr.Plan, packet sim.Packet) {
		program := compile(t, nft.Config{Family: family, Detector: nft.DetectCIDR})
		list, _ := states(p, frontendOf(packet), 20, 5, 1, 0)
		for _, s := range slices.Concat(two(list[0], list[1], list[2]), two(list[0], nft.NewState(), list[1])) {
			_, err := program.Run(packet, sim.Node{State: func(lookup int) nft.State {
				if lookup >= maxLookups {
					t.Fatalf("%s, %+v: more than %d look-ups", s.name, packet, maxLookups)
				}
				return s.state(lookup)
			}})
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A kind is a way to reach a Service, for commits that fall into the walk.
type kind struct {
	name   string
	entry  nft.Entry
	packet func(p addr.Plan, proto uint8) sim.Packet
	sticky bool
}

func kinds() []kind {
	outside := func(p addr.Plan, proto uint8) sim.Packet {
		return sim.Packet{Src: p.Outside(), Dst: p.VIP(1), Protocol: proto, Port: 80}
	}
	toNode := func(p addr.Plan, proto uint8) sim.Packet {
		return sim.Packet{Src: p.Outside(), Dst: p.Node(), Protocol: proto, Port: 30080}
	}
	fromNode := func(p addr.Plan, proto uint8) sim.Packet {
		return sim.Packet{Local: true, Src: p.Node(), Dst: p.VIP(1), Protocol: proto, Port: 80}
	}
	return []kind{
		{"ClusterIP", nft.Entry{}, outside, false},
		{"ClusterIP, Local", nft.Entry{Local: true}, outside, false},
		{"external", nft.Entry{External: true}, outside, false},
		{"external, Local", nft.Entry{External: true, Local: true}, outside, false},
		{"external, Local, from the node", nft.Entry{External: true, Local: true}, fromNode, false},
		{"source ranges", nft.Entry{External: true, Guarded: true}, outside, false},
		{"source ranges, Local", nft.Entry{External: true, Guarded: true, Local: true}, outside, false},
		{"NodePort", nft.Entry{External: true, NodePort: true}, toNode, false},
		{"NodePort, Local", nft.Entry{External: true, NodePort: true, Local: true}, toNode, false},
		{"affinity", nft.Entry{}, outside, true},
		{"affinity, NodePort, Local", nft.Entry{External: true, NodePort: true, Local: true}, toNode, true},
	}
}

// state gives one in which the frontend has so many endpoints, from the pod with the
// given number on.
func (k kind) state(p addr.Plan, front nft.Frontend, from, n int) (nft.State, map[netip.AddrPort]bool) {
	s := nft.NewState()
	s.Ranges[nft.PodCIDRs] = []netip.Prefix{p.ClusterCIDR}
	s.Ranges[nft.ServiceCIDRs] = []netip.Prefix{p.ServiceCIDR}
	s.Addrs[nft.NodePortIPs][p.Node()] = true
	if front.Addr.IsValid() {
		s.Addrs[nft.ClusterIPs][front.Addr] = !k.entry.External
		s.Addrs[nft.ExternalIPs][front.Addr] = k.entry.External
	}
	r, set := nft.Route{Entry: k.entry}, map[netip.AddrPort]bool{}
	for i := range n {
		ep := netip.AddrPortFrom(p.Pod(from+i), 8080)
		r.Endpoints, set[ep] = append(r.Endpoints, ep), true
	}
	if k.entry.Local {
		r.Local = r.Endpoints
	}
	if k.entry.Guarded {
		r.Sources = []netip.Prefix{p.Uplink}
	}
	if k.sticky {
		r.Affinity = nft.Affinity{ID: nft.AffinityID("a"), Protocol: front.Protocol, Seconds: 60, Local: true}
		s.Pin(r.Affinity, r.Endpoints, r.Local)
	}
	s.Set(front, r)
	return s, set
}

// Commits that change the endpoints of a frontend of any kind, and those that make one
// kind another, neither lose a connection, unless the policy is another one, nor let
// one through without translation.
func TestCommitsIntoEveryKindOfFrontend(t *testing.T) {
	for _, family := range []nft.Family{nft.IPv4, nft.IPv6} {
		p := plan(family)
		for _, proto := range nft.Protocols() {
			for _, from := range kinds() {
				for _, to := range kinds() {
					packet := from.packet(p, proto.Number)
					if from.entry.NodePort != to.entry.NodePort {
						continue
					}
					front := nft.Frontend{Addr: packet.Dst, Protocol: proto.Number, Port: packet.Port}
					if from.entry.NodePort {
						front.Addr = netip.Addr{}
					}
					program := compile(t, nft.Config{Family: family, Detector: nft.DetectCIDR})
					a, before := from.state(p, front, 0, 3)
					b, after := to.state(p, front, 20, 1)
					maps.Copy(before, after)
					if err := program.Add(a.Affinities); err != nil {
						t.Fatal(err)
					}
					if err := program.Add(b.Affinities); err != nil {
						t.Fatal(err)
					}
					// Sources are in before the kind changes, and go after it.
					maps.Copy(a.Sources, b.Sources)
					maps.Copy(b.Sources, a.Sources)
					good := func(o sim.Outcome) bool {
						// A new policy, or another owner, can cost a first packet, which is sent again: what has
						// been decided about masquerade cannot be taken back.
						other := from.entry.Local != to.entry.Local || from.entry.External != to.entry.External
						dropped := o.Verdict == sim.Dropped && other
						return dropped || o.Verdict == sim.Translated && before[o.Endpoint]
					}
					for _, list := range [][]schedule{one(a, b), one(b, a)} {
						for _, line := range during(t, program, packet, list, good, p.Node()) {
							t.Errorf("%s, from %q to %q, %+v: %s", family, from.name, to.name, packet, line)
						}
					}
				}
			}
		}
	}
}
