package daemon

import (
	"context"
	"time"

	"onerule/nft"
)

// finish tries again, from time to time, what a load could not do when all was in: to delete
// what somebody left in the table, or to note what the rules are. It harms nobody that it is
// not done, so no change waits for it.
func (d *Daemon) finish(ctx context.Context, family nft.Family, now time.Time) {
	p := d.programs[family]
	if p.Unfinished() == nil || now.Before(d.finishAt[family]) {
		return
	}
	before := p.Done()
	_ = p.Finish(ctx) // Unfinished has it
	d.did(family, before, p)
	d.tellUnfinished(family, now)
}

// tellUnfinished logs it where that is news, and has finish called in time.
func (d *Daemon) tellUnfinished(family nft.Family, now time.Time) {
	text := ""
	if err := d.programs[family].Unfinished(); err != nil {
		text = err.Error()
		d.finishAt[family] = now.Add(lastRetry)
		time.AfterFunc(lastRetry, d.poke)
		if text != d.unfinished[family] {
			d.cfg.Log.Error(err, "the table has all that it should have, and more, trying again", "table", tableName(family), "after", lastRetry)
		}
	}
	d.unfinished[family] = text
}
