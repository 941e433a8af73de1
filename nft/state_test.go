package nft_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"onerule/nft"
)

func options() cmp.Options {
	return cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmpopts.EquateEmpty()}
}

func TestArrangeKeepsEndpointsWhereTheyAre(t *testing.T) {
	e := func(ids ...int) []netip.AddrPort {
		var list []netip.AddrPort
		for _, n := range ids {
			list = append(list, endpoint(nft.IPv4, n))
		}
		return list
	}
	for _, c := range []struct {
		name             string
		have, want, give []netip.AddrPort
	}{
		{"nothing was there", nil, e(1, 2, 3), e(1, 2, 3)},
		{"another order is no change", e(3, 1, 2), e(1, 2, 3), e(3, 1, 2)},
		{"one more goes to the end", e(3, 1), e(1, 2, 3), e(3, 1, 2)},
		{"the last one goes", e(3, 1, 2), e(1, 3), e(3, 1)},
		{"the last one fills a gap", e(3, 1, 2), e(1, 2), e(2, 1)},
		{"a newcomer takes the place of one that goes", e(3, 1, 2), e(1, 2, 9), e(9, 1, 2)},
		{"all go", e(3, 1, 2), nil, nil},
		{"all are others", e(1, 2), e(3, 4, 5), e(3, 4, 5)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := nft.Arrange(c.have, c.want); !slices.Equal(got, c.give) {
				t.Errorf("got %v, want %v", got, c.give)
			}
		})
	}
}

func FuzzArrange(f *testing.F) {
	f.Add([]byte{1, 2, 3}, []byte{3, 4})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		have, want := distinct(a), distinct(b)
		got := nft.Arrange(have, want)
		if !maps.Equal(setOf(got), setOf(want)) || len(got) != len(want) {
			t.Fatalf("got %v, want a permutation of %v", got, want)
		}
		for slot, ep := range have {
			if slot < len(got) && setOf(want)[ep] && got[slot] != ep {
				t.Errorf("%v moved from slot %d of %v in %v", ep, slot, have, got)
			}
		}
	})
}

func distinct(ids []byte) []netip.AddrPort {
	var list []netip.AddrPort
	for _, n := range ids {
		if ep := endpoint(nft.IPv4, int(n)); !slices.Contains(list, ep) {
			list = append(list, ep)
		}
	}
	return list
}

func setOf(list []netip.AddrPort) map[netip.AddrPort]bool {
	m := map[netip.AddrPort]bool{}
	for _, ep := range list {
		m[ep] = true
	}
	return m
}

// I5: Diff is pure, and its changes lead from the one state to the other.
func TestI5DiffLeadsFromAnyStateToAnyOther(t *testing.T) {
	r := seeded(t, 1)
	each(t, func(t *testing.T, family nft.Family) {
		for range 500 {
			have, want := randomWorld(r, family), randomWorld(r, family)
			want = nft.Settle(have, want)
			before := copyOf(have)
			changes := nft.Diff(have, want)
			if diff := cmp.Diff(before, have, options()); diff != "" {
				t.Fatalf("Diff wrote to its argument: %s", diff)
			}
			if diff := cmp.Diff(nft.Diff(have, want), changes, options()); diff != "" {
				t.Fatalf("a second Diff gives something else: %s", diff)
			}
			got := applied(t, have, changes)
			maps.Copy(got.Affinities, want.Affinities) // no elements
			if diff := cmp.Diff(want, got, options()); diff != "" {
				t.Fatalf("changes do not lead to what is wanted (-want +got): %s", diff)
			}
			if c := nft.Diff(want, nft.Settle(want, shuffled(r, want))); !c.Empty() {
				t.Fatalf("the same state in another order gives changes: %s", c.Text(family))
			}
		}
	})
}

func copyOf(s nft.State) nft.State {
	c := applied(nil, nft.NewState(), nft.Diff(nft.NewState(), s))
	maps.Copy(c.Affinities, s.Affinities)
	return c
}

// steps gives all steps in the order in which they are applied.
func steps(c nft.Changes) []nft.Step { return slices.Concat(c.First, c.Steps, c.Last) }

func shuffled(r *rand.Rand, s nft.State) nft.State {
	c := copyOf(s)
	for _, m := range c.Slots {
		for f, list := range m {
			list = slices.Clone(list)
			r.Shuffle(len(list), func(a, b int) { list[a], list[b] = list[b], list[a] })
			m[f] = list
		}
	}
	return c
}

// applied carries changes out as the kernel would: a deletion of what is not there
// and an addition of what is there otherwise are errors.
func applied(t *testing.T, have nft.State, c nft.Changes) nft.State {
	k := kernel{t: t, elements: map[string]nft.Element{}}
	for _, s := range steps(nft.Diff(nft.NewState(), have)) {
		k.step(s)
	}
	for _, s := range steps(c) {
		k.step(s)
	}
	s := nft.NewState()
	for _, e := range k.elements {
		put(s, e)
	}
	maps.Copy(s.Ranges, have.Ranges)
	for _, m := range []map[nft.RangeSet][]netip.Prefix{c.Ranges, c.RangesLast} {
		for name, list := range m {
			s.Ranges[name] = list
			if len(list) == 0 {
				delete(s.Ranges, name)
			}
		}
	}
	return s
}

type kernel struct {
	t        *testing.T
	elements map[string]nft.Element
}

