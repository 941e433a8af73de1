package nft

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
)

// rangeChanges gives what changes in range sets: before anything else, and after.
func rangeChanges(have, want State) (before, after Changes) {
	keys := Keys{Ranges: true}
	c := Diff(have.At(keys), want.At(keys))
	return Changes{Ranges: c.Ranges}, Changes{RangesLast: c.RangesLast}
}

// parts splits all that two states hold, but for ranges, into keys that are written
// together: whole addresses, with about as many elements as a transaction takes. So a
// full load needs little memory beside the states.
func parts(have, want State) iter.Seq[Keys] {
	return func(yield func(Keys) bool) {
		fronts, addrs := allKeys(have, want)
		part, size := NewKeys(), 0
		for _, addr := range addrs {
			part.Addrs[addr] = true
			size += len(have.Addrs)
			for ; len(fronts) > 0 && fronts[0].Addr == addr; fronts = fronts[1:] {
				part.Frontends[fronts[0]] = true
				size += have.weight(fronts[0]) + want.weight(fronts[0])
			}
			if size >= elementsPerTransaction {
				if !yield(part) {
					return
				}
				part, size = NewKeys(), 0
			}
		}
		if !part.Empty() {
			yield(part)
		}
	}
}

// allKeys gives the frontends of some states, sorted, and their addresses and those
// of their sets, sorted.
func allKeys(states ...State) ([]Frontend, []netip.Addr) {
	fronts, addrs := map[Frontend]bool{}, map[netip.Addr]bool{}
	for _, s := range states {
		for _, m := range s.Routes {
			add(fronts, maps.Keys(m))
		}
		for _, m := range s.Counts {
			add(fronts, maps.Keys(m))
		}
		for _, m := range s.Slots {
			add(fronts, maps.Keys(m))
		}
		for _, m := range s.Addrs {
			add(addrs, maps.Keys(m))
		}
	}
	for f := range fronts {
		addrs[f.Addr] = true
	}
	return slices.SortedFunc(maps.Keys(fronts), Frontend.Compare), slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare)
}

func add[K comparable](to map[K]bool, keys iter.Seq[K]) {
	for k := range keys {
		to[k] = true
	}
}

// weight is the number of elements that a frontend has.
func (s State) weight(f Frontend) int {
	n := len(s.Routes) + len(s.Counts)
	for _, m := range s.Slots {
		n += len(m[f])
	}
	return n
}
