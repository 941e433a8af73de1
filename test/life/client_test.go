package life_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"onerule/test/netns"
	"onerule/test/wired"
)

const (
	// slow is when a connect is counted as such: no fault of ours if its first SYN was
	// answered, since a SYN that is lost is sent again after 1 s. The machine is busy then.
	slow = 400 * time.Millisecond
	// connectLimit is beyond that second, so that a SYN that was sent again is seen as such.
	connectLimit = 3 * time.Second
	// echoLimit is how long an open connection may be silent before it counts as lost.
	echoLimit = 10 * time.Second
	// pause is how long after one connect of a flow the next one begins.
	pause = 100 * time.Millisecond
)

// errResent says that a connection came about, but not with its first SYN.
var errResent = errors.New("a SYN was lost")

// A flow is somebody who connects again and again to an address, and holds one connection
// open besides, on which it hears what it says.
type flow struct {
	kind string // what kind of address it is
	from *netns.NS
	to   netip.AddrPort
	// short says that it holds no connection open: who is at its end may go away.
	short bool
}

func (f flow) String() string { return fmt.Sprintf("%s from %s to %s", f.kind, f.from.Name(), f.to) }

// dial connects, and gives the name of who answered. A SYN that had to be sent again is
// an error.
func (f flow) dial() (c *net.TCPConn, name string, took time.Duration, err error) {
	start := time.Now()
	err = f.from.Do(func() error {
		conn, err := net.DialTimeout("tcp", f.to.String(), connectLimit)
		if err == nil {
			c = conn.(*net.TCPConn)
		}
		return err
	})
	took = time.Since(start)
	if err != nil {
		return nil, "", took, err
	}
	if name, err = greeting(c); err != nil {
		return nil, "", took, errors.Join(err, c.Close())
	}
	return c, name, took, nil
}

func greeting(c *net.TCPConn) (string, error) {
	n, err := wired.Retransmissions(c)
	if err != nil {
		return "", err
	}
	if n > 0 {
		return "", fmt.Errorf("%w: connected with number %d", errResent, n+1)
	}
	if err := c.SetReadDeadline(time.Now().Add(echoLimit)); err != nil {
		return "", err
	}
	// Byte by byte: what comes after the line belongs to the session.
	name, b := "", make([]byte, 1)
	for !strings.HasSuffix(name, "\n") {
		if _, err := io.ReadFull(c, b); err != nil {
			return "", fmt.Errorf("read who answers: %w", err)
		}
		name += string(b)
	}
	return strings.TrimSpace(name), nil
}

// A failure is a connect that failed or whose first SYN was lost.
type failure struct {
	flow  flow
	begun time.Time
	took  time.Duration
	err   error
}

func (f failure) String() string {
	return fmt.Sprintf("%s, begun %s, after %s: %v", f.flow, f.begun.Format("15:04:05.000"), f.took.Round(time.Millisecond), f.err)
}

// seen is what the connects of one kind saw.
type seen struct {
	connects, stalls int // stalls: slow although the first SYN was answered
	failures         []failure
	slowest          time.Duration
	answered         map[string]int
	last             map[string]time.Time // when who answered last
}

// open is what an open connection saw.
type open struct {
	flow    flow
	echoes  int
	longest time.Duration
	resent  uint32
	err     error
}

// A traffic is flows that go on until finish is called.
type traffic struct {
	cancel  context.CancelFunc
	clients sync.WaitGroup
	mu      sync.Mutex
	seen    map[string]*seen // by kind
	open    []open
}

// begin lets all flows run. Connections that are to stay open are, when it returns.
func begin(ctx context.Context, flows []flow) (*traffic, error) {
	ctx, cancel := context.WithCancel(ctx)
	tr := &traffic{cancel: cancel, seen: map[string]*seen{}}
	opened := map[int]*net.TCPConn{}
	for i, f := range flows {
		tr.seen[f.kind] = &seen{answered: map[string]int{}, last: map[string]time.Time{}}
		if f.short {
			continue
		}
		c, _, _, err := f.dial()
		if err != nil {
			cancel()
			for _, c := range opened {
				_ = c.Close()
			}
			return nil, fmt.Errorf("open a connection: %s: %w", f, err)
		}
		opened[i] = c
	}
	for i, f := range flows { // all end with ctx
		tr.clients.Go(func() { tr.connects(ctx, f) })
		if c := opened[i]; c != nil {
			tr.clients.Go(func() { tr.hold(ctx, f, c) })
		}
	}
	return tr, nil
}

// connects connects again and again.
func (tr *traffic) connects(ctx context.Context, f flow) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		start := time.Now()
		c, name, took, err := f.dial()
		if c != nil {
			_ = c.SetLinger(0) // leave no port in TIME_WAIT
			_ = c.Close()
		}
		tr.note(f, start, name, took, err)
	}
}

func (tr *traffic) note(f flow, start time.Time, name string, took time.Duration, err error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	s := tr.seen[f.kind]
	s.connects++
	s.slowest = max(s.slowest, took)
	switch {
	case err != nil:
		s.failures = append(s.failures, failure{flow: f, begun: start, took: took, err: err})
		return
	case took > slow:
		s.stalls++
	}
	s.answered[name]++
	s.last[name] = time.Now()
}

// hold says a line on an open connection every now and then, and waits to hear it.
func (tr *traffic) hold(ctx context.Context, f flow, c *net.TCPConn) {
	defer c.Close()
	o := open{flow: f}
	lines := bufio.NewReader(c)
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for o.err == nil && ctx.Err() == nil {
		start := time.Now()
		o.err = echo(c, lines, o.echoes)
		o.echoes++
		o.longest = max(o.longest, time.Since(start))
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	if n, err := wired.Retransmissions(c); err == nil {
		o.resent = n
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.open = append(tr.open, o)
}

func echo(c *net.TCPConn, lines *bufio.Reader, n int) error {
	if err := c.SetDeadline(time.Now().Add(echoLimit)); err != nil {
		return err
	}
	said := fmt.Sprintf("line %d\n", n)
	if _, err := io.WriteString(c, said); err != nil {
		return err
	}
	heard, err := lines.ReadString('\n')
	if err != nil {
		return err
	}
	if heard != said {
		return fmt.Errorf("said %q, heard %q", said, heard)
	}
	return nil
}

// lastAnswer gives when somebody answered last to connects of a kind.
func (tr *traffic) lastAnswer(kind, name string) time.Time {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.seen[kind].last[name]
}

// failed gives the failures of a kind so far.
func (tr *traffic) failed(kind string) []failure {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return append([]failure(nil), tr.seen[kind].failures...)
}

// finish ends all flows.
func (tr *traffic) finish() {
	tr.cancel()
	tr.clients.Wait()
}

// processOf gives the number of a process of a pod, which has its name in its environment.
func processOf(pod string) (int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("look for processes of pod %s: %w", pod, err)
	}
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscanf(e.Name(), "%d", &pid); err != nil {
			continue
		}
		environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			continue // it has just ended
		}
		for v := range strings.SplitSeq(string(environment), "\x00") {
			if v == "HOSTNAME="+pod {
				return pid, nil
			}
		}
	}
	return 0, fmt.Errorf("look for processes of pod %s: there are none", pod)
}
