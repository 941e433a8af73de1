package takeover_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"onerule/daemon/model"
	"onerule/test/hosts"
)

// pause is how long after one connect the next begins: 200 a second.
const pause = 5 * time.Millisecond

// A result is what clients saw.
type result struct {
	mu       sync.Mutex
	connects int
	failures int
	slow     int // answered, but later than hosts.Lost
	slowest  time.Duration
	first    error
}

// traffic is clients that connect, each time from another place to another address.
type traffic struct {
	cancel context.CancelFunc
	done   chan *result
}

// begin begins to connect 200 times a second until finish is called.
func (w *world) begin(ctx context.Context) *traffic {
	ctx, cancel := context.WithCancel(ctx)
	t := &traffic{cancel: cancel, done: make(chan *result, 1)}
	go func() { // ends with ctx
		r := &result{}
		var clients sync.WaitGroup
		tick := time.NewTicker(pause)
		defer tick.Stop()
		list := flows(model.TCP)
		for i := 0; ctx.Err() == nil; i++ {
			clients.Go(func() { w.connect(list[i%len(list)], r) })
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
		clients.Wait()
		t.done <- r
	}()
	return t
}

// connect notes what comes of one connect. An answer comes before a lost SYN would
// have been sent again.
func (w *world) connect(f flow, r *result) {
	start := time.Now()
	seen, err := w.h.Probe(f.packet, hosts.Patience)
	took := time.Since(start)
	if err == nil {
		err = w.wrong(f, seen)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.connects++
	r.slowest = max(r.slowest, took)
	if err != nil {
		if r.failures++; r.first == nil {
			r.first = fmt.Errorf("connect %d: %w", r.connects, err)
		}
	} else if took > hosts.Lost {
		r.slow++
	}
}

func (t *traffic) finish() *result {
	t.cancel()
	return <-t.done
}

// judge says what is wrong with what clients saw.
func (r *result) judge(t *testing.T) {
	t.Helper()
	t.Logf("%d connects, %d failed, %d slow with their first SYN, slowest %s", r.connects, r.failures, r.slow, r.slowest.Round(time.Microsecond))
	if r.failures > 0 {
		t.Errorf("%d of %d connects failed, the first: %v", r.failures, r.connects, r.first)
	}
	if r.slow > max(1, r.connects/1000) {
		t.Errorf("%d of %d connects took over %s: that is no busy machine any more", r.slow, r.connects, hosts.Lost)
	}
	if r.connects < 200 {
		t.Errorf("only %d connects: that shows nothing", r.connects)
	}
}

// Sessions are connections and UDP flows that were open before.
type sessions struct {
	tcp []*hosts.Session
	udp []*hosts.Session
	to  []hosts.Seen // where each UDP flow goes
}

// open opens one of each kind of flow.
func (w *world) open(t *testing.T) *sessions {
	t.Helper()
	s := &sessions{}
	for _, f := range flows(model.TCP) {
		open, err := w.h.Open(f.packet)
		if err == nil {
			t.Cleanup(open.Close)
			err = w.wrong(f, open.Seen)
		}
		if err != nil {
			t.Fatal(err)
		}
		s.tcp = append(s.tcp, open)
	}
	for _, f := range flows(model.UDP) {
		open, err := w.h.Send(f.packet)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(open.Close)
		var to hosts.Seen
		for range 2 { // the answer to the first datagram is there already
			if to, err = open.Ask(); err != nil {
				t.Fatal(err)
			}
		}
		s.udp, s.to = append(s.udp, open), append(s.to, to)
	}
	return s
}

// alive says which do not go on as they began.
func (s *sessions) alive() error {
	var errs []error
	for _, open := range s.tcp {
		errs = append(errs, open.Alive())
	}
	for i, open := range s.udp {
		got, err := open.Ask()
		if err == nil && (got.Endpoint != s.to[i].Endpoint || got.Peer != s.to[i].Peer) {
			err = fmt.Errorf("datagrams went to %s as from %s, now to %s as from %s", s.to[i].Endpoint, s.to[i].Peer, got.Endpoint, got.Peer)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
