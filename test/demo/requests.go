package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"onerule/test/netns"
)

// A host is where requests come from.
type host struct {
	name string
	ns   *netns.NS
}

const (
	// patience is how long a request waits for its connection and for its answer.
	patience = 3 * time.Second
	// firstSYN is less than the time after which a kernel that heard nothing sends
	// its SYN again, 1 s: what connects or is refused sooner lost no packet.
	firstSYN = 900 * time.Millisecond
)

// An answer is what became of one request.
type answer struct {
	pod   string     // who answered
	seen  netip.Addr // the client's address, as the server saw it
	err   error
	began time.Time
	took  time.Duration
	lost  bool // the SYN had to be sent again, since nothing came back
}

// get makes one request, on a connection of its own, in the namespace of the
// calling thread. A literal address is dialled on that thread.
func get(ctx context.Context, to netip.AddrPort, wait time.Duration) answer {
	a := answer{began: time.Now()}
	a.err = a.fetch(ctx, to, wait)
	a.took = time.Since(a.began)
	return a
}

func (a *answer) fetch(ctx context.Context, to netip.AddrPort, wait time.Duration) error {
	dialer := net.Dialer{Timeout: wait}
	conn, err := dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
		return fmt.Errorf("set deadline: %w", err)
	}
	// A server that still remembers the last connection of a port answers a SYN in a
	// way that makes the client's kernel repeat it within milliseconds: no loss.
	again, err := resent(conn)
	if err != nil {
		return err
	}
	a.lost = again > 0 && time.Since(a.began) > firstSYN
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", to); err != nil {
		return fmt.Errorf("send request: %w", err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	var seen string
	a.pod, seen, _ = strings.Cut(string(body), " ")
	if a.seen, err = netip.ParseAddr(seen); err != nil {
		return fmt.Errorf("read answer %q: %w", body, err)
	}
	return nil
}

// resent asks the kernel how many packets a connection has sent twice. On one that
// has just come about that is its SYN.
func resent(conn net.Conn) (int, error) {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("reach the socket: %w", err)
	}
	var info *unix.TCPInfo
	var failed error
	err = raw.Control(func(fd uintptr) {
		info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return 0, fmt.Errorf("ask for the connection's state: %w", err)
	}
	return int(info.Total_retrans), nil
}

// A tally is what became of many requests.
type tally struct {
	requests, failed, lost int
	first                  error // of those that failed
	pods                   map[string]int
	seen                   map[netip.Addr]int
	slowest                time.Duration
}

func newTally() tally { return tally{pods: map[string]int{}, seen: map[netip.Addr]int{}} }

func (t *tally) add(a answer) {
	t.requests++
	t.slowest = max(t.slowest, a.took)
	if a.lost {
		t.lost++
	}
	if a.err != nil {
		t.failed++
		if t.first == nil {
			t.first = a.err
		}
		return
	}
	t.pods[a.pod]++
	t.seen[a.seen]++
}

func (t *tally) merge(o tally) {
	t.requests += o.requests
	t.failed += o.failed
	t.lost += o.lost
	t.slowest = max(t.slowest, o.slowest)
	if t.first == nil {
		t.first = o.first
	}
	for pod, n := range o.pods {
		t.pods[pod] += n
	}
	for addr, n := range o.seen {
		t.seen[addr] += n
	}
}

// flawless says whether every request was answered, and none had to be repeated.
func (t *tally) flawless() bool { return t.requests > 0 && t.failed == 0 && t.lost == 0 }

// failure says why the first request failed, as the end of a sentence.
func (t *tally) failure() string {
	if t.first == nil {
		return ""
	}
	return fmt.Sprintf(" (the first: %v)", t.first)
}

// burst makes n requests, one after the other.
func (h host) burst(ctx context.Context, to netip.AddrPort, n int) (tally, error) {
	t := newTally()
	err := h.ns.Do(func() error {
		for range n {
			a := get(ctx, to, patience)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			t.add(a)
		}
		return nil
	})
	return t, err
}

// one makes a single request.
func (h host) one(ctx context.Context, to netip.AddrPort, wait time.Duration) (answer, error) {
	var a answer
	err := h.ns.Do(func() error {
		a = get(ctx, to, wait)
		return ctx.Err()
	})
	return a, err
}

// A stream makes requests until it is stopped.
type stream struct {
	cancel context.CancelFunc
	done   chan error

	mu    sync.Mutex
	tally tally
	last  map[string]time.Time // when the latest request began that a pod answered
}

// pace is the time between two requests of a stream.
const pace = 2 * time.Millisecond

// stream begins requests that go on, one after the other, until they are stopped or
// ctx ends.
func (h host) stream(ctx context.Context, to netip.AddrPort) *stream {
	ctx, cancel := context.WithCancel(ctx)
	s := &stream{cancel: cancel, done: make(chan error, 1), tally: newTally(), last: map[string]time.Time{}}
	go func() {
		s.done <- h.ns.Do(func() error {
			ticks := time.NewTicker(pace)
			defer ticks.Stop()
			for {
				select {
				case <-ctx.Done():
					return nil
				case <-ticks.C:
				}
				if a := get(ctx, to, patience); ctx.Err() == nil {
					s.add(a)
				}
			}
		})
	}()
	return s
}

func (s *stream) add(a answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tally.add(a)
	if a.err == nil {
		s.last[a.pod] = a.began
	}
}

// latest says when the latest request began that a pod answered.
func (s *stream) latest(pod string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last[pod]
}

// made is how many requests have ended so far.
func (s *stream) made() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tally.requests
}

// stop ends the requests and gives what became of them.
func (s *stream) stop() (tally, error) {
	s.cancel()
	err := <-s.done
	return s.tally, err
}
