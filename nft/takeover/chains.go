package takeover

import "slices"

// A table is one of iptables', as much of it as concerns kube-proxy's chains, from
// whichever variant of iptables.
type table struct {
	chains map[string]chain
	// jumps are the rules of other chains that lead to one of kube-proxy's, in order.
	jumps []rule
}

// A chain of kube-proxy's.
type chain struct{ rules int }

// A rule that leads to a chain.
type rule struct {
	chain, target string
	builtIn       bool // chain is one of iptables' own, which packets meet first
	comment       string

	handle uint64   // of iptables-nft
	spec   []string // of iptables-legacy: what follows -A CHAIN, in the quotes of iptables-save
}

// A removal is what is to be done to a table. Chains that rules of others lead to can't
// be deleted, and stay without a rule.
type removal struct {
	jumps  []rule
	flush  []string // chains that stay
	delete []string
}

func (r removal) empty() bool { return len(r.jumps)+len(r.flush)+len(r.delete) == 0 }

// removal says what of kube-proxy's is to be removed. Where another program's rules
// lead to the chain that marks for masquerading, this chain keeps its rule, too: the
// daemon's own tables masquerade what is marked so.
func (t table) removal() removal {
	var r removal
	held := map[string]bool{}
	for _, j := range t.jumps {
		if j.builtIn && isProxyComment(j.comment) {
			r.jumps = append(r.jumps, j)
		} else {
			held[j.target] = true
		}
	}
	for name, c := range t.chains {
		switch {
		case !held[name]:
			r.delete = append(r.delete, name)
		case name != markChain && c.rules > 0:
			r.flush = append(r.flush, name)
		}
	}
	slices.Sort(r.flush)
	slices.Sort(r.delete)
	return r
}

// found describes a removal.
func (r removal) found(family Family, name string, legacy bool) Chains {
	return Chains{
		Family: family, Table: name, Legacy: legacy,
		Chains: len(r.flush) + len(r.delete), Jumps: len(r.jumps),
		ipvs: slices.ContainsFunc(slices.Concat(r.flush, r.delete), isIPVSChain),
	}
}
