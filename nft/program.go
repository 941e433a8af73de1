// Package nft is the datapath: the rules, which are constant, the state of the
// sets and maps as a value, and the two writers that bring it into the kernel.
package nft

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/knftables"
)

// ErrUnknown says that what the kernel holds is not known, because a write failed
// or nothing was loaded yet: Load is due.
var ErrUnknown = errors.New("the kernel's state is not known, a load is due")

// A Program is one family's table in the kernel. It is used by one goroutine.
type Program struct {
	rules    rulesetWriter
	elements *elementWriter
	// doubted says that a rule may be another one than its place says.
	doubted bool

	have   State
	known  bool
	counts counts
	order  []count // in which the kernel tries them
	// affinities are those that the kernel has rules for.
	affinities affinities
	nRules     int // with all these
	sizes      map[string]int
	stale      stalePins
	// refused counts loads in a row whose rules nft would not write.
	refused int
	total   Operations
}

// Open prepares to write a table. It writes nothing.
func Open(c Config) (*Program, error) {
	elements, err := newElementWriter(c.Family)
	if err != nil {
		return nil, err
	}
	iface, err := knftables.New(knftables.Family(c.Family.String()), TableName)
	if err != nil {
		_ = elements.close()
		return nil, fmt.Errorf("prepare nft for table %s %s: %w", c.Family, TableName, err)
	}
	return &Program{
		rules:    rulesetWriter{skeleton: NewSkeleton(c), nft: iface},
		elements: elements,
		have:     NewState(),
		counts:   counts{},
		stale:    stalePins{},
	}, nil
}

// WatchedBy tells a monitor which commits are the program's.
func (p *Program) WatchedBy(m *Monitor) {
	p.rules.monitor = m
	p.elements.watchedBy(m)
}

// Close ends the connection to the kernel, and changes nothing in it.
func (p *Program) Close() error { return p.elements.close() }

// Known says whether the kernel's state is known, so that Update can be called.
func (p *Program) Known() bool { return p.known }

// Reconfigure makes the rules those of another configuration of the same family. The
// next Load writes them, and no element that is right.
func (p *Program) Reconfigure(c Config) {
	p.rules.skeleton = NewSkeleton(c)
	p.known = false
}

// Doubt says that somebody else changed the table: the next Load reads it, and writes
// the rules again if they may have been changed, since it cannot tell one from another.
func (p *Program) Doubt(k Kind) { p.known, p.doubted = false, p.doubted || k.Rules() }

// Done gives the operations in the kernel since Open.
func (p *Program) Done() Operations { return p.total }

// Sizes gives the number of elements in each set and map, by its name in the
// kernel, and of rules. The map must not be written.
func (p *Program) Sizes() (elements map[string]int, rules int) {
	return p.sizes, p.nRules
}

// setRules takes note of what the kernel has rules for, and so of how many there are.
func (p *Program) setRules(v variable) {
	p.order, p.nRules = v.order, 0
	p.affinities = p.affinities.keep(v.affinities)
	for _, c := range p.rules.all(v).chains {
		p.nRules += len(c.Rules)
	}
}

// variable gives the variable part of the rules.
func (p *Program) variable() variable { return variable{p.order, p.affinities.list()} }

// Has says whether a frontend is ours in the kernel.
func (p *Program) Has(f Frontend) bool {
	routes := ServiceIPs
	if !f.Addr.IsValid() {
		routes = ServiceNodePorts
	}
	_, ours := p.have.Routes[routes][f]
	return ours
}

// Load makes the table hold exactly want, whatever it holds now: it reads the
// kernel, and writes what differs. The maps of want are the program's from then on. A
// table that is not there, or not hooked in, is hooked in as soon as the elements that
// first names are in it; traffic to what comes after passes as before until its own
// elements are in.
func (p *Program) Load(ctx context.Context, want State, first Keys) error {
	p.known = false
	k, err := inspect(p.rules.skeleton.Family)
	if err != nil {
		return err
	}
	cold, have, err := p.open(ctx, &k)
	if err != nil {
		return err
	}
	want = Settle(have, want)
	p.sizes = have.sizes()
	if err := p.ensure(ctx, want); err != nil {
		return err
	}
	if err := p.fill(ctx, cold, have, want, first); err != nil {
		return err
	}
	p.have, p.known, p.doubted = want, true, false
	p.stale.all(want.Affinities)
	return p.tidy(ctx, k)
}

