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

	"onerule/nft/inspect"
)

// versionPrefix begins the name of an empty chain that says which skeleton the
// table has: the one thing that a transaction replaces together with the rules.
const versionPrefix = "skeleton-"

// patience is how long nft may take. It waits for the kernel's lock behind the
// transactions of others.
const patience = 30 * time.Second

// affinitiesPerRun bounds how many session affinities one run of nft writes: a run takes
// the longer the more it writes, by more than the number (4,000: 15 s), and one that loses
// its patience has written nothing.
const affinitiesPerRun = 200

// rulesetWriter writes what is constant: tables, sets, maps, chains and rules, by
// running nft.
type rulesetWriter struct {
	skeleton Skeleton
	nft      knftables.Interface
	monitor  *Monitor
}

// A variable part of the rules: the counts, which are tried in this order, and the
// session affinities.
type variable struct {
	order      []count
	affinities []Affinity
}

// all gives everything that there should be.
func (w rulesetWriter) all(v variable) objects {
	o := w.counts(v.order)
	o.add(w.affinities(v.affinities))
	o.add(objects{w.skeleton.Counters, w.skeleton.Sets, w.skeleton.Chains})
	o.chains = append(o.chains, Chain{Name: versionPrefix + w.skeleton.Version(), Comment: "the version of these rules"})
	return o
}

// counts gives the sets and chains for the counts.
func (w rulesetWriter) counts(order []count) (o objects) {
	for _, c := range order {
		o.sets = append(o.sets, CountSet(w.skeleton.Family, c.slots, c.protocol, c.n))
	}
	for _, by := range finds() {
		o.chains = append(o.chains, Counts(w.skeleton.Family, by.slots, by.protocol, numbers(order, by))...)
	}
	return o
}

// affinities gives what session affinities consist of, each object once.
func (w rulesetWriter) affinities(list []Affinity) (o objects) {
	for _, a := range list {
		o.add(a.objects(w.skeleton.Family))
	}
	return o.distinct()
}

// numbers gives the counts that one chain tries.
func numbers(order []count, by find) []int {
	var list []int
	for _, c := range order {
		if c.find() == by {
			list = append(list, c.n)
		}
	}
	return list
}

// ours gives everything that may be there, as much of it as the kernel has: also the
// seal, if it is whole.
func (w rulesetWriter) ours(k inKernel) objects {
	o := w.all(k.variable())
	if k.sealed() {
		o.chains = append(o.chains, Chain{Name: k.seal})
	}
	return o
}

// current says whether the kernel has just our rules: the version of the skeleton, the
// seal, every set, every chain with as many rules as it should have, base chains hooked
// in where they should be, and nothing else.
func (w rulesetWriter) current(k inKernel) bool {
	o := w.ours(k)
	if !k.sealed() || len(k.others) > 0 {
		return false
	}
	if len(k.sets) != len(o.sets) || len(k.chains) != len(o.chains) || len(k.counters) != len(o.counters) || k.misfit(o) != "" {
		return false
	}
	for _, c := range o.counters {
		if _, ok := k.counters[c.Name]; !ok {
			return false
		}
	}
	for _, s := range o.sets {
		if _, ok := k.sets[s.Name]; !ok {
			return false
		}
	}
	for _, c := range o.chains {
		if have, ok := k.chains[c.Name]; !ok || !fits(have, c) || k.rules[c.Name] != len(c.Rules) {
			return false
		}
	}
	return true
}

// install writes all these rules in one transaction, over what is there: no element
// changes. What the table has besides stays, but for base chains, since elements may
// still lead to it; leftovers names it. Base chains are hooked in only if hook is set.
func (w rulesetWriter) install(ctx context.Context, k inKernel, v variable, hook bool) error {
	tx := w.nft.NewTransaction()
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("rules for Services")})
	o := w.all(v)
	o.chains = slices.DeleteFunc(o.chains, func(c Chain) bool { return c.Base != nil && !hook })
	emptyChains(tx, k, o.chains)
	for _, name := range w.leftovers(k).chains {
		if unreferenced(name, k.chains[name]) {
			tx.Flush(&knftables.Chain{Name: name})
			tx.Delete(&knftables.Chain{Name: name})
		}
	}
	addObjects(tx, o)
	return w.run(ctx, tx, "write the rules")
}

// reinstall writes the rules of more affinities, over what is there.
func (w rulesetWriter) reinstall(ctx context.Context, k inKernel, there, more []Affinity) error {
	tx := w.nft.NewTransaction()
	o := w.affinities(more).without(w.affinities(there))
	emptyChains(tx, k, o.chains)
	addObjects(tx, o)
	return w.run(ctx, tx, "write the rules of session affinities")
}

// emptyChains takes the rules out of those of these chains that are there.
func emptyChains(tx *knftables.Transaction, k inKernel, chains []Chain) {
	for _, c := range chains {
		if have, ok := k.chains[c.Name]; ok {
			tx.Flush(&knftables.Chain{Name: c.Name})
			if !fits(have, c) {
				tx.Delete(&knftables.Chain{Name: c.Name})
			}
		}
	}
}

// begin writes the rules into a new table, with no base chain hooked in. One that is
// there goes.
func (w rulesetWriter) begin(ctx context.Context) error {
	tx := w.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("rules for Services")})
	o := w.all(variable{})
	o.chains = slices.DeleteFunc(o.chains, func(c Chain) bool { return c.Base != nil })
	addObjects(tx, o)
	return w.run(ctx, tx, "write the rules into a new table")
}

// A remainder names what is none of ours.
type remainder struct{ counters, sets, chains []string }

func (r remainder) empty() bool { return len(r.counters)+len(r.sets)+len(r.chains) == 0 }

