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
const maxLookups = 15

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
	maps.Copy(s.Ranges, from.Ranges)
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
func during(t *testing.T, program *sim.Program, packet sim.Packet, list []schedule, good func(sim.Outcome) bool) []string {
	t.Helper()
	var bad []string
	for _, s := range list {
		got, err := program.Run(packet, sim.Node{State: s.state})
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
		{"one choice from slot 0", func(chain, rule string, index int) bool { return chooses(chain, rule) && index == 1 }, []sim.Verdict{sim.Dropped}},
		{"all but the first choice", func(chain, _ string, index int) bool {
			return strings.HasPrefix(chain, "balance-") && index > 0
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
