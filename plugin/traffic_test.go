package plugin_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"onerule/test/netns"
)

// connect sends a word from one host to an address of another and wants it back,
// and the address that the other end saw.
func connect(t testing.TB, from, to *netns.NS, addr netip.Addr) (client netip.Addr) {
	t.Helper()
	var l net.Listener
	if err := to.Do(func() (err error) { l, err = net.Listen("tcp", netip.AddrPortFrom(addr, 0).String()); return err }); err != nil {
		t.Fatalf("listen in %s: %v", to.Name(), err)
	}
	defer l.Close()
	seen := make(chan netip.AddrPort, 1)
	go func() { // ends with the listener
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		seen <- c.RemoteAddr().(*net.TCPAddr).AddrPort()
		_, _ = io.Copy(c, c)
	}()
	var c net.Conn
	if err := from.Do(func() (err error) { c, err = net.DialTimeout("tcp", l.Addr().String(), 2*time.Second); return err }); err != nil {
		t.Fatalf("connect from %s to %s: %v", from.Name(), to.Name(), err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		t.Fatal(err)
	}
	const word = "through the wire"
	if _, err := io.WriteString(c, word); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(word))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != word {
		t.Fatalf("from %s to %s: got %q, %v", from.Name(), to.Name(), got, err)
	}
	return (<-seen).Addr().Unmap()
}

func TestTraffic(t *testing.T) {
	n := newNode(t)
	// The strictest filter must let through what the node forwards.
	n.Sysctl(t, "net.ipv4.conf.all.rp_filter", "1")
	pods := []*netns.NS{netns.New(t, "a"), netns.New(t, "b")}
	addrs := make([][]netip.Addr, 2)
	for i, pod := range pods {
		addrs[i] = addresses(t, n.added(t, add(pod.Name(), "eth0", pod, n.config("1.1.0", nil))))
		for _, a := range addrs[i] {
			t.Run(fmt.Sprintf("C32, D15: %s can be bound right after ADD", a), func(t *testing.T) {
				if err := pod.Do(func() error {
					l, err := net.Listen("tcp", netip.AddrPortFrom(a, 0).String())
					if err != nil {
						return err
					}
					return l.Close()
				}); err != nil {
					t.Error(err)
				}
			})
		}
	}
	nodeAddrs := []netip.Addr{netip.MustParseAddr(nodeAddr4), netip.MustParseAddr(nodeAddr6)}
	outAddrs := []netip.Addr{netip.MustParseAddr(outAddr4), netip.MustParseAddr(outAddr6)}
	for f, name := range []string{"IPv4", "IPv6"} {
		for _, tc := range []struct {
			from, to           *netns.NS
			fromAddr, toAddr   netip.Addr
			fromName, destName string
		}{
			{pods[0], pods[1], addrs[0][f], addrs[1][f], "pod", "pod"},
			{pods[1], pods[0], addrs[1][f], addrs[0][f], "the other pod", "the first"},
			{n.NS, pods[0], nodeAddrs[f], addrs[0][f], "node", "pod"},
			{pods[0], n.NS, addrs[0][f], nodeAddrs[f], "pod", "node"},
			{pods[0], n.outside, addrs[0][f], outAddrs[f], "pod", "outside"},
			{n.outside, pods[1], outAddrs[f], addrs[1][f], "outside", "pod"},
		} {
			t.Run(fmt.Sprintf("%s from %s to %s", name, tc.fromName, tc.destName), func(t *testing.T) {
				if got := connect(t, tc.from, tc.to, tc.toAddr); got != tc.fromAddr {
					t.Errorf("the client came as %s, want %s", got, tc.fromAddr)
				}
			})
		}
	}
}

func TestNodeWithoutIPv6Address(t *testing.T) {
	n, pod := netns.New(t, "node"), netns.New(t, "pod")
	lone := &node{NS: n, outside: n, dataDir: t.TempDir()}
	addrs := addresses(t, lone.added(t, add("c1", "eth0", pod, lone.config("1.1.0", nil))))
	if got := connect(t, n, pod, addrs[1]); got.WithZone("") != netip.MustParseAddr("fe80::1") {
		t.Errorf("the node came as %s, want fe80::1", got)
	}
}

func TestC32D15PodWithHostileIPv6Defaults(t *testing.T) {
	n := newNode(t)
	pod := netns.New(t, "pod")
	for key, v := range map[string]string{"all.disable_ipv6": "1", "default.disable_ipv6": "1", "all.accept_dad": "1", "default.accept_ra": "2"} {
		pod.Sysctl(t, "net.ipv6.conf."+key, v)
		n.Sysctl(t, "net.ipv6.conf."+strings.Replace(key, "all.disable", "default.disable", 1), v)
	}
	addrs := addresses(t, n.added(t, add("c1", "eth0", pod, n.config("1.1.0", nil))))
	if out := pod.Run(t, "ip", "-6", "addr", "show", "dev", "eth0"); strings.Contains(out, "tentative") {
		t.Errorf("got %s, want nothing tentative", out)
	}
	connect(t, n.NS, pod, addrs[1])
}

