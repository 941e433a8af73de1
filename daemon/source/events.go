package source

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/flowcontrol"

	"onerule/daemon/model"
)

// Limits of what one node writes: as many events at once, then one in two seconds, of
// at most so many that are not told yet or may still repeat themselves.
const (
	eventsAtOnce    = 25
	eventsPerSecond = 0.5
	maxSeries       = 1000
)

// A pace says when a series of events is written, as Kubernetes' own recorders do it.
type pace struct {
	finish   time.Duration // a series that rests for so long is over: its count is written
	refresh  time.Duration // how often the count of a longer one is written
	retry    time.Duration // the pause after a first failure
	maxRetry time.Duration // the longest one
	expiry   time.Duration // what could not be told for so long is not told any more
}

func usualPace() pace {
	return pace{finish: 6 * time.Minute, refresh: 30 * time.Minute, retry: time.Second, maxRetry: 30 * time.Second, expiry: time.Hour}
}

// Events tells the people of a cluster what happens on this node, by events of the API
// server (events.k8s.io/v1). Its methods can be called from any goroutine and never
// wait. A nil *Events tells nobody: that is what a daemon without an API server has.
//
// Events of one object that differ in nothing but their notes are a series: one object in
// the API that counts them, with the note of the first.
type Events struct {
	client *Client
	node   string
	log    logr.Logger
	pace   pace
	now    func() time.Time
	wake   chan struct{}

	mu       sync.Mutex
	series   map[seriesKey]*series
	excluded int // those that found no place, since that was said
}

// A seriesKey is what the events of a series have in common.
type seriesKey struct {
	about                model.Key
	kind, reason, action string
}

// A series is an event that may have been seen more than once.
type series struct {
	seriesKey
	note        string
	first, last time.Time // when it was seen
	count       int32     // how often it was seen
	told        int32     // the count that the server knows
	toldAt      time.Time
	name        string // in the API; empty: it is not there
	failures    int    // attempts since one succeeded
	notBefore   time.Time
	refused     bool // by the server, in a way that another attempt does not help
}

// NewEvents prepares events of a node. They are sent as long as Run runs.
func NewEvents(client *Client, node string, log logr.Logger) *Events {
	return &Events{
		client: client, node: node, log: log, pace: usualPace(), now: time.Now,
		wake: make(chan struct{}, 1), series: map[seriesKey]*series{},
	}
}

// Node gives the key of the node itself, for events about it.
func (e *Events) Node() model.Key {
	if e == nil {
		return model.Key{Kind: model.KindNode}
	}
	return model.Key{Kind: model.KindNode, Name: model.Name{Name: e.node}}
}

// Normal tells what is as it should be. Reason and action are words in CamelCase of at
// most 128 characters: why, and what was being done; the note is a text for people.
func (e *Events) Normal(about model.Key, reason, action, note string) {
	e.add(seriesKey{about, eventNormal, reason, action}, note)
}

// Warning tells what somebody has to look at. See Normal.
func (e *Events) Warning(about model.Key, reason, action, note string) {
	e.add(seriesKey{about, eventWarning, reason, action}, note)
}

func (e *Events) add(key seriesKey, note string) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	s := e.series[key]
	switch {
	case s == nil && len(e.series) >= maxSeries:
		e.excluded++
		return
	case s == nil:
		s = &series{seriesKey: key, note: note, first: now}
		e.series[key] = s
	}
	s.count++
	s.last = now
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Run sends events until ctx ends, and then those that the server has not seen at all,
// for two seconds at most: the last words of a daemon say why it ends.
func (e *Events) Run(ctx context.Context) error {
	if e == nil {
		<-ctx.Done()
		return nil
	}
	limit := flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventsAtOnce)
	for ctx.Err() == nil {
		next, pause := e.next()
		if next == nil {
			e.rest(ctx, pause)
		} else if limit.Wait(ctx) == nil {
			e.tell(ctx, *next)
		}
	}
	e.lastWords(context.WithoutCancel(ctx))
	return nil
}

// rest returns when there may be something to tell.
func (e *Events) rest(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-e.wake:
	case <-timer.C:
	}
}

func (e *Events) lastWords(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	e.mu.Lock()
	var unheard []series
	for _, s := range e.series {
		if s.told == 0 && !s.refused {
			unheard = append(unheard, *s)
		}
	}
	e.mu.Unlock()
	slices.SortFunc(unheard, func(a, b series) int { return a.first.Compare(b.first) })
	for _, s := range unheard[:min(len(unheard), eventsAtOnce)] {
		if ctx.Err() == nil {
			e.tell(ctx, s)
		}
	}
}

// next gives a copy of the series that is to be told first, or how long none will be. It
// forgets those that are over.
func (e *Events) next() (*series, time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.excluded > 0 {
		e.log.Info("too many events at once: some are not told", "events", e.excluded)
		e.excluded = 0
	}
	now := e.now()
	var first *series
	var when time.Time
	for key, s := range e.series {
		if e.pace.over(s, now) {
			delete(e.series, key)
			continue
		}
		// What was seen first goes first of those that wait alike.
		due := e.pace.due(s)
		if first == nil || cmp.Or(due.Compare(when), s.first.Compare(first.first), strings.Compare(s.note, first.note)) < 0 {
			first, when = s, due
		}
	}
	switch {
	case first == nil:
		return nil, time.Hour
	case when.After(now):
		return nil, when.Sub(now)
	}
	found := *first
	return &found, 0
}

// over says whether nothing is left to be told of a series.
func (p pace) over(s *series, now time.Time) bool {
	if s.told == s.count || s.refused {
		return !now.Before(s.last.Add(p.finish))
	}
	return !now.Before(s.last.Add(p.expiry))
}

// due gives the time when a series is to be told, or looked at again. The first two
// times are told at once, the others when the series is over or lasts long.
func (p pace) due(s *series) time.Time {
	at := s.last.Add(p.finish)
	switch {
	case s.told == s.count || s.refused:
		return at
	case s.told < 2:
		at = s.first
	case s.toldAt.Add(p.refresh).Before(at):
		at = s.toldAt.Add(p.refresh)
	}
	if at.Before(s.notBefore) {
		return s.notBefore
	}
	return at
}

// settled takes in what came of telling a series as it was.
func (e *Events) settled(as series, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.series[as.seriesKey]
	if s == nil {
		return
	}
	s.name = as.name
	switch {
	case err == nil:
		s.told, s.toldAt, s.failures, s.notBefore = as.count, e.now(), 0, time.Time{}
		return
	case final(err):
		s.refused = true
		e.log.Error(err, "the API server refuses an event", "about", as.about.String(), "reason", as.reason, "note", as.note)
		return
	case s.failures == 0:
		e.log.Error(err, "cannot tell an event, trying again", "about", as.about.String(), "reason", as.reason, "note", as.note)
	}
	s.failures++
	s.notBefore = e.now().Add(min(e.pace.maxRetry, e.pace.retry<<min(s.failures-1, 10)))
}
