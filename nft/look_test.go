package nft_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"onerule/nft"
	"onerule/test/netns"
)

// What is looked up for one packet must be what the whole table holds for it.
func TestLookAtFindsWhatTheTableHolds(t *testing.T) {
	r := seeded(t, 7)
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		p, looked := program(t, ns, config(family)), 0
		for range 6 {
			want := randomWorld(r, family)
			load(t, ns, p, want)
			for _, packet := range packets(r, family) {
				s := look(t, ns, config(family), packet)
				if s.Wrong != "" || len(s.Odd) > 0 {
					t.Fatalf("%+v: it finds fault with a table that is right: %q, %v", packet, s.Wrong, s.Odd)
				}
				part := nft.Settle(s.State, want.At(s.Keys))
				if changes := nft.Diff(s.State, part); !changes.Empty() {
					t.Fatalf("%+v: what was found lacks\n%s", packet, changes.Text(family))
				}
				looked += len(s.State.Routes[nft.ServiceIPs]) + len(s.State.Routes[nft.ServiceNodePorts])
			}
		}
		if looked < 10 {
			t.Errorf("%d frontends met, want 10", looked)
		}
	})
}

// packets gives some to all that randomWorld may have.
func packets(r *rand.Rand, family nft.Family) []nft.Packet {
	var list []nft.Packet
	for _, p := range nft.Protocols() {
		for i := range 8 {
			list = append(list, nft.Packet{Src: endpoint(family, r.IntN(5)).Addr(), Dst: vip(family, i), Protocol: p.Number, Port: uint16(80 + r.IntN(2))})
		}
		for i := range 3 {
			list = append(list, nft.Packet{Src: vip(family, r.IntN(5)), Dst: vip(family, 0), Protocol: p.Number, Port: uint16(30000 + i)})
		}
	}
	return list
}

func look(t *testing.T, ns *netns.NS, c nft.Config, p nft.Packet) nft.Sight {
	t.Helper()
	var s nft.Sight
	do(t, ns, func() (err error) {
		s, err = nft.LookAt(c, p)
		return err
	})
	return s
}

func TestLookAtFindsPins(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns, c, client := netns.New(t, "node"), config(family), vip(family, 99)
		p, want := program(t, ns, c), nft.NewState()
		a := nft.Affinity{ID: nft.AffinityID("default/web"), Protocol: 6, Seconds: 600}
		f, all := web(family, 0), endpoints(family, 0, 3)
		want.Set(f, nft.Route{Endpoints: all, Affinity: a})
		want.Pin(a, all, nil)
		load(t, ns, p, want)
		packet := nft.Packet{Src: client, Dst: f.Addr, Protocol: 6, Port: 80}

		t.Run("none yet: any endpoint", func(t *testing.T) {
			s := look(t, ns, c, packet)
			if way := nft.Walk(c, s.State, s.Pins, nil, packet); len(way.Arrivals) != 3 || way.Pinned {
				t.Errorf("got %+v, want 3 endpoints", way)
			}
		})
		t.Run("one: its endpoint", func(t *testing.T) {
			for set, value := range map[string]string{"addr": all[1].Addr().String(), "port": fmt.Sprint(all[1].Port())} {
				ns.Run(t, "nft", "add", "element", family.String(), nft.TableName, "pins-"+set+"-"+a.ID, fmt.Sprintf("{ %s timeout 600s : %s }", client, value))
			}
			s := look(t, ns, c, packet)
			way := nft.Walk(c, s.State, s.Pins, nil, packet)
			if len(way.Arrivals) != 1 || way.Arrivals[0].Endpoint != all[1] || !way.Pinned {
				t.Errorf("got %+v, want %s for a pin", way, all[1])
			}
		})
		t.Run("of another client: any endpoint", func(t *testing.T) {
			other := packet
			other.Src = vip(family, 98)
			s := look(t, ns, c, other)
			if way := nft.Walk(c, s.State, s.Pins, nil, other); len(way.Arrivals) != 3 {
				t.Errorf("got %+v, want 3 endpoints", way)
			}
		})
	})
}

func TestLookAtSaysWhatIsWrong(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns, c, f := netns.New(t, "node"), config(family), web(family, 0)
		packet := nft.Packet{Src: endpoint(family, 9).Addr(), Dst: f.Addr, Protocol: 6, Port: 80}
		expect := func(what string) {
			t.Helper()
			if s := look(t, ns, c, packet); !strings.Contains(s.Wrong, what) {
				t.Errorf("got %q, want %q in it", s.Wrong, what)
			}
		}
		nftDo := func(args ...string) {
			ns.Run(t, "nft", append([]string{args[0], args[1], family.String(), nft.TableName}, args[2:]...)...)
		}
		expect("there is no table")
		p, want := program(t, ns, c), world(family, 1, 2)
		load(t, ns, p, want)
		expect("")
		nftDo("insert", "rule", "services", "counter", "accept")
		expect("the rules are not what they were")
		load(t, ns, p, want)
		nftDo("delete", "chain", "nat-output")
		expect("nat-output is missing")
		load(t, ns, p, want)
		c.MasqueradeAll = true
		expect("another version, or of other settings")
		c.MasqueradeAll = false
		load(t, ns, p, want)
		nftDo("add", "element", string(nft.ServiceIPs), fmt.Sprintf("{ %s . tcp . 81 : drop }", f.Addr))
		packet.Port = 81
		if s := look(t, ns, c, packet); len(s.Odd) != 1 || !strings.Contains(s.Odd[0], string(nft.ServiceIPs)) {
			t.Errorf("of an element that drops it says %v, want its map", s.Odd)
		}
	})
}

