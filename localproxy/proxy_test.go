package localproxy_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"onerule/localproxy"
	"onerule/test/netns"
)

// A host is a namespace with addresses for endpoints, in one family.
type host struct {
	*netns.NS
	ipv6 bool
}

func each(t *testing.T, f func(t *testing.T, h host)) {
	for name, ipv6 := range map[string]bool{"ip": false, "ip6": true} {
		t.Run(name, func(t *testing.T) {
			h := host{netns.New(t, "node"), ipv6}
			h.Run(t, "sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0")
			netns.Wire(t, h.NS, "eth0", netns.New(t, "other"), "eth0")
			h.Run(t, "ip", "link", "set", "eth0", "up")
			for _, a := range []string{"10.0.0.1/32", "10.0.0.2/32", "10.0.0.3/32", "fd00::1/128", "fd00::2/128", "fd00::3/128"} {
				h.Run(t, "ip", "address", "add", a, "dev", "eth0", "nodad")
			}
			within(t, 10*time.Second, func() error { // the kernel takes addresses of IPv6 in by and by
				out := h.Run(t, "ip", "-6", "route", "show", "table", "local")
				if strings.Count(out, "local fd00::") != 3 {
					return errors.New(out)
				}
				return nil
			})
			f(t, h)
		})
	}
}

func (h host) loopback(port uint16) netip.AddrPort {
	if h.ipv6 {
		return netip.AddrPortFrom(netip.IPv6Loopback(), port)
	}
	return netip.MustParseAddrPort(fmt.Sprintf("127.0.0.1:%d", port))
}

func (h host) endpoint(n int) netip.AddrPort {
	if h.ipv6 {
		return netip.MustParseAddrPort(fmt.Sprintf("[fd00::%d]:8080", n))
	}
	return netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:8080", n))
}

// serve gives each connection to an endpoint to f, and closes it then.
func (h host) serve(t *testing.T, n int, f func(*net.TCPConn)) {
	t.Helper()
	var l net.Listener
	h.do(t, func() (err error) {
		l, err = net.Listen("tcp", h.endpoint(n).String())
		return err
	})
	var work sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		work.Wait()
	})
	work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer func() { _ = conn.Close() }()
				f(conn.(*net.TCPConn))
			})
		}
	})
}

// named serves the number of the endpoint.
func (h host) named(t *testing.T, n int) {
	h.serve(t, n, func(c *net.TCPConn) { _, _ = fmt.Fprint(c, n) })
}

// echo hides what the connection is: io.Copy would take a pipe for each.
func echo(c *net.TCPConn) { _, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) }

func (h host) do(t *testing.T, f func() error) {
	t.Helper()
	if err := h.Do(f); err != nil {
		t.Fatal(err)
	}
}

