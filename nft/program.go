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

	have   State
	known  bool
	counts counts
	sizes  map[string]int
	total  Operations
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
		rules:    rulesetWriter{skeleton: NewSkeleton(c), nft: iface, conn: elements.conn},
		elements: elements,
		have:     NewState(),
		counts:   counts{},
	}, nil
}

// Close ends the connection to the kernel, and changes nothing in it.
func (p *Program) Close() error { return p.elements.close() }

// Known says whether the kernel's state is known, so that Update can be called.
func (p *Program) Known() bool { return p.known }

// Done gives the operations in the kernel since Open.
func (p *Program) Done() Operations { return p.total }

// Sizes gives the number of elements in each set and map, by its name in the
// kernel, and of rules. The map must not be written.
func (p *Program) Sizes() (elements map[string]int, rules int) {
	_, chains := p.rules.counts(p.counts.order())
	for _, c := range slices.Concat(chains, p.rules.skeleton.Chains) {
		rules += len(c.Rules)
	}
	return p.sizes, rules
}

// Has says whether a frontend is ours in the kernel.
func (p *Program) Has(f Frontend) bool {
	_, ours := p.have.Routes[ServiceIPs][f]
	return ours
}

// Load makes the table hold exactly want, whatever it holds now: it reads the
// kernel, and writes what differs. The maps of want are the program's from then on. A
// table that is not there, or not hooked in, is hooked in as soon as the elements that
// first names are in it; traffic to what comes after passes as before until its own
// elements are in.
func (p *Program) Load(ctx context.Context, want State, first Keys) error {
	p.known = false
	cold, have, err := p.open(ctx)
	if err != nil {
		return err
	}
	want = Settle(have, want)
	p.sizes = have.sizes()
	if err := p.ensureCounts(ctx, want); err != nil {
		return err
	}
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
	if err := p.write(last); err != nil {
		return err
	}
	p.have, p.known = want, true
	return nil
}

// open brings the rules in and reads the elements. Where they are not of the shape
// that we write, somebody else did, and the table is begun afresh. It is cold if
// base chains are still to be hooked in.
func (p *Program) open(ctx context.Context) (cold bool, have State, err error) {
	k, err := p.rules.inspect()
	if err != nil {
		return false, have, err
	}
	if k.table {
		var done Operations
		have, done, err = read(p.rules.skeleton.Family, k.counts)
		p.total.add(done)
		if err == nil {
			p.counts.set(k.counts, have)
			k.counts = p.counts.order()
			cold, err = p.openRules(ctx, k)
			return cold, have, err
		}
		if !errors.Is(err, errShape) && !errors.Is(err, errAbsent) {
			return false, have, err
		}
	}
	have = NewState()
	p.counts.set(nil, have)
	if err := p.rules.install(ctx, k, false, k.table); err != nil {
		return false, have, err
	}
	p.ranRuleset()
	return true, have, nil
}

// openRules replaces the rules of a table that is there, unless they are ours.
func (p *Program) openRules(ctx context.Context, k inKernel) (cold bool, err error) {
	current, err := p.rules.current(k)
	if err != nil || current {
		return false, err
	}
	cold = !k.hooked(p.rules.skeleton)
	if err := p.rules.install(ctx, k, !cold, false); err != nil {
		return false, err
	}
	p.ranRuleset()
	return cold, nil
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
	if err := p.ensureCounts(ctx, want); err != nil {
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
	for _, s := range c.Steps {
		for _, e := range s.Delete {
			p.counts.use(e, -1)
			p.sizes[e.Set]--
		}
		for _, e := range s.Add {
			p.counts.use(e, 1)
			p.sizes[e.Set]++
		}
	}
	for _, ranges := range []map[RangeSet][]netip.Prefix{c.Ranges, c.RangesLast} {
		for name, list := range ranges {
			p.sizes[string(name)] = len(list)
		}
	}
	return nil
}

// ensureCounts brings in the rules for numbers of endpoints that are used for the
// first time.
func (p *Program) ensureCounts(ctx context.Context, want State) error {
	missing := p.counts.missing(want)
	if len(missing) == 0 {
		return nil
	}
	if err := p.rules.addCounts(ctx, missing.order()); err != nil {
		return err
	}
	p.ranRuleset()
	for c := range missing {
		p.counts[c] = &usage{}
	}
	return nil
}

// Retire deletes the rules for numbers of endpoints that no frontend has had for as
// long as linger, so that a Service whose endpoints come and go does not pay for
// them each time. It gives how many numbers it deleted.
func (p *Program) Retire(ctx context.Context, now time.Time, linger time.Duration) (int, error) {
	if !p.known {
		return 0, nil
	}
	old := p.counts.idle(now, linger)
	if len(old) == 0 {
		return 0, nil
	}
	for _, c := range old {
		delete(p.counts, c)
	}
	if err := p.rules.removeCounts(ctx, old, p.counts.order()); err != nil {
		p.known = false
		return 0, err
	}
	p.ranRuleset()
	return len(old), nil
}