func TestTwoInterfaces(t *testing.T) {
	n := newNode(t)
	n.Sysctl(t, "net.ipv4.conf.all.rp_filter", "1")
	pod, peer := netns.New(t, "pod"), netns.New(t, "peer")
	first, second := add("c1", "eth0", pod, n.config("1.1.0", nil)), add("c1", "net1", pod, n.config("1.1.0", nil))
	a, b := addresses(t, n.added(t, first)), addresses(t, n.added(t, second))
	n.added(t, add("c2", "eth0", peer, n.config("1.1.0", nil)))
	for f := range a {
		t.Run(fmt.Sprintf("C29: both answer, family %d", f), func(t *testing.T) {
			if a[f] == b[f] {
				t.Fatalf("both got %s", a[f])
			}
			for _, from := range []*netns.NS{n.NS, peer, n.outside} {
				connect(t, from, pod, a[f])
				connect(t, from, pod, b[f])
			}
		})
	}
	t.Run("C43: CHECK passes for both", func(t *testing.T) {
		for _, c := range []call{first, second} {
			n.succeed(t, n.checkOf(t, c))
		}
	})
	t.Run("C29: released one by one, with the rules of the second", func(t *testing.T) {
		if out := pod.Run(t, "ip", "rule"); !strings.Contains(out, b[0].String()) {
			t.Fatalf("got rules %s", out)
		}
		n.succeed(t, second.as("DEL"))
		for _, f := range []string{"-4", "-6"} {
			if out := pod.Run(t, "ip", f, "rule"); strings.Contains(out, "from 10.1.") || strings.Contains(out, "from fd00") {
				t.Errorf("rules are left: %s", out)
			}
		}
		connect(t, peer, pod, a[0])
		connect(t, peer, pod, a[1])
	})
}

func TestNothingIsHeardFromRouters(t *testing.T) {
	n := newNode(t)
	pod := netns.New(t, "pod")
	r := n.added(t, add("c1", "eth0", pod, n.config("1.1.0", object{"ipam": object{"ranges": [][]object{{{"subnet": podRange4}}}}})))
	for ns, dev := range map[*netns.NS]string{n.NS: r.Interfaces[0].Name, pod: "eth0"} {
		if got := strings.TrimSpace(ns.Run(t, "cat", "/proc/sys/net/ipv6/conf/"+dev+"/accept_ra")); got != "0" {
			t.Errorf("accept_ra of %s in %s: got %s, want 0", dev, ns.Name(), got)
		}
		// Without IPv6 ranges the link speaks no IPv6 at all.
		if out := ns.Run(t, "ip", "-6", "addr", "show", "dev", dev); out != "" {
			t.Errorf("IPv6 addresses of %s: %s", dev, out)
		}
	}
}

func TestD17UplinkKeepsItsAdvertisedRoute(t *testing.T) {
	n := netns.New(t, "node")
	netns.Wire(t, n, "uplink", netns.New(t, "outside"), "eth0")
	n.Addr(t, "uplink", nodeAddr6+"/64")
	// As the kernel does when it hears an advertisement: expires, protocol ra.
	n.Run(t, "ip", "-6", "route", "add", "default", "via", "fe80::99", "dev", "uplink", "proto", "ra", "expires", "600")
	lone := &node{NS: n, outside: n, dataDir: t.TempDir()}
	lone.added(t, add("c1", "eth0", netns.New(t, "pod"), lone.config("1.1.0", nil)))
	if got := strings.TrimSpace(n.Run(t, "cat", "/proc/sys/net/ipv6/conf/uplink/accept_ra")); got != "2" {
		t.Errorf("accept_ra: got %s, want 2", got)
	}
	if out := n.Run(t, "ip", "-6", "route", "show", "default"); !strings.Contains(out, "fe80::99") {
		t.Errorf("the default route is gone: %q", out)
	}
	if got := strings.TrimSpace(n.Run(t, "sysctl", "-n", "net.ipv6.conf.all.forwarding")); got != "1" {
		t.Errorf("forwarding: got %s", got)
	}
}

func TestParallelAdds(t *testing.T) {
	const pods = 30
	n := newNode(t)
	calls := make([]call, pods)
	for i := range calls {
		calls[i] = add(fmt.Sprint("c", i), "eth0", netns.New(t, "pod"), n.config("1.1.0", nil))
	}
	var mu sync.Mutex
	seen := map[netip.Addr]bool{}
	var wg sync.WaitGroup
	for _, c := range calls {
		wg.Go(func() {
			got := addresses(t, n.added(t, c))
			mu.Lock()
			defer mu.Unlock()
			for _, a := range got {
				if seen[a] {
					t.Errorf("%s was given twice", a)
				}
				seen[a] = true
			}
		})
	}
	wg.Wait()
	if len(seen) != 2*pods {
		t.Errorf("got %d addresses, want %d", len(seen), 2*pods)
	}
	t.Run("C41: parallel DELs, each twice", func(t *testing.T) {
		var wg sync.WaitGroup
		for _, c := range append(calls, calls...) {
			wg.Go(func() { n.succeed(t, c.as("DEL")) })
		}
		wg.Wait()
		n.clean(t)
	})
}
