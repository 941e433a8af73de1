package localproxy_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"onerule/localproxy"
	"onerule/test/netns"
)

// A client of an endpoint that answers late loses nothing of what he said meanwhile, and one
// of an endpoint that does not answer is told after a while.
func TestEndpointThatAnswersLate(t *testing.T) {
	each(t, func(t *testing.T, h host) {
		h.Run(t, "nft", "table inet t { chain c { type filter hook input priority 0; tcp dport 8080 drop; }; }")
		h.serve(t, 1, echo)
		h.serve(t, 2, echo)
		set, _ := h.proxy(t, localproxy.Config{})
		set(table{
			h.loopback(30001): {Endpoints: []netip.AddrPort{h.endpoint(1)}},
			h.loopback(30002): {Endpoints: []netip.AddrPort{h.endpoint(2)}},
		})
		late, never := h.dial(t, h.loopback(30001)), h.dial(t, h.loopback(30002))
		for _, conn := range []*net.TCPConn{late, never} {
			if _, err := conn.Write([]byte("so early")); err != nil {
				t.Fatal(err)
			}
		}
		only := "ip daddr 10.0.0.2"
		if h.ipv6 {
			only = "ip6 daddr fd00::2"
		}
		h.Run(t, "nft", "add rule inet t c "+only+" drop; delete rule inet t c handle "+h.firstRule(t))
		got := make([]byte, len("so early"))
		if _, err := io.ReadFull(late, got); err != nil || string(got) != "so early" {
			t.Errorf("the one that answers late said %q, %v", got, err)
		}
		say(t, late, "and later")
		if _, err := never.Read(got); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("the one that never answers: %v, want a reset", err)
		}
	})
}

// firstRule gives the handle of the rule of that table's chain.
func (h host) firstRule(t *testing.T) string {
	t.Helper()
	_, handle, ok := strings.Cut(h.Run(t, "nft", "--handle", "list", "chain", "inet", "t", "c"), "drop # handle ")
	if !ok {
		t.Fatal("there is no rule that drops")
	}
	handle, _, _ = strings.Cut(handle, "\n")
	return handle
}

// A connection with more than is carried in one turn goes on in the next ones, though its
// sockets have nothing new to tell.
func TestMuchIsCarriedInTurns(t *testing.T) {
	each(t, func(t *testing.T, h host) {
		const size = 1 << 20 // of some 250 small pipes
		h.Run(t, "sysctl", "-qw", "net.ipv4.tcp_rmem=4096 8388608 8388608")
		h.Run(t, "nft", "table inet t { chain c { type filter hook input priority 0; tcp dport 8080 drop; }; }")
		h.serve(t, 1, func(c *net.TCPConn) {
			n, err := io.CopyN(io.Discard, c, size)
			_, _ = fmt.Fprint(c, n, " ", err)
		})
		set, p := h.proxy(t, localproxy.Config{})
		p.SmallPipes()
		set(table{h.loopback(30001): {Endpoints: []netip.AddrPort{h.endpoint(1)}}})
		conn := h.dial(t, h.loopback(30001))
		if _, err := conn.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		h.within(t, conn, "all of it waits in the socket of the proxy", func(info *unix.TCPInfo) bool { return info.Unacked == 0 && info.Notsent_bytes == 0 })
		h.Run(t, "nft", "flush", "chain", "inet", "t", "c")
		got := make([]byte, len(fmt.Sprint(size, " ", nil)))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != fmt.Sprint(size, " ", nil) {
			t.Errorf("the endpoint says %q, %v", got, err)
		}
	})
}

// within waits until a connection is so.
func (h host) within(t *testing.T, conn *net.TCPConn, what string, is func(*unix.TCPInfo) bool) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, func() (err error) {
		var info *unix.TCPInfo
		controlled := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
		if err = errors.Join(controlled, err); err == nil && !is(info) {
			err = fmt.Errorf("not yet: %s: %+v", what, info)
		}
		return err
	})
}

// A client who has said all and vanishes then takes his connection with him, though nothing
// is written to him or read from him any more.
func TestClientWhoVanishesAfterHisLastWord(t *testing.T) {
	each(t, func(t *testing.T, h host) {
		served, end := make(chan *net.TCPConn), make(chan struct{})
		h.serve(t, 1, func(c *net.TCPConn) {
			_, _ = io.Copy(io.Discard, struct{ io.Reader }{c})
			served <- c
			<-end
		})
		defer close(end)
		set, _ := h.proxy(t, localproxy.Config{})
		set(table{h.loopback(30001): {Endpoints: []netip.AddrPort{h.endpoint(1)}}})
		conn := h.dial(t, h.loopback(30001))
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		server := <-served
		if err := errors.Join(conn.SetLinger(0), conn.Close()); err != nil {
			t.Fatal(err)
		}
		const closed = 7 // TCP_CLOSE of net/tcp_states.h
		h.within(t, server, "the endpoint's connection is reset", func(info *unix.TCPInfo) bool { return info.State == closed })
	})
}

