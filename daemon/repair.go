package daemon

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"onerule/daemon/network"
	"onerule/daemon/plan"
	"onerule/nft"
)

// betweenRepairs is how long after a change by others the next one is looked at: whoever
// goes on changing our tables does not keep us from everything else.
const betweenRepairs = 250 * time.Millisecond

// watch puts what others do to our tables into the mailbox, until ctx ends.
func (d *Daemon) watch(ctx context.Context) {
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		keepSeeing(ctx, d.monitor.Run, d.monitor.Reopen, d.cfg.Log)
	}()
	for {
		select {
		case <-d.monitor.Suspect():
			d.tellFoundOut(d.monitor.Take())
		case <-ended:
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(betweenRepairs):
		}
	}
}

// keepSeeing runs what sees changes by others until ctx ends. Where it fails it is opened
// again, which tells that all may have changed meanwhile: each time the tables are read.
func keepSeeing(ctx context.Context, run func(context.Context) error, reopen func() error, log logr.Logger) {
	wait := firstRetry
	for {
		began := time.Now()
		err := run(ctx)
		if time.Since(began) > lastRetry {
			wait = firstRetry
		}
		for err != nil {
			log.Error(err, "changes of our tables by others are not seen, trying again", "after", wait)
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			wait = min(2*wait, lastRetry)
			err = reopen()
		}
		if ctx.Err() != nil {
			return
		}
		log.Info("changes of our tables by others are seen again")
	}
}

// listen begins to see what others do to our tables, once they are loaded: see
// nft.Monitor. If somebody wrote anything meanwhile, they are looked at again.
func (d *Daemon) listen(ctx context.Context) error {
	ours := 0
	for _, p := range d.programs {
		ours += p.Done().Transactions
	}
	alone, err := d.monitor.Listen(ours)
	if alone || err != nil {
		return err
	}
	for _, family := range d.cfg.Families {
		d.programs[family].Doubt()
		if err := d.syncFamily(ctx, family, plan.NewKeys()); err != nil {
			return err
		}
	}
	return nil
}

// repair makes the tables that others changed be read and written again, and says so.
func (d *Daemon) repair(found []nft.Foreign) {
	for _, f := range found {
		d.cfg.Log.Info("others changed our table, it is put right", "change", f.String())
		d.metrics.ForeignChange(f.Kind.String())
		d.event(Event{Object: d.nodeKey(), Reason: "RulesChangedByOthers", Note: f.String()})
		for family, p := range d.programs {
			if f.Family == 0 || f.Family == family {
				p.Doubt()
			}
		}
	}
}

func (d *Daemon) foreignKinds() []string {
	var list []string
	if d.network != nil {
		list = network.Kinds()
	}
	for _, k := range nft.Kinds() {
		list = append(list, k.String())
	}
	return list
}
