package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// exchanges is how often the endpoint goes and comes back.
const exchanges = 20

// A traffic is streams of requests from the third pod and from the node, over both
// families.
type traffic struct {
	labels  []string
	streams []*stream
}

func (w *world) traffic(ctx context.Context, s service) *traffic {
	t := &traffic{}
	for _, from := range []host{w.pods[2].host, w.node} {
		for i, f := range families() {
			t.labels = append(t.labels, fmt.Sprintf("%s, %s", from.name, f.name))
			t.streams = append(t.streams, from.stream(ctx, s.frontend(i, servicePort)))
		}
	}
	return t
}

// stop ends the requests and gives what became of them, by stream.
func (t *traffic) stop() ([]tally, error) {
	tallies := make([]tally, len(t.streams))
	for i, s := range t.streams {
		var err error
		if tallies[i], err = s.stop(); err != nil {
			return nil, err
		}
	}
	return tallies, nil
}

// all says whether something is so for every stream.
func (t *traffic) all(is func(*stream) bool) bool {
	return !slices.ContainsFunc(t.streams, func(s *stream) bool { return !is(s) })
}

// exchangeScene takes an endpoint away and brings it back, many times, while
// requests go on.
func exchangeScene(ctx context.Context, s *screen, w *world) error {
	s.scene("Endpoints go and come under traffic")
	s.say("Four streams of requests go on without a pause. Meanwhile pod-b is taken out of both slices "+
		"and put back, %d times, by renaming files over the old ones.", exchanges)
	t := w.traffic(ctx, web())
	rounds, unfinished := w.exchange(ctx, t, s.progress)
	tallies, err := t.stop()
	if err != nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	rows := [][]string{{"from", "requests", "failed", "SYNs lost", "slowest"}}
	total := newTally()
	for i, one := range tallies {
		rows = append(rows, []string{t.labels[i], fmt.Sprint(one.requests), fmt.Sprint(one.failed), fmt.Sprint(one.lost), figures(one.slowest)})
		total.merge(one)
	}
	s.table(rows...)
	if slices.Sort(rounds.took); len(rounds.took) > 0 {
		s.say("From the rename of a file to both tables in the kernel, as seen from outside: %s in the middle, %s at most.",
			figures(rounds.took[len(rounds.took)/2]), figures(rounds.took[len(rounds.took)-1]))
	}
	s.claim(total.flawless(), "%d changes under %d requests: %d failed%s, %d SYNs were lost",
		len(rounds.took), total.requests, total.failed, total.failure(), total.lost)
	if unfinished != nil { // what became of the requests says more, and stands above
		return unfinished
	}
	s.claim(rounds.late == 0, "once the kernel had a removal, pod-b got no request more; after each return it got some from every stream")
	return nil
}

// rounds is what exchanges showed.
type rounds struct {
	took []time.Duration // from each rename to the kernel, as seen from outside
	late int             // streams that reached the endpoint after its removal
}

// exchange takes the second pod out and puts it back. Each state is held until every
// stream has made requests in it.
func (w *world) exchange(ctx context.Context, t *traffic, progress func(n, of int)) (rounds, error) {
	var r rounds
	leaving := w.pods[1]
	for i := range exchanges {
		took, err := w.endpoints(ctx, w.pods[:1], leaving, false)
		if err != nil {
			return r, err
		}
		r.took = append(r.took, took)
		gone := time.Now()
		if err := t.goOn(ctx); err != nil {
			return r, err
		}
		for _, s := range t.streams {
			if s.latest(leaving.name).After(gone) {
				r.late++
			}
		}
		if took, err = w.endpoints(ctx, w.pods[:2], leaving, true); err != nil {
			return r, err
		}
		r.took = append(r.took, took)
		back := time.Now()
		_, err = eventually(ctx, leaving.name+" answers again", back, func() (bool, error) {
			return t.all(func(s *stream) bool { return s.latest(leaving.name).After(back) }), nil
		})
		if err != nil {
			return r, err
		}
		progress(i+1, exchanges)
	}
	return r, nil
}

// goOn waits until every stream has made some more requests.
func (t *traffic) goOn(ctx context.Context) error {
	const more = 10
	before := map[*stream]int{}
	for _, s := range t.streams {
		before[s] = s.made()
	}
	_, err := eventually(ctx, "the requests go on", time.Now(), func() (bool, error) {
		return t.all(func(s *stream) bool { return s.made() >= before[s]+more }), nil
	})
	return err
}

// endpoints writes the slices of web and waits until both tables have the pod that
// changes, or have it no more.
func (w *world) endpoints(ctx context.Context, pods []pod, changed pod, want bool) (time.Duration, error) {
	var first time.Time
	for _, f := range families() {
		at, err := w.write(web().sliceFile(f), web().slice(f, pods))
		if err != nil {
			return 0, err
		}
		if first.IsZero() {
			first = at
		}
	}
	return eventually(ctx, fmt.Sprintf("%s is exchanged in the kernel", changed.name), first, func() (bool, error) {
		for _, f := range families() {
			if there, err := inKernel(w.node.ns, f, changed); err != nil || there != want {
				return false, err
			}
		}
		return true, nil
	})
}
