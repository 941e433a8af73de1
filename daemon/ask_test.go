package daemon

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"onerule/daemon/inspect"
)

// asked is a daemon whose loop alone runs, and fails to write.
func asked(t *testing.T, f func(t *testing.T, d *Daemon)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := &Daemon{mailbox: newMailbox(), asks: make(chan func()), history: newHistory(), cfg: Config{Log: logr.Discard()}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { // ends with ctx
			defer close(ended)
			loop{wake: d.wake, asks: d.asks, log: logr.Discard(),
				sync:    func(context.Context) error { return errors.New("refused") },
				retire:  func(context.Context, time.Time) {},
				unpin:   func(time.Time) (time.Time, bool) { return time.Time{}, false },
				periods: func() (time.Duration, time.Duration) { return 0, 30 * time.Second },
			}.run(ctx)
		}()
		f(t, d)
		cancel()
		<-ended
	})
}

func TestTheLoopAnswersQuestions(t *testing.T) {
	t.Run("also while a write is to be tried again", func(t *testing.T) {
		asked(t, func(t *testing.T, d *Daemon) {
			d.history.runs()
			d.poke()
			synctest.Wait() // the write has failed
			began, done := time.Now(), false
			if err := d.ask(t.Context(), func() { done = true }); err != nil || !done || !time.Now().Equal(began) {
				t.Errorf("got %v, called %t, after %s; want it called at once", err, done, time.Since(began))
			}
		})
	})
	t.Run("one that panics harms nobody", func(t *testing.T) {
		asked(t, func(t *testing.T, d *Daemon) {
			d.history.runs()
			if err := d.ask(t.Context(), func() { panic("no such Service") }); err == nil || !strings.Contains(err.Error(), "no such Service") {
				t.Errorf("got %v, want what it panicked with", err)
			}
			if err := d.ask(t.Context(), func() {}); err != nil {
				t.Errorf("the next question: %v", err)
			}
		})
	})
	t.Run("not while another daemon writes", func(t *testing.T) {
		asked(t, func(t *testing.T, d *Daemon) {
			if err := d.ask(t.Context(), func() { t.Error("it was called") }); !errors.Is(err, errWaiting) {
				t.Errorf("got %v, want that it waits", err)
			}
		})
	})
	t.Run("not for ever", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := &Daemon{asks: make(chan func()), history: newHistory()}
			d.history.runs()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := d.ask(ctx, func() { t.Error("it was called") }); !errors.Is(err, errBusy) {
				t.Errorf("got %v, want that it is busy", err)
			}
		})
	})
}

func TestHistoryTellsSinceWhenSyncsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, began := newHistory(), time.Now()
		h.runs()
		h.ended(errors.New("first"), false)
		<-time.After(time.Hour)
		h.ended(errors.New("no room"), false)
		if want := "since " + began.Format(time.RFC3339) + ": no room"; !strings.HasSuffix(degradedOf(h)[0], want) {
			t.Errorf("got %v, want %q", degradedOf(h), want)
		}
		h.ended(nil, true)
		if list := degradedOf(h); len(list) > 0 {
			t.Errorf("got %v after a sync that ended well", list)
		}
	})
}

func degradedOf(h *history) []string {
	var s inspect.Status
	h.into(&s)
	return s.Degraded
}
