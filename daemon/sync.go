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

// sync brings what came in into the kernel. What it cannot bring in stays in the ledger and
// is owed: the next one loads everything, and does all that goes with it.
func (d *Daemon) sync(ctx context.Context) error {
	l, ready := d.take()
	if !ready {
		return nil
	}
	defer d.done()
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
	d.owed.add(l, applied.Touched)
	if err := d.syncFamilies(ctx); err != nil {
		return err
	}
	if !d.isLoaded() {
		if err := d.listen(ctx); err != nil {
			return err
		}
		close(d.loaded)
	}
	d.tellChanged()
	return nil
}

// syncFamilies brings what is owed into all tables, each whether or not others take it.
func (d *Daemon) syncFamilies(ctx context.Context) error {
	var errs []error
	for _, family := range d.cfg.Families {
		due := d.owed.of(family)
		if err := d.syncFamily(ctx, family, due.touched); err != nil {
			d.health.Failed(familyLabel(family), earlier(due.since, time.Now()))
			errs = append(errs, err)
			continue
		}
		d.health.Succeeded(familyLabel(family))
		for _, at := range d.owed.written(family) {
			d.metrics.Programmed(familyLabel(family), at)
		}
	}
	return errors.Join(errs...)
}

// tellChanged tells how long changes took that are in all tables.
func (d *Daemon) tellChanged() {
	objects, since := d.owed.told()
	if objects == 0 {
		return
	}
	took := time.Since(since)
	d.metrics.Changed(took)
	d.history.changed(objects, took)
	if d.cfg.Written != nil {
		d.cfg.Written(objects, took)
	}
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

func changesOf(l letters) []model.Change {
	list := make([]model.Change, 0, len(l.changes))
	for _, c := range l.changes {
		list = append(list, c)
	}
	return list
}

// syncFamily brings what was touched into a table, and has the flows cleaned that this
// makes stale: once it is in, also those of writes before it that failed.
func (d *Daemon) syncFamily(ctx context.Context, family nft.Family, touched plan.Keys) error {
	if err := d.writeFamily(ctx, family, touched); err != nil {
		return err
	}
	d.cleaners[family].written()
	return nil
}

func (d *Daemon) writeFamily(ctx context.Context, family nft.Family, touched plan.Keys) error {
	p := d.programs[family]
	now := d.wanted[family]
	moved := d.held[family].changed(now)
	d.finish(ctx, family, time.Now())
	if p.Known() && touched.Empty() && len(moved) == 0 {
		return nil
	}
	if d.awaitsPodCIDRs() {
		return fmt.Errorf("write table %s: %w", tableName(family), errNoRanges)
	}
	before, start, full := p.Done(), time.Now(), !p.Known()
	err := d.write(ctx, family, p, touched, now, moved)
	d.did(family, before, p)
	d.metrics.Synced(familyLabel(family), time.Since(start), full, err)
	if err != nil {
		return err
	}
	d.held[family] = now
	return nil
}

// write updates a table, or loads it where its state is not known. A load takes every frontend
// for new, and nobody waits for the answer of a new one: so the cleaner hears before of those
// that are touched and are not.
func (d *Daemon) write(ctx context.Context, family nft.Family, p *nft.Program, touched plan.Keys, h held, moved addrs) error {
	if !p.Known() {
		old := had(touched, p.Has)
		d.expect(family, old, d.ledger.Decide(old), p.Has)
		return d.load(ctx, family, p, h)
	}
	all := withAddrs(touched, moved)
	out := d.ledger.Decide(all)
	keys, want := Spell(family, all, out)
	h.spell(keys, want)
	d.spellLoopback(family, want)
	d.expect(family, all, out, p.Has)
	changed := d.countedOf(plan.Family(family), all, out)
	d.tally.begin(changed)
	if err := p.Update(ctx, keys, want); err != nil {
		return err
	}
	d.tally.end(changed)
	d.serveLoopback(family, all, out)
	return nil
}

// load makes a table hold everything, whatever it holds now.
func (d *Daemon) load(ctx context.Context, family nft.Family, p *nft.Program, h held) error {
	start := time.Now()
	all := withAddrs(d.ledger.All().In(plan.Family(family)), h.all())
	out := d.ledger.Decide(all)
	keys, want := Spell(family, all, out)
	h.spell(keys, want)
	d.spellLoopback(family, want)
	d.expect(family, all, out, func(nft.Frontend) bool { return false })
	first, _ := Spell(family, d.ledger.Of(first), plan.Outcome{})
	afresh := p.Done().Afresh
	err := p.Load(ctx, want, first)
	d.expectGone(family, p.Gone())
	if err != nil {
		return err
	}
	if p.Done().Afresh > afresh {
		d.cfg.Log.Info("the table was changed by others so that rules could not be written over it, and is begun afresh", "table", fmt.Sprint(family, " ", nft.TableName))
	}
	d.history.loaded(family, time.Since(start))
	d.tally.load(plan.Family(family), d.countedOf(plan.Family(family), all, out))
	d.loadLoopback(family, all, out)
	d.tellUnfinished(family, time.Now())
	go giveBack() // ends by itself, after a collection
	elements, rules := p.Sizes()
	total := 0
	for _, n := range elements {
		total += n
	}
	d.cfg.Log.Info("table loaded", "table", fmt.Sprint(family, " ", nft.TableName),
		"frontends", len(keys.Frontends), "elements", total, "rules", rules, "took", time.Since(start).Round(time.Millisecond))
	return nil
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
			d.metrics.CleanupFailed(familyLabel(family))
			d.cfg.Log.Error(err, "rules for unused numbers of endpoints and session affinities are not deleted")
		}
		if n > 0 {
			d.cfg.Log.V(2).Info("deleted rules for unused numbers of endpoints and session affinities", "numbers", n)
		}
	}
}

func sooner(a time.Time, hasA bool, b time.Time, hasB bool) (time.Time, bool) {
	if !hasA || hasB && b.Before(a) {
		return b, hasB
	}
	return a, true
}
