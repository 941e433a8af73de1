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
	adopted := d.adopt(l)
	applied := d.ledger.Apply(changesOf(l))
	applied.Touched.Add(adopted.Touched)
	maps.Copy(applied.Noted, adopted.Noted)
	d.note(l.noted, applied.Noted)
	if d.awaitsNode() {
		return nil
	}
	var errs []error
	for _, family := range d.cfg.Families {
		if err := d.syncFamily(ctx, family, applied.Touched); err != nil {
			d.metrics.failures.WithLabelValues(familyLabel(family)).Inc()
			d.health.failed(family, since)
			errs = append(errs, err)
			continue
		}
		d.health.succeeded(family)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if len(l.changes) > 0 {
		took := time.Since(since)
		d.metrics.latency.Observe(took.Seconds())
		if d.cfg.Written != nil {
			d.cfg.Written(len(l.changes), took)
		}
	}
	return nil
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
	now := d.addrs.held(d.settings, family, !d.cfg.WithoutFib)
	moved := d.held[family].changed(now)
	if p.Known() && touched.Empty() && len(moved) == 0 {
		return nil
	}
	before, start := p.Done(), time.Now()
	fresh, err := d.write(ctx, family, p, touched, now, moved)
	d.metrics.did(family, before, p)
	if err != nil {
		return err
	}
	d.held[family] = now
	d.metrics.wrote(family, time.Since(start))
	d.cleaner.add(fresh)
	return nil
}

// write updates a table, or loads it where its state is not known. It gives the
// frontends whose flows may have begun before they were ours.
func (d *Daemon) write(ctx context.Context, family nft.Family, p *nft.Program, touched plan.Keys, h held, moved addrs) (map[nft.Frontend]bool, error) {
	if !p.Known() {
		return d.load(ctx, family, p, h)
	}
	out := d.ledger.Decide(withAddrs(touched, moved))
	keys, want := Spell(family, withAddrs(touched, moved), out)
	h.spell(keys, want)
	fresh := map[nft.Frontend]bool{}
	for _, routes := range []nft.RouteMap{nft.ServiceIPs, nft.ServiceNodePorts} {
		for f := range want.Routes[routes] {
			if !p.Has(f) {
				fresh[f] = true
			}
		}
	}
	return fresh, p.Update(ctx, keys, want)
}

func (d *Daemon) load(ctx context.Context, family nft.Family, p *nft.Program, h held) (map[nft.Frontend]bool, error) {
	start := time.Now()
	all := withAddrs(d.ledger.All(), h.all())
	keys, want := Spell(family, all, d.ledger.Decide(all))
	h.spell(keys, want)
	first, _ := Spell(family, d.ledger.Of(first), plan.Outcome{})
	afresh := p.Done().Afresh
	if err := p.Load(ctx, want, first); err != nil {
		return nil, err
	}
	if p.Done().Afresh > afresh {
		d.cfg.Log.Info("the table was changed by others so that rules could not be written over it, and is begun afresh", "table", fmt.Sprint(family, " ", nft.TableName))
	}
	go giveBack() // ends by itself, after a collection
	fresh := map[nft.Frontend]bool{}
	for _, routes := range []nft.RouteMap{nft.ServiceIPs, nft.ServiceNodePorts} {
		for f := range want.Routes[routes] {
			fresh[f] = true
		}
	}
	elements, rules := p.Sizes()
	total := 0
	for _, n := range elements {
		total += n
	}
	d.cfg.Log.Info("table loaded", "table", fmt.Sprint(family, " ", nft.TableName),
		"frontends", len(fresh), "elements", total, "rules", rules, "took", time.Since(start).Round(time.Millisecond))
	return fresh, nil
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
		d.metrics.did(family, before, p)
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
		d.metrics.did(family, before, p)
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
