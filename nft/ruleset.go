package nft

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/knftables"
)

// versionPrefix begins the name of an empty chain that says which skeleton the
// table has: the one thing that a transaction replaces together with the rules.
const versionPrefix = "skeleton-"

// patience is how long nft may take. It waits for the kernel's lock behind the
// transactions of others.
const patience = 30 * time.Second

// rulesetWriter writes what is constant: tables, sets, maps, chains and rules, by
// running nft.
type rulesetWriter struct {
	skeleton Skeleton
	nft      knftables.Interface
}

// all gives every set and chain that there should be with these counts, which are
// tried in this order.
func (w rulesetWriter) all(order []count) ([]Set, []Chain) {
	sets, chains := w.counts(order)
	version := Chain{Name: versionPrefix + w.skeleton.Version(), Comment: "the version of these rules"}
	return slices.Concat(w.skeleton.Sets, sets), slices.Concat(chains, w.skeleton.Chains, []Chain{version})
}

// counts gives the sets and chains for the counts.
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

// current says whether the kernel has just our rules: the version of the skeleton,
// every set, every chain with as many rules as it should have, base chains hooked in
// where they should be, and nothing else. A rule that somebody exchanged for another
// one is not noticed.
func (w rulesetWriter) current(k inKernel) bool {
	sets, chains := w.all(k.counts())
	if len(k.sets) != len(sets) || len(k.chains) != len(chains) || k.misfit(sets, chains) != "" {
		return false
	}
	for _, s := range sets {
		if _, ok := k.sets[s.Name]; !ok {
			return false
		}
	}
	for _, c := range chains {
		if have, ok := k.chains[c.Name]; !ok || !have.fits(c) || k.rules[c.Name] != len(c.Rules) {
			return false
		}
	}
	return true
}

// install writes all rules in one transaction, over what is there: no element
// changes. What the table has besides stays, but for base chains, since elements may
// still lead to it; leftovers names it. Base chains are hooked in only if hook is set.
func (w rulesetWriter) install(ctx context.Context, k inKernel, order []count, hook bool) error {
	tx := w.nft.NewTransaction()
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("rules for Services")})
	sets, chains := w.all(order)
	for _, s := range sets {
		addSet(tx, s)
	}
	chains = slices.DeleteFunc(chains, func(c Chain) bool { return c.Base != nil && !hook })
	for _, c := range chains {
		if have, ok := k.chains[c.Name]; ok {
			tx.Flush(&knftables.Chain{Name: c.Name})
			if !have.fits(c) {
				tx.Delete(&knftables.Chain{Name: c.Name})
			}
		}
	}
	_, others := w.leftovers(k)
	for _, name := range others {
		if unreferenced(name, k.chains[name]) {
			tx.Flush(&knftables.Chain{Name: name})
			tx.Delete(&knftables.Chain{Name: name})
		}
	}
	addChains(tx, chains)
	return w.run(ctx, tx, "write the rules")
}

// begin writes the rules into a new table, with no base chain hooked in. One that is
// there goes.
func (w rulesetWriter) begin(ctx context.Context) error {
	tx := w.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("rules for Services")})
	sets, chains := w.all(nil)
	for _, s := range sets {
		addSet(tx, s)
	}
	addChains(tx, slices.DeleteFunc(chains, func(c Chain) bool { return c.Base != nil }))
	return w.run(ctx, tx, "write the rules into a new table")
}

// leftovers gives the sets and chains that are none of ours.
func (w rulesetWriter) leftovers(k inKernel) (sets, chains []string) {
	ourSets, ourChains := w.all(k.counts())
	others, otherChains := maps.Clone(k.sets), maps.Clone(k.chains)
	for _, s := range ourSets {
		delete(others, s.Name)
	}
	for _, c := range ourChains {
		delete(otherChains, c.Name)
	}
	return slices.Sorted(maps.Keys(others)), slices.Sorted(maps.Keys(otherChains))
}

// unreferenced says whether a chain of somebody else's, or of other rules of ours, is
// one that no element leads to: it goes together with the rules.
func unreferenced(name string, c kernelChain) bool {
	return c.base || strings.HasPrefix(name, versionPrefix)
}

// removeLeftovers deletes what is none of ours, once no element leads to it.
func (w rulesetWriter) removeLeftovers(ctx context.Context, k inKernel, sets, chains []string) error {
	tx := w.nft.NewTransaction()
	for _, name := range chains { // they may go to each other: all are emptied first
		tx.Flush(&knftables.Chain{Name: name})
	}
	for _, name := range chains {
		tx.Delete(&knftables.Chain{Name: name})
	}
	for _, name := range sets {
		if k.sets[name].value > 0 || k.sets[name].verdicts {
			tx.Delete(&knftables.Map{Name: name})
			continue
		}
		tx.Delete(&knftables.Set{Name: name})
	}
	return w.run(ctx, tx, "delete what is not ours")
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

// orderCounts writes the rules that find the number of a frontend anew, for the
// protocols named, and deletes counts: a rule has no name to delete it by.
func (w rulesetWriter) orderCounts(ctx context.Context, order, remove []count, protocols map[uint8]bool) error {
	tx := w.nft.NewTransaction()
	var find []Chain
	for _, p := range Protocols() {
		if protocols[p.Number] {
			find = append(find, findCount(w.skeleton.Family, p.Number, numbers(order, p.Number)))
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
	return w.run(ctx, tx, "order the rules for counts")
}

// run runs a transaction. nft names a line of its script, and points into it, for
// every line that fails: the first one says enough.
func (w rulesetWriter) run(ctx context.Context, tx *knftables.Transaction, step string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := w.nft.Run(ctx, tx)
	if err == nil {
		return nil
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s of table %s %s: nft did not end within %s", step, w.skeleton.Family, TableName, patience)
	}
	return fmt.Errorf("%s of table %s %s: %w", step, w.skeleton.Family, TableName, nftError{err})
}

// nftError tells what nft said of the first line that failed, in one line.
type nftError struct{ err error }

func (e nftError) Unwrap() error { return e.err }

func (e nftError) Error() string {
	lines := strings.Split(strings.TrimSpace(e.err.Error()), "\n")
	_, reason, found := strings.Cut(lines[0], "Error: ")
	if !found {
		return lines[0]
	}
	if len(lines) > 1 {
		return fmt.Sprintf("%s: %s", reason, strings.TrimSpace(lines[1]))
	}
	return reason
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
			chain.Policy = knftables.PtrTo(knftables.AcceptPolicy)
		}
		tx.Add(chain)
	}
	for _, c := range chains {
		for _, r := range c.Rules {
			tx.Add(&knftables.Rule{Chain: c.Name, Rule: r})
		}
	}
}
