package daemon

import (
	"fmt"
	"time"

	"onerule/nft"
)

// unpinRetry is how long after a failure pins are looked for again.
const unpinRetry = time.Second

// A pinsRead is a reading of a family's pins that has ended.
type pinsRead struct {
	family  nft.Family
	reading *nft.PinReading
}

// unpin deletes pins to endpoints that left, and says when to look again. The kernel takes
// seconds to list many, which changes do not wait for: they are read beside the loop, which
// is woken when that is done.
func (d *Daemon) unpin(now time.Time) (next time.Time, more bool) {
	for _, done := range d.takePins() {
		if d.endPins(done, now) != nil {
			next, more = sooner(next, more, now.Add(unpinRetry), true)
		}
	}
	for _, family := range d.cfg.Families {
		reading, err := d.programs[family].BeginPins(now)
		if err != nil {
			d.stayPinned(family, err)
			next, more = sooner(next, more, now.Add(unpinRetry), true)
			continue
		}
		if reading != nil {
			go func() { // ends with the reading
				reading.Read()
				d.pinsRead(pinsRead{family, reading})
			}()
		}
		at, ok := d.programs[family].StaleAt()
		next, more = sooner(next, more, at, ok)
	}
	return next, more
}

// endPins deletes what a reading found.
func (d *Daemon) endPins(r pinsRead, now time.Time) error {
	p := d.programs[r.family]
	before := p.Done()
	n, err := p.EndPins(r.reading, now)
	d.did(r.family, before, p)
	if err != nil {
		d.stayPinned(r.family, err)
	}
	if n > 0 {
		d.cfg.Log.V(2).Info("deleted pins to endpoints that left", "pins", n)
	}
	return err
}

func (d *Daemon) stayPinned(family nft.Family, err error) {
	d.cfg.Log.Error(err, "clients may stay pinned to endpoints that left, trying again", "table", fmt.Sprint(family, " ", nft.TableName))
}