func (h host) dial(t *testing.T, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	conn, err := h.tryDial(to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (h host) tryDial(to netip.AddrPort) (conn *net.TCPConn, err error) {
	err = h.Do(func() error {
		c, err := net.DialTimeout("tcp", to.String(), 5*time.Second)
		if err == nil {
			conn = c.(*net.TCPConn)
			err = conn.SetDeadline(time.Now().Add(20 * time.Second))
		}
		return err
	})
	return conn, err
}

// read gives all that a connection says.
func (h host) read(t *testing.T, to netip.AddrPort) string {
	t.Helper()
	b, err := io.ReadAll(h.dial(t, to))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A table of a test.
type table = map[netip.AddrPort]localproxy.Service

// proxy starts a proxy in the host. Sets are made there, too.
func (h host) proxy(t *testing.T, cfg localproxy.Config) (set func(table), p *localproxy.Proxy) {
	t.Helper()
	cfg.Unanswered = func(at, endpoint netip.AddrPort, err error) { t.Logf("%s: endpoint %s: %v", at, endpoint, err) }
	cfg.Socket = func(family int) (fd int, err error) {
		err = h.Do(func() error {
			fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			return err
		})
		return fd, err
	}
	p = localproxy.New(cfg)
	t.Cleanup(p.Close)
	return func(want table) {
		h.do(t, func() error {
			p.Keep(func(at netip.AddrPort) bool { _, ok := want[at]; return ok })
			for at, service := range want {
				p.Put(at, service)
			}
			return nil
		})
	}, p
}

func refused(err error) bool { return errors.Is(err, unix.ECONNREFUSED) }

func TestA7_2EachPortLeadsToItsEndpoints(t *testing.T) {
	each(t, func(t *testing.T, h host) {
		for n := 1; n <= 3; n++ {
			h.named(t, n)
		}
		set, p := h.proxy(t, localproxy.Config{})
		set(table{
			h.loopback(30001): {Endpoints: []netip.AddrPort{h.endpoint(1), h.endpoint(2)}},
			h.loopback(30003): {Endpoints: []netip.AddrPort{h.endpoint(3)}},
		})
		seen := map[string]int{}
		for range 200 {
			seen[h.read(t, h.loopback(30001))]++
		}
		if seen["1"] < 50 || seen["2"] < 50 || len(seen) != 2 { // a fair coin is outside once in 10^12
			t.Errorf("of 200 connections: %v", seen)
		}
		if got := h.read(t, h.loopback(30003)); got != "3" {
			t.Errorf("the other port leads to %s", got)
		}
		if got := p.Listening(h.ipv6); got != 2 || p.Listening(!h.ipv6) != 0 {
			t.Errorf("it says that it listens at %d addresses", got)
		}
	})
}

func TestA7_5AffinityIsOnePinForEachPort(t *testing.T) {
	each(t, func(t *testing.T, h host) {
		all := []netip.AddrPort{h.endpoint(1), h.endpoint(2), h.endpoint(3)}
		for n := 1; n <= 3; n++ {
			h.named(t, n)
		}
		set, _ := h.proxy(t, localproxy.Config{})
		at := h.loopback(30001)
		same := func(want string) string {
			first := h.read(t, at)
			if want != "" && first != want {
				t.Errorf("got endpoint %s, want %s, which it was pinned to", first, want)
			}
			for range 20 {
				if got := h.read(t, at); got != first {
					t.Fatalf("pinned to %s, and then %s", first, got)
				}
			}
			return first
		}
		set(table{at: {Endpoints: all, Affinity: time.Hour}})
		pinned := same("")
		set(table{at: {Endpoints: []netip.AddrPort{all[2], all[1], all[0]}, Affinity: time.Hour}})
		same(pinned)
		var others []netip.AddrPort
		for n, e := range all {
			if fmt.Sprint(n+1) != pinned {
				others = append(others, e)
			}
		}
		set(table{at: {Endpoints: others, Affinity: time.Hour}})
		if got := same(""); got == pinned {
			t.Errorf("pinned to %s, which is gone", got)
		}
		// Another timeout ends the pin: of 40 times it is another endpoint now and then.
		seen := map[string]bool{}
		for n := range 40 {
			set(table{at: {Endpoints: all, Affinity: time.Hour + time.Duration(n)*time.Second}})
			seen[same("")] = true
		}
		if len(seen) != 3 {
			t.Errorf("after 40 other timeouts: %v", seen)
		}
	})
}

func TestA7_5PinEndsWithItsTimeout(t *testing.T) {
	each(t, func(t *testing.T, h host) {
		h.named(t, 1)
		h.named(t, 2)
		set, _ := h.proxy(t, localproxy.Config{})
		at := h.loopback(30001)
		set(table{at: {Endpoints: []netip.AddrPort{h.endpoint(1), h.endpoint(2)}, Affinity: time.Nanosecond}})
		seen := map[string]bool{}
		for range 60 {
			seen[h.read(t, at)] = true
		}
		if len(seen) != 2 {
			t.Errorf("pins of a nanosecond led to %v", seen)
		}
	})
}

func TestA7_6WhatIsGoneIsClosed(t *testing.T) {
	each(t, func(t *testing.T, h host) {
		h.serve(t, 1, echo)
		set, p := h.proxy(t, localproxy.Config{})
		gone, stays := h.loopback(30001), h.loopback(30002)
		one := localproxy.Service{Endpoints: []netip.AddrPort{h.endpoint(1)}}
		set(table{gone: one, stays: one})
		a, b := h.dial(t, gone), h.dial(t, stays)
		say(t, a, "hello")
		say(t, b, "hello")
		set(table{stays: {Endpoints: []netip.AddrPort{h.endpoint(2)}}})
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("an open connection to a port that is gone: %v, want a reset", err)
		}
		if _, err := h.tryDial(gone); !refused(err) {
			t.Errorf("a new one: %v, want a refusal", err)
		}
		say(t, b, "an open connection whose endpoint is gone lives on")
		p.Close()
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("after all is closed: %v, want a reset", err)
		}
	})
}

// say sends a text and expects it back.
func say(t *testing.T, conn *net.TCPConn, text string) {
	t.Helper()
	if _, err := conn.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
		t.Fatalf("said %q, got %q, %v", text, got, err)
	}
}

