package nft

import (
	"iter"
	"maps"
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
// full load needs little memory beside the states. Affinities come first.
func parts(have, want State) iter.Seq[Keys] {
	return func(yield func(Keys) bool) {
		part, size := NewKeys(), 0
		add(part.Affinities, maps.Keys(have.Affinities))
		add(part.Affinities, maps.Keys(want.Affinities))
		groups := allKeys(have, want)
		for _, key := range slices.SortedFunc(maps.Keys(groups), Frontend.Compare) {
			if key.Addr.IsValid() {
				part.Addrs[key.Addr] = true
				size++
			}
			for _, f := range groups[key] {
				part.Frontends[f] = true
				size += have.weight(f) + want.weight(f)
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

// allKeys gives the frontends of some states by what is written together with them,
// and the addresses of their sets.
func allKeys(states ...State) map[Frontend][]Frontend {
	fronts := map[Frontend]bool{}
	groups := map[Frontend][]Frontend{}
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
		add(fronts, maps.Keys(s.Sources))
		for _, m := range s.Addrs {
			for addr := range m {
				groups[Frontend{Addr: addr}] = nil
			}
		}
	}
	for f := range fronts {
		groups[f.step()] = append(groups[f.step()], f)
	}
	return groups
}

func add[K comparable](to map[K]bool, keys iter.Seq[K]) {
	for k := range keys {
		to[k] = true
	}
}

// weight is about the number of elements that a frontend has.
func (s State) weight(f Frontend) int {
	n := 2 + len(s.Sources[f])
	for _, m := range s.Slots {
		n += len(m[f])
	}
	return n
}
