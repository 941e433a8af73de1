package wired

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"onerule/nft/inspect"
	"onerule/test/netns"
)

// Do runs f in a namespace, and ends the test with its error.
func Do(t testing.TB, ns *netns.NS, f func() error) {
	t.Helper()
	if err := ns.Do(f); err != nil {
		t.Fatal(err)
	}
}

// Commits counts the transactions that f makes to any table of a namespace.
func Commits(t testing.TB, ns *netns.NS, f func()) uint32 {
	t.Helper()
	generation := func() (gen uint32) {
		Do(t, ns, func() error {
			r, err := inspect.Open()
			if err != nil {
				return err
			}
			gen, err = r.Generation()
			return errors.Join(err, r.Close())
		})
		return gen
	}
	before := generation()
	f()
	return generation() - before
}

// Eventually asks again and again until f has nothing to complain about.
func Eventually(t testing.TB, f func() error) {
	t.Helper()
	if err := within(Patience, f); err != nil {
		t.Fatalf("not within %s: %v", Patience, err)
	}
}

func within(limit time.Duration, f func() error) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(limit)
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-deadline:
			return fmt.Errorf("at last: %w", err)
		}
	}
}