// fill writes elements, and hooks the base chains of a cold table in.
func (p *Program) fill(ctx context.Context, cold bool, have, want State, first Keys) error {
	ranges, last := rangeChanges(have, want)
	if err := p.write(ranges); err != nil {
		return err
	}
	if cold {
		if err := p.write(Diff(have.At(first), want.At(first))); err != nil {
			return err
		}
		if err := p.rules.hook(ctx); err != nil {
			return err
		}
		p.ranRuleset()
		have.Put(first, want.At(first))
	}
	for keys := range parts(have, want) {
		if err := p.write(Diff(have.At(keys), want.At(keys))); err != nil {
			return err
		}
	}
	return p.write(last)
}

// refusals is how often nft may refuse to write the rules over a table that looks as if
// they fitted, until they go into a new one: the reason may pass, and a new table is a
// gap.
const refusals = 3

// open brings the rules in and reads the elements. A table that our rules do not fit
// into is begun afresh: nothing is in it then. It is cold if base chains are still to
// be hooked in.
func (p *Program) open(ctx context.Context, k *inKernel) (cold bool, have State, err error) {
	o := p.rules.all(k.variable())
	if k.table && k.misfit(o) == "" {
		cold, err = p.openRules(ctx, *k)
		if err == nil {
			p.refused = 0
			have, err = p.readElements(*k, o.sets)
			return cold, have, err
		}
		if p.refused++; p.refused < refusals || ctx.Err() != nil {
			return false, have, err
		}
	}
	p.counts.set(nil, NewState())
	p.setRules(variable{})
	if err := p.rules.begin(ctx); err != nil {
		return false, have, err
	}
	p.ranRuleset()
	if k.table {
		p.total.add(Operations{Afresh: 1})
	}
	*k = inKernel{}
	return true, NewState(), nil
}

// openRules replaces the rules of a table that is there, unless they are ours.
func (p *Program) openRules(ctx context.Context, k inKernel) (cold bool, err error) {
	p.setRules(variable{k.order, k.affinities()})
	if !p.doubted && p.rules.current(k) {
		return false, nil
	}
	cold = !slices.ContainsFunc(p.rules.skeleton.Chains, func(c Chain) bool { return c.Base != nil && k.chains[c.Name].base })
	p.setRules(k.variable())
	if err := p.rules.install(ctx, k, p.variable(), !cold); err != nil {
		return false, err
	}
	p.ranRuleset()
	return cold, nil
}

// readElements reads these sets, and deletes from them what cannot be ours. Pins are
// none of what we write.
func (p *Program) readElements(k inKernel, sets []Set) (State, error) {
	var names []string
	for _, s := range sets {
		if s.Size == 0 {
			names = append(names, s.Name)
		}
	}
	have, strays, done, err := read(p.rules.skeleton.Family, names)
	p.total.add(done)
	if err != nil {
		return have, err
	}
	for _, a := range k.affinities() {
		have.Affinities[a.ID] = a
	}
	p.counts.set(k.counts(), have)
	if len(strays) > 0 {
		done, err = p.elements.remove(strays)
		p.total.add(done)
	}
	return have, err
}

// tidy deletes what the table has besides ours, once no element of ours leads to it.
func (p *Program) tidy(ctx context.Context, k inKernel) error {
	r := p.rules.leftovers(k)
	r.chains = slices.DeleteFunc(r.chains, func(name string) bool { return unreferenced(name, k.chains[name]) })
	if r.empty() {
		return nil
	}
	if err := p.rules.remove(ctx, k, r); err != nil {
		return err
	}
	p.ranRuleset()
	return nil
}

