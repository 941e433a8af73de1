package fabric_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"onerule/daemon/fabric/layout"
	"onerule/test/netns"
	"onerule/test/wired"
)

// leave makes what an earlier configuration left on a node, and things of others.
func (h *host) leave(t *testing.T) {
	t.Helper()
	for _, command := range []string{
		"ip link add " + layout.DeviceName + " type vxlan id 7 dstport 8472 nolearning local " + h.node.Addrs[0].String(),
		"ip link set " + layout.DeviceName + " up",
		"ip addr add 10.66.0.0/32 dev " + layout.DeviceName,
		"ip route add 10.66.1.0/24 via 10.66.1.0 dev " + layout.DeviceName + " onlink metric 112 proto 112",
		"ip route add 10.66.2.0/24 via 172.16.1.2 metric 112 proto 112",
		"ip -6 route add fd00:66::/112 via fd00:16:1::2 metric 112 proto 112",
		"ip route add unreachable 10.66.3.0/24 metric 112 proto 112",
		"ip neigh add 10.66.1.0 lladdr 02:00:00:00:00:66 dev " + layout.DeviceName + " nud permanent",
		"bridge fdb add 02:00:00:00:00:66 dev " + layout.DeviceName + " dst 172.16.1.66",

		"ip link add flannel.1 type vxlan id 1 dstport 8472 nolearning local " + h.node.Addrs[0].String(),
		"ip link set flannel.1 up",
		"ip addr add 10.88.0.1/24 dev flannel.1",
		"bridge fdb add 02:00:00:00:00:88 dev flannel.1 dst 172.16.1.88",
		"ip neigh add 10.88.0.8 lladdr 02:00:00:00:00:88 dev flannel.1 nud permanent",
		"ip route add 10.88.1.0/24 via 172.16.1.2 proto static",
		"ip route add 10.88.2.0/24 via 172.16.1.2 proto 112 metric 7",
		"ip route add 10.1.3.0/24 via 172.16.1.254 proto static metric 200",
	} {
		f := strings.Fields(command)
		h.ns.Run(t, f[0], f[1:]...)
	}
}

// others gives what stands of others, in all tables and devices.
func (h *host) others(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, args := range []string{"ip route show", "ip neigh show", "bridge fdb show", "ip -br addr"} {
		f := strings.Fields(args)
		for line := range strings.SplitSeq(h.ns.Run(t, f[0], f[1:]...), "\n") {
			if strings.Contains(line, "10.88.") || strings.Contains(line, ":88 ") || strings.Contains(line, "metric 200") {
				found = append(found, line)
			}
		}
	}
	return found
}

func TestOrphansGo(t *testing.T) {
	w := newWorld(t)
	a := w.nodes[0]
	a.leave(t)
	before, theirs := a.holds(t), a.others(t)
	unchanged := func(t *testing.T) {
		t.Helper()
		if now := a.holds(t); now != before {
			t.Errorf("got\n%s\nwant\n%s", now, before)
		}
	}
	a.start(t, config(), nil)
	t.Run("nothing goes before the nodes are known", func(t *testing.T) {
		a.quiet(t)
		unchanged(t)
	})
	t.Run("nothing goes while this node is not among them", func(t *testing.T) {
		a.fabric.Set("a", w.list()[1:])
		wired.Eventually(t, func() error {
			if got := a.wrong(); len(got) != 1 || got[0].Node != "a" {
				return fmt.Errorf("problems are %v, want one of node a", got)
			}
			return nil
		})
		unchanged(t)
	})
	t.Run("then what is wanted comes and the rest goes", func(t *testing.T) {
		a.fabric.Set("a", w.list())
		a.settle(t)
		if now := a.holds(t); strings.Contains(now, "66") || !strings.Contains(now, "10.1.3.0/24 via 10.1.3.0 dev "+layout.DeviceName) {
			t.Errorf("got\n%s", now)
		}
		if got := a.wrong(); len(got) != 0 {
			t.Errorf("problems are %v, want none", got)
		}
		if got := a.changed(); len(got) != 0 {
			t.Errorf("told were %q: nobody changed anything", got)
		}
	})
	t.Run("nothing of others is touched", func(t *testing.T) {
		if got := a.others(t); !slices.Equal(got, theirs) || len(got) < 7 {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(theirs, "\n"))
		}
	})
	t.Run("when this node is not among the nodes any more, all stays", func(t *testing.T) {
		before = a.holds(t)
		a.fabric.Set("a", nil)
		a.quiet(t)
		unchanged(t)
	})
}

