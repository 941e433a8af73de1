// Package conntrack deletes entries of the kernel's connection tracking that lead packets
// elsewhere than the frontends say by now: flows that began before their destination was
// a frontend, which go past it for as long as they last, and flows to endpoints that
// serve no more. Of the latter UDP and SCTP, which no endpoint ends: a client with a
// fixed port would keep them alive for ever; and, by a cleaner of their own, of TCP those that
// nobody has answered: the client's next SYN then goes to an endpoint that serves, and so does
// who comes from his port within the two minutes that the kernel waits. Other TCP flows to endpoints
// that are gone can be ended, too, if asked for: the next packet of the client then meets
// somebody who does not know the connection, and a reset.
//
// Nothing is installed against packets that conntrack calls invalid.
package conntrack

import (
	"context"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"onerule/nft"
	"onerule/nft/flows"
)

// betweenPasses is how long after a pass over conntrack the next one may follow. It is
// also when a second pass for the same frontends does: a packet that was under way
// while the frontend was written confirms its flow after the first pass looked.
const betweenPasses = time.Second

// betweenUnanswered is that of cleaners of unanswered flows: the kernel's walk through a
// large table for a few entries lets nothing else of the network run on its processor, so
// there is one now and then, and the longer it takes the less often.
const (
	betweenUnanswered = 5 * time.Second
	shareUnanswered   = 100 // at most one part of so many of the time
)

// moreLooks is how often flows are looked at again that a last pass has found first.
const moreLooks = 3

// failedPass is how long after a pass that failed the next one follows.
const failedPass = 10 * time.Second

// afterBusy is how long after a pass to which the kernel did not let all stale entries go the
// next one looks at them: before Linux 6.4 it keeps what is in a flowtable, for as long as
// the flow lasts. What else comes does not wait for that.
const afterBusy = 10 * time.Second

// A Config says how to clean the flows of one IP family.
type Config struct {
	Family nft.Family
	// ResetRemoved ends TCP flows to endpoints that are gone.
	ResetRemoved bool
	// Unanswered makes a cleaner that is for TCP flows alone that nobody has answered, and
	// that lead to endpoints which serve no more.
	Unanswered bool
	// Passed, if set, is called after each pass, by the goroutine of Run.
	Passed func(Pass)
	Log    logr.Logger
}

// A Pass is what one look at the whole table did.
type Pass struct {
	// Untranslated and Stale count the entries deleted: those without a DNAT that began
	// before their destination was a frontend, and those to endpoints that serve no more.
	Untranslated, Stale int
	// Busy counts the stale entries that the kernel did not let go.
	Busy int
	// Read counts the entries that the kernel gave.
	Read int
	// Listings counts how often it was asked for them: once, and once more each time
	// that a listing broke off.
	Listings int
	Took     time.Duration
	Err      error // why it failed; what it was for is looked at again
}

// Deleted counts the entries deleted.
func (p Pass) Deleted() int { return p.Untranslated + p.Stale }

// A Cleaner works beside the one that writes the table: a pass takes as long as the
// conntrack table is large.
//
// The writer says what it is about to write (Expect, for each frontend that the write
// touches, also those that it removes), writes, and says that it did (Written). Until
// then nothing is deleted on that account: entries deleted while the kernel still has the
// old rules would come back through them. After a write that failed there is nothing
// to do: what was expected stays so until a later write succeeds, and what that one
// expects of the same frontends is newer. So a write that failed loses nothing, and neither
// does one of which nobody knows whether it failed.
//
// Expecting before the write is what keeps the flows to new endpoints: a pass that runs
// meanwhile knows them before the first of those flows can exist.
//
// All methods can be called from any goroutine.
type Cleaner struct {
	cfg Config
	// pass looks once at the whole table.
	pass func(ctx context.Context, which flows.Which, stale func(flows.Flow) (bool, error)) (Pass, error)
	wake chan struct{}
	// silent are the TCP flows that nobody had answered in the last pass and that lead to
	// endpoints which serve no more, and found those of this one. Of the goroutine of Run.
	silent, found map[string]bool
	more          int // how often there were new ones in a row
	// busy are the marks of passes that left busy entries, and what came since; as found.
	busy marks

	mu       sync.Mutex
	expected marks // of writes that have not succeeded
	pending  marks // of writes that have
	node     map[netip.Addr]bool
}

// New gives a cleaner that does nothing until Run.
func New(cfg Config) *Cleaner {
	return &Cleaner{
		cfg: cfg,
		pass: func(ctx context.Context, which flows.Which, stale func(flows.Flow) (bool, error)) (Pass, error) {
			return sweep(ctx, cfg.Family, which, stale)
		},
		wake:     make(chan struct{}, 1),
		expected: marks{}, pending: marks{},
		found: map[string]bool{},
	}
}

