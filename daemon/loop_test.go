package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
)

// A looped runs a loop in the time of a synctest bubble, and notes when it does what.
type looped struct {
	m       *mailbox
	start   time.Time
	failing atomic.Bool
	awaits  atomic.Bool  // a sync awaits the ranges of pods
	takes   atomic.Int64 // how long a sync takes
	syncs   record[time.Duration]
	retires record[time.Duration]
}

// A record is a list that one goroutine writes and another one reads.
type record[T any] struct {
	mu   sync.Mutex
	list []T
}

func (r *record[T]) add(what T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, what)
}

func (r *record[T]) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = nil
}

func (r *record[T]) all() []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}

// runLoop runs a loop beside f, until f ends.
func runLoop(t *testing.T, f func(*looped)) {
	t.Helper()
	runLoopWith(t, time.Second, 30*time.Second, f)
}

// runLoopWith is runLoop with periods between syncs.
func runLoopWith(t *testing.T, least, most time.Duration, f func(*looped)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &looped{m: newMailbox(), start: time.Now()}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			loop{wake: l.m.wake, log: logr.Discard(),
				sync: func(context.Context) error {
					l.syncs.add(time.Since(l.start))
					<-time.After(time.Duration(l.takes.Load()))
					if l.failing.Load() {
						return errors.New("refused")
					}
					if l.awaits.Load() {
						return fmt.Errorf("write: %w", errNoRanges)
					}
					return nil
				},
				retire:  func(context.Context, time.Time) { l.retires.add(time.Since(l.start)) },
				unpin:   func(time.Time) (time.Time, bool) { return time.Time{}, false },
				periods: func() (time.Duration, time.Duration) { return least, most },
			}.run(ctx)
		}()
		f(l)
		cancel()
		<-ended
	})
}

// busy changes something every 10 ms for a time.
func (l *looped) busy(long time.Duration) {
	for range long / (10 * time.Millisecond) {
		l.m.Changed(service("a"))
		<-time.After(10 * time.Millisecond)
	}
	synctest.Wait()
}

func milliseconds(list ...int) (all []time.Duration) {
	for _, ms := range list {
		all = append(all, time.Duration(ms)*time.Millisecond)
	}
	return all
}

func TestChangesDoNotHastenTheNextTry(t *testing.T) {
	runLoop(t, func(l *looped) {
		l.failing.Store(true)
		l.busy(3500 * time.Millisecond)
		if diff := cmp.Diff(milliseconds(0, 100, 300, 700, 1500, 3100), l.syncs.all()); diff != "" {
			t.Errorf("tries while writes fail (-want +got): %s", diff)
		}
		l.failing.Store(false)
		<-time.After(3 * time.Second) // the next try, at 6.3 s, is well
		synctest.Wait()
		l.failing.Store(true)
		l.syncs.clear()
		l.busy(500 * time.Millisecond)
		if diff := cmp.Diff(milliseconds(6500, 6600, 6800), l.syncs.all()); diff != "" {
			t.Errorf("tries after one was well (-want +got): %s", diff)
		}
	})
}

func TestA14_5AFailedTryIsRepeatedWithoutAChange(t *testing.T) {
	runLoop(t, func(l *looped) {
		l.failing.Store(true)
		l.m.Changed(service("a"))
		<-time.After(2 * time.Minute)
		synctest.Wait()
		want := milliseconds(0, 100, 300, 700, 1500, 3100, 6300, 12700, 25500, 51100, 81100, 111100)
		if diff := cmp.Diff(want, l.syncs.all()); diff != "" {
			t.Errorf("tries (-want +got): %s", diff)
		}
	})
}

// What is awaited comes with a change, so nothing is tried before, and that at once.
func TestA13_2NothingIsTriedWhileRangesAreAwaited(t *testing.T) {
	runLoop(t, func(l *looped) {
		l.awaits.Store(true)
		l.m.Changed(service("a"))
		<-time.After(2500 * time.Millisecond)
		l.m.Changed(service("a"))
		synctest.Wait()
		if diff := cmp.Diff(milliseconds(0, 2500), l.syncs.all()); diff != "" {
			t.Errorf("tries (-want +got): %s", diff)
		}
	})
}

func TestA14_4AChangeIsWrittenAtOnce(t *testing.T) {
	runLoop(t, func(l *looped) {
		<-time.After(time.Second)
		l.m.Changed(service("a"))
		<-time.After(time.Second)
		l.m.Changed(service("a"))
		synctest.Wait()
		if diff := cmp.Diff(milliseconds(1000, 2000), l.syncs.all()); diff != "" {
			t.Errorf("writes (-want +got): %s", diff)
		}
	})
}

// A write takes all that came in while the one before went on.
func TestA14_4ChangesOfAMomentAreOneWrite(t *testing.T) {
	runLoop(t, func(l *looped) {
		l.takes.Store(int64(105 * time.Millisecond))
		l.busy(time.Second)
		<-time.After(time.Second)
		if diff := cmp.Diff(milliseconds(0, 105, 210, 315, 420, 525, 630, 735, 840, 945, 1050), l.syncs.all()); diff != "" {
			t.Errorf("writes of 100 changes (-want +got): %s", diff)
		}
	})
}

// Who asks for more time between writes than kube-proxy's default gets it.
func TestA14_4TheShortestPeriodIsKeptWhereItIsLong(t *testing.T) {
	runLoopWith(t, 4*time.Second, 30*time.Second, func(l *looped) {
		<-time.After(time.Second)
		l.busy(14 * time.Second)
		if diff := cmp.Diff(milliseconds(1000, 5000, 9000, 13000), l.syncs.all()); diff != "" {
			t.Errorf("writes (-want +got): %s", diff)
		}
		<-time.After(4500 * time.Millisecond) // the last of the changes
		l.syncs.clear()
		<-time.After(8 * time.Second)
		l.m.Changed(service("a"))
		synctest.Wait()
		if n := len(l.syncs.all()); n == 0 {
			t.Error("a change waits although nothing was written for long")
		}
	})
}

func TestA14_5TheSyncPeriodBoundsTheWait(t *testing.T) {
	runLoopWith(t, 0, time.Second, func(l *looped) {
		l.failing.Store(true)
		l.m.Changed(service("a"))
		<-time.After(4 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff(milliseconds(0, 100, 300, 700, 1500, 2500, 3500), l.syncs.all()); diff != "" {
			t.Errorf("tries (-want +got): %s", diff)
		}
	})
}

// Unused rules are looked for all the time, also while writes fail, which that must not
// hasten.
func TestUnusedRulesAreLookedFor(t *testing.T) {
	want := milliseconds(10000, 20000, 30000)
	runLoop(t, func(l *looped) {
		<-time.After(35 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff(want, l.retires.all()); diff != "" {
			t.Errorf("looks (-want +got): %s", diff)
		}
		if diff := cmp.Diff(want, l.syncs.all()); diff != "" {
			t.Errorf("writes of what a look may have left (-want +got): %s", diff)
		}
	})
	runLoop(t, func(l *looped) {
		l.failing.Store(true)
		l.m.Changed(service("a"))
		<-time.After(35 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff(want, l.retires.all()); diff != "" {
			t.Errorf("looks while writes fail (-want +got): %s", diff)
		}
		if diff := cmp.Diff(milliseconds(0, 100, 300, 700, 1500, 3100, 6300, 12700, 25500), l.syncs.all()); diff != "" {
			t.Errorf("tries (-want +got): %s", diff)
		}
	})
}