func (p *Program) ranRuleset() { p.total.add(Operations{Rulesets: 1, Transactions: 1}) }

// Update makes the part of the table that the keys name hold what want says. It
// reads nothing from the kernel, and costs what the change does. After an error the
// state is unknown.
func (p *Program) Update(ctx context.Context, keys Keys, want State) error {
	if !p.known {
		return ErrUnknown
	}
	have := p.have.At(keys)
	want = Settle(have, want.At(keys))
	changes := Diff(have, want)
	if changes.Empty() {
		return nil
	}
	p.known = false
	if err := p.ensure(ctx, want); err != nil {
		return err
	}
	if err := p.write(changes); err != nil {
		return err
	}
	p.have.Put(keys, want)
	p.known = true
	return nil
}

func (p *Program) write(c Changes) error {
	if c.Empty() {
		return nil
	}
	done, err := p.elements.write(c)
	p.total.add(done)
	if err != nil {
		return err
	}
	for _, s := range c.all() {
		for _, e := range s.Delete {
			p.counts.use(e, -1)
			p.sizes[sizeName(e.Set)]--
			p.stale.removed(e)
		}
		for _, e := range s.Add {
			p.counts.use(e, 1)
			p.sizes[sizeName(e.Set)]++
		}
	}
	for _, ranges := range []map[RangeSet][]netip.Prefix{c.Ranges, c.RangesLast} {
		for name, list := range ranges {
			p.sizes[string(name)] = len(list)
		}
	}
	return nil
}

// ensure brings in the rules for numbers of endpoints and session affinities that are
// used for the first time.
func (p *Program) ensure(ctx context.Context, want State) error {
	missing := p.counts.missing(want)
	more := variable{missing.order(), p.affinities.missing(want)}
	if len(more.order)+len(more.affinities) == 0 {
		return nil
	}
	there := p.variable()
	if err := p.rules.extend(ctx, there, more); err != nil {
		return err
	}
	p.ranRuleset()
	p.setRules(variable{append(there.order, more.order...), append(there.affinities, more.affinities...)})
	for c := range missing {
		p.counts[c] = &usage{}
	}
	return nil
}

// worthwhile is how many numbers fewer have to be tried in vain, on average, for a new
// order to be written.
const worthwhile = 0.5

// Retire deletes the rules for numbers of endpoints and session affinities that no
// frontend has had for as long as linger, so that a Service whose endpoints come and go
// does not pay for them each time; and it puts the frequent numbers first again. It
// gives how many it deleted.
func (p *Program) Retire(ctx context.Context, now time.Time, linger time.Duration) (int, error) {
	if !p.known {
		return 0, nil
	}
	gone := variable{p.counts.idle(now, linger), p.affinities.idle(p.have, now, linger)}
	left := slices.DeleteFunc(p.counts.order(), func(c count) bool { return slices.Contains(gone.order, c) })
	concerned := p.concerned(gone.order, left)
	if len(concerned)+len(gone.affinities) == 0 {
		return 0, nil
	}
	// The chains that are not concerned keep their order.
	stay := variable{slices.DeleteFunc(slices.Clone(p.order), func(c count) bool { return concerned[c.find()] }), p.affinities.without(gone.affinities)}
	stay.order = append(stay.order, slices.DeleteFunc(left, func(c count) bool { return !concerned[c.find()] })...)
	if err := p.rules.reduce(ctx, stay, gone, concerned); err != nil {
		p.known = false
		return 0, err
	}
	p.ranRuleset()
	p.setRules(stay)
	for _, c := range gone.order {
		delete(p.counts, c)
	}
	return len(gone.order) + len(gone.affinities), nil
}

// concerned says which chains that find a number must be written anew.
func (p *Program) concerned(gone, left []count) map[find]bool {
	concerned := map[find]bool{}
	for _, c := range gone {
		concerned[c.find()] = true
	}
	for _, by := range finds() {
		if p.counts.tries(p.order, by)-p.counts.tries(left, by) >= worthwhile {
			concerned[by] = true
		}
	}
	return concerned
}