// objects gives what it names, as much of it as a deletion asks for.
func (r remainder) objects(k inKernel) objects {
	var o objects
	for _, name := range r.chains {
		o.chains = append(o.chains, Chain{Name: name})
	}
	for _, name := range r.sets {
		o.sets = append(o.sets, Set{Name: name, Map: k.sets[name].value > 0 || k.sets[name].verdicts})
	}
	for _, name := range r.counters {
		o.counters = append(o.counters, Counter{Name: name})
	}
	return o
}

// leftovers gives what is none of ours.
func (w rulesetWriter) leftovers(k inKernel) remainder {
	ours := w.ours(k)
	counters, sets, chains := maps.Clone(k.counters), maps.Clone(k.sets), maps.Clone(k.chains)
	for _, c := range ours.counters {
		delete(counters, c.Name)
	}
	for _, s := range ours.sets {
		delete(sets, s.Name)
	}
	for _, c := range ours.chains {
		delete(chains, c.Name)
	}
	return remainder{slices.Sorted(maps.Keys(counters)), slices.Sorted(maps.Keys(sets)), slices.Sorted(maps.Keys(chains))}
}

// unreferenced says whether a chain of somebody else's, or of other rules of ours, is
// one that no element leads to: it goes together with the rules.
func unreferenced(name string, c inspect.Chain) bool {
	return c.Base || strings.HasPrefix(name, versionPrefix) || strings.HasPrefix(name, inspect.SealPrefix)
}

// remove deletes what no element leads to, but for those of maps that go, too: a chain that
// one leads to stays busy until it is gone.
func (w rulesetWriter) remove(ctx context.Context, k inKernel, r remainder) error {
	tx := w.nft.NewTransaction()
	for _, name := range r.sets {
		if k.sets[name].verdicts {
			tx.Flush(&knftables.Map{Name: name})
		}
	}
	deleteObjects(tx, r.objects(k))
	return w.run(ctx, tx, "delete what is not needed")
}

// hook hooks the base chains in.
func (w rulesetWriter) hook(ctx context.Context) error {
	tx := w.nft.NewTransaction()
	addChains(tx, slices.DeleteFunc(slices.Clone(w.skeleton.Chains), func(c Chain) bool { return c.Base == nil }))
	return w.run(ctx, tx, "hook in the base chains")
}

// extend adds what is needed for counts and affinities beside what is there. Nothing
// that is there is written again: the kernel walks a whole map for each rule that uses
// it (30 to 45 ms for 300,000 elements, 6.18).
func (w rulesetWriter) extend(ctx context.Context, there, more variable) error {
	tx := w.nft.NewTransaction()
	o := w.affinities(more.affinities).without(w.affinities(there.affinities))
	if len(more.order) > 0 {
		o.add(w.counts(more.order))
	}
	addObjects(tx, o)
	return w.run(ctx, tx, "add rules for numbers of endpoints and session affinities")
}

// reduce deletes affinities, but for what those that stay share with them, and counts:
// the rules that find the number of a frontend are written anew, in this order, since a
// rule has no name to delete it by.
func (w rulesetWriter) reduce(ctx context.Context, stay, gone variable, concerned map[find]bool) error {
	tx := w.nft.NewTransaction()
	var chains []Chain
	for _, by := range finds() {
		if concerned[by] {
			chains = append(chains, findCount(w.skeleton.Family, by.slots, by.protocol, numbers(stay.order, by)))
		}
	}
	for _, c := range chains {
		tx.Flush(&knftables.Chain{Name: c.Name})
	}
	addChains(tx, chains)
	for _, c := range gone.order {
		name := c.slots.countName(c.protocol, c.n)
		tx.Delete(&knftables.Chain{Name: name})
		tx.Delete(&knftables.Set{Name: name})
	}
	deleteObjects(tx, w.affinities(gone.affinities).without(w.affinities(stay.affinities)))
	return w.run(ctx, tx, "delete rules for numbers of endpoints and session affinities")
}

// run runs a transaction. nft names a line of its script, and points into it, for
// every line that fails: the first one says enough.
func (w rulesetWriter) run(ctx context.Context, tx *knftables.Transaction, step string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ended := func(bool) {}
	if w.monitor != nil {
		ended = w.monitor.Expect(w.skeleton.Family)
	}
	err := w.do(ctx, tx)
	ended(err == nil)
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

func addObjects(tx *knftables.Transaction, o objects) {
	for _, c := range o.counters {
		tx.Add(&knftables.Counter{Name: c.Name, Comment: knftables.PtrTo(c.Comment)})
	}
	for _, s := range o.sets {
		addSet(tx, s)
	}
	addChains(tx, o.chains)
}

// deleteObjects deletes chains before the sets that their rules use.
func deleteObjects(tx *knftables.Transaction, o objects) {
	for _, c := range o.chains { // they may go to each other: all are emptied first
		tx.Flush(&knftables.Chain{Name: c.Name})
	}
	for _, c := range o.chains {
		tx.Delete(&knftables.Chain{Name: c.Name})
	}
	for _, s := range o.sets {
		if s.Map {
			tx.Delete(&knftables.Map{Name: s.Name})
			continue
		}
		tx.Delete(&knftables.Set{Name: s.Name})
	}
	for _, c := range o.counters {
		tx.Delete(&knftables.Counter{Name: c.Name})
	}
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
		m := &knftables.Map{Name: s.Name, Type: typ, TypeOf: typeOf, Flags: flags, Comment: comment}
		if s.Size > 0 {
			m.Size = knftables.PtrTo(uint64(s.Size))
		}
		tx.Add(m)
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
