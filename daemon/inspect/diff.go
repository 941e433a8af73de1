package inspect

import (
	"fmt"
	"net/netip"

	"onerule/nft"
)

// maxLines is how many elements a difference lists for each table.
const maxLines = 1000

// DiffOf says what a load would do to a table.
func DiffOf(family nft.Family, p nft.Preview) TableDiff {
	d := TableDiff{Table: fmt.Sprintf("%s %s", family, nft.TableName)}
	switch {
	case p.Table != "":
		d.Rules = append(d.Rules, "a new table with all rules: "+p.Table)
	case p.Rules != "":
		d.Rules = append(d.Rules, "all rules, in one transaction: "+p.Rules)
	}
	for _, chain := range p.More {
		d.Rules = append(d.Rules, "rules for "+chain)
	}
	for _, chain := range p.Less {
		d.Rules = append(d.Rules, "without the chain "+chain)
	}
	if p.Strays > 0 {
		d.Rules = append(d.Rules, fmt.Sprintf("without %s that no daemon writes", number(p.Strays, "element")))
	}
	d.ranges(p.Changes.Ranges)
	for _, steps := range [][]nft.Step{p.Changes.First, p.Changes.Steps, p.Changes.Last} {
		for _, s := range steps {
			for _, e := range s.Delete {
				d.line("-", e.Set, e.Text())
			}
			for _, e := range s.Add {
				d.line("+", e.Set, e.Text())
			}
		}
	}
	d.ranges(p.Changes.RangesLast)
	return d
}

func (d *TableDiff) line(sign, set, element string) {
	if sign == "+" {
		d.Add++
	} else {
		d.Delete++
	}
	if len(d.Changes) < maxLines {
		d.Changes = append(d.Changes, Line{sign, set, element})
	}
}

// ranges are written as a whole.
func (d *TableDiff) ranges(sets map[nft.RangeSet][]netip.Prefix) {
	for _, name := range []nft.RangeSet{nft.PodCIDRs, nft.ServiceCIDRs} {
		list, changed := sets[name]
		if !changed {
			continue
		}
		d.Rules = append(d.Rules, fmt.Sprintf("the set %s anew", name))
		for _, r := range list {
			d.line("+", string(name), r.String())
		}
	}
}