func (k kernel) step(s nft.Step) {
	key := func(e nft.Element) string { return keyText(e) }
	for _, e := range s.Delete {
		if _, ok := k.elements[key(e)]; !ok && k.t != nil {
			k.t.Errorf("deletes %s of %s, which is not there", e.Text(), e.Set)
		}
		delete(k.elements, key(e))
	}
	for _, e := range s.Add {
		if _, ok := k.elements[key(e)]; ok && k.t != nil {
			k.t.Errorf("adds %s to %s, which is there", e.Text(), e.Set)
		}
		k.elements[key(e)] = e
	}
}

// keyText tells elements of the same key from others. A member has no other key than its
// endpoint, an allowed source none other than its range.
func keyText(e nft.Element) string {
	if e.Frontend.Protocol == 0 {
		return fmt.Sprint(e.Set, e.Frontend, e.Endpoint)
	}
	return fmt.Sprint(e.Set, e.Frontend, e.Slot, e.Source)
}

func put(s nft.State, e nft.Element) {
	f := e.Frontend
	for _, m := range nft.SlotMaps() {
		for _, p := range nft.Protocols() {
			if e.Set == m.Of(p.Number) {
				list := s.Slots[m][f]
				for len(list) <= e.Slot {
					list = append(list, netip.AddrPort{})
				}
				list[e.Slot] = e.Endpoint
				s.Slots[m][f] = list
				return
			}
			n, err := strconv.Atoi(e.Set[strings.LastIndex(e.Set, "-")+1:])
			if err == nil && e.Set == nft.CountSet(nft.IPv4, m, p.Number, n).Name {
				s.Counts[m][f] = n
				return
			}
		}
		if e.Set == m.EmptySet() {
			s.Counts[m][f] = 0
			return
		}
	}
	switch {
	case e.Chain != "":
		s.Routes[nft.RouteMap(e.Set)][f] = e.Chain
	case e.Set == nft.AllowedSources:
		s.Sources[f] = append(s.Sources[f], e.Source)
		slices.SortFunc(s.Sources[f], netip.Prefix.Compare)
	case e.Endpoint.IsValid():
		if s.Members[e.Set] == nil {
			s.Members[e.Set] = map[netip.AddrPort]bool{}
		}
		s.Members[e.Set][e.Endpoint] = true
	default:
		s.Addrs[nft.AddrSet(e.Set)][f.Addr] = true
	}
}

// I3: a change of one endpoint writes a handful of elements, whatever the size of
// the Service and of the cluster.
func TestI3OneEndpointIsAHandfulOfElements(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		for _, c := range []struct {
			name   string
			change func(list []netip.AddrPort) []netip.AddrPort
			size   int
		}{
			{"one is replaced", func(l []netip.AddrPort) []netip.AddrPort { return append(slices.Clone(l[1:]), endpoint(family, 99999)) }, 2},
			{"one goes", func(l []netip.AddrPort) []netip.AddrPort { return l[1:] }, 5},
			{"one comes", func(l []netip.AddrPort) []netip.AddrPort { return append(slices.Clone(l), endpoint(family, 99999)) }, 3},
		} {
			t.Run(c.name, func(t *testing.T) {
				for _, services := range []int{10, 1000} {
					for _, each := range []int{10, 100} {
						have := world(family, services, each)
						f := web(family, services/2)
						want := copyOf(have)
						balance(want, f, c.change(have.Slots[nft.Endpoints][f]))
						if got := nft.Diff(have, nft.Settle(have, want)).Size(); got != c.size {
							t.Errorf("got %d writes at %d services of %d endpoints, want %d", got, services, each, c.size)
						}
					}
				}
			})
		}
	})
}

func TestAPartOfAStateIsReadAndWrittenByItsKeys(t *testing.T) {
	have, want := world(nft.IPv4, 4, 2), world(nft.IPv4, 5, 3)
	keys := frontends(web(nft.IPv4, 1), web(nft.IPv4, 4), web(nft.IPv4, 77))
	keys.Addrs[vip(nft.IPv4, 4)] = true
	have.Put(keys, want.At(keys))
	for n, size := range map[int]int{0: 2, 1: 3, 2: 2, 3: 2, 4: 3} {
		if got := len(have.Slots[nft.Endpoints][web(nft.IPv4, n)]); got != size {
			t.Errorf("got %d endpoints of frontend %d, want %d", got, n, size)
		}
	}
	if !have.Addrs[nft.ClusterIPs][vip(nft.IPv4, 4)] {
		t.Error("the new address is missing")
	}
	have.Put(keys, nft.NewState())
	if diff := cmp.Diff(3, len(have.Routes[nft.ServiceIPs])); diff != "" {
		t.Errorf("frontends that are left (-want +got): %s", diff)
	}
}

// A client that was pinned to the last endpoint is refused like all others: its pin is
// deleted a moment later.
func TestNobodyIsPinnedWhereThereIsNoEndpoint(t *testing.T) {
	f := nft.Frontend{Addr: vip(nft.IPv4, 0), Protocol: 6, Port: 80}
	a := nft.Affinity{ID: nft.AffinityID("ns/sticky/TCP"), Protocol: 6, Seconds: 60}
	for _, endpoints := range [][]netip.AddrPort{nil, {endpoint(nft.IPv4, 1)}} {
		s := nft.NewState()
		s.Set(f, nft.Route{Endpoints: endpoints, Affinity: a})
		if _, pinned := s.Routes[nft.Sticky][f]; pinned != (len(endpoints) > 0) {
			t.Errorf("with %d endpoints pinned clients are looked for: %t", len(endpoints), pinned)
		}
	}
}
