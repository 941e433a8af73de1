package hostport_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"onerule/nft/hostport"
	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/wired"
)

func loopbackOf(p addr.Plan) netip.Addr {
	if p.Node().Is6() {
		return netip.IPv6Loopback()
	}
	return netip.MustParseAddr("127.0.0.1")
}

// A claim at a loopback address leads there who comes from an address of the node, and
// nobody else.
func TestPortsAtALoopbackAddress(t *testing.T) {
	each(t, func(t *testing.T, p addr.Plan) {
		w, ports := served(t, p)
		loopback, family := loopbackOf(p), "ip"
		if p.Node().Is6() {
			family = "ip6"
		}
		c := hostport.Claim{Protocol: hostport.TCP, HostIP: loopback, HostPort: hostPort, Pod: netip.AddrPortFrom(p.Pod(0), podPort)}
		claim(t, w.Node, ports, "a:eth0", c)
		ask := func(from, to netip.Addr) (string, error) {
			return wired.Ask(w.Node, "tcp", netip.AddrPortFrom(from, 0), netip.AddrPortFrom(to, hostPort))
		}
		want := func(t *testing.T, want string) {
			t.Helper()
			if got, err := ask(p.Node(), loopback); got != want || (err == nil) != (want != "") {
				t.Errorf("%q, %v, want %q", got, err, want)
			}
		}
		t.Run("from the node's address", func(t *testing.T) { want(t, "pod 0 saw "+p.Node().String()) })
		t.Run("also where others drop what is not translated", func(t *testing.T) {
			w.Node.Run(t, "nft", fmt.Sprintf("table %[1]s filter { chain OUTPUT { type filter hook output priority 0; "+
				"%[1]s daddr %[2]s %[1]s saddr != %[2]s ct status & dnat == 0 ct state != { established, related } drop; }; }", family, loopback))
			want(t, "pod 0 saw "+p.Node().String())
			w.Node.Run(t, "nft", "delete table "+family+" filter")
		})
		for name, way := range map[string][2]netip.Addr{
			"not from a loopback address": {loopback, loopback},
			"not at the node's address":   {p.Node(), p.Node()},
		} {
			t.Run(name, func(t *testing.T) {
				if got, err := ask(way[0], way[1]); err == nil {
					t.Errorf("%q answers", got)
				}
			})
		}
		t.Run("another pod has the node's address", func(t *testing.T) {
			claim(t, w.Node, ports, "b:eth0", both(p.Pod(1), p.Node())...)
			saw(t, w.Outside, p.Node(), "pod 1 saw "+p.Outside().String())
			want(t, "pod 0 saw "+p.Node().String())
		})
		t.Run("D24 but nobody all of them", func(t *testing.T) {
			err := w.Node.Do(func() error { return ports.Claim(within(t), "c:eth0", both(p.Pod(1), netip.Addr{})) })
			wantTaken(t, err, "a:eth0")
		})
		t.Run("a lost element is missed", func(t *testing.T) {
			check := func() error { return w.Node.Do(func() error { return ports.Check("a:eth0", []hostport.Claim{c}) }) }
			if err := check(); err != nil {
				t.Error(err)
			}
			w.Node.Run(t, "nft", "flush", "map", family, hostport.TableName, "hostports")
			if err := check(); err == nil {
				t.Error("it is not")
			}
			if found := load(t, w.Node, ports); found.Added != 3 {
				t.Errorf("put right: %+v, want 3 elements more", found)
			}
			want(t, "pod 0 saw "+p.Node().String())
		})
		t.Run("not when it is released", func(t *testing.T) {
			release(t, w.Node, ports, "a:eth0")
			want(t, "")
		})
	})
}

