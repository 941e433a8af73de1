package wired

import (
	"testing"
	"time"
)

const (
	// repairBound is within what time what others change is put right.
	repairBound = 2 * time.Second
	// repairTries is how often a late repair is tried: a machine that is busy for a moment is
	// late once. One that waits for a look that is due every 15 s is late in most tries.
	repairTries = 3
)

// Repairs times repairs, and holds each kind of them to the bound.
type Repairs struct {
	worst time.Duration
	of    string
	count int
}

// Try does harm and waits for the repair, both by a function that fails the test if it never
// comes. A repair that is late is tried again, and fails the test if it is late each time.
func (r *Repairs) Try(t testing.TB, name string, harm func()) {
	t.Helper()
	for range repairTries {
		begun := time.Now()
		harm()
		took := time.Since(begun)
		r.count++
		if took > r.worst {
			r.worst, r.of = took, name
		}
		if took <= repairBound {
			return
		}
		t.Logf("%s: put right only after %v", name, took)
	}
	t.Errorf("%s: not put right within %v in %d tries", name, repairBound, repairTries)
}

// Tell says which repair took longest.
func (r *Repairs) Tell(t testing.TB) {
	t.Helper()
	t.Logf("%d repairs, the worst took %v: %s", r.count, r.worst.Round(time.Millisecond), r.of)
}
