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

// secondPass is how long after a first pass over conntrack a second one follows: a
// packet that was under way while the frontend was written confirms its flow after
// the first pass looked.
const secondPass = time.Second

// failedPass is how long after a pass that failed the next one follows.
const failedPass = 10 * time.Second

// A cleaner deletes conntrack entries that began before their destination was a
// frontend. It works beside the loop: a pass takes as long as the table is large.
type cleaner struct {
	families []nft.Family
	deleted  func(nft.Family, int)
	log      logr.Logger

	mu      sync.Mutex
	pending map[nft.Frontend]bool
	wake    chan struct{}
}

func newCleaner(families []nft.Family, deleted func(nft.Family, int), log logr.Logger) *cleaner {
	return &cleaner{
		families: families, deleted: deleted, log: log,
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

// run works until ctx ends.
func (c *cleaner) run(ctx context.Context) {
	again := map[nft.Frontend]bool{}
	var timer <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
			first := c.take()
			_ = c.pass(ctx, first) // what failed is among those of the second pass
			maps.Copy(again, first)
			timer = time.After(secondPass)
		case <-timer:
			timer = nil
			if err := c.pass(ctx, again); err != nil {
				c.log.Error(err, "conntrack is not clean, trying again", "after", failedPass)
				timer = time.After(failedPass)
				continue
			}
			clear(again)
		}
	}
}

// pass looks at the whole table once for each family.
func (c *cleaner) pass(ctx context.Context, frontends map[nft.Frontend]bool) error {
	var errs []error
	for _, family := range c.families {
		n, err := nft.DeleteUntranslated(ctx, family, func(f nft.Frontend) bool { return frontends[f] })
		c.deleted(family, n)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
