package netns_test

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"onerule/test/netns"
)

func TestHostsReachEachOtherByWireAndRouter(t *testing.T) {
	a, r, b := netns.New(t, "a"), netns.New(t, "r"), netns.New(t, "b")
	netns.Wire(t, a, "eth0", r, "to-a")
	netns.Wire(t, b, "eth0", r, "to-b")
	a.Addr(t, "eth0", "192.0.2.2/25", "2001:db8:a::2/64")
	r.Addr(t, "to-a", "192.0.2.1/25", "2001:db8:a::1/64")
	r.Addr(t, "to-b", "192.0.2.129/25", "2001:db8:b::1/64")
	b.Addr(t, "eth0", "192.0.2.130/25", "2001:db8:b::2/64")
	r.Forward(t)
	a.Route(t, "default", "192.0.2.1")
	a.Route(t, "default", "2001:db8:a::1")
	b.Route(t, "192.0.2.0/25", "192.0.2.129")
	b.Route(t, "2001:db8:a::/64", "2001:db8:b::1")

	for _, addr := range []string{"192.0.2.130:7", "[2001:db8:b::2]:7"} {
		var l net.Listener
		if err := b.Do(func() (err error) { l, err = net.Listen("tcp", addr); return err }); err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if err := a.Do(func() error {
			c, err := net.Dial("tcp", addr)
			if err == nil {
				_ = c.Close()
			}
			return err
		}); err != nil {
			t.Errorf("connect from a to b: %v", err)
		}
	}
}

// The first thread of a process is never in another namespace, which would be that of the
// process for all who look into /proc, also later.
func TestTheFirstThreadStays(t *testing.T) {
	n := netns.New(t, "n")
	before, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	onFirstThread(t, 100, func() {
		err := n.Do(func() error {
			now, err := os.Readlink("/proc/self/ns/net")
			if err == nil && now != before {
				err = fmt.Errorf("the process seems to be in %s, and was in %s", now, before)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// onFirstThread runs f on the first thread, where what f starts is run next when f waits.
// Other threads are held until a goroutine comes to it.
func onFirstThread(t *testing.T, tries int, f func()) {
	t.Helper()
	if tries == 0 {
		t.Error("no goroutine was run on the first thread")
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			runtime.UnlockOSThread()
			f()
			return
		}
		onFirstThread(t, tries-1, f)
		runtime.UnlockOSThread()
	}()
	<-done
}

func TestCommandsRunInTheNamespace(t *testing.T) {
	n := netns.New(t, "only")
	out := n.Run(t, "ip", "-o", "link")
	if got := strings.Count(out, "\n"); got != 1 || !strings.Contains(out, "LOOPBACK") {
		t.Errorf("got links %q, want the loopback only", out)
	}
	if _, err := n.Output("ip", "link", "show", "no-such-device"); err == nil {
		t.Error("a failing command gave no error")
	}
}
