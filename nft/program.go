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

	"onerule/nft/inspect"
)

// ErrUnknown says that what the kernel holds is not known, because a write failed
// or nothing was loaded yet: Load is due.
var ErrUnknown = errors.New("the kernel's state is not known, a load is due")

// A Program is one family's table in the kernel. It is used by one goroutine.
type Program struct {
	rules    rulesetWriter
	elements *elementWriter

	have   State
	known  bool
	counts counts
	order  []count // in which the kernel tries them
	// affinities are those that the kernel has rules for.
	affinities affinities
	nRules     int // with all these
	sizes      map[string]int
	stale      stalePins
	reading    bool            // pins are being read: see BeginPins
	pinReader  *inspect.Reader // kept: see closePins
	// refused counts loads in a row that could not take over the table: see refusals.
	refused int
	// sealed is the chain that seals the rules, "" for none; unsealed says that they were
	// written since.
	sealed   string
	unsealed bool
	// unfinished says what the last load could not do when all was in.
	unfinished error
	total      Operations
	gone       []Frontend
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
func (p *Program) Close() error { return errors.Join(p.elements.close(), p.closePins()) }

// Known says whether the kernel's state is known, so that Update can be called.
func (p *Program) Known() bool { return p.known }

// Reconfigure makes the rules those of another configuration of the same family. The
// next Load writes them, and no element that is right.
func (p *Program) Reconfigure(c Config) {
	p.rules.skeleton = NewSkeleton(c)
	p.known = false
}

// Doubt says that somebody else may have changed the table: a Load is due.
func (p *Program) Doubt() { p.known = false }

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
	if err := p.seal(); err != nil {
		return err
	}
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
// used for the first time. What is in stays, also if what comes after it fails.
func (p *Program) ensure(ctx context.Context, want State) error {
	missing, more := p.counts.missing(want), p.affinities.missing(want)
	n := min(affinitiesPerRun, len(more))
	if err := p.extend(ctx, variable{missing.order(), more[:n]}); err != nil {
		return err
	}
	for c := range missing {
		p.counts[c] = &usage{}
	}
	for part := range slices.Chunk(more[n:], affinitiesPerRun) {
		if err := p.extend(ctx, variable{affinities: part}); err != nil {
			return err
		}
	}
	return nil
}

func (p *Program) extend(ctx context.Context, more variable) error {
	if len(more.order)+len(more.affinities) == 0 {
		return nil
	}
	there := p.variable()
	if err := p.rules.extend(ctx, there, more); err != nil {
		return err
	}
	p.ranRuleset()
	p.setRules(variable{append(there.order, more.order...), append(there.affinities, more.affinities...)})
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
	if err := p.seal(); err != nil {
		p.known = false
		return 0, err
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