// What is in the way of the VXLAN device is named, and harms nothing else.
func TestWhatIsInTheWayIsNamed(t *testing.T) {
	for _, test := range []struct {
		name string
		put  func(t *testing.T, h *host) (remove func())
		want string
	}{
		{"another device of this number and port", func(t *testing.T, h *host) func() {
			h.ns.Run(t, "ip", "link", "add", "vx9", "type", "vxlan", "id", "111", "dstport", "8472", "local", "172.16.1.1")
			return func() { h.ns.Run(t, "ip", "link", "del", "vx9") }
		}, "device vx9 has VNI 111 and port 8472 already"},
		{"a program at the port", func(t *testing.T, h *host) func() {
			var c net.PacketConn
			if err := h.ns.Do(func() (err error) { c, err = net.ListenPacket("udp", ":8472"); return err }); err != nil {
				t.Fatal(err)
			}
			return func() { _ = c.Close() }
		}, "UDP port 8472 is another program's"},
		{"a device of its name", func(t *testing.T, h *host) func() {
			h.ns.Run(t, "ip", "link", "add", layout.DeviceName, "type", "bridge")
			return func() { h.ns.Run(t, "ip", "link", "del", layout.DeviceName) }
		}, "is no VXLAN device (bridge): it is another's"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			a, b, c := w.nodes[0], w.nodes[1], w.nodes[2]
			remove := test.put(t, a)
			b.start(t, config(), w.list())
			c.start(t, config(), w.list())
			a.start(t, config(), nil)
			a.fabric.Set("a", w.list())
			wired.Eventually(t, func() error {
				if err := a.fabric.Err(); err == nil || !strings.Contains(err.Error(), test.want) {
					return fmt.Errorf("got %w, want %s", err, test.want)
				}
				return nil
			})
			for _, to := range b.podAddrs() {
				wired.Eventually(t, func() error { _, err := ask(a.pod, to, 1500, time.Second); return err })
			}
			remove()
			a.settle(t)
			for _, to := range c.podAddrs() {
				wired.Eventually(t, func() error { _, err := ask(a.pod, to, 1450, time.Second); return err })
			}
		})
	}
}

// What no pod has is refused, not sent out by the default route.
func TestAddressesWithoutAPodAreRefused(t *testing.T) {
	w := newWorld(t)
	w.start(t, config())
	a, c := w.nodes[0], w.nodes[2]
	for _, p := range append(a.node.PodCIDRs, c.node.PodCIDRs[0]) {
		nobody := p.Addr().Next().Next().Next().Next()
		err := a.pod.Do(func() error {
			// IPv6 tells a client only when it sends its SYN again, after a second.
			conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(nobody, echoPort).String(), patience)
			if err == nil {
				_ = conn.Close()
			}
			return err
		})
		if !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.ENETUNREACH) {
			t.Errorf("dial %s: got %v, want that it is unreachable", nobody, err)
		}
	}
}

// Drivers of some network cards get checksums of encapsulated packets wrong.
func TestChecksumOffloadCanBeTurnedOff(t *testing.T) {
	w := newWorld(t)
	cfg := config()
	cfg.Layout.ChecksumOffload = false
	w.start(t, cfg)
	w.reach(t, routed, 50)
	for _, h := range w.nodes {
		h.stop()
		h.start(t, cfg, w.list())
		if got := h.fabric.Counts(); got.Sets != 0 {
			t.Errorf("node %s: got %+v, want no operation: it is off already", h.node.Name, got)
		}
	}
}

