package source

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"onerule/daemon/model"
)

// A told collects events whose clock stands still unless a test moves it, and plays the
// part of Run.
type told struct {
	*Events
	clock time.Time
}

func newTold() *told {
	x := &told{Events: NewEvents(nil, "n1", logr.Discard()), clock: time.Unix(1700000000, 0)}
	x.now = func() time.Time { return x.clock }
	return x
}

// take tells what is due and gives "reason count" of each.
func (x *told) take(err error) []string {
	var words []string
	for range 100 {
		s, _ := x.next()
		if s == nil {
			return words
		}
		words = append(words, fmt.Sprintf("%s %d", s.reason, s.count))
		s.name = "web.1"
		x.settled(*s, err)
	}
	return append(words, "and no end")
}

func (x *told) warn(reasons ...string) {
	for _, r := range reasons {
		x.Warning(webKey(), r, "Listen", "a note")
	}
}

func webKey() model.Key {
	return model.Key{Kind: model.KindService, Name: model.Name{Namespace: "default", Name: "web"}}
}

func (x *told) is(t *testing.T, when string, err error, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, x.take(err)); diff != "" {
		t.Errorf("%s: told (-want +got):\n%s", when, diff)
	}
}

func TestEventsThatRepeatThemselvesAreASeries(t *testing.T) {
	x := newTold()
	x.is(t, "nothing happened", nil)
	x.warn("A")
	x.is(t, "once", nil, "A 1")
	x.is(t, "nothing more happened", nil)
	x.warn("A")
	x.is(t, "twice", nil, "A 2")
	x.warn("A", "A", "A")
	x.is(t, "more often: only counted", nil)
	x.clock = x.clock.Add(6*time.Minute - time.Second)
	x.is(t, "before it is over", nil)
	x.clock = x.clock.Add(time.Second)
	x.is(t, "it is over", nil, "A 5")
	x.is(t, "it is over, and forgotten", nil)
	x.warn("A")
	x.is(t, "another one begins", nil, "A 1")
}

func TestALongSeriesIsToldNowAndThen(t *testing.T) {
	x := newTold()
	x.warn("A", "A")
	x.is(t, "seen twice before it is told", nil, "A 2")
	var got []string
	for range 65 { // minutes
		x.clock = x.clock.Add(time.Minute)
		x.warn("A")
		got = append(got, x.take(nil)...)
	}
	if diff := cmp.Diff([]string{"A 32", "A 62"}, got); diff != "" {
		t.Errorf("told in 65 minutes (-want +got):\n%s", diff)
	}
}

func TestEventsThatDifferAreTold(t *testing.T) {
	x := newTold()
	x.warn("A", "B", "A")
	x.Normal(webKey(), "A", "Listen", "a note")
	x.Warning(webKey(), "A", "Close", "a note")
	x.Warning(x.Node(), "A", "Listen", "a note")
	x.Warning(webKey(), "A", "Listen", "another note is the same event")
	got := x.take(nil)
	if want := "A 3"; len(got) != 5 || !strings.Contains(strings.Join(got, ","), want) {
		t.Errorf("got %q, want 5 events, among them %q", got, want)
	}
}

func TestEventsThatCannotBeTold(t *testing.T) {
	x := newTold()
	down := errors.New("connection refused")
	x.warn("A")
	x.is(t, "the server is down", down, "A 1")
	x.warn("A")
	x.is(t, "not before a pause", down)
	x.clock = x.clock.Add(time.Second)
	x.is(t, "after one second", down, "A 2")
	x.clock = x.clock.Add(time.Second)
	x.is(t, "the second pause is longer", down)
	x.clock = x.clock.Add(time.Second)
	x.is(t, "after two seconds", down, "A 2")
	x.warn("B")
	x.is(t, "others do not wait for it", nil, "B 1")
	for range 50 {
		x.clock = x.clock.Add(30 * time.Second)
		x.is(t, "the longest pause is 30 s", down, "A 2")
	}
	x.clock = x.clock.Add(30 * time.Second)
	x.is(t, "the server is up", nil, "A 2")
	x.warn("C")
	x.is(t, "it goes down for long", down, "C 1")
	x.clock = x.clock.Add(time.Hour)
	x.is(t, "nobody wants to know any more", nil)
	if n := len(x.series); n != 0 {
		t.Errorf("%d series are kept", n)
	}
}

func TestEventsThatTheServerRefuses(t *testing.T) {
	resource := schema.GroupResource{Resource: "events"}
	for _, c := range []struct {
		name  string
		err   error
		again bool
	}{
		{"invalid", apierrors.NewInvalid(schema.GroupKind{}, "web", nil), false},
		{"of a namespace that is gone", apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "default"), false},
		{"without the right to, which may come", apierrors.NewForbidden(resource, "web", nil), true},
		{"too many requests", apierrors.NewTooManyRequestsError("wait"), true},
		{"out of order", apierrors.NewInternalError(errors.New("etcd")), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newTold()
			x.warn("A")
			x.is(t, "the first time", fmt.Errorf("create event: %w", c.err), "A 1")
			x.warn("A")
			x.clock = x.clock.Add(time.Minute)
			if got := len(x.take(nil)) > 0; got != c.again {
				t.Errorf("told again: got %t, want %t", got, c.again)
			}
		})
	}
}

func TestEventsAreBounded(t *testing.T) {
	x := newTold()
	for i := range 10000 {
		x.warn(fmt.Sprint("R", i))
	}
	if n := len(x.series); n != maxSeries || x.excluded != 10000-maxSeries {
		t.Errorf("got %d series and %d excluded, want %d and the rest", n, x.excluded, maxSeries)
	}
}

func TestNobodyIsToldWithoutAnAPIServer(t *testing.T) {
	var nobody *Events
	nobody.Normal(nobody.Node(), "Starting", "Start", "")
	nobody.Warning(webKey(), "A", "B", "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := nobody.Run(ctx); err != nil {
		t.Errorf("run: %v", err)
	}
}

func TestEventsKeepWithinTheLimitsOfTheAPI(t *testing.T) {
	e := NewEvents(nil, strings.Repeat("n", 253), logr.Discard())
	long := model.Key{Kind: model.KindNode, Name: model.Name{Name: strings.Repeat("a", 199) + "." + strings.Repeat("b", 53)}}
	s := series{seriesKey: seriesKey{long, eventWarning, "A", "B"}, note: strings.Repeat("ü", 600), first: time.Now(), count: 1}
	event := e.event(s, corev1.ObjectReference{})
	if n := len(event.ReportingInstance); n != 128 {
		t.Errorf("got an instance of %d bytes, want 128", n)
	}
	if len(event.Note) > 1024 || len(event.Note) < 1020 || !strings.HasSuffix(event.Note, "ü...") || !utf8.ValidString(event.Note) {
		t.Errorf("got a note of %d bytes: %q", len(event.Note), event.Note)
	}
	var f findings
	if !f.subdomain(event.Name) {
		t.Errorf("got name %q: %v", event.Name, f.notes)
	}
}
