package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"onerule/daemon/model"
	"onerule/daemon/plan"
	"onerule/nft"
)

// sync brings what came in into the kernel. What it cannot bring in stays in the
// ledger, and the next one loads everything.
func (d *Daemon) sync(ctx context.Context) error {
	l, ready := d.take()
	if !ready {
		return nil
	}
	defer d.done()
	since := l.since
	if since.IsZero() {
		since = time.Now()
	}
	d.repair(l.found)
	adopted := d.adopt(l)
	applied := d.ledger.Apply(changesOf(l))
	applied.Touched.Add(adopted.Touched)
	maps.Copy(adopted.Noted, applied.Noted) // what is newer comes last
	d.note(l.noted, adopted.Noted)
	if applied.HealthChecks || adopted.HealthChecks {
		d.tellChecks()
	}
	d.counted(l)
	if d.awaitsNode() {
		return nil
	}
	var errs []error
	for _, family := range d.cfg.Families {
		if err := d.syncFamily(ctx, family, applied.Touched); err != nil {
			d.health.Failed(familyLabel(family), since)
			errs = append(errs, err)
			continue
		}
		d.health.Succeeded(familyLabel(family))
		d.programmed(family, l)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	d.firstLoad.Do(func() { close(d.loaded) })
	if len(l.changes) > 0 {
		took := time.Since(since)
		d.metrics.Changed(took)
		if d.cfg.Written != nil {
			d.cfg.Written(len(l.changes), took)
		}
	}
	return nil
}

// counted takes note of what came in.
func (d *Daemon) counted(l letters) {
	slices, services := 0, 0
	for key := range l.changes {
		switch key.Kind {
		case model.KindEndpointSlice:
			slices++
		case model.KindService:
			services++
		}
	}
	d.metrics.EndpointsChanged(slices)
	d.metrics.ServicesChanged(services * len(d.cfg.Families))
	for _, f := range d.cfg.Families {
		none := d.ledger.NoLocal(plan.Family(f))
		d.metrics.NoLocal(familyLabel(f), none.Internal, none.External)
	}
}

// programmed takes note of how long after their cause slices are in the kernel.
func (d *Daemon) programmed(family nft.Family, l letters) {
	for _, c := range l.changes {
		s := c.EndpointSlice
		if s == nil || s.Triggered == 0 || len(s.Endpoints) == 0 || !isOf(family, s.Endpoints[0].Addr) {
			continue
		}
		d.metrics.Programmed(familyLabel(family), time.Unix(0, s.Triggered))
	}
}

func changesOf(l letters) []model.Change {
	list := make([]model.Change, 0, len(l.changes))
	for _, c := range l.changes {
		list = append(list, c)
	}
	return list
}

func (d *Daemon) syncFamily(ctx context.Context, family nft.Family, touched plan.Keys) error {
	p := d.programs[family]
	now := d.wanted[family]
	moved := d.held[family].changed(now)
	if p.Known() && touched.Empty() && len(moved) == 0 {
		return nil
	}
	before, start, full := p.Done(), time.Now(), !p.Known()
	flows, err := d.write(ctx, family, p, touched, now, moved)
	d.did(family, before, p)
	d.metrics.Synced(familyLabel(family), time.Since(start), full, err)
	if err != nil {
		return err
	}
	d.held[family] = now
	d.cleaner.add(family, flows)
	return nil
}

// write updates a table, or loads it where its state is not known. It gives what to look
// for among the flows to its frontends. A load looks at all, so that nothing is lost by a
// write that failed.
func (d *Daemon) write(ctx context.Context, family nft.Family, p *nft.Program, touched plan.Keys, h held, moved addrs) (marks, error) {
	if !p.Known() {
		return d.load(ctx, family, p, h)
	}
	all := withAddrs(touched, moved)
	out := d.ledger.Decide(all)
	keys, want := Spell(family, all, out)
	h.spell(keys, want)
	return d.marks(family, all, out, p.Has), p.Update(ctx, keys, want)
}

// marks says what to look for among the flows to frontends that change. was says whether
// one was ours before.
func (d *Daemon) marks(family nft.Family, keys plan.Keys, out plan.Outcome, was func(nft.Frontend) bool) marks {
	m := marks{}
	for f := range keys.Frontends {
		if f.InFamily() != plan.Family(family) {
			continue
		}
		decision, ours := out.Decisions[f]
		one := mark{untranslated: ours && !was(frontend(f)), lasting: f.Protocol != model.TCP, serving: decision.Serving}
		if one.untranslated || one.lasting {
			m[frontend(f)] = one
		}
	}
	return m
}

func (d *Daemon) load(ctx context.Context, family nft.Family, p *nft.Program, h held) (marks, error) {
	start := time.Now()
	all := withAddrs(d.ledger.All().In(plan.Family(family)), h.all())
	out := d.ledger.Decide(all)
	keys, want := Spell(family, all, out)
	h.spell(keys, want)
	flows := d.marks(family, all, out, func(nft.Frontend) bool { return false })
	first, _ := Spell(family, d.ledger.Of(first), plan.Outcome{})
	afresh := p.Done().Afresh
	if err := p.Load(ctx, want, first); err != nil {
		return nil, err
	}
	if p.Done().Afresh > afresh {
		d.cfg.Log.Info("the table was changed by others so that rules could not be written over it, and is begun afresh", "table", fmt.Sprint(family, " ", nft.TableName))
	}
	go giveBack() // ends by itself, after a collection
	elements, rules := p.Sizes()
	total := 0
	for _, n := range elements {
		total += n
	}
	d.cfg.Log.Info("table loaded", "table", fmt.Sprint(family, " ", nft.TableName),
		"frontends", len(flows), "elements", total, "rules", rules, "took", time.Since(start).Round(time.Millisecond))
	return flows, nil
}

// withAddrs gives keys that name addresses, too.
func withAddrs(k plan.Keys, more addrs) plan.Keys {
	if len(more) == 0 {
		return k
	}
	sum := plan.NewKeys()
	sum.Add(k)
	maps.Copy(sum.Addrs, more)
	return sum
}

// first says which Services a cold start serves before all others: those that the
// cluster itself needs to get on.
func first(name model.Name) bool {
	return name.Namespace == "kube-system" || name == model.Name{Namespace: "default", Name: "kubernetes"}
}

func (d *Daemon) retire(ctx context.Context, now time.Time) {
	for _, family := range d.cfg.Families {
		p := d.programs[family]
		before := p.Done()
		n, err := p.Retire(ctx, now, retireAfter)
		d.did(family, before, p)
		if err != nil {
			d.cfg.Log.Error(err, "rules for unused numbers of endpoints and session affinities are not deleted")
		}
		if n > 0 {
			d.cfg.Log.V(2).Info("deleted rules for unused numbers of endpoints and session affinities", "numbers", n)
		}
	}
}

// unpin deletes pins to endpoints that left, and says when to look again.
func (d *Daemon) unpin(now time.Time) (next time.Time, more bool) {
	for _, family := range d.cfg.Families {
		p := d.programs[family]
		if at, ok := p.StaleAt(); !ok || at.After(now) {
			next, more = sooner(next, more, at, ok)
			continue
		}
		before := p.Done()
		n, err := p.Unpin(now)
		d.did(family, before, p)
		if err != nil {
			d.cfg.Log.Error(err, "clients may stay pinned to endpoints that left, trying again", "table", fmt.Sprint(family, " ", nft.TableName))
		}
		if n > 0 {
			d.cfg.Log.V(2).Info("deleted pins to endpoints that left", "pins", n)
		}
		at, ok := p.StaleAt()
		if err != nil {
			at, ok = now.Add(time.Second), true
		}
		next, more = sooner(next, more, at, ok)
	}
	return next, more
}

func sooner(a time.Time, hasA bool, b time.Time, hasB bool) (time.Time, bool) {
	if !hasA || hasB && b.Before(a) {
		return b, hasB
	}
	return a, true
}