// D17: a machine that begins to forward IPv6 forgets the default route that it learned
// from a router advertisement, unless it is told to obey them all the same.
func TestD17_DefaultRouteOfAnAdvertisementStays(t *testing.T) {
	w := newWorld(t)
	a := w.nodes[0]
	a.ns.Sysctl(t, "net.ipv6.conf.all.forwarding", "0")
	a.ns.Run(t, "ip", "-6", "route", "del", "default")
	if got := strings.TrimSpace(a.ns.Run(t, "cat", "/proc/sys/net/ipv6/conf/eth0/accept_ra")); got != "1" {
		t.Fatalf("accept_ra of a new device is %s", got)
	}
	learned := func() error {
		if got := a.ns.Run(t, "ip", "-6", "route", "show", "default"); !strings.Contains(got, "proto ra") {
			return fmt.Errorf("default routes are %q, want one of an advertisement", got)
		}
		return nil
	}
	wired.Eventually(t, func() error { advertise(t, w, "br0"); return learned() })
	cfg := config()
	cfg.Verify = 200 * time.Millisecond
	a.start(t, cfg, w.list())
	a.quiet(t)
	if err := learned(); err != nil {
		t.Error(err)
	}
	for key, want := range map[string]string{"all/forwarding": "1", "eth0/accept_ra": "2", "onepod-a/accept_ra": "1"} {
		a.waitFor(t, "net/ipv6/conf/"+key, want)
	}
	// The kernel tells nobody of a change of this one.
	a.ns.Sysctl(t, "net.ipv6.conf.eth0.accept_ra", "1")
	a.waitFor(t, "net/ipv6/conf/eth0/accept_ra", "2")
	if got := a.changed(); !slices.Equal(got, []string{"accept_ra"}) {
		t.Errorf("told were %q, want accept_ra", got)
	}
}

// Each link has its own, of which one counts; the kernel drops them all.
func TestD17_DefaultRoutesOfAllLinksStay(t *testing.T) {
	w := newWorld(t)
	a := w.nodes[0]
	a.ns.Sysctl(t, "net.ipv6.conf.all.forwarding", "0")
	a.ns.Run(t, "ip", "-6", "route", "del", "default")
	netns.Wire(t, a.ns, "eth1", w.router, "second")
	netns.Wire(t, a.ns, "eth2", w.router, "third")
	learned := func() error {
		got := a.ns.Run(t, "ip", "-6", "route", "show", "default", "proto", "ra")
		if !strings.Contains(got, "dev eth0") || !strings.Contains(got, "dev eth1") {
			return fmt.Errorf("default routes are %q, want one of each link", got)
		}
		return nil
	}
	wired.Eventually(t, func() error { advertise(t, w, "br0"); advertise(t, w, "second"); return learned() })
	a.start(t, config(), w.list())
	a.quiet(t)
	if err := learned(); err != nil {
		t.Error(err)
	}
	for key, want := range map[string]string{"eth0": "2", "eth1": "2", "eth2": "1", "onepod-a": "1"} {
		a.waitFor(t, "net/ipv6/conf/"+key+"/accept_ra", want)
	}
}

// waitFor waits until a setting has a value.
func (h *host) waitFor(t *testing.T, key, want string) {
	t.Helper()
	wired.Eventually(t, func() error {
		if got := strings.TrimSpace(h.ns.Run(t, "cat", "/proc/sys/"+key)); got != want {
			return fmt.Errorf("%s is %s, want %s", key, got, want)
		}
		return nil
	})
}

// advertise sends a router advertisement (RFC 4861) that the router is a default router,
// by a device of it.
func advertise(t *testing.T, w *world, dev string) {
	t.Helper()
	const lifetime = 1800
	ra := make([]byte, 16)
	ra[0], ra[4] = 134, 64
	binary.BigEndian.PutUint16(ra[6:], lifetime)
	err := w.router.Do(func() error {
		link, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		if err := unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_MULTICAST_HOPS, 255); err != nil {
			return err
		}
		allNodes := netip.MustParseAddr("ff02::1").As16()
		return unix.Sendto(fd, ra, 0, &unix.SockaddrInet6{Addr: allNodes, ZoneId: uint32(link.Index)})
	})
	if err != nil {
		t.Logf("advertise: %v", err) // the device has no address to send it from at first
	}
}
