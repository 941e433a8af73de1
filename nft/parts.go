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

// hairpinChanges gives the hairpins that come, before the first frontend, and those that
// go, after the last: a pod that reaches itself between the two would not be masqueraded,
// and conntrack keeps that for the connection. From then on have counts as having them.
func hairpinChanges(have, want State) (before, after Changes) {
	only := func(hairpins map[netip.Addr]bool) State {
		s := NewState()
		s.Addrs[Hairpins] = hairpins
		return s
	}
	all := maps.Clone(have.Addrs[Hairpins])
	maps.Copy(all, want.Addrs[Hairpins])
	before, after = Diff(only(have.Addrs[Hairpins]), only(all)), Diff(only(all), only(want.Addrs[Hairpins]))
	have.Addrs[Hairpins] = maps.Clone(want.Addrs[Hairpins])
	return before, after
}

// parts splits all that two states hold, but for ranges and hairpins, into keys that are
// written together: whole addresses, with about as many elements as a transaction takes.
// So a full load needs little memory beside the states. Affinities come first.
func parts(have, want State) iter.Seq[Keys] {
	return func(yield func(Keys) bool) {
		part, size := NewKeys(), 0
		add(part.Affinities, maps.Keys(have.Affinities))
		add(part.Affinities, maps.Keys(want.Affinities))
		fronts, steps := allSteps(have, want)
		for _, step := range steps {
			if step.Addr.IsValid() {
				part.Addrs[step.Addr] = true
				size++
			}
			for ; len(fronts) > 0 && fronts[0].step() == step; fronts = fronts[1:] {
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

// allSteps gives the frontends of some states, sorted, and all that is written together,
// in the same order: frontends, and the addresses of sets.
func allSteps(states ...State) (fronts, steps []Frontend) {
	all := map[Frontend]bool{}
	for _, s := range states {
		for _, m := range s.Routes {
			add(all, maps.Keys(m))
		}
		for _, m := range s.Counts {
			add(all, maps.Keys(m))
		}
		for _, m := range s.Slots {
			add(all, maps.Keys(m))
		}
		add(all, maps.Keys(s.Sources))
	}
	fronts = slices.SortedFunc(maps.Keys(all), Frontend.Compare)
	clear(all)
	for _, f := range fronts {
		all[f.step()] = true
	}
	for _, s := range states {
		for _, m := range s.Addrs {
			for addr := range m {
				all[Frontend{Addr: addr}] = true
			}
		}
	}
	return fronts, slices.SortedFunc(maps.Keys(all), Frontend.Compare)
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
