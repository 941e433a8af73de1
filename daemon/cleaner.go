package daemon

import (
	"context"
	"errors"
	"net/netip"
	"slices"
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

// A mark says what to look for among the flows to a frontend.
type mark struct {
	// untranslated flows began before it was one.
	untranslated bool
	// lasting says that flows of the protocol end by a timeout only: those to endpoints
	// that do not serve are stale.
	lasting bool
	serving []netip.AddrPort // sorted; none for a frontend that is gone
}

// marks hold what to look for by frontend, of one family. A NodePort has no address.
type marks map[nft.Frontend]mark

// add takes newer marks in.
func (m marks) add(newer marks) {
	for f, now := range newer {
		now.untranslated = now.untranslated || m[f].untranslated
		m[f] = now
	}
}

// stale says whether a flow is to be deleted. host are the addresses of NodePorts.
func (m marks) stale(f nft.Flow, host map[netip.Addr]bool) bool {
	found, ok := m[f.To]
	if !ok && host[f.To.Addr] {
		found, ok = m[nft.Frontend{Protocol: f.To.Protocol, Port: f.To.Port}]
	}
	switch {
	case !ok:
		return false
	case !f.Translated:
		return found.untranslated
	}
	_, serves := slices.BinarySearchFunc(found.serving, f.Endpoint, netip.AddrPort.Compare)
	return found.lasting && !serves
}

// lasting says whether any mark is about translated flows.
func (m marks) lasting() bool {
	for _, one := range m {
		if one.lasting {
			return true
		}
	}
	return false
}

// A cleaner deletes conntrack entries that would keep packets from where they should go:
// those that began before their destination was a frontend, and those of protocols
// without an end that go to endpoints that serve no more. It works beside the loop: a
// pass takes as long as the table is large.
//
// It must be told of a frontend after the kernel has what it is told, and a caller whose
// write failed must tell it again of all that it wrote when it succeeds.
type cleaner struct {
	families []nft.Family
	done     func(f nft.Family, deleted int, took time.Duration)
	// untranslated is told how many of them began before their destination was a frontend.
	untranslated func(f nft.Family, n int)
	// pass looks once at the whole table of a family, and gives how many entries it
	// deleted.
	pass func(context.Context, nft.Family, marks) (int, error)
	log  logr.Logger

	mu      sync.Mutex
	pending map[nft.Family]marks
	host    map[netip.Addr]bool
	wake    chan struct{}
}

func newCleaner(families []nft.Family, done func(nft.Family, int, time.Duration), log logr.Logger) *cleaner {
	c := &cleaner{families: families, done: done, log: log, pending: map[nft.Family]marks{}, wake: make(chan struct{}, 1), untranslated: func(nft.Family, int) {}}
	c.pass = func(ctx context.Context, family nft.Family, m marks) (int, error) {
		c.mu.Lock()
		host := c.host
		c.mu.Unlock()
		early := 0
		n, err := nft.DeleteFlows(ctx, family, m.lasting(), func(f nft.Flow) bool {
			stale := m.stale(f, host)
			if stale && !f.Translated {
				early++
			}
			return stale
		})
		c.untranslated(family, early)
		return n, err
	}
	return c
}

// hostAddrs takes in which addresses have NodePorts.
func (c *cleaner) hostAddrs(list []netip.Addr) {
	host := map[netip.Addr]bool{}
	for _, a := range list {
		host[a] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.host = host
}

// add asks for the flows to frontends to be looked at.
func (c *cleaner) add(family nft.Family, m marks) {
	if len(m) == 0 {
		return
	}
	c.mu.Lock()
	if c.pending[family] == nil {
		c.pending[family] = marks{}
	}
	c.pending[family].add(m)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *cleaner) take() map[nft.Family]marks {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pending
	c.pending = map[nft.Family]marks{}
	return p
}

// run works until ctx ends. The first frontends after a pause are passed at once; what
// comes in the second after a pass joins the next one, so that a stream of changes
// neither puts the second passes off nor costs a pass each.
func (c *cleaner) run(ctx context.Context) {
	var again map[nft.Family]marks // what the next pass has to look at once more
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
func (c *cleaner) round(ctx context.Context, first, again map[nft.Family]marks) (map[nft.Family]marks, time.Duration) {
	all := map[nft.Family]marks{}
	for _, part := range []map[nft.Family]marks{again, first} { // the newer marks come last
		for family, m := range part {
			if all[family] == nil {
				all[family] = marks{}
			}
			all[family].add(m)
		}
	}
	if err := c.passes(ctx, all); err != nil {
		if ctx.Err() == nil {
			c.log.Error(err, "conntrack is not clean, trying again", "after", failedPass)
		}
		return all, failedPass
	}
	return first, betweenPasses
}

// passes makes a pass for each family that has any marks.
func (c *cleaner) passes(ctx context.Context, all map[nft.Family]marks) error {
	var errs []error
	for _, family := range c.families {
		if len(all[family]) == 0 {
			continue
		}
		start := time.Now()
		n, err := c.pass(ctx, family, all[family])
		c.done(family, n, time.Since(start))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
