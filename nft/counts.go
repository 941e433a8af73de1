package nft

import (
	"cmp"
	"slices"
	"time"
)

// A count is a number of endpoints that frontends of a protocol have in one of the
// maps.
type count struct {
	slots    SlotMap
	protocol uint8
	n        int
}

func compareCounts(a, b count) int {
	return cmp.Or(cmp.Compare(a.slots, b.slots), cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.n, b.n))
}

// A find is what one chain that finds numbers of endpoints is for.
type find struct {
	slots    SlotMap
	protocol uint8
}

func (c count) find() find { return find{c.slots, c.protocol} }

// finds lists them.
func finds() []find {
	var list []find
	for _, m := range SlotMaps() {
		for _, p := range Protocols() {
			list = append(list, find{m, p.Number})
		}
	}
	return list
}

// counts holds the counts that the kernel has rules for.
type counts map[count]*usage

type usage struct {
	frontends int
	idleSince time.Time // zero: in use
}

// order sorts counts by how many frontends have them: the kernel tries them one
// after the other.
func (c counts) order() []count {
	order := make([]count, 0, len(c))
	for k := range c {
		order = append(order, k)
	}
	slices.SortFunc(order, func(a, b count) int {
		return cmp.Or(cmp.Compare(c[b].frontends, c[a].frontends), compareCounts(a, b))
	})
	return order
}

// set makes the counts those of the list, used as the state says.
func (c counts) set(list []count, s State) {
	clear(c)
	for _, k := range list {
		c[k] = &usage{}
	}
	s.eachCount(func(k count) {
		if u := c[k]; u != nil {
			u.frontends++
		}
	})
}

// missing gives the counts of a state that are not among these, used as it says.
func (c counts) missing(s State) counts {
	more := counts{}
	s.eachCount(func(k count) {
		if k.n == 0 || c[k] != nil {
			return
		}
		if more[k] == nil {
			more[k] = &usage{}
		}
		more[k].frontends++
	})
	return more
}

func (s State) eachCount(f func(count)) {
	for name, m := range s.Counts {
		for front, n := range m {
			f(count{name, front.Protocol, n})
		}
	}
}

// use takes note of an element that was written.
func (c counts) use(e Element, by int) {
	if k, ok := countOf(e.Set); ok && c[k] != nil {
		c[k].frontends += by
	}
}

// idle gives the counts that nobody has had for as long as linger, and takes note of
// those that nobody has now.
func (c counts) idle(now time.Time, linger time.Duration) []count {
	var old []count
	for k, u := range c {
		switch {
		case u.frontends > 0:
			u.idleSince = time.Time{}
		case u.idleSince.IsZero():
			u.idleSince = now
		case now.Sub(u.idleSince) >= linger:
			old = append(old, k)
		}
	}
	slices.SortFunc(old, compareCounts)
	return old
}

// tries gives how many numbers are tried in vain, on average over the frontends that a
// chain is for, when they are tried in this order.
func (c counts) tries(order []count, by find) float64 {
	vain, frontends, place := 0, 0, 0
	for _, k := range order {
		if k.find() != by || c[k] == nil {
			continue
		}
		vain += place * c[k].frontends
		frontends += c[k].frontends
		place++
	}
	if frontends == 0 {
		return 0
	}
	return float64(vain) / float64(frontends)
}
