package hostport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"onerule/nft/hostport"
	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/wired"
)

// A listener is a socket of the node. It lets others bind the same port, if they do too.
type listener struct {
	network, at string
	device      string // that it is bound to
	another     bool   // a process has it that is not the test
}

func (l listener) begin(t *testing.T, ns *netns.NS) {
	t.Helper()
	var s interface {
		io.Closer
		File() (*os.File, error)
	}
	wired.Do(t, ns, func() error {
		cfg, at := net.ListenConfig{Control: l.prepare}, fmt.Sprintf("%s:%d", l.at, hostPort)
		if strings.HasPrefix(l.network, "tcp") {
			tcp, err := cfg.Listen(t.Context(), l.network, at)
			if err != nil {
				return err
			}
			s = tcp.(*net.TCPListener)
			return nil
		}
		udp, err := cfg.ListenPacket(t.Context(), l.network, at)
		if err != nil {
			return err
		}
		s = udp.(*net.UDPConn)
		return nil
	})
	t.Cleanup(func() { _ = s.Close() })
	if !l.another {
		return
	}
	f, err := s.File()
	if err != nil {
		t.Fatal(err)
	}
	giveAway(t, f)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func (l listener) prepare(_, _ string, c syscall.RawConn) (err error) {
	shared := unix.SO_REUSEADDR
	if strings.HasPrefix(l.network, "tcp") {
		shared = unix.SO_REUSEPORT
	}
	ctlErr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, shared, 1)
		if l.device != "" {
			err = errors.Join(err, unix.BindToDevice(int(fd), l.device))
		}
	})
	return errors.Join(ctlErr, err)
}

// giveAway has a process keep a file for as long as the test runs.
func giveAway(t *testing.T, f *os.File) {
	t.Helper()
	keeper := exec.Command("cat") // ends with its stdin
	keeper.ExtraFiles = []*os.File{f}
	stdin, err := keeper.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := keeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(stdin.Close(), keeper.Wait()) })
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// one gives the claim of a protocol out of both.
func one(network string, pod, at netip.Addr) hostport.Claim {
	if network == "tcp" {
		return both(pod, at)[0]
	}
	return both(pod, at)[1]
}

func bracketed(a netip.Addr) string {
	if a.Is6() {
		return "[" + a.String() + "]"
	}
	return a.String()
}

func everywhere(p addr.Plan) string {
	if p.Node().Is6() {
		return "[::]"
	}
	return "0.0.0.0"
}

// Who listens where nothing is translated to the pod keeps its traffic. It stays there all
// the time, so a claim that waited for it would be refused.
func TestWhoListensAtOtherAddressesIsInNobodysWay(t *testing.T) {
	each(t, func(t *testing.T, p addr.Plan) {
		w, ports := served(t, p)
		type row struct {
			network string
			at      netip.Addr
			asks    netip.Addr // it comes from
		}
		rows := map[string]row{"UDP at the loopback address": {"udp", loopbackOf(p), loopbackOf(p)}}
		if p.Node().Is4() {
			resolver := netip.MustParseAddr("127.0.0.53")
			rows["UDP at another loopback address"] = row{"udp", resolver, loopbackOf(p)}
			rows["TCP at another loopback address"] = row{"tcp", resolver, loopbackOf(p)}
		} else {
			gateway := netip.MustParseAddr("fe80::1").WithZone(wired.Link(0))
			rows["UDP at a link-local address"] = row{"udp", gateway, gateway}
			rows["TCP at a link-local address"] = row{"tcp", gateway, gateway}
		}
		for name, r := range rows {
			t.Run(name, func(t *testing.T) {
				wired.Serve(t, w.Node, "listener", netip.AddrPortFrom(r.at, hostPort))
				claim(t, w.Node, ports, "a:eth0", one(r.network, p.Pod(0), netip.Addr{}))
				for _, ask := range []struct {
					from *netns.NS
					at   netip.Addr
					want string
				}{
					{w.Outside, p.Node(), "pod 0 saw " + p.Outside().String()},
					{w.Node, p.Node(), "pod 0 saw " + p.Node().String()},
					{w.Node, r.at, "listener saw " + r.asks.String()},
				} {
					got, err := wired.Ask(ask.from, r.network, netip.AddrPort{}, netip.AddrPortFrom(ask.at, hostPort))
					if err != nil || got != ask.want {
						t.Errorf("from %s to %s: %q, %v, want %q", ask.from.Name(), ask.at, got, err, ask.want)
					}
				}
				release(t, w.Node, ports, "a:eth0")
			})
		}
	})
}

