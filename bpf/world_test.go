package bpf_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"golang.org/x/sys/unix"

	"onerule/bpf"
	"onerule/test/netns"
)

// A world is a node that translates, a client outside and a pod, in one family: the node
// sends 10.96.0.1 and .2 to the pod, .3 to itself, and port 30080 of any of its addresses
// to the pod; for IPv6 the same with fd96::.
type world struct {
	ipv6              bool
	node, client, pod *netns.NS
}

const (
	tcp = unix.IPPROTO_TCP
	udp = unix.IPPROTO_UDP
)

func (w world) address(v4, v6 string) netip.Addr {
	if w.ipv6 {
		return netip.MustParseAddr(v6)
	}
	return netip.MustParseAddr(v4)
}

func (w world) vip(n int) netip.Addr {
	return w.address(fmt.Sprintf("10.96.0.%d", n), fmt.Sprintf("fd96::%d", n))
}

func (w world) podAddr() netip.Addr  { return w.address("10.0.1.2", "fd01::2") }
func (w world) nodeAddr() netip.Addr { return w.address("10.0.0.1", "fd00::1") }

func newWorld(t *testing.T, ipv6 bool) world {
	w := world{ipv6, netns.New(t, "node"), netns.New(t, "client"), netns.New(t, "pod")}
	for _, host := range []*netns.NS{w.node, w.client, w.pod} {
		host.Run(t, "sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0")
	}
	netns.Wire(t, w.node, "outside", w.client, "eth0")
	netns.Wire(t, w.node, "inside", w.pod, "eth0")
	for _, host := range []struct {
		ns       *netns.NS
		dev      string
		v4, v6   string
		via4via6 [2]string
	}{
		{w.node, "outside", "10.0.0.1/24", "fd00::1/64", [2]string{}},
		{w.node, "inside", "10.0.1.1/24", "fd01::1/64", [2]string{}},
		{w.client, "eth0", "10.0.0.2/24", "fd00::2/64", [2]string{"10.0.0.1", "fd00::1"}},
		{w.pod, "eth0", "10.0.1.2/24", "fd01::2/64", [2]string{"10.0.1.1", "fd01::1"}},
	} {
		address, via := host.v4, host.via4via6[0]
		if ipv6 {
			address, via = host.v6, host.via4via6[1]
		}
		host.ns.Run(t, "ip", "link", "set", host.dev, "up")
		args := []string{"address", "add", address, "dev", host.dev}
		if ipv6 {
			args = append(args, "nodad")
		}
		host.ns.Run(t, "ip", args...)
		if via != "" {
			host.ns.Run(t, "ip", "route", "add", "default", "via", via)
		}
	}
	for _, family := range []string{"-4", "-6"} { // for addresses that are nobody's
		w.node.Run(t, "ip", family, "route", "add", "default", "dev", "lo")
	}
	w.node.Run(t, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
	w.translate(t)
	return w
}

// translate loads what the Service tables would.
func (w world) translate(t *testing.T) {
	family, reject := "ip", "reject"
	if w.ipv6 {
		family = "ip6"
	}
	to := func(a netip.Addr) string {
		if w.ipv6 {
			return "[" + a.String() + "]"
		}
		return a.String()
	}
	rules := strings.NewReplacer("$F", family, "$POD", to(w.podAddr()), "$NODE", to(w.nodeAddr()),
		"$V1", w.vip(1).String(), "$V2", w.vip(2).String(), "$V3", w.vip(3).String(),
		"$LO", w.address("127.0.0.1", "::1").String(), "$REJECT", reject)
	script := filepath.Join(t.TempDir(), "rules.nft")
	text := rules.Replace(`table $F t {
	chain services {
		$F daddr { $V1, $V2 } tcp dport 80 dnat to $POD:8080
		$F daddr { $V1, $V2 } udp dport 80 dnat to $POD:8080
		$F daddr $V3 tcp dport 80 dnat to $NODE:9090
		$F daddr $LO udp dport 30053 $REJECT
		fib daddr type local tcp dport 30080 dnat to $POD:8080
	}
	chain in { type nat hook prerouting priority -110; jump services; }
	chain out { type nat hook output priority -110; jump services; }
}
`)
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w.node.Run(t, "nft", "-f", script)
}

// serve accepts connections at an address until the test ends.
func serve(t *testing.T, ns *netns.NS, at netip.AddrPort) {
	t.Helper()
	var l net.Listener
	do(t, ns, func() (err error) {
		l, err = net.Listen("tcp", at.String())
		return err
	})
	t.Cleanup(func() { _ = l.Close() })
	go func() { // ends with the listener
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
}

// swallow takes datagrams at an address until the test ends, and says nothing.
func swallow(t *testing.T, ns *netns.NS, at netip.AddrPort) {
	t.Helper()
	do(t, ns, func() error {
		conn, err := net.ListenPacket("udp", at.String())
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() })
		}
		return err
	})
}

