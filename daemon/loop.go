package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
)

// Timing of what the loop does by itself.
const (
	// retireEvery is how often rules for unused numbers of endpoints are looked for,
	// retireAfter how long they must have been unused.
	retireEvery = 10 * time.Second
	retireAfter = time.Minute
	// A failed write is tried again after firstRetry, then twice as long each time.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
	// usualPause is kube-proxy's default for the time between two syncs, which spares a
	// proxier that lists and writes much. A write of ours costs what has changed, so it
	// need not wait; who asks for more than the default wants quiet, and gets it.
	usualPause = time.Second
)

// A loop decides when to write.
type loop struct {
	wake   <-chan struct{} // says that something came in
	asks   <-chan func()   // are called between two syncs
	sync   func(context.Context) error
	retire func(ctx context.Context, now time.Time)
	unpin  func(now time.Time) (next time.Time, more bool)
	// periods are how long after a sync the next one may begin, and the longest wait for
	// the repetition of one that failed.
	periods func() (least, most time.Duration)
	log     logr.Logger
}

// run works until ctx ends.
func (l loop) run(ctx context.Context) {
	tick := time.NewTicker(retireEvery)
	defer tick.Stop()
	wait := firstRetry
	var retry, again, pause <-chan time.Time
	for {
		wake := l.wake
		if retry != nil || pause != nil {
			wake = nil // what comes in now joins the next try: each may read the whole kernel
		}
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-retry:
		case <-pause:
			pause = nil
			continue
		case f := <-l.asks:
			f()
			continue
		case now := <-again:
			again = l.unpinAt(now)
			continue
		case now := <-tick.C:
			l.retire(ctx, now)
			if retry != nil || pause != nil {
				continue
			}
		}
		retry = nil
		err := l.sync(ctx)
		again = l.unpinAt(time.Now())
		least, most := l.periods()
		// The ranges of pods come with a change, and nothing was tried without them.
		if err == nil || errors.Is(err, errNoRanges) || ctx.Err() != nil {
			wait, pause = firstRetry, pauseOf(least)
			continue
		}
		l.log.Error(err, "the tables are not as they should be, trying again", "after", wait)
		retry = time.After(wait)
		wait = min(2*wait, lastRetry, most)
	}
}

// pauseOf ends after a period between two syncs, if that is more than usual.
func pauseOf(least time.Duration) <-chan time.Time {
	if least <= usualPause {
		return nil
	}
	return time.After(least)
}

// unpinAt deletes pins, and says when to do it again: never, if it gives nil.
func (l loop) unpinAt(now time.Time) <-chan time.Time {
	next, more := l.unpin(now)
	if !more {
		return nil
	}
	return time.After(time.Until(next))
}
