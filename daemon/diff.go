package daemon

import (
	"context"
	"errors"
	"fmt"

	"onerule/daemon/inspect"
	"onerule/nft"
)

// A wish is what a table is to be, and how many transactions there were by then.
type wish struct {
	config       nft.Config
	state        nft.State
	transactions int
}

// Diff says what the daemon would change in the kernel now: nothing, if all is well.
func (d *Daemon) Diff(ctx context.Context) (inspect.Diff, error) {
	diff := inspect.Diff{Against: "what the daemon knows"}
	for _, family := range d.cfg.Families {
		t, err := d.diff(ctx, family, &diff)
		if err != nil {
			return diff, err
		}
		diff.Tables = append(diff.Tables, t)
	}
	return diff, d.ask(ctx, func() { diff.Skipped = d.skipped() })
}

// diff compares one table. The kernel is read beside the loop, and again if that wrote
// anything meanwhile.
func (d *Daemon) diff(ctx context.Context, family nft.Family, diff *inspect.Diff) (inspect.TableDiff, error) {
	var p nft.Preview
	for range lookTwice {
		before, err := d.wish(ctx, family)
		if err != nil {
			return inspect.TableDiff{}, err
		}
		if p, err = nft.PreviewOf(before.config, before.state); err != nil {
			return inspect.TableDiff{}, err
		}
		after := 0
		if err := d.ask(ctx, func() { after = d.programs[family].Done().Transactions }); err != nil {
			return inspect.TableDiff{}, err
		}
		if after == before.transactions {
			return inspect.DiffOf(family, p), nil
		}
	}
	diff.Notes = append(diff.Notes, fmt.Sprintf("table %s changed while it was read: some of this may be in by now", tableName(family)))
	return inspect.DiffOf(family, p), nil
}

// wish gives what a table is to be.
func (d *Daemon) wish(ctx context.Context, family nft.Family) (w wish, err error) {
	asked := d.ask(ctx, func() {
		if !d.isSynced() {
			err = errors.New("not everything has been read yet, so that nothing is known of what the tables should be")
			return
		}
		w = d.wishNow(family)
	})
	return w, errors.Join(asked, err)
}

func (d *Daemon) wishNow(family nft.Family) wish {
	w := wish{config: d.skeleton(family), transactions: d.programs[family].Done().Transactions}
	_, w.state = d.wants(family, withAddrs(d.ledger.All(), d.wanted[family].all()))
	return w
}

// isSynced says whether everything has been delivered once, and was taken.
func (d *Daemon) isSynced() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.synced && d.hosted && (d.isLoaded() || len(d.letters.changes) == 0)
}

// Preview says what a daemon that knows what feeds deliver would change in the kernel.
// It runs no daemon, and changes nothing. Each feed ends when it has delivered.
func Preview(ctx context.Context, cfg Config, against string, feeds ...func(context.Context, *Daemon) error) (inspect.Diff, error) {
	diff := inspect.Diff{Against: against}
	d, err := New(cfg)
	if err != nil {
		return diff, err
	}
	defer func() { _ = d.close() }()
	defer d.stopWaiting()
	for _, feed := range feeds {
		if err := feed(ctx, d); err != nil {
			return diff, err
		}
	}
	l, _ := d.take()
	adopted := d.adopt(l)
	applied := d.ledger.Apply(changesOf(l))
	for name, notes := range adopted.Noted {
		if _, newer := applied.Noted[name]; !newer {
			applied.Noted[name] = notes
		}
	}
	d.note(l.noted, applied.Noted)
	diff.Skipped = d.skipped()
	select {
	case err := <-d.fatal:
		return diff, err
	default:
	}
	if d.awaitsPodCIDRs() {
		return diff, fmt.Errorf("node %s has no spec.podCIDRs: pods are told by them", d.cfg.Settings.Node)
	}
	for _, family := range cfg.Families {
		w := d.wishNow(family)
		p, err := nft.PreviewOf(w.config, w.state)
		if err != nil {
			return diff, err
		}
		diff.Tables = append(diff.Tables, inspect.DiffOf(family, p))
	}
	return diff, nil
}