// What waits in the kernel for an end that does not read goes with its connection.
func TestWhatIsHeldGoesWithItsConnection(t *testing.T) {
	each(t, func(t *testing.T, h host) {
		end := make(chan struct{})
		h.serve(t, 1, func(*net.TCPConn) { <-end })
		before := descriptors(t)
		set, p := h.proxy(t, localproxy.Config{})
		set(table{h.loopback(30001): {Endpoints: []netip.AddrPort{h.endpoint(1)}}})
		var conns []*net.TCPConn
		for range 10 {
			conn := h.dial(t, h.loopback(30001))
			conns = append(conns, conn)
			if err := conn.SetWriteDeadline(time.Now().Add(time.Second / 4)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(conn, endless{}); !os.IsTimeout(err) {
				t.Fatalf("writing to somebody who does not read: %v", err)
			}
		}
		if got, all := descriptors(t)-before, 6*len(conns); got < all { // two ends twice, and a pipe
			t.Errorf("%d connections that hold something have %d descriptors, want %d", len(conns), got, all)
		}
		p.Close()
		close(end)
		for _, conn := range conns {
			_ = conn.Close()
		}
		within(t, 10*time.Second, func() error {
			if got := descriptors(t); got > before {
				return fmt.Errorf("%d descriptors are left, %d before", got, before)
			}
			return nil
		})
	})
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// Where there are no descriptors for him, for his endpoint or for what they say, a client
// waits until there are some. That clients wait is told.
func TestClientsWaitForDescriptors(t *testing.T) {
	if from, rest, ok := strings.Cut(os.Getenv(proxyEnv), " "); ok {
		to, spare, _ := strings.Cut(rest, " ")
		n, err := strconv.Atoi(spare)
		if err != nil {
			t.Fatal(err)
		}
		proxyOfFewDescriptors(t, netip.MustParseAddrPort(from), netip.MustParseAddrPort(to), uint64(n))
		return
	}
	netns.Privileged(t)
	each(t, func(t *testing.T, h host) {
		var served atomic.Int32
		h.serve(t, 1, func(c *net.TCPConn) {
			served.Add(1)
			_, _ = fmt.Fprint(c, "1")
		})
		const noClient, noEndpoint = "accept4: too many open files", "make socket: socket: too many open files"
		for _, c := range []struct {
			spare, clients int
			told           string
		}{
			{0, 2, noClient},
			{1, 1, noEndpoint},
			{2, 1, noClient}, // there is one, but the next one could not be taken, and there is no pipe
			{3, 1, ""},       // only a pipe is missing: it needs two
		} {
			t.Run(fmt.Sprint(c.spare, " to spare"), func(t *testing.T) {
				served.Store(0)
				p := h.child(t, c.spare)
				var conns []*net.TCPConn
				for range c.clients {
					conns = append(conns, h.dial(t, h.loopback(30001)))
				}
				if c.told != "" {
					p.expect(t, h.loopback(30001).String()+" "+c.told)
				}
				if c.spare > 1 {
					within(t, 10*time.Second, func() error {
						if served.Load() == 0 {
							return errors.New("the endpoint has not got the connection")
						}
						return nil
					})
				}
				_, _ = fmt.Fprintln(p.in, "more")
				p.expect(t, "has more")
				for _, conn := range conns {
					if got, err := io.ReadAll(conn); err != nil || string(got) != "1" {
						t.Errorf("a client who has waited got %q, %v", got, err)
					}
				}
				p.wait(t)
			})
		}
	})
}

// A child is a proxy of few descriptors in a process of its own.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (h host) child(t *testing.T, spare int) child {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestClientsWaitForDescriptors$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d", proxyEnv, h.loopback(30001), h.endpoint(1), spare))
	cmd.Stderr = os.Stderr
	in, errIn := cmd.StdinPipe()
	out, errOut := cmd.StdoutPipe()
	if err := errors.Join(errIn, errOut); err != nil {
		t.Fatal(err)
	}
	if err := h.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close() })
	p := child{cmd, in, bufio.NewReader(out)}
	p.expect(t, "served")
	return p
}

func (p child) expect(t *testing.T, want string) {
	t.Helper()
	if line, err := p.out.ReadString('\n'); line != want+"\n" {
		t.Fatalf("the proxy says %q, %v, want %q", line, err, want)
	}
}

// wait ends it.
func (p child) wait(t *testing.T) {
	t.Helper()
	_ = p.in.Close()
	rest, _ := io.ReadAll(p.out)
	if err := p.cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, rest)
	}
}

// proxyOfFewDescriptors serves with some to spare until it is told to have more, and then
// until nobody is at the other end of standard input.
func proxyOfFewDescriptors(t *testing.T, from, to netip.AddrPort, spare uint64) {
	p := localproxy.New(localproxy.Config{NotTaken: func(at netip.AddrPort, err error) { fmt.Println(at, err) }})
	defer p.Close()
	p.Put(from, localproxy.Service{Endpoints: []netip.AddrPort{to}})
	<-time.After(time.Millisecond) // the runtime's first timer needs a descriptor
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	free, err := unix.Dup(0)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(free)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free) + spare, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(os.Stdin)
	fmt.Println("served")
	_, _ = in.ReadString('\n')
	fmt.Println("has more")
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, in)
}