func TestWhereAProxyListensForAPort(t *testing.T) {
	v4, v6 := netip.MustParseAddrPort("10.1.0.2:80"), netip.MustParseAddrPort("[fd00:1::2]:80")
	for name, c := range map[string]struct {
		claim hostport.Claim
		want  string
	}{
		"all addresses of IPv4":      {hostport.Claim{Protocol: hostport.TCP, HostPort: 8, Pod: v4}, "127.0.0.1:8"},
		"all addresses of IPv6":      {hostport.Claim{Protocol: hostport.TCP, HostPort: 8, Pod: v6}, "[::1]:8"},
		"a loopback address":         {hostport.Claim{Protocol: hostport.TCP, HostIP: netip.MustParseAddr("127.0.0.9"), HostPort: 8, Pod: v4}, "127.0.0.9:8"},
		"another address":            {hostport.Claim{Protocol: hostport.TCP, HostIP: netip.MustParseAddr("192.0.2.1"), HostPort: 8, Pod: v4}, ""},
		"UDP, which no proxy takes":  {hostport.Claim{Protocol: hostport.UDP, HostPort: 8, Pod: v4}, ""},
		"SCTP, which no proxy takes": {hostport.Claim{Protocol: hostport.SCTP, HostPort: 8, Pod: v6}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			at, ok := c.claim.Loopback()
			if ok != (c.want != "") || ok && at.String() != c.want {
				t.Errorf("%s, %t, want %q", at, ok, c.want)
			}
		})
	}
}

// bound gives a socket of TCP that has a port and does not listen, which no list shows.
func bound(t *testing.T, ns *netns.NS, at netip.AddrPort) (fd int) {
	t.Helper()
	wired.Do(t, ns, func() (err error) {
		domain, sockaddr := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(at.Port()), Addr: [4]byte{127, 0, 0, 1}})
		if at.Addr().Is6() {
			domain, sockaddr = unix.AF_INET6, &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
		}
		if fd, err = unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
			err = unix.Bind(fd, sockaddr)
		}
		return err
	})
	return fd
}

// The proxy of the pod before learns of its end a moment later than the next pod comes.
func TestD24_AProxyMayLetGoOfAPort(t *testing.T) {
	each(t, func(t *testing.T, p addr.Plan) {
		ns, dir := netns.New(t, "node"), t.TempDir()
		ports := open(t, dir)
		try := func(ctx context.Context) error {
			return ns.Do(func() error { return ports.Claim(ctx, "a:eth0", both(p.Pod(0), netip.Addr{})) })
		}
		var proxy net.Listener
		wired.Do(t, ns, func() (err error) {
			proxy, err = net.Listen("tcp", netip.AddrPortFrom(loopbackOf(p), hostPort).String())
			return err
		})
		t.Run("one that does not is named", func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
			defer cancel()
			wantTaken(t, try(ctx), fmt.Sprintf("process hostport.test (%d)", os.Getpid()))
			if names := files(t, dir); len(names) != 0 {
				t.Errorf("left: %v", names)
			}
		})
		t.Run("one that does is waited for", func(t *testing.T) {
			letGo := time.AfterFunc(200*time.Millisecond, func() { _ = proxy.Close() })
			defer letGo.Stop()
			if err := try(within(t)); err != nil {
				t.Error(err)
			}
			if !strings.Contains(rules(t, ns), fmt.Sprintf("tcp . %d", hostPort)) {
				t.Error("the port leads nowhere")
			}
		})
		t.Run("one that nobody is seen to have is waited for", func(t *testing.T) {
			if err := ports.Release(t.Context(), "a:eth0"); err != nil {
				t.Fatal(err)
			}
			fd := bound(t, ns, netip.AddrPortFrom(loopbackOf(p), hostPort))
			letGo := time.AfterFunc(200*time.Millisecond, func() { _ = unix.Close(fd) })
			defer letGo.Stop()
			if err := try(within(t)); err != nil {
				t.Error(err)
			}
		})
		t.Run("one of the same owner is in nobody's way", func(t *testing.T) {
			var l net.Listener
			wired.Do(t, ns, func() (err error) {
				l, err = net.Listen("tcp", netip.AddrPortFrom(loopbackOf(p), hostPort).String())
				return err
			})
			err := ns.Do(func() error { return ports.Claim(within(t), "a:eth0", both(p.Pod(1), netip.Addr{})) })
			if err := errors.Join(err, l.Close()); err != nil {
				t.Error(err)
			}
		})
	})
}