// A claim is refused, and the one named that is in its way, whoever else has the port.
func TestD24_TheListenerInTheWayIsNamed(t *testing.T) {
	each(t, func(t *testing.T, p addr.Plan) {
		ns := netns.New(t, "node")
		ns.Addr(t, "lo", netip.PrefixFrom(p.Node(), p.Node().BitLen()).String())
		ports := open(t, t.TempDir())
		all, loopback, node := everywhere(p), bracketed(loopbackOf(p)), bracketed(p.Node())
		type row struct {
			name      string
			network   string
			at        netip.Addr
			listeners []listener
		}
		rows := []row{
			{"at all addresses", "udp", netip.Addr{}, []listener{{at: all}}},
			{"at all that come by one device", "udp", netip.Addr{}, []listener{{at: all, device: "lo"}}},
			{"at all, before one at a loopback address", "udp", netip.Addr{}, []listener{{at: all}, {at: loopback, another: true}}},
			{"at all, after one at a loopback address", "udp", netip.Addr{}, []listener{{at: loopback, another: true}, {at: all}}},
			{"at all, for a claim at one", "udp", p.Node(), []listener{{at: all}, {at: loopback, another: true}}},
			{"at the node's address", "udp", netip.Addr{}, []listener{{at: node}, {at: loopback, another: true}}},
			{"at the node's address, for a claim there", "udp", p.Node(), []listener{{at: loopback, another: true}, {at: node}}},
			{"TCP at the address of the proxy", "tcp", netip.Addr{}, []listener{{at: loopback}}},
			{"TCP at all, for a claim at one", "tcp", p.Node(), []listener{{at: all}, {at: loopback, another: true}}},
		}
		if p.Node().Is4() {
			const resolver = "127.0.0.53"
			rows = append(rows,
				row{"at all of both families", "udp", netip.Addr{}, []listener{{at: "[::]"}, {at: resolver, another: true}}},
				row{"at all of both families, for a claim at one", "udp", p.Node(), []listener{{at: "[::]"}, {at: resolver, another: true}}},
				row{"at one address by a socket of IPv6", "udp", netip.Addr{}, []listener{{at: "[::ffff:" + node + "]"}, {at: resolver, another: true}}},
				row{"TCP at all, beside a resolver", "tcp", netip.Addr{}, []listener{{at: resolver, another: true}, {at: all}}},
				row{"TCP at all of both families, beside a resolver", "tcp", netip.Addr{}, []listener{{at: "[::]"}, {at: resolver, another: true}}},
				row{"TCP at the address of the proxy, beside a resolver", "tcp", netip.Addr{}, []listener{{at: loopback}, {at: resolver, another: true}}},
			)
		}
		for _, r := range rows {
			t.Run(r.name, func(t *testing.T) {
				for _, l := range r.listeners {
					l.network = r.network
					l.begin(t, ns)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond) // those of TCP may be the proxy
				defer cancel()
				c := one(r.network, p.Pod(0), r.at)
				err := ns.Do(func() error { return ports.Claim(ctx, "a:eth0", []hostport.Claim{c}) })
				if want := fmt.Sprintf("%s is taken by process hostport.test (%d)", c, os.Getpid()); err == nil || err.Error() != want {
					t.Errorf("got %v, want %s", err, want)
				}
			})
		}
	})
}

func TestOnesInNobodysWayTogether(t *testing.T) {
	const resolver, second = "127.0.0.53", "127.0.0.54"
	p := addr.IPv4()
	for name, c := range map[string]struct {
		at        netip.Addr
		listeners []listener
	}{
		"a resolver that is bound to a device": {netip.Addr{}, []listener{{network: "udp", at: resolver, device: "lo"}, {network: "udp", at: second, device: "lo"},
			{network: "tcp", at: resolver, device: "lo"}, {network: "tcp", at: second, device: "lo"}}},
		"one at all of IPv6, and for IPv6 only": {netip.Addr{}, []listener{{network: "udp", at: resolver}, {network: "udp6", at: "[::]"},
			{network: "tcp", at: resolver}, {network: "tcp6", at: "[::]"}}},
		"for a claim at one address": {p.Node(), []listener{{network: "udp", at: resolver}, {network: "tcp", at: "127.0.0.1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netns.New(t, "node")
			ns.Addr(t, "lo", netip.PrefixFrom(p.Node(), p.Node().BitLen()).String())
			for _, l := range c.listeners {
				l.begin(t, ns)
			}
			claim(t, ns, open(t, t.TempDir()), "a:eth0", both(p.Pod(0), c.at)...)
		})
	}
	t.Run("one for what many get", func(t *testing.T) {
		ns := netns.New(t, "node")
		wired.Do(t, ns, func() error { // Go would take all addresses
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = unix.Close(fd) })
			return unix.Bind(fd, &unix.SockaddrInet4{Port: hostPort, Addr: [4]byte{224, 0, 0, 251}})
		})
		claim(t, ns, open(t, t.TempDir()), "a:eth0", both(p.Pod(0), netip.Addr{})...)
	})
	t.Run("but a proxy that is about to listen is waited for", func(t *testing.T) {
		ns := netns.New(t, "node")
		listener{network: "tcp", at: resolver}.begin(t, ns)
		fd := bound(t, ns, netip.AddrPortFrom(loopbackOf(p), hostPort))
		letGo := time.AfterFunc(200*time.Millisecond, func() { _ = unix.Close(fd) })
		defer letGo.Stop()
		claim(t, ns, open(t, t.TempDir()), "a:eth0", both(p.Pod(0), netip.Addr{})...)
	})
}
