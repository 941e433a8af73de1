package daemon

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"onerule/nft"
)

// betweenPasses is how long after a pass over conntrack the next one may follow. It is
// also when a second pass for the same frontends does: a packet that was under way
// while the frontend was written confirms its flow after the first pass looked.
const betweenPasses = time.Second

// failedPass is how long after a pass that failed the next one follows.
const failedPass = 10 * time.Second

// A cleaner deletes conntrack entries that began before their destination was a
// frontend. It works beside the loop: a pass takes as long as the table is large.
type cleaner struct {
	families []nft.Family
	deleted  func(nft.Family, int)
	// pass looks once at the whole table of a family, and gives how many entries to
	// these frontends it deleted.
	pass func(context.Context, nft.Family, map[nft.Frontend]bool) (int, error)
	log  logr.Logger

	mu      sync.Mutex
	pending map[nft.Frontend]bool
	wake    chan struct{}
}

func newCleaner(families []nft.Family, deleted func(nft.Family, int), log logr.Logger) *cleaner {
	return &cleaner{
		families: families, deleted: deleted, log: log,
		pass: func(ctx context.Context, family nft.Family, frontends map[nft.Frontend]bool) (int, error) {
			return nft.DeleteUntranslated(ctx, family, func(f nft.Frontend) bool { return frontends[f] })
		},
		pending: map[nft.Frontend]bool{}, wake: make(chan struct{}, 1),
	}
}

// add asks for the entries to these frontends to be cleaned.
func (c *cleaner) add(frontends map[nft.Frontend]bool) {
	if len(frontends) == 0 {
		return
	}
	c.mu.Lock()
	maps.Copy(c.pending, frontends)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *cleaner) take() map[nft.Frontend]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pending
	c.pending = map[nft.Frontend]bool{}
	return p
}

// run works until ctx ends. The first frontends after a pause are passed at once; what
// comes in the second after a pass joins the next one, so that a stream of changes
// neither puts the second passes off nor costs a pass each.
func (c *cleaner) run(ctx context.Context) {
	var again map[nft.Frontend]bool // what the next pass has to look at once more
	var pause <-chan time.Time
	for {
		wake := c.wake
		if pause != nil {
			wake = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-pause:
		}
		first := c.take()
		if len(first)+len(again) == 0 {
			pause = nil
			continue
		}
		var wait time.Duration
		again, wait = c.round(ctx, first, again)
		pause = time.After(wait)
	}
}

// round makes a pass for the frontends that are new and those that are due again, and
// gives those that the next one is for and when that is.
func (c *cleaner) round(ctx context.Context, first, again map[nft.Frontend]bool) (map[nft.Frontend]bool, time.Duration) {
	all := maps.Clone(first)
	maps.Copy(all, again)
	if err := c.passes(ctx, all); err != nil {
		if ctx.Err() == nil {
			c.log.Error(err, "conntrack is not clean, trying again", "after", failedPass)
		}
		return all, failedPass
	}
	return first, betweenPasses
}

// passes makes a pass for each family that has any of the frontends.
func (c *cleaner) passes(ctx context.Context, frontends map[nft.Frontend]bool) error {
	var errs []error
	for _, family := range c.families {
		of := map[nft.Frontend]bool{}
		for f := range frontends {
			if f.Addr.Is4() == (family == nft.IPv4) {
				of[f] = true
			}
		}
		if len(of) == 0 {
			continue
		}
		n, err := c.pass(ctx, family, of)
		c.deleted(family, n)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
