package source

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/model"
)

// A recorder is a Sink that keeps what it is told.
type recorder struct {
	mu      sync.Mutex
	objects map[model.Key]model.Change
	notes   map[string][]model.Note
	synced  int
	changes []string // since the last take, "+key" or "-key"
	noted   int      // calls of Noted
	told    chan struct{}
}

func newRecorder() *recorder {
	return &recorder{
		objects: map[model.Key]model.Change{},
		notes:   map[string][]model.Note{},
		told:    make(chan struct{}, 1),
	}
}

func (r *recorder) Changed(c model.Change) {
	r.record(func() {
		if (delivery{change: c}).present() {
			r.objects[c.Key] = c
			r.changes = append(r.changes, "+"+c.Key.String())
		} else {
			delete(r.objects, c.Key)
			r.changes = append(r.changes, "-"+c.Key.String())
		}
	})
}

func (r *recorder) Noted(object string, notes []model.Note) {
	r.record(func() {
		r.noted++
		if len(notes) == 0 {
			delete(r.notes, object)
		} else {
			r.notes[object] = notes
		}
	})
}

func (r *recorder) Synced() { r.record(func() { r.synced++ }) }

func (r *recorder) record(f func()) {
	r.mu.Lock()
	f()
	r.mu.Unlock()
	select {
	case r.told <- struct{}{}:
	default:
	}
}

// await waits until the condition holds for what was recorded, and fails the test
// with what it says otherwise.
func (r *recorder) await(t *testing.T, lacks func() string) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		r.mu.Lock()
		lack := lacks()
		r.mu.Unlock()
		if lack == "" {
			return
		}
		select {
		case <-r.told:
		case <-deadline:
			t.Fatalf("gave up waiting: %s", lack)
		}
	}
}

// poll asks again and again until nothing lacks, and fails the test in the end.
func poll(t *testing.T, lacks func() string) {
	t.Helper()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for deadline := time.Now().Add(20 * time.Second); ; <-again.C {
		lack := lacks()
		if lack == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("gave up waiting: %s", lack)
		}
	}
}

func (r *recorder) awaitSynced(t *testing.T) {
	t.Helper()
	r.await(t, func() string {
		if r.synced != 1 {
			return fmt.Sprintf("got %d calls of Synced, want 1", r.synced)
		}
		return ""
	})
}

// awaitObjects waits until exactly these objects are there, in words: see words.
func (r *recorder) awaitObjects(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(want)
	r.await(t, func() string { return cmp.Diff(want, r.words()) })
}

// words gives each object as "key what", sorted: a Service's first ClusterIP, a
// slice's number of endpoints.
func (r *recorder) words() []string {
	var words []string
	for key, c := range r.objects {
		what := ""
		switch {
		case c.Service != nil:
			what = " " + c.Service.ClusterIPs[0].String()
		case c.EndpointSlice != nil:
			what = fmt.Sprintf(" %d endpoints", len(c.EndpointSlice.Endpoints))
		case c.ServiceCIDR != nil:
			what = " " + c.ServiceCIDR.CIDRs[0].String()
		}
		words = append(words, key.String()+what)
	}
	slices.Sort(words)
	return words
}

// awaitNotes waits until exactly these notes are there, each as "object: reason
// field".
func (r *recorder) awaitNotes(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(want)
	r.await(t, func() string {
		var got []string
		for _, object := range slices.Sorted(maps.Keys(r.notes)) {
			for _, n := range foundOf(r.notes[object]) {
				got = append(got, object+": "+n)
			}
		}
		slices.Sort(got)
		return cmp.Diff(want, got)
	})
}

// detail gives the details of an object's notes.
func (r *recorder) detail(object string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := ""
	for _, n := range r.notes[object] {
		text += n.Detail + "\n"
	}
	return text
}

// take gives the changes since the last call, sorted.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	changes := r.changes
	r.changes = nil
	slices.Sort(changes)
	return changes
}

// calls gives how often Noted was called.
func (r *recorder) calls() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.noted
}
