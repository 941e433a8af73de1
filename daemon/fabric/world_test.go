package fabric_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"golang.org/x/sys/unix"

	"onerule/daemon/fabric"
	"onerule/daemon/fabric/layout"
	"onerule/test/netns"
)

// The addressing plan: nodes a and b are on one layer 2, c is behind a router, which
// knows nothing of pods.
//
//	       br0 172.16.1.254        172.16.2.254
//	a .1 ──┤  router                     ├── .1 c
//	b .2 ──┘  fd00:16:1::fe  fd00:16:2::fe
const (
	echoPort = 7
	patience = 10 * time.Second
)

type world struct {
	router *netns.NS
	nodes  []*host
}

// A host is a node with a pod.
type host struct {
	node   layout.Node
	ns     *netns.NS
	pod    *netns.NS
	router string // its device at the router

	fabric   *fabric.Fabric
	stop     func()
	mu       sync.Mutex
	foreign  []string
	problems []layout.Problem
}

func (h *host) podAddrs() []netip.Addr {
	var list []netip.Addr
	for _, p := range h.node.PodCIDRs {
		list = append(list, p.Addr().Next().Next())
	}
	return list
}

func prefixes(list ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range list {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

func addrs(list ...string) []netip.Addr {
	var as []netip.Addr
	for _, s := range list {
		as = append(as, netip.MustParseAddr(s))
	}
	return as
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{router: newNS(t, "router")}
	w.router.Run(t, "ip", "link", "add", "br0", "type", "bridge")
	w.router.Run(t, "ip", "link", "set", "br0", "up")
	w.router.Addr(t, "br0", "172.16.1.254/24", "fd00:16:1::fe/64")
	w.router.Forward(t)
	for i, name := range []string{"a", "b", "c"} {
		network, number := 1, i+1
		if name == "c" {
			network, number = 2, 1
		}
		w.nodes = append(w.nodes, w.newHost(t, name, network, number, i+1))
	}
	return w
}

// newNS makes a namespace whose devices look for no duplicates of their addresses: until
// that is over, a router can't ask for neighbours.
func newNS(t *testing.T, name string) *netns.NS {
	t.Helper()
	ns := netns.New(t, name)
	ns.Sysctl(t, "net.ipv6.conf.default.accept_dad", "0")
	ns.Sysctl(t, "net.ipv6.conf.default.dad_transmits", "0")
	return ns
}

func (w *world) newHost(t *testing.T, name string, network, number, cidr int) *host {
	t.Helper()
	h := &host{ns: newNS(t, name), pod: newNS(t, "pod-"+name), router: "to-" + name}
	h.node = layout.Node{
		Name:     name,
		Created:  int64(cidr),
		PodCIDRs: prefixes(fmt.Sprintf("10.1.%d.0/24", cidr), fmt.Sprintf("fd00:1:0:%d::/112", cidr)),
		Addrs:    addrs(fmt.Sprintf("172.16.%d.%d", network, number), fmt.Sprintf("fd00:16:%d::%d", network, number)),
	}
	netns.Wire(t, h.ns, "eth0", w.router, h.router)
	if network == 1 {
		w.router.Run(t, "ip", "link", "set", h.router, "master", "br0")
	} else {
		w.router.Addr(t, h.router, "172.16.2.254/24", "fd00:16:2::fe/64")
	}
	h.ns.Addr(t, "eth0", h.node.Addrs[0].String()+"/24", h.node.Addrs[1].String()+"/64")
	h.ns.Route(t, "default", fmt.Sprintf("172.16.%d.254", network))
	h.ns.Route(t, "default", fmt.Sprintf("fd00:16:%d::fe", network))
	h.wirePod(t)
	return h
}

// wirePod wires the pod as the plugin does.
func (h *host) wirePod(t *testing.T) {
	t.Helper()
	link := "onepod-" + h.node.Name
	netns.Wire(t, h.ns, link, h.pod, "eth0")
	mac := strings.Fields(h.ns.Run(t, "ip", "-br", "link", "show", "dev", link))[2]
	h.ns.Addr(t, link, "fe80::1/64")
	for i, a := range h.podAddrs() {
		h.pod.Addr(t, "eth0", netip.PrefixFrom(a, a.BitLen()).String())
		gateway := []string{"169.254.1.1", "fe80::1"}[i]
		h.pod.Run(t, "ip", "neigh", "add", gateway, "lladdr", mac, "dev", "eth0", "nud", "permanent")
		h.pod.Run(t, "ip", "route", "add", "default", "via", gateway, "dev", "eth0", "onlink")
		h.ns.Run(t, "ip", "route", "add", a.String(), "dev", link, "proto", "111")
		h.echo(t, netip.AddrPortFrom(a, echoPort))
	}
}

// echo sends back what comes, by TCP and by UDP.
func (h *host) echo(t *testing.T, at netip.AddrPort) {
	t.Helper()
	var l net.Listener
	var c net.PacketConn
	err := h.pod.Do(func() (err error) {
		if l, err = net.Listen("tcp", at.String()); err != nil {
			return err
		}
		c, err = net.ListenPacket("udp", at.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = l.Close(), c.Close() })
	go func() { // ends when l is closed
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	go func() { // ends when c is closed
		buf := make([]byte, 1<<16)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(buf[:n], from)
		}
	}()
}

// config is that of every node, as far as a test does not say otherwise.
func config() fabric.Config { return fabric.Defaults() }

// start runs the daemon's part on a node, until the test ends or stop is called.
func (h *host) start(t *testing.T, cfg fabric.Config, nodes []layout.Node) {
	t.Helper()
	cfg.Log = testr.New(t)
	cfg.Foreign = func(kind, note string) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.foreign = append(h.foreign, kind)
		t.Logf("%s: foreign %s: %s", h.node.Name, kind, note)
	}
	cfg.Problems = func(list []layout.Problem) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.problems = list
	}
	h.foreign = nil
	h.fabric = fabric.New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	f := h.fabric
	go func() { ended <- h.ns.Do(func() error { return f.Run(ctx) }) }() // ends with ctx
	h.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("node %s: %v", h.node.Name, err)
		}
	})
	t.Cleanup(h.stop)
	if nodes != nil {
		h.fabric.Set(h.node.Name, nodes)
		h.settle(t)
	}
}