func TestWalkKnowsItsWayAlsoThroughWhatIsBroken(t *testing.T) {
	c, f := config(nft.IPv4), web(nft.IPv4, 0)
	packet := nft.Packet{Src: netip.MustParseAddr("10.128.0.9"), Dst: f.Addr, Protocol: 6, Port: 80}
	for name, of := range map[string]struct {
		spoil   func(nft.State)
		verdict nft.Verdict
		reached int
	}{
		"as it should be":                       {func(nft.State) {}, nft.Translated, 3},
		"a verdict that is none of ours":        {func(s nft.State) { s.Routes[nft.ServiceIPs][f] = "elsewhere" }, nft.Astray, 0},
		"a slot missing: the first one instead": {func(s nft.State) { s.Slots[nft.Endpoints][f][1] = netip.AddrPort{} }, nft.Translated, 2},
		"no number: the first one":              {func(s nft.State) { delete(s.Counts[nft.Endpoints], f) }, nft.Translated, 1},
		"no slots":                              {func(s nft.State) { delete(s.Slots[nft.Endpoints], f) }, nft.Dropped, 0},
		"no decision, address held":             {func(s nft.State) { delete(s.Routes[nft.ServiceIPs], f) }, nft.Refused, 0},
		"nothing":                               {func(s nft.State) { delete(s.Routes[nft.ServiceIPs], f); delete(s.Addrs[nft.ClusterIPs], f.Addr) }, nft.Passed, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := world(nft.IPv4, 1, 3)
			of.spoil(s)
			way := nft.Walk(c, s, nft.Pins{}, nil, packet)
			if way.Verdict != of.verdict || len(way.Arrivals) != of.reached {
				t.Errorf("got %s to %d endpoints, want %s to %d: %+v", way.Verdict, len(way.Arrivals), of.verdict, of.reached, way)
			}
		})
	}
}

// What is previewed must be what a load then writes, and nothing once it has.
func TestPreviewIsWhatALoadWrites(t *testing.T) {
	r := seeded(t, 11)
	each(t, func(t *testing.T, family nft.Family) {
		ns, c := netns.New(t, "node"), config(family)
		p := program(t, ns, c)
		for round := range 6 {
			want := randomWorld(r, family)
			before := ""
			if round > 0 {
				before = listing(t, ns, family)
			}
			seen := preview(t, ns, c, want)
			if (seen.Table != "") != (round == 0) {
				t.Errorf("round %d: a new table is announced as %q", round, seen.Table)
			}
			if round > 0 && listing(t, ns, family) != before {
				t.Fatal("the preview changed the table")
			}
			added, deleted := 0, 0
			for _, s := range append(append(seen.Changes.First, seen.Changes.Steps...), seen.Changes.Last...) {
				added, deleted = added+len(s.Add), deleted+len(s.Delete)
			}
			done := load(t, ns, p, copyOf(want))
			// The kernel is given ranges by their ends, all of a set: those are not steps.
			ranges := len(seen.Changes.Ranges)+len(seen.Changes.RangesLast) > 0
			if done.Deleted != deleted || done.Added < added || done.Added > added && !ranges {
				t.Errorf("round %d: the load added %d and deleted %d elements, the preview said %d and %d", round, done.Added, done.Deleted, added, deleted)
			}
			if after := preview(t, ns, c, want); !idle(after) {
				t.Errorf("round %d: after the load there is still to do: %+v", round, after)
			}
		}
		t.Run("what others put there goes", func(t *testing.T) {
			want := randomWorld(r, family)
			load(t, ns, p, copyOf(want))
			ns.Run(t, "nft", "add", "chain", family.String(), nft.TableName, "theirs")
			ns.Run(t, "nft", "add", "element", family.String(), nft.TableName, string(nft.ServiceIPs), fmt.Sprintf("{ %s . tcp . 7 : drop }", vip(family, 9)))
			seen := preview(t, ns, c, want)
			if seen.Strays != 1 || len(seen.Less) != 1 || seen.Less[0] != "theirs" || !seen.Changes.Empty() {
				t.Errorf("got %+v, want the element and the chain gone", seen)
			}
			load(t, ns, p, copyOf(want))
			if after := preview(t, ns, c, want); !idle(after) {
				t.Errorf("after the load there is still to do: %+v", after)
			}
		})
		t.Run("of other settings: rules and no element", func(t *testing.T) {
			other, want := c, randomWorld(r, family)
			load(t, ns, p, copyOf(want))
			other.MasqueradeAll = true
			if seen := preview(t, ns, other, want); seen.Rules == "" || !seen.Changes.Empty() {
				t.Errorf("got %+v, want rules and no element", seen)
			}
		})
	})
}

func preview(t *testing.T, ns *netns.NS, c nft.Config, want nft.State) nft.Preview {
	t.Helper()
	var p nft.Preview
	do(t, ns, func() (err error) {
		p, err = nft.PreviewOf(c, copyOf(want))
		return err
	})
	return p
}

// idle says whether a preview is of a load that would write nothing.
func idle(p nft.Preview) bool {
	return p.Table == "" && p.Rules == "" && len(p.More)+len(p.Less)+p.Strays == 0 && p.Changes.Empty()
}
