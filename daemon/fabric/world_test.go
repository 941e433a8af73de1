package fabric_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"

	"onerule/daemon/fabric"
	"onerule/daemon/fabric/layout"
	"onerule/test/netns"
	"onerule/test/wired"
)

const (
	echoPort = 7
	patience = wired.Patience
)

// A world is a cluster whose nodes have a pod and run the daemon's part.
type world struct {
	router *netns.NS
	nodes  []*host
}

// A host is a node with a pod.
type host struct {
	*wired.Member
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
	c := wired.NewCluster(t, wired.Dual())
	w := &world{router: c.Router}
	for _, m := range c.Members {
		h := &host{Member: m, ns: m.NS, pod: m.Pod, router: m.Router}
		h.node = layout.Node{Name: m.Name, Created: int64(m.Number), PodCIDRs: m.Ranges, Addrs: m.Addrs}
		h.wirePod(t)
		w.nodes = append(w.nodes, h)
	}
	return w
}

// wirePod wires the pod as the plugin does.
func (h *host) wirePod(t *testing.T) {
	t.Helper()
	link := "onepod-" + h.node.Name
	netns.Wire(t, h.ns, link, h.pod, "eth0")
	mac := wired.MAC(t, h.ns, link).String()
	h.ns.Addr(t, link, "fe80::1/64")
	for i, a := range h.podAddrs() {
		h.pod.Addr(t, "eth0", netip.PrefixFrom(a, a.BitLen()).String())
		gateway := []string{"169.254.1.1", "fe80::1"}[i]
		h.pod.Run(t, "ip", "neigh", "add", gateway, "lladdr", mac, "dev", "eth0", "nud", "permanent")
		h.pod.Run(t, "ip", "route", "add", "default", "via", gateway, "dev", "eth0", "onlink")
		h.ns.Run(t, "ip", "route", "add", a.String(), "dev", link, "proto", "111")
		wired.Echo(t, h.pod, netip.AddrPortFrom(a, echoPort))
	}
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
	wired.Eventually(t, func() error {
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

// ask sends a UDP packet of so many bytes, which may not be fragmented, and waits for its
// echo. It gives the MTU of the way as the sender knows it afterwards.
func ask(from *netns.NS, to netip.Addr, size int, limit time.Duration) (mtu int, err error) {
	return wired.Whole(from, netip.AddrPortFrom(to, echoPort), size, limit)
}

// transfer sends much by TCP, and reads all of it back.
func transfer(from *netns.NS, to netip.Addr) error {
	return wired.Transfer(from, netip.AddrPortFrom(to, echoPort))
}
