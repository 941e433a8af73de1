package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"onerule/nft/inspect"
)

// Load makes the table hold exactly want, whatever it holds now: it reads the
// kernel, and writes what differs. The maps of want are the program's from then on. A
// table that is not there, or not hooked in, is hooked in as soon as the elements that
// first names are in it; traffic to what comes after passes as before until its own
// elements are in. What is not needed goes last: see Unfinished.
func (p *Program) Load(ctx context.Context, want State, first Keys) error {
	p.known, p.unfinished = false, nil
	k, err := readTable(p.rules.skeleton.Family)
	if err != nil {
		return err
	}
	cold, have, err := p.open(ctx, &k)
	if err != nil {
		return err
	}
	want = Settle(have, want)
	p.noteGone(have, want)
	p.sizes = have.sizes()
	if err := p.ensure(ctx, want); err != nil {
		return err
	}
	if err := p.fill(ctx, cold, have, want, first); err != nil {
		return err
	}
	p.have, p.known = want, true
	p.stale.all(want.Affinities)
	p.finish(ctx, k)
	return nil
}

// finish does what a load is whole without: what others left in the table harms nobody, and
// without the seal the next program writes the rules anew.
func (p *Program) finish(ctx context.Context, k inKernel) {
	if p.unfinished = p.tidy(ctx, k); p.unfinished == nil {
		p.unfinished = p.seal()
	}
}

// Unfinished says what is left to do by Finish, nil if nothing is.
func (p *Program) Unfinished() error { return p.unfinished }

// Finish tries again what the last load could not do when all was in.
func (p *Program) Finish(ctx context.Context) error {
	if p.unfinished == nil {
		return nil
	}
	k, err := readTable(p.rules.skeleton.Family)
	if err != nil {
		return err
	}
	p.finish(ctx, k)
	return p.unfinished
}

// fill writes elements, and hooks the base chains of a cold table in.
func (p *Program) fill(ctx context.Context, cold bool, have, want State, first Keys) error {
	ranges, last := rangeChanges(have, want)
	hairpins, lastHairpins := hairpinChanges(have, want)
	for _, c := range []Changes{ranges, hairpins} {
		if err := p.write(c); err != nil {
			return err
		}
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
	if err := p.write(lastHairpins); err != nil {
		return err
	}
	return p.write(last)
}

// refusals is how many loads in a row may fail to take over a table that looks as if our
// rules fitted, until they go into a new one: because nft does not write the rules, or the
// kernel does not let its elements be read or those of others be deleted. The reason may
// pass, and a new table is a gap. Chains and objects that can't be read are not counted:
// their listings go over the tables of others, too.
const refusals = 3

// passes says whether an error is of the machine rather than of the table: another table
// would meet with it, too. Since it tells nothing of the table it never costs a gap, however
// often it comes.
func passes(err error) bool {
	return slices.ContainsFunc([]error{
		unix.ENOMEM, unix.ENOBUFS, unix.EMFILE, unix.ENFILE, // nothing left of something
		unix.EPERM, unix.EACCES, // a capability is gone
		unix.EINTR, unix.EAGAIN, // others write without an end; the kernel did not answer in time
	}, func(e error) bool { return errors.Is(err, e) })
}

// open brings the rules in and reads the elements. A table that our rules do not fit
// into is begun afresh: nothing is in it then. It is cold if base chains are still to
// be hooked in.
func (p *Program) open(ctx context.Context, k *inKernel) (cold bool, have State, err error) {
	o := p.rules.all(k.variable())
	if k.table && k.misfit(o) == "" {
		var refused bool
		cold, have, refused, err = p.openThere(ctx, *k, o.sets)
		if err == nil {
			p.refused = 0
			return cold, have, nil
		}
		if refused {
			p.refused++
		}
		if !refused || p.refused < refusals || ctx.Err() != nil {
			return false, have, err
		}
	}
	p.counts.set(nil, NewState())
	p.setRules(variable{})
	p.sealed = ""
	if err := p.rules.begin(ctx); err != nil {
		return false, have, err
	}
	p.refused = 0 // the new table has refused nothing
	p.ranRuleset()
	if k.table {
		p.total.add(Operations{Afresh: 1})
	}
	*k = inKernel{}
	return true, NewState(), nil
}

// openThere brings the rules into a table that is there, and reads its elements. refused says
// whether an error may be of the table.
func (p *Program) openThere(ctx context.Context, k inKernel, sets []Set) (cold bool, have State, refused bool, err error) {
	if cold, err = p.openRules(ctx, k); err != nil {
		return false, have, true, err
	}
	have, err = p.readElements(k, sets)
	return cold, have, !passes(err), err
}

// openRules replaces the rules of a table that is there, unless they are ours.
func (p *Program) openRules(ctx context.Context, k inKernel) (cold bool, err error) {
	p.sealed = ""
	if k.sealed() {
		p.sealed = k.seal
	}
	p.setRules(variable{k.order, k.affinities()})
	if p.rules.current(k) {
		return false, nil
	}
	cold = !slices.ContainsFunc(p.rules.skeleton.Chains, func(c Chain) bool { return c.Base != nil && k.chains[c.Name].Base })
	p.setRules(k.variable())
	return cold, p.install(ctx, k, !cold)
}

// install writes the rules over those that are there, some affinities at a time.
func (p *Program) install(ctx context.Context, k inKernel, hook bool) error {
	v := p.variable()
	n := min(affinitiesPerRun, len(v.affinities))
	if err := p.rules.install(ctx, k, variable{v.order, v.affinities[:n]}, hook); err != nil {
		return err
	}
	p.ranRuleset()
	for part := range slices.Chunk(v.affinities[n:], affinitiesPerRun) {
		if err := p.rules.reinstall(ctx, k, v.affinities[:n], part); err != nil {
			return err
		}
		p.ranRuleset()
		n += len(part)
	}
	return nil
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
	if !r.empty() {
		if err := p.rules.remove(ctx, k, r); err != nil {
			return err
		}
		p.ranRuleset()
	}
	if len(k.others) == 0 {
		return nil
	}
	done, err := p.elements.removeObjects(k.others)
	p.total.add(done)
	return err
}

func (p *Program) ranRuleset() {
	p.unsealed = true
	p.total.add(Operations{Rulesets: 1, Transactions: 1})
}

// seal makes the table say what its rules are, if they were written.
func (p *Program) seal() error {
	if !p.unsealed {
		return nil
	}
	r, err := inspect.Open()
	if err != nil {
		return err
	}
	rules, err := r.Digests(p.rules.skeleton.Family.table())
	if err := errors.Join(err, r.Close()); err != nil {
		return err
	}
	now := rules.Seal()
	done, err := p.elements.seal(p.sealed, now)
	p.total.add(done)
	if err != nil {
		return fmt.Errorf("say what the rules are: %w", err)
	}
	p.sealed, p.unsealed = now, false
	return nil
}
