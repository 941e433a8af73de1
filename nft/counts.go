package nft

import (
	"cmp"
	"slices"
	"time"
)

// A count is a number of endpoints that frontends of a protocol have.
type count struct {
	protocol uint8
	n        int
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
		return cmp.Or(cmp.Compare(c[b].frontends, c[a].frontends), cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.n, b.n))
	})
	return order
}

// set makes the counts those of the list, used by nobody.
func (c counts) set(list []count) {
	clear(c)
	for _, k := range list {
		c[k] = &usage{}
	}
}

// recount takes the numbers of frontends from a state.
func (c counts) recount(s State) {
	for _, u := range c {
		u.frontends = 0
	}
	for _, m := range s.Counts {
		for f, n := range m {
			if u := c[count{f.Protocol, n}]; u != nil {
				u.frontends++
			}
		}
	}
}

// with gives the counts and those of a state besides, which count as used as often
// as the state does.
func (c counts) with(s State) counts {
	more := counts{}
	for k, u := range c {
		more[k] = u
	}
	for _, m := range s.Counts {
		for f, n := range m {
			k := count{f.Protocol, n}
			if n == 0 || c[k] != nil {
				continue
			}
			if more[k] == nil {
				more[k] = &usage{}
			}
			more[k].frontends++
		}
	}
	return more
}

// use takes note of an element that was written.
func (c counts) use(e Element, by int) {
	if protocol, n, ok := countOf(e.Set); ok && c[count{protocol, n}] != nil {
		c[count{protocol, n}].frontends += by
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
	slices.SortFunc(old, func(a, b count) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.n, b.n))
	})
	return old
}
