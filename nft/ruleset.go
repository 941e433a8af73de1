package nft

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables"
	"sigs.k8s.io/knftables"
)

// versionPrefix begins the name of an empty chain that says which skeleton the
// table has: the one thing that a transaction replaces together with the rules.
const versionPrefix = "skeleton-"

// rulesetWriter writes what is constant: tables, sets, maps, chains and rules, by
// running nft.
type rulesetWriter struct {
	skeleton Skeleton
	nft      knftables.Interface
	conn     *nftables.Conn
}

// inKernel is what is there of our table.
type inKernel struct {
	table  bool
	chains map[string]*nftables.Chain
	counts []count
}

// hooked says whether any of our base chains is there.
func (k inKernel) hooked(s Skeleton) bool {
	return slices.ContainsFunc(s.Chains, func(c Chain) bool { return c.Base != nil && k.chains[c.Name] != nil })
}

func (w rulesetWriter) inspect() (inKernel, error) {
	k := inKernel{chains: map[string]*nftables.Chain{}}
	family := kernelTable(w.skeleton.Family).Family
	tables, err := w.conn.ListTablesOfFamily(family)
	if err != nil {
		return k, fmt.Errorf("list tables of family %s: %w", w.skeleton.Family, err)
	}
	k.table = slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == TableName })
	if !k.table {
		return k, nil
	}
	chains, err := w.conn.ListChainsOfTableFamily(family)
	if err != nil {
		return k, fmt.Errorf("list chains of family %s: %w", w.skeleton.Family, err)
	}
	for _, c := range chains {
		if c.Table.Name != TableName {
			continue
		}
		k.chains[c.Name] = c
		if protocol, n, ok := countOf(c.Name); ok {
			k.counts = append(k.counts, count{protocol, n})
		}
	}
	return k, nil
}

// current says whether the kernel has our rules whole: the version of the skeleton,
// every chain with as many rules as it should have and no other chain, and base
// chains hooked in.
func (w rulesetWriter) current(k inKernel) (bool, error) {
	if k.chains[versionPrefix+w.skeleton.Version()] == nil {
		return false, nil
	}
	_, chains := w.counts(k.counts)
	chains = slices.Concat(chains, w.skeleton.Chains)
	if len(k.chains) != len(chains)+1 {
		return false, nil
	}
	for _, c := range chains {
		have := k.chains[c.Name]
		if have == nil || (have.Hooknum != nil) != (c.Base != nil) {
			return false, nil
		}
		rules, err := w.conn.GetRules(kernelTable(w.skeleton.Family), have)
		if err != nil {
			return false, fmt.Errorf("list rules of chain %s: %w", c.Name, err)
		}
		if len(rules) != len(c.Rules) {
			return false, nil
		}
	}
	return true, nil
}

// counts gives the sets and chains for the counts, which are tried in this order.
func (w rulesetWriter) counts(order []count) (sets []Set, chains []Chain) {
	for _, c := range order {
		sets = append(sets, CountSet(w.skeleton.Family, c.protocol, c.n))
	}
	for _, p := range Protocols() {
		chains = append(chains, Counts(w.skeleton.Family, p.Number, numbers(order, p.Number))...)
	}
	return sets, chains
}

// numbers gives the counts of one protocol.
func numbers(order []count, protocol uint8) []int {
	var list []int
	for _, c := range order {
		if c.protocol == protocol {
			list = append(list, c.n)
		}
	}
	return list
}

// install writes all rules in one transaction. Over older ones it replaces all rules
// and no element; afresh it begins with an empty table. Base chains are hooked in
// only if hook is set.
func (w rulesetWriter) install(ctx context.Context, k inKernel, hook, afresh bool) error {
	tx := w.nft.NewTransaction()
	table := &knftables.Table{Comment: knftables.PtrTo("rules for Services")}
	tx.Add(table)
	if afresh {
		tx.Delete(&knftables.Table{})
		tx.Add(table)
		k = inKernel{}
	}
	sets, chains := w.counts(k.counts)
	for _, s := range slices.Concat(w.skeleton.Sets, sets) {
		addSet(tx, s)
	}
	chains = slices.Concat(chains, w.skeleton.Chains)
	chains = slices.DeleteFunc(chains, func(c Chain) bool { return c.Base != nil && !hook })
	for _, c := range chains {
		if k.chains[c.Name] != nil {
			tx.Flush(&knftables.Chain{Name: c.Name})
		}
	}
	addChains(tx, chains)
	w.removeOthers(tx, k, chains)
	tx.Add(&knftables.Chain{Name: versionPrefix + w.skeleton.Version(), Comment: knftables.PtrTo("the version of these rules")})
	return w.run(ctx, tx, "write the rules")
}

