package daemon

import (
	"errors"
	"time"

	"onerule/daemon/model"
	"onerule/daemon/plan"
	"onerule/nft"
)

// errNoRanges says that a table is not written before the Node has ranges of pods.
var errNoRanges = errors.New("the ranges of pods are not known yet")

// An owed is what came in and is not done with: not written, or nobody was told that it is.
// It outlives syncs that fail and such as have to wait, so that nothing is lost with them.
type owed struct {
	since    time.Time // when the first of it came in; zero: none did
	objects  map[model.Key]bool
	families map[nft.Family]*debt
}

// A debt is what is owed to one family, whatever others lack.
type debt struct {
	since   time.Time // as that of an owed
	touched plan.Keys
	// caused says when that happened which slices follow from. Of several changes to one
	// slice the first one counts, which waits longest: so it is bounded, too.
	caused map[model.Key]time.Time
}

func newDebt() *debt { return &debt{touched: plan.NewKeys(), caused: map[model.Key]time.Time{}} }

func newOwed(families []nft.Family) *owed {
	o := &owed{objects: map[model.Key]bool{}, families: map[nft.Family]*debt{}}
	for _, f := range families {
		o.families[f] = newDebt()
	}
	return o
}

// add takes in what came, and what was touched by it.
func (o *owed) add(l letters, touched plan.Keys) {
	o.since = earlier(o.since, l.since)
	for key, c := range l.changes {
		o.objects[key] = true
		if key.Kind == model.KindEndpointSlice {
			o.addSlice(key, c.EndpointSlice)
		}
	}
	for family, d := range o.families {
		d.since = earlier(d.since, l.since)
		d.touched.AddIn(plan.Family(family), touched)
	}
}

// earlier gives the first of two times, of which each may not be.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// addSlice takes in what a slice follows from. When one went nobody says.
func (o *owed) addSlice(key model.Key, s *model.EndpointSlice) {
	for family, d := range o.families {
		_, waits := d.caused[key]
		switch {
		case s == nil:
			delete(d.caused, key)
		case !waits && s.Triggered != 0 && len(s.Endpoints) > 0 && isOf(family, s.Endpoints[0].Addr):
			d.caused[key] = time.Unix(0, s.Triggered)
		}
	}
}

// of gives what is owed to a family now.
func (o *owed) of(family nft.Family) debt { return *o.families[family] }

// written gives when that happened which a family's slices follow from, once they are in
// its table.
func (o *owed) written(family nft.Family) map[model.Key]time.Time {
	caused := o.families[family].caused
	o.families[family] = newDebt()
	return caused
}

// told gives how many objects changed, and since when they have waited, once all of them are
// in all tables.
func (o *owed) told() (objects int, since time.Time) {
	objects, since = len(o.objects), o.since
	o.objects, o.since = map[model.Key]bool{}, time.Time{}
	return objects, since
}
