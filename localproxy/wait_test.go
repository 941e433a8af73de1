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
	"strings"
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

// Without descriptors clients wait, which is told, and are served when there are some.
func TestClientsWaitForDescriptors(t *testing.T) {
	if from, to, ok := strings.Cut(os.Getenv(proxyEnv), " "); ok {
		proxyOfFewDescriptors(t, netip.MustParseAddrPort(from), netip.MustParseAddrPort(to))
		return
	}
	netns.Privileged(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	each(t, func(t *testing.T, h host) {
		h.named(t, 1)
		cmd := exec.Command(self, "-test.run=^TestClientsWaitForDescriptors$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s", proxyEnv, h.loopback(30001), h.endpoint(1)))
		cmd.Stderr = os.Stderr
		in, errIn := cmd.StdinPipe()
		out, errOut := cmd.StdoutPipe()
		if err := errors.Join(errIn, errOut); err != nil {
			t.Fatal(err)
		}
		if err := h.Start(cmd); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(out)
		expect := func(want string) {
			t.Helper()
			if line, err := lines.ReadString('\n'); line != want+"\n" {
				t.Fatalf("the proxy says %q, %v, want %q", line, err, want)
			}
		}
		expect("served")
		waiting := []*net.TCPConn{h.dial(t, h.loopback(30001)), h.dial(t, h.loopback(30001))}
		expect(h.loopback(30001).String() + " accept4: too many open files")
		_, _ = fmt.Fprintln(in, "more")
		expect("has more")
		for _, conn := range waiting {
			if got, err := io.ReadAll(conn); err != nil || string(got) != "1" {
				t.Errorf("a client who has waited got %q, %v", got, err)
			}
		}
		_ = in.Close()
		rest, _ := io.ReadAll(lines)
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v: %s", err, rest)
		}
	})
}

// proxyOfFewDescriptors serves with none to spare until it is told to have more, and then
// until nobody is at the other end of standard input.
func proxyOfFewDescriptors(t *testing.T, from, to netip.AddrPort) {
	p := localproxy.New(localproxy.Config{NotTaken: func(at netip.AddrPort, err error) { fmt.Println(at, err) }})
	defer p.Close()
	p.Put(from, localproxy.Service{Endpoints: []netip.AddrPort{to}})
	<-time.After(time.Millisecond) // the runtime's first timer needs a descriptor
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: limit.Max}); err != nil {
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