func TestA7_7PortThatIsTakenIsToldAndTriedAgain(t *testing.T) {
	each(t, func(t *testing.T, h host) {
		h.named(t, 1)
		var taken net.Listener
		at := h.loopback(30001)
		h.do(t, func() (err error) {
			taken, err = net.Listen("tcp", at.String())
			return err
		})
		var mu sync.Mutex
		var told, listening []string
		tell := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprintf(format, args...))
		}
		set, p := h.proxy(t, localproxy.Config{
			Failed: func(a netip.AddrPort, err error, again bool) {
				tell("%s %t %t", a, errors.Is(err, unix.EADDRINUSE), again)
			},
			Served: func(a netip.AddrPort) { tell("%s served", a) },
			Listening: func(ipv6 bool, n int) {
				mu.Lock()
				defer mu.Unlock()
				listening = append(listening, fmt.Sprint(ipv6, n))
			},
		})
		one := localproxy.Service{Endpoints: []netip.AddrPort{h.endpoint(1)}}
		want := table{at: one, h.loopback(30002): one}
		set(want)
		set(want)
		if got := h.read(t, h.loopback(30002)); got != "1" {
			t.Errorf("the other port leads to %q", got)
		}
		if p.Listening(h.ipv6) != 1 {
			t.Errorf("%d ports listen, want 1", p.Listening(h.ipv6))
		}
		if err := taken.Close(); err != nil {
			t.Fatal(err)
		}
		set(want)
		if got := h.read(t, at); got != "1" {
			t.Errorf("the port that is free now leads to %q", got)
		}
		mu.Lock()
		defer mu.Unlock()
		wantTold := []string{at.String() + " true false", at.String() + " true true", at.String() + " served"}
		if diff := cmp.Diff(wantTold, told); diff != "" {
			t.Errorf("told (-want +got): %s", diff)
		}
		if diff := cmp.Diff([]string{fmt.Sprint(h.ipv6, 1), fmt.Sprint(h.ipv6, 2)}, listening); diff != "" {
			t.Errorf("told how many are served (-want +got): %s", diff)
		}
	})
}

// Each direction ends by itself, and no byte is lost, however slow a reader is.
func TestHalfCloseAndSlowReaders(t *testing.T) {
	each(t, func(t *testing.T, h host) {
		const size = 8 << 20
		data := make([]byte, size)
		random := rand.NewChaCha8([32]byte{1})
		_, _ = random.Read(data)
		h.serve(t, 1, func(c *net.TCPConn) { // answers when it has heard all
			sum := sha256.New()
			n, _ := io.CopyBuffer(struct{ io.Writer }{sum}, struct{ io.Reader }{c}, make([]byte, 10_000))
			_, _ = fmt.Fprintf(c, "%d %x ", n, sum.Sum(nil))
			_, _ = c.Write(data)
		})
		set, _ := h.proxy(t, localproxy.Config{})
		at := h.loopback(30001)
		set(table{at: {Endpoints: []netip.AddrPort{h.endpoint(1)}}})
		conn := h.dial(t, at)
		if _, err := conn.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(conn)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("%d %x ", size, sha256.Sum256(data)); !bytes.Equal(got, append([]byte(want), data...)) {
			t.Errorf("got %d bytes, %.80q", len(got), got)
		}
	})
}

