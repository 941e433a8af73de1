package layout_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"onerule/daemon/fabric/layout"
)

// cluster gives so many nodes; some are on the layer 2 of node 0, which is this one.
func cluster(random *rand.Rand, n int) ([]layout.Node, layout.Facts) {
	f := facts()
	f.Ways = map[netip.Addr]layout.Way{}
	var nodes []layout.Node
	for i := range n {
		third := byte(random.IntN(4)) // now and then another address
		a := layout.Node{
			Name:     fmt.Sprint(i),
			Addrs:    []netip.Addr{netip.AddrFrom4([4]byte{172, byte(16 + i/250), third, byte(1 + i%250)})},
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i / 250), byte(i % 250), 0}), 24)},
		}
		f.Ways[a.Addrs[0]] = layout.Way{Link: 2, Gateway: random.IntN(2) == 0, Local: i == 0}
		if i == 0 || random.IntN(5) > 0 {
			nodes = append(nodes, a)
		}
	}
	return nodes, f
}

func plan(t *testing.T, nodes []layout.Node, f layout.Facts, c layout.Config) layout.State {
	t.Helper()
	m, ok := layout.Admit(nodes[0].Name, nodes)
	if !ok {
		t.Fatal("not among the nodes")
	}
	s, _ := layout.Plan(m, f, c)
	return s
}

func randomPlan(t *testing.T, random *rand.Rand) layout.State {
	t.Helper()
	nodes, f := cluster(random, 1+random.IntN(6))
	for i, n := range nodes {
		// IPv6 routes that refuse stand beside those that lead somewhere, not in their place.
		third := n.PodCIDRs[0].Addr().As4()[2]
		nodes[i].PodCIDRs = append(n.PodCIDRs, prefixes(fmt.Sprintf("fd01:0:0:%x::/64", third))...)
		if i > 0 && random.IntN(4) == 0 {
			delete(f.Ways, n.Addrs[0])
		}
	}
	return plan(t, nodes, f, layout.Config{
		VNI: 1 + random.IntN(8)/7, Port: 8472, Encapsulation: layout.Encapsulation(random.IntN(2)),
	})
}

// damage takes from a state what others, or a kill, may have taken.
func damage(s layout.State, random *rand.Rand) layout.State {
	drop := func(int) bool { return random.IntN(4) == 0 }
	maps.DeleteFunc(s.Routes, func(layout.Place, layout.Route) bool { return drop(0) })
	maps.DeleteFunc(s.Entries, func(layout.MAC, netip.Addr) bool { return drop(0) })
	maps.DeleteFunc(s.Neighbours, func(netip.Addr, layout.MAC) bool { return drop(0) })
	maps.DeleteFunc(s.Addresses, func(netip.Addr, bool) bool { return drop(0) })
	maps.DeleteFunc(s.Settings, func(string, string) bool { return drop(0) })
	if s.Device != nil && drop(0) {
		s.Device.MAC = layout.DeviceMAC("others")
	}
	if s.Device != nil && drop(0) {
		s.Device.Up = false
	}
	return s
}

// carries says whether packets to a range have a way: not only a route.
func carries(s layout.State, dst netip.Prefix) bool {
	r, ok := s.Routes[layout.Place{Dst: dst, Metric: layout.Metric}]
	if !ok || r.Refuses() {
		return false
	}
	if r.Link != 0 {
		return true
	}
	mac, ok := s.Neighbours[r.Via]
	return ok && s.Device != nil && s.Device.Up && s.Entries[mac].IsValid()
}

// Whatever stands, the difference leads to what is wanted; whenever it is broken off, a
// range that had a way and is to have one has it still.
func TestDiffLeadsThereAndLosesNoWay(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	broken, deleted := 0, 0
	for range 4000 {
		have, want := randomPlan(t, random), randomPlan(t, random)
		if random.IntN(3) == 0 {
			have = damage(have, random)
		}
		changes := layout.Diff(have, want)
		now := have.Clone()
		anew := false
		for i, c := range changes {
			now = now.Apply(c)
			anew = anew || c.Kind == layout.KindDevice && (i == 0 && c.Delete || !c.Delete && have.Device != nil && have.Device.MAC != c.Device.MAC)
			if c.Delete {
				deleted++
			}
			for place := range have.Routes {
				dst := place.Dst
				if !anew && carries(have, dst) && carries(want, dst) && !carries(now, dst) {
					t.Fatalf("seed %d: %s has no way after %v", seed, dst, changes[:i+1])
				}
			}
			broken++
		}
		maps.DeleteFunc(now.Settings, func(k, _ string) bool { _, wanted := want.Settings[k]; return !wanted })
		if diff := cmp.Diff(want, now, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("seed %d: after %v (-want +got):\n%s", seed, changes, diff)
		}
		if again := layout.Diff(now, want); len(again) > 0 {
			t.Fatalf("seed %d: and then %v", seed, again)
		}
	}
	if broken < 4000 || deleted < 400 {
		t.Errorf("%d changes were tried, %d of them deletions: too few to say anything", broken, deleted)
	}
}

// The order of nodes, as it comes from a map, changes nothing.
func TestSameNodesSamePlan(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	nodes, f := cluster(random, 40)
	first := plan(t, nodes, f, layout.Config{})
	for range 20 {
		rest := nodes[1:]
		rand.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
		if got := layout.Diff(first, plan(t, nodes, f, layout.Config{})); len(got) > 0 {
			t.Fatalf("got %v, want no change", got)
		}
	}
}

// A change of one node costs the same among 10 nodes and among 4,000.
func TestCostOfOneNode(t *testing.T) {
	cost := func(n int, change func([]layout.Node) []layout.Node) []string {
		random := rand.New(rand.NewPCG(7, 7))
		nodes, f := cluster(random, n)
		c := layout.Config{Encapsulation: layout.Always}
		before := plan(t, nodes, f, c)
		var kinds []string
		for _, c := range layout.Diff(before, plan(t, change(slices.Clone(nodes)), f, c)) {
			kinds = append(kinds, fmt.Sprintf("%s %t", c.Word(), c.Delete))
		}
		return kinds
	}
	for name, test := range map[string]struct {
		change func([]layout.Node) []layout.Node
		want   []string
	}{
		"a node goes": {func(nodes []layout.Node) []layout.Node { return slices.Delete(nodes, 3, 4) },
			[]string{"route true", "neighbour true", "forwarding entry true"}},
		"a node has another range": {func(nodes []layout.Node) []layout.Node {
			nodes[3].PodCIDRs = prefixes("10.200.0.0/24")
			return nodes
		}, []string{"neighbour false", "route false", "route true", "neighbour true"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, n := range []int{10, 4000} {
				if got := cost(n, test.change); !slices.Equal(got, test.want) {
					t.Errorf("among %d nodes: got %q, want %q", n, got, test.want)
				}
			}
		})
	}
}
