package plan_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/model"
	"onerule/daemon/plan"
)

// A world is a ledger with what it said of each Service last.
type world struct {
	t     *testing.T
	l     *plan.Ledger
	notes map[model.Name][]model.Note
}

func newWorld(t *testing.T) *world {
	return &world{t: t, l: plan.NewLedger(plan.Config{NodeName: "n1"}), notes: map[model.Name][]model.Note{}}
}

// apply applies changes, and holds the ledger to naming every outcome that they change,
// and no other.
func (w *world) apply(changes ...model.Change) {
	w.t.Helper()
	w.did(changes, func() plan.Applied { return w.l.Apply(changes) })
}

func (w *world) did(what any, do func() plan.Applied) {
	w.t.Helper()
	before, owners, checks := w.outcome(), w.owners(), w.l.HealthChecks()
	a := do()
	want := changed(before, w.outcome())
	diff(owners, w.owners(), want.Frontends)
	if diff := cmp.Diff(want, a.Touched, opts()); diff != "" {
		w.t.Fatalf("%v: touched (-changed +named): %s", what, diff)
	}
	if is := !cmp.Equal(checks, w.l.HealthChecks()); a.HealthChecks != is {
		w.t.Fatalf("%v: said that health checks changed: %v, want %v", what, a.HealthChecks, is)
	}
	for n, notes := range a.Noted {
		if cmp.Equal(w.notes[n], notes, opts()) {
			w.t.Fatalf("%v: %s is told %v again", what, n, notes)
		}
	}
	w.hear(a)
}

// hear takes in what is said of Services.
func (w *world) hear(a plan.Applied) {
	for n, notes := range a.Noted {
		if w.notes[n] = notes; len(notes) == 0 {
			delete(w.notes, n)
		}
	}
}

func (w *world) outcome() plan.Outcome { return w.l.Decide(w.l.All()) }

func (w *world) owners() map[plan.Frontend]model.Name {
	owners := map[plan.Frontend]model.Name{}
	for f := range w.l.All().Frontends {
		owners[f] = w.l.Owner(f)
	}
	return owners
}

// changed names what two outcomes differ in.
func changed(before, after plan.Outcome) plan.Keys {
	k := plan.NewKeys()
	diff(before.Decisions, after.Decisions, k.Frontends)
	diff(before.ClusterIPs, after.ClusterIPs, k.Addrs)
	diff(before.ExternalIPs, after.ExternalIPs, k.Addrs)
	diff(before.Hairpins, after.Hairpins, k.Addrs)
	diff(before.Affinities, after.Affinities, k.Affinities)
	k.Ranges = !cmp.Equal(before.ServiceCIDRs, after.ServiceCIDRs, opts()) || !cmp.Equal(before.PodCIDRs, after.PodCIDRs, opts())
	return k
}

func diff[K comparable, V any](before, after map[K]V, keys map[K]bool) {
	for key, was := range before {
		if is, held := after[key]; !held || !cmp.Equal(was, is, opts()) {
			keys[key] = true
		}
	}
	for key := range after {
		if _, held := before[key]; !held {
			keys[key] = true
		}
	}
}

// want says who holds the ClusterIP that all claim, and who is told so.
func (w *world) want(when, owner string, losers ...string) {
	w.t.Helper()
	want := map[model.Name][]model.Note{}
	for _, l := range losers {
		want[name(l)] = []model.Note{duplicate("spec.clusterIPs", "10.96.0.1:80 TCP is held by Service ns/"+owner)}
	}
	w.told(when, want)
}

// told says what is said of Services.
func (w *world) told(when string, want map[model.Name][]model.Note) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.notes); diff != "" {
		w.t.Errorf("%s: notes (-want +got): %s", when, diff)
	}
}

func duplicate(field, detail string) model.Note {
	return model.Note{Reason: model.ReasonDuplicateFrontend, Field: field, Detail: detail}
}
