package nft

import (
	"fmt"
	"slices"
)

// A Preview is what a Load would write.
type Preview struct {
	// Table says why the table would be begun afresh, Rules why all rules would be written
	// over those that are there; empty: they would not.
	Table, Rules string
	// More are the chains that would be added for numbers of endpoints and session
	// affinities that nobody had before, Less those that would go.
	More, Less []string
	// Strays is the number of elements that would be deleted because we never write such.
	Strays  int
	Changes Changes
}

// PreviewOf says what a Load of a program with this configuration would write, and
// writes nothing. It reads the whole table.
func PreviewOf(c Config, want State) (p Preview, err error) {
	k, err := readTable(c.Family)
	if err != nil {
		return p, err
	}
	rules, have := rulesetWriter{skeleton: NewSkeleton(c)}, NewState()
	o := rules.all(k.variable())
	switch why := k.misfit(o); {
	case !k.table:
		p.Table = rules.wrong(k)
		k = inKernel{}
	case why != "":
		p.Table = fmt.Sprintf("table %s %s: %s", c.Family, TableName, why)
		k = inKernel{}
	default:
		p.Rules = rules.wrong(k)
		var strays []stray
		if have, strays, _, err = read(c.Family, readable(k, o.sets)); err != nil {
			return p, err
		}
		p.Strays = len(strays)
		p.Less = rules.leftovers(k).chains
	}
	p.more(k, have, want)
	p.Changes = Diff(have, Settle(have, want))
	return p, nil
}

// readable names the sets that are there and hold what we write.
func readable(k inKernel, sets []Set) []string {
	var names []string
	for _, s := range sets {
		if _, there := k.sets[s.Name]; there && s.Size == 0 {
			names = append(names, s.Name)
		}
	}
	return names
}

// more finds what there are no rules for yet.
func (p *Preview) more(k inKernel, have, want State) {
	numbers := counts{}
	numbers.set(k.counts(), have)
	for c := range numbers.missing(want) {
		p.More = append(p.More, c.slots.countName(c.protocol, c.n))
	}
	for _, a := range (affinities{}).keep(k.affinities()).missing(want) {
		p.More = append(p.More, a.pinChain())
	}
	slices.Sort(p.More)
}