// SetNodePortAddrs takes in which of the node's addresses take NodePorts, of any family.
// When one is added, expect every NodePort anew, as New: flows to it may be older. When
// one is taken away, expect the frontends that it and each NodePort make, as not Owned.
func (c *Cleaner) SetNodePortAddrs(list []netip.Addr) {
	node := make(map[netip.Addr]bool, len(list))
	for _, a := range list {
		node[a.Unmap().WithZone("")] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.node = node
}

// Expect says what is so of a frontend when the write that is about to begin succeeds.
// A NodePort has no address. What is expected of the same frontend later counts, but what
// was New stays so until it was looked at or the frontend is gone.
func (c *Cleaner) Expect(f nft.Frontend, facts Facts) {
	m := marked(f, facts, c.cfg)
	if m.owned && !m.looks() || c.cfg.Unanswered && !m.translated {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cfg.Unanswered && facts.New && !c.isKnown(f) {
		return // a load: nobody waits for what was not ours
	}
	c.expected.add(f, m)
}

// isKnown says whether something is expected of a frontend that no pass has taken up.
func (c *Cleaner) isKnown(f nft.Frontend) bool {
	_, expected := c.expected[f]
	_, pending := c.pending[f]
	return expected || pending
}

// Written says that the kernel has all that was expected so far.
func (c *Cleaner) Written() {
	if !c.promote() {
		return
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// promote makes pending what was expected, and says whether that was anything.
func (c *Cleaner) promote() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case len(c.expected) == 0:
		return false
	case len(c.pending) == 0:
		c.pending = c.expected
	default:
		c.pending.addAll(c.expected)
	}
	c.expected = marks{}
	return true
}

func (c *Cleaner) take() marks {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pending
	c.pending = marks{}
	return p
}

// Run works until ctx ends, in the network namespace of the calling thread. The first
// frontends after a pause are looked at at once; what comes in the second after a pass
// joins the next one, so that a stream of changes neither puts the second passes off nor
// costs a pass each.
func (c *Cleaner) Run(ctx context.Context) {
	var again marks // what the next pass has to look at once more
	var pause, due <-chan time.Time
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
		case <-due:
			again, c.busy, due = view{again, c.busy}.merged(), nil, nil
			if pause != nil {
				continue // they join the pass behind it
			}
		}
		first := c.take()
		if len(first)+len(again) == 0 {
			c.silent, c.found = nil, map[string]bool{}
			pause = nil
			continue
		}
		var wait time.Duration
		again, wait = c.round(ctx, first, again)
		pause = time.After(wait)
		if len(c.busy) > 0 && due == nil {
			due = time.After(max(afterBusy, wait))
		}
	}
}

// round makes a pass for the frontends that are new and those that are due again, and
// gives those that the next one is for and when that is.
func (c *Cleaner) round(ctx context.Context, first, again marks) (marks, time.Duration) {
	if len(c.busy) > 0 { // older marks alone would end flows to endpoints that have come since
		c.busy.addAll(first)
	}
	all := view{first, again}
	looks, translated := all.looks()
	if !looks {
		clear(c.found)
		return nil, 0
	}
	c.mu.Lock()
	node := c.node
	c.mu.Unlock()
	start := time.Now()
	c.silent, c.found = c.found, map[string]bool{}
	p, err := c.pass(ctx, c.which(translated), func(f flows.Flow) (bool, error) { return c.stale(all, node, f) })
	p.Took, p.Err = time.Since(start), err
	if c.cfg.Passed != nil {
		c.cfg.Passed(p)
	}
	log := c.cfg.Log.WithValues("family", c.cfg.Family.String(), "untranslated", p.Untranslated, "stale", p.Stale, "busy", p.Busy)
	if p.Busy > 0 {
		c.busy = view{first, again, c.busy}.merged()
	}
	switch {
	case err == nil:
		if p.Deleted() > 0 {
			log.V(2).Info("deleted conntrack entries", "read", p.Read, "took", p.Took)
		}
		if len(c.found) > 0 && c.more < moreLooks {
			c.more++
			return all.merged(), c.between(p)
		}
		c.more = 0
		return first, c.between(p)
	case ctx.Err() == nil:
		log.Error(err, "conntrack is not clean, trying again", "after", failedPass)
	}
	maps.Copy(c.found, c.silent) // which the pass has not come to, perhaps
	return all.merged(), failedPass
}

// which gives the entries that a pass asks the kernel for.
func (c *Cleaner) which(translated bool) flows.Which {
	switch {
	case c.cfg.Unanswered:
		return flows.Unanswered
	case translated:
		return flows.All
	default:
		return flows.WithoutDNAT
	}
}

// between gives how long after a pass the next one may follow.
func (c *Cleaner) between(p Pass) time.Duration {
	if c.cfg.Unanswered {
		return max(betweenUnanswered, shareUnanswered*p.Took)
	}
	return betweenPasses
}

// stale says whether a flow is, by the marks of a pass and by all that was expected since
// it began: an endpoint may have come, or a frontend gone.
func (c *Cleaner) stale(all view, node map[netip.Addr]bool, f flows.Flow) (bool, error) {
	if c.cfg.Unanswered && f.Answered {
		return false, nil // a kernel before 5.17 gives it all the same
	}
	to := frontendOf(f)
	frontend, m, ok := all.of(to, node)
	if !ok {
		return false, nil
	}
	if stale, err := m.stale(f); !stale || err != nil {
		return false, err
	}
	c.mu.Lock()
	newer := view{c.expected, c.pending}
	now, ok := newer.find(to)
	if !ok {
		now, ok = newer.find(frontend)
	}
	c.mu.Unlock()
	switch {
	case !ok:
		return c.isSure(f), nil
	case !f.Translated:
		return now.owned, nil
	}
	if stale, err := now.stale(f); !stale || err != nil {
		return false, err
	}
	return c.isSure(f), nil
}

// maxSilent bounds what is kept of flows from one pass to the next.
const maxSilent = 1 << 16

// isSure says whether a flow can go at once, or had no answer in the pass before either: the
// answer to one that has just begun may be on its way.
func (c *Cleaner) isSure(f flows.Flow) bool {
	if !c.cfg.Unanswered {
		return true
	}
	k := string(f.Original) + string(f.Zone) + string(f.ID)
	if c.silent[k] {
		return true
	}
	if len(c.found) < maxSilent {
		c.found[k] = true
	}
	return false
}
