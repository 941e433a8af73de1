package random

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// A Coverage counts the packets that were seen in each cell.
type Coverage struct {
	seen map[Cell]int
}

// NewCoverage gives one that has seen nothing.
func NewCoverage() *Coverage { return &Coverage{map[Cell]int{}} }

// See counts a packet.
func (c *Coverage) See(cell Cell) { c.seen[cell]++ }

// Add counts what another one has seen.
func (c *Coverage) Add(o *Coverage) {
	for cell, n := range o.seen {
		c.seen[cell] += n
	}
}

// Seen gives the number of cells that were seen.
func (c *Coverage) Seen() int { return len(c.seen) }

// Unseen gives the cells that were neither seen nor are listed as meaningless.
func (c *Coverage) Unseen() []Cell {
	return slices.DeleteFunc(Cells(), func(cell Cell) bool {
		_, listed := WhyMeaningless(cell)
		return listed || c.seen[cell] > 0
	})
}

// Misjudged gives the cells that are listed as meaningless and were seen all the same.
func (c *Coverage) Misjudged() []Cell {
	return slices.DeleteFunc(Cells(), func(cell Cell) bool {
		_, listed := WhyMeaningless(cell)
		return !listed || c.seen[cell] == 0
	})
}

// UnseenPairs names the pairs of values of two dimensions that no packet had, of those
// that any cell has that is not meaningless: what a sample must reach.
func (c *Coverage) UnseenPairs() []string {
	var list []string
	for _, p := range pairs() {
		with := slices.DeleteFunc(Cells(), func(cell Cell) bool {
			_, listed := WhyMeaningless(cell)
			return listed || !p.in(cell)
		})
		seen := slices.ContainsFunc(with, func(cell Cell) bool { return c.seen[cell] > 0 })
		if len(with) > 0 && !seen {
			list = append(list, p.String())
		}
	}
	return list
}

// A pair is a value of each of two dimensions.
type pair struct{ dims, values [2]int }

func (p pair) in(c Cell) bool {
	return int(c[p.dims[0]]) == p.values[0] && int(c[p.dims[1]]) == p.values[1]
}

func (p pair) String() string {
	a, b := Dimensions()[p.dims[0]], Dimensions()[p.dims[1]]
	return fmt.Sprintf("%s %s, %s %s", a.Name, a.Values[p.values[0]], b.Name, b.Values[p.values[1]])
}

func pairs() []pair {
	var list []pair
	dims := Dimensions()
	for a := range dims {
		for b := range a {
			for v := range dims[a].Values {
				for w := range dims[b].Values {
					list = append(list, pair{[2]int{a, b}, [2]int{v, w}})
				}
			}
		}
	}
	return list
}

// A Class is a part of the cells that no packet can be in.
type Class struct {
	Reason string
	Holds  func(Cell) bool
}

// Meaningless lists the classes.
func Meaningless() []Class {
	return []Class{
		{"a pin is to an endpoint, and there is none", func(c Cell) bool {
			return c[DimEndpoints] == NoEndpoints && c[DimAffinity] == Pinned
		}},
		{"a ClusterIP whose policy is Local uses pins to endpoints on this node only, and there is none here", func(c Cell) bool {
			return c[DimEndpoints] == ReadyElsewhere && c[DimAffinity] == Pinned && c[DimPolicy] == PolicyLocal && c[DimFrontend] == AtClusterIP
		}},
		{"the policy Local leaves a client outside the same pins, and there is no endpoint here", func(c Cell) bool {
			return c[DimEndpoints] == ReadyElsewhere && c[DimAffinity] == Pinned && c[DimPolicy] == PolicyLocal && c[DimClient] == FromOutside && c[DimFrontend] != AtClusterIP
		}},
	}
}

// WhyMeaningless gives the reason why no packet can be in a cell, and false if one can.
func WhyMeaningless(c Cell) (reason string, listed bool) {
	for _, class := range Meaningless() {
		if class.Holds(c) {
			return class.Reason, true
		}
	}
	return "", false
}

// Deal gives each of some rounds its share of the cells that have a meaning: every cell
// to so many different rounds, of which every other one has an even number.
func Deal(seed uint64, rounds, times int) [][]Cell {
	cells := slices.DeleteFunc(Cells(), func(c Cell) bool {
		_, listed := WhyMeaningless(c)
		return listed
	})
	hands := make([][]Cell, rounds)
	r := rand.New(rand.NewPCG(seed, uint64(rounds)))
	r.Shuffle(len(cells), func(i, j int) { cells[i], cells[j] = cells[j], cells[i] })
	for i, cell := range cells {
		for n := range times {
			to := (i + n*(rounds/times|1)) % rounds
			hands[to] = append(hands[to], cell)
		}
	}
	return hands
}