// settle waits until all is as wanted.
func (h *host) settle(t *testing.T) {
	t.Helper()
	eventually(t, func() error {
		if err := h.fabric.Err(); err != nil {
			return fmt.Errorf("node %s: %w", h.node.Name, err)
		}
		return nil
	})
}

func (h *host) changed() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.foreign)
}

func (h *host) wrong() []layout.Problem {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.problems)
}

func (w *world) list() []layout.Node {
	var list []layout.Node
	for _, h := range w.nodes {
		list = append(list, h.node)
	}
	return list
}

func (w *world) start(t *testing.T, cfg fabric.Config) {
	t.Helper()
	for _, h := range w.nodes {
		h.start(t, cfg, w.list())
	}
}

// eventually polls until there is no error any more.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	if err := within(patience, f); err != nil {
		t.Fatal(err)
	}
}

func within(limit time.Duration, f func() error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(limit)
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-deadline:
			return err
		}
	}
}

// headers gives how many bytes of a UDP packet are not payload.
func headers(a netip.Addr) int {
	if a.Is4() {
		return 28
	}
	return 48
}

// ask sends a UDP packet of so many bytes, which may not be fragmented, and waits for its
// echo. It gives the MTU of the way as the sender knows it afterwards.
func ask(from *netns.NS, to netip.Addr, size int, limit time.Duration) (mtu int, err error) {
	err = from.Do(func() error {
		conn, err := net.Dial("udp", netip.AddrPortFrom(to, echoPort).String())
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(limit))
		if err := forbidFragments(conn.(*net.UDPConn), to); err != nil {
			return err
		}
		sent := bytes.Repeat([]byte{0xa5}, size-headers(to))
		_, err = conn.Write(sent)
		if err == nil {
			got := make([]byte, size+1)
			var n int
			if n, err = conn.Read(got); err == nil && !bytes.Equal(got[:n], sent) {
				err = fmt.Errorf("%d bytes came back of %d", n, len(sent))
			}
		}
		mtu = pathMTU(conn.(*net.UDPConn), to)
		return err
	})
	if err != nil {
		err = fmt.Errorf("%d bytes from %s to %s: %w", size, from.Name(), to, err)
	}
	return mtu, err
}

func forbidFragments(conn *net.UDPConn, to netip.Addr) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	ctlErr := raw.Control(func(fd uintptr) {
		if to.Is4() {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		} else {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
		}
	})
	return errors.Join(ctlErr, err)
}

func pathMTU(conn *net.UDPConn, to netip.Addr) (mtu int) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if to.Is4() {
			mtu, _ = unix.GetsockoptInt(int(fd), unix.SOL_IP, unix.IP_MTU)
		} else {
			mtu, _ = unix.GetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_MTU)
		}
	})
	return mtu
}

// transfer sends much by TCP, and reads all of it back.
func transfer(from *netns.NS, to netip.Addr) error {
	const amount = 300_000
	err := from.Do(func() error {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, echoPort).String(), patience)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(patience))
		wrote := make(chan error, 1)
		go func() { // ends with the connection
			_, err := conn.Write(make([]byte, amount))
			wrote <- errors.Join(err, conn.(*net.TCPConn).CloseWrite())
		}()
		n, err := io.Copy(io.Discard, conn)
		if err := errors.Join(err, <-wrote); err != nil || n != amount {
			return fmt.Errorf("%d bytes came back of %d: %w", n, amount, err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("tcp from %s to %s: %w", from.Name(), to, err)
	}
	return nil
}
