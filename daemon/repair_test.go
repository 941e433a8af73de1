package daemon

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
)

// What sees changes by others is opened again as often as it fails, and not all the time.
func TestWhatSeesChangesByOthersIsOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var did []string
		said, began := 0, time.Now()
		note := func(what string) { did = append(did, fmt.Sprint(time.Since(began), " ", what)) }
		ctx, cancel := context.WithCancel(t.Context())
		run := func(ctx context.Context) error {
			note("run")
			switch len(did) {
			case 1, 7: // at once
				return errors.New("no socket")
			case 5: // a long time after
				<-time.After(time.Hour)
				return errors.New("no socket")
			}
			<-ctx.Done()
			return nil
		}
		reopen := func() error {
			note("reopen")
			if len(did) < 4 {
				return errors.New("no memory")
			}
			return nil
		}
		ended := make(chan struct{})
		go func() { // ends with ctx
			defer close(ended)
			keepSeeing(ctx, run, reopen, funcr.New(func(_, _ string) { said++ }, funcr.Options{}))
		}()
		<-time.After(2 * time.Hour)
		cancel()
		<-ended
		want := []string{
			"0s run", "100ms reopen", "300ms reopen", "700ms reopen", "700ms run",
			"1h0m0.8s reopen", "1h0m0.8s run", "1h0m1s reopen", "1h0m1s run",
		}
		if diff := cmp.Diff(want, did); diff != "" {
			t.Errorf("it did (-want +got): %s", diff)
		}
		if want := 8; said != want { // each failure, and each time that all is well again
			t.Errorf("it said %d lines, want %d", said, want)
		}
	})
}

func TestWhatSeesChangesByOthersEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	fails := func(context.Context) error {
		cancel()
		return errors.New("no socket")
	}
	keepSeeing(ctx, fails, func() error { t.Error("it is opened again"); return nil }, funcr.New(func(_, _ string) {}, funcr.Options{}))
}