func TestEndpointThatResetsOrIsNotThere(t *testing.T) {
	each(t, func(t *testing.T, h host) {
		h.serve(t, 1, func(c *net.TCPConn) {
			_, _ = c.Read(make([]byte, 1))
			_ = c.SetLinger(0)
		})
		set, _ := h.proxy(t, localproxy.Config{})
		set(table{
			h.loopback(30001): {Endpoints: []netip.AddrPort{h.endpoint(1)}},
			h.loopback(30002): {Endpoints: []netip.AddrPort{h.endpoint(2)}}, // nobody listens
		})
		for _, port := range []uint16{30001, 30002} {
			conn, err := h.tryDial(h.loopback(port))
			if err == nil {
				if _, err = conn.Write([]byte("x")); err == nil {
					_, err = conn.Read(make([]byte, 1))
				}
				_ = conn.Close()
			}
			if !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("port %d: %v, want a reset", port, err)
			}
		}
	})
}

// An endpoint that never answers holds up nobody else, and closing does not wait for it.
func TestEndpointThatNeverAnswers(t *testing.T) {
	each(t, func(t *testing.T, h host) {
		h.Run(t, "nft", "table inet t { chain c { type filter hook input priority 0; tcp dport 8080 ip daddr 10.0.0.2 drop; tcp dport 8080 ip6 daddr fd00::2 drop; }; }")
		h.named(t, 1)
		set, p := h.proxy(t, localproxy.Config{})
		set(table{
			h.loopback(30001): {Endpoints: []netip.AddrPort{h.endpoint(2)}},
			h.loopback(30002): {Endpoints: []netip.AddrPort{h.endpoint(1)}},
		})
		silent := h.dial(t, h.loopback(30001))
		if got := h.read(t, h.loopback(30002)); got != "1" {
			t.Errorf("the other port leads to %q", got)
		}
		closed := make(chan struct{})
		go func() { // ends with the test
			p.Close()
			close(closed)
		}()
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
		defer cancel()
		select {
		case <-closed:
		case <-ctx.Done():
			t.Error("closing waits for an endpoint that never answers")
		}
		if _, err := silent.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("its client: %v, want a reset", err)
		}
	})
}

// Idle connections cost descriptors for their two ends and nothing else, and when all is
// closed no goroutine and no descriptor is left.
func TestManyIdleConnectionsLeaveNothing(t *testing.T) {
	n := connections(t)
	h := host{netns.New(t, "node"), false}
	h.Run(t, "ip", "address", "add", "10.0.0.1/32", "dev", "lo")
	before, goroutines := descriptors(t), runtime.NumGoroutine()
	t.Run("open", func(t *testing.T) {
		h.serve(t, 1, echo)
		set, p := h.proxy(t, localproxy.Config{})
		at := h.loopback(30001)
		set(table{at: {Endpoints: []netip.AddrPort{h.endpoint(1)}}})
		conns := make([]*net.TCPConn, n)
		for i := range conns {
			conns[i] = h.dial(t, at)
		}
		for i, conn := range conns {
			say(t, conn, fmt.Sprint("connection ", i))
		}
		// Each of the two connections has two ends here, since the client and the server
		// are this process, too.
		if got := descriptors(t) - before; got > 4*n+300 {
			t.Errorf("%d connections hold %d descriptors", n, got)
		}
		p.Close()
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
	within(t, 20*time.Second, func() error {
		if got := descriptors(t); got > before {
			return fmt.Errorf("%d descriptors are left, %d before", got, before)
		}
		if got := runtime.NumGoroutine(); got > goroutines {
			return fmt.Errorf("%d goroutines are left, %d before", got, goroutines)
		}
		return nil
	})
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func within(t *testing.T, d time.Duration, f func() error) {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	end := time.After(d)
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-ticker.C:
		case <-end:
			t.Fatal(err)
		}
	}
}

// connections gives how many the limit of open files allows with all their ends here:
// 10,000 if it can be raised.
func connections(t *testing.T) int {
	t.Helper()
	const most, perConnection, others = 10_000, 4, 1000
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	const all = most*perConnection + others
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: all, Max: max(all, old.Max)}); err == nil {
		t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &old) })
		return most
	}
	n := (int(old.Max) - others) / perConnection
	t.Logf("%d of %d connections: there is a limit of %d open files", n, most, old.Max)
	return n
}