func do(t *testing.T, ns *netns.NS, f func() error) {
	t.Helper()
	if err := ns.Do(f); err != nil {
		t.Fatal(err)
	}
}

// connect makes connections, one after the other, that the other end closes first: so
// their ports are free at once.
func connect(t *testing.T, ns *netns.NS, to netip.AddrPort, n int) {
	t.Helper()
	if err := connects(ns, to, n); err != nil {
		t.Fatal(err)
	}
}

func connects(ns *netns.NS, to netip.AddrPort, n int) error {
	return ns.Do(func() error {
		for range n {
			conn, err := net.DialTimeout("tcp", to.String(), 10*time.Second)
			if err != nil {
				return err
			}
			_, err = conn.Read(make([]byte, 1))
			if _ = conn.Close(); !errors.Is(err, io.EOF) {
				return err
			}
		}
		return nil
	})
}

// send sends datagrams from one socket.
func send(t *testing.T, ns *netns.NS, to netip.AddrPort, n int) {
	t.Helper()
	do(t, ns, func() error {
		conn, err := net.ListenPacket("udp", "")
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		for range n {
			_, err = conn.WriteTo([]byte("x"), net.UDPAddrFromAddrPort(to))
			if err != nil && !errors.Is(err, unix.EPERM) { // which says that it is refused
				return err
			}
		}
		return nil
	})
}

// open begins to count in a namespace.
func open(t *testing.T, ns *netns.NS, o bpf.Options) *bpf.Counters {
	t.Helper()
	o.IPv6 = true
	if o.Log.GetSink() == nil {
		o.Log = testr.New(t)
	}
	var c *bpf.Counters
	if err := ns.Do(func() (err error) {
		c, err = bpf.Open(o)
		return err
	}); err != nil {
		t.Fatalf("%v\n%s", err, bpf.VerifierLog(err))
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func hits(t *testing.T, c *bpf.Counters) map[bpf.Key]uint64 {
	t.Helper()
	all := map[bpf.Key]uint64{}
	if err := c.Hits(func(k bpf.Key, n uint64) { all[k] = n }); err != nil {
		t.Fatal(err)
	}
	return all
}

func put(t *testing.T, c *bpf.Counters, keys ...bpf.Key) {
	t.Helper()
	if err := c.Put(keys); err != nil {
		t.Fatal(err)
	}
}

func each(t *testing.T, f func(t *testing.T, w world)) {
	for name, ipv6 := range map[string]bool{"ip": false, "ip6": true} {
		t.Run(name, func(t *testing.T) { f(t, newWorld(t, ipv6)) })
	}
}

// unanswered dials for a time without an answer.
func unanswered(t *testing.T, ns *netns.NS, to netip.AddrPort, milliseconds int) {
	t.Helper()
	do(t, ns, func() error {
		conn, err := net.DialTimeout("tcp", to.String(), time.Duration(milliseconds)*time.Millisecond)
		if err == nil {
			_ = conn.Close()
			return fmt.Errorf("%s answered", to)
		}
		return nil
	})
}