// run runs a transaction. nft shows the line of its script and points into it, for
// every line that fails: the first says enough.
func (w rulesetWriter) run(ctx context.Context, tx *knftables.Transaction, step string) error {
	if err := w.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("%s of table %s %s: %s", step, w.skeleton.Family, TableName, firstLine(err.Error()))
	}
	return nil
}

// removeOthers deletes chains that are none of ours. They may go to each other: all
// are emptied first.
func (w rulesetWriter) removeOthers(tx *knftables.Transaction, k inKernel, ours []Chain) {
	others := maps.Clone(k.chains)
	delete(others, versionPrefix+w.skeleton.Version())
	for _, c := range ours {
		delete(others, c.Name)
	}
	names := slices.Sorted(maps.Keys(others))
	for _, name := range names {
		tx.Flush(&knftables.Chain{Name: name})
	}
	for _, name := range names {
		tx.Delete(&knftables.Chain{Name: name})
	}
}

// hook hooks the base chains in.
func (w rulesetWriter) hook(ctx context.Context) error {
	tx := w.nft.NewTransaction()
	addChains(tx, slices.DeleteFunc(slices.Clone(w.skeleton.Chains), func(c Chain) bool { return c.Base == nil }))
	return w.run(ctx, tx, "hook in the base chains")
}

// addCounts adds the rules for counts behind those that are there. Nothing that is
// there is written again: the kernel walks a whole map for each rule that uses it (30
// to 45 ms for 300,000 elements, 6.18).
func (w rulesetWriter) addCounts(ctx context.Context, order []count) error {
	tx := w.nft.NewTransaction()
	sets, chains := w.counts(order)
	for _, s := range sets {
		addSet(tx, s)
	}
	addChains(tx, chains)
	return w.run(ctx, tx, "add the rules for counts")
}

// removeCounts deletes the rules for counts. A rule has no name to delete it by, so
// those that find the number are written anew for each protocol concerned.
func (w rulesetWriter) removeCounts(ctx context.Context, remove, left []count) error {
	tx := w.nft.NewTransaction()
	var find []Chain
	for _, p := range Protocols() {
		of := func(c count) bool { return c.protocol == p.Number }
		if slices.ContainsFunc(remove, of) {
			find = append(find, findCount(w.skeleton.Family, p.Word, numbers(left, p.Number)))
		}
	}
	for _, c := range find {
		tx.Flush(&knftables.Chain{Name: c.Name})
	}
	addChains(tx, find)
	for _, c := range remove {
		name := countName(c.protocol, c.n)
		tx.Delete(&knftables.Chain{Name: name})
		tx.Delete(&knftables.Set{Name: name})
	}
	return w.run(ctx, tx, "delete the rules for counts")
}

func addSet(tx *knftables.Transaction, s Set) {
	var flags []knftables.SetFlag
	for flag := range strings.SplitSeq(s.Flags, ",") {
		if flag != "" {
			flags = append(flags, knftables.SetFlag(flag))
		}
	}
	typ, typeOf := s.Type, ""
	if s.TypeOf {
		typ, typeOf = "", s.Type
	}
	comment := knftables.PtrTo(s.Comment)
	if s.Map {
		tx.Add(&knftables.Map{Name: s.Name, Type: typ, TypeOf: typeOf, Flags: flags, Comment: comment})
		return
	}
	tx.Add(&knftables.Set{Name: s.Name, Type: typ, TypeOf: typeOf, Flags: flags, Comment: comment})
}

// addChains adds all chains before any rule, since rules go to chains.
func addChains(tx *knftables.Transaction, chains []Chain) {
	for _, c := range chains {
		chain := &knftables.Chain{Name: c.Name}
		if c.Comment != "" {
			chain.Comment = knftables.PtrTo(c.Comment)
		}
		if c.Base != nil {
			chain.Type = knftables.PtrTo(knftables.NATType)
			chain.Hook = knftables.PtrTo(knftables.BaseChainHook(c.Base.Hook))
			chain.Priority = knftables.PtrTo(knftables.BaseChainPriority(fmt.Sprint(c.Base.Priority)))
		}
		tx.Add(chain)
	}
	for _, c := range chains {
		for _, r := range c.Rules {
			tx.Add(&knftables.Rule{Chain: c.Name, Rule: r})
		}
	}
}
