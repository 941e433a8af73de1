// Package daemon wires sources, plan and tables together: one loop takes what the
// sources say, plans it, and writes what differs into the kernel. It decides
// nothing itself.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"onerule/daemon/model"
	"onerule/daemon/plan"
	"onerule/nft"
)

// A Config is what a daemon is started with.
type Config struct {
	Plan plan.Config
	// Families lists the IP families to serve, the primary one first.
	Families      []nft.Family
	MasqueradeBit uint8
	MasqueradeAll bool
	Version       string
	Log           logr.Logger
	// Written, if set, is called by the loop after each sync that ended well, with
	// the time since the first of its changes came in.
	Written func(changes int, took time.Duration)
}

// A Daemon holds the tables of a node to what its sources say. It is a
// source.Sink.
type Daemon struct {
	*mailbox
	cfg      Config
	ledger   *plan.Ledger
	programs map[nft.Family]*nft.Program
	cleaner  *cleaner
	metrics  *metrics
	health   *health
	notes    map[string][]model.Note
}

// New prepares a daemon. It writes nothing.
func New(cfg Config) (*Daemon, error) {
	d := &Daemon{
		mailbox:  newMailbox(),
		cfg:      cfg,
		ledger:   plan.NewLedger(cfg.Plan),
		programs: map[nft.Family]*nft.Program{},
		metrics:  newMetrics(cfg.Version, cfg.Families),
		notes:    map[string][]model.Note{},
	}
	d.metrics.skip(nil)
	d.health = newHealth(d.mailbox, cfg.Families)
	d.cleaner = newCleaner(cfg.Families, func(f nft.Family, n int) {
		d.metrics.conntrack.WithLabelValues(familyLabel(f)).Add(float64(n))
	}, cfg.Log)
	for _, family := range cfg.Families {
		p, err := nft.Open(nft.Config{
			Family:        family,
			MasqueradeBit: cfg.MasqueradeBit,
			MasqueradeAll: cfg.MasqueradeAll,
			Detector:      detector(family, cfg.Plan),
		})
		if err != nil {
			_ = d.close()
			return nil, err
		}
		d.programs[family] = p
	}
	return d, nil
}

// detector knows pods of a family by their address if any of their ranges is given.
func detector(family nft.Family, cfg plan.Config) nft.Detector {
	for _, p := range cfg.ClusterCIDRs {
		if p.Addr().Is4() == (family == nft.IPv4) {
			return nft.DetectCIDR
		}
	}
	return nft.DetectNone
}

func (d *Daemon) close() error {
	var errs []error
	for _, p := range d.programs {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// Run works until ctx ends. It leaves the tables as they are: what was translated
// goes on being translated.
func (d *Daemon) Run(ctx context.Context) error {
	defer func() { _ = d.close() }()
	release, err := d.takeLock(ctx)
	if ctx.Err() != nil {
		err = nil // it was asked to end
	}
	if release == nil {
		return err
	}
	defer release()
	var beside sync.WaitGroup
	beside.Go(func() { d.cleaner.run(ctx) })
	defer beside.Wait()
	loop{wake: d.wake, sync: d.sync, retire: d.retire, log: d.cfg.Log}.run(ctx)
	return nil
}

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
	applied := d.ledger.Apply(changesOf(l))
	d.note(l.noted, applied.Noted)
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
	if p.Known() && touched.Empty() {
		return nil
	}
	before, start := p.Done(), time.Now()
	fresh, err := d.write(ctx, family, p, touched)
	d.metrics.did(family, before, p)
	if err != nil {
		return err
	}
	d.metrics.wrote(family, time.Since(start))
	d.cleaner.add(fresh)
	return nil
}

// write updates a table, or loads it where its state is not known. It gives the
// frontends whose flows may have begun before they were ours.
func (d *Daemon) write(ctx context.Context, family nft.Family, p *nft.Program, touched plan.Keys) (map[nft.Frontend]bool, error) {
	if !p.Known() {
		return d.load(ctx, family, p)
	}
	keys, want := Spell(family, touched, d.ledger.Decide(touched))
	fresh := map[nft.Frontend]bool{}
	for f := range want.Routes[nft.ServiceIPs] {
		if !p.Has(f) {
			fresh[f] = true
		}
	}
	return fresh, p.Update(ctx, keys, want)
}

func (d *Daemon) load(ctx context.Context, family nft.Family, p *nft.Program) (map[nft.Frontend]bool, error) {
	start := time.Now()
	all := d.ledger.All()
	_, want := Spell(family, all, d.ledger.Decide(all))
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
	for f := range want.Routes[nft.ServiceIPs] {
		fresh[f] = true
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
			d.cfg.Log.Error(err, "rules for unused numbers of endpoints are not deleted")
		}
		if n > 0 {
			d.cfg.Log.V(2).Info("deleted rules for unused numbers of endpoints", "numbers", n)
		}
	}
}

// note takes in what is wrong with objects, and logs what is new.
func (d *Daemon) note(sourced map[string][]model.Note, planned map[model.Name][]model.Note) {
	for object, notes := range sourced {
		d.noteOne("source: ", object, notes)
	}
	for name, notes := range planned {
		d.noteOne("plan: ", model.Key{Kind: model.KindService, Name: name}.String(), notes)
	}
	if len(sourced)+len(planned) > 0 {
		d.metrics.skip(d.notes)
	}
}

func (d *Daemon) noteOne(by, object string, notes []model.Note) {
	known := map[model.Note]bool{}
	for _, n := range d.notes[by+object] {
		known[n] = true
	}
	for _, n := range notes {
		if !known[n] {
			d.cfg.Log.Info("skipped", "object", object, "field", n.Field, "reason", n.Reason, "detail", n.Detail)
		}
	}
	if len(notes) == 0 {
		delete(d.notes, by+object)
		return
	}
	d.notes[by+object] = notes
}
