package fabric_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/fabric"
	"onerule/daemon/fabric/layout"
	"onerule/test/wired"
)

// holds gives all that a node's kernel holds between nodes, as people list it.
func (h *host) holds(t *testing.T) string {
	t.Helper()
	var all []string
	for _, args := range []string{
		"ip -4 route show proto 112", "ip -6 route show proto 112", "ip -br link show dev " + layout.DeviceName,
		"ip -br addr show dev " + layout.DeviceName, "bridge fdb show dev " + layout.DeviceName,
		"ip -4 neigh show dev " + layout.DeviceName, "ip -6 neigh show dev " + layout.DeviceName + " nud permanent",
	} {
		f := strings.Fields(args)
		out, err := h.ns.Output(f[0], f[1:]...)
		if err != nil {
			out = args + ": none"
		}
		var lines []string
		for line := range strings.SplitSeq(strings.TrimSpace(out), "\n") {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		slices.Sort(lines)
		all = append(all, lines...)
	}
	return strings.Join(all, "\n")
}

// healed waits until a node is as it was.
func (h *host) healed(t *testing.T, before string) {
	t.Helper()
	wired.Eventually(t, func() error {
		if diff := cmp.Diff(before, h.holds(t)); diff != "" {
			return fmt.Errorf("node %s (-before +now):\n%s", h.node.Name, diff)
		}
		return nil
	})
}

func TestForeignChangesArePutRight(t *testing.T) {
	w := newWorld(t)
	w.start(t, config())
	a, b, c := w.nodes[0], w.nodes[1], w.nodes[2]
	reaches := func(t *testing.T) {
		t.Helper()
		for _, to := range slices.Concat(b.podAddrs(), c.podAddrs()) {
			wired.Eventually(t, func() error { _, err := ask(a.pod, to, 1450, time.Second); return err })
		}
	}
	reaches(t)
	before := a.holds(t)
	macC := layout.DeviceMAC("c").String()
	const dev = layout.DeviceName
	var repairs wired.Repairs
	for _, test := range []struct{ name, command, kind string }{
		{"D11 all IPv4 routes", "ip route flush proto 112", "route"},
		{"D11 all IPv6 routes", "ip -6 route flush proto 112", "route"},
		{"D11 one route", "ip route del 10.1.3.0/24", "route"},
		{"D11 a route replaced in its place", "ip route replace 10.1.2.0/24 via 172.16.1.254 metric 112 proto static", "route"},
		{"D11 a route added as ours", "ip route add 10.77.0.0/24 via 172.16.1.254 metric 112 proto 112", "route"},
		{"D20 the MTU of a route", "ip route replace 10.1.3.0/24 via 10.1.3.0 dev " + dev + " onlink metric 112 proto 112 mtu 1200", "route"},
		{"D10 one neighbour", "ip neigh del 10.1.3.0 dev " + dev, "neighbour"},
		{"D10 a neighbour's MAC", "ip neigh replace 10.1.3.0 lladdr 02:00:00:00:00:01 dev " + dev + " nud permanent", "neighbour"},
		{"D10 all neighbours", "ip neigh flush dev " + dev + " nud permanent", "neighbour"},
		{"a forwarding entry", "bridge fdb del " + macC + " dev " + dev, "forwarding entry"},
		{"a forwarding entry to elsewhere", "bridge fdb replace " + macC + " dev " + dev + " dst 172.16.1.9 self permanent", "forwarding entry"},
		{"a forwarding entry that floods", "bridge fdb add 00:00:00:00:00:00 dev " + dev + " dst 172.16.1.9", "forwarding entry"},
		{"an address", "ip addr del 10.1.1.0/32 dev " + dev, "address"},
		{"all addresses", "ip addr flush dev " + dev, "address"},
		{"the device deleted", "ip link del " + dev, "link"},
		{"the device down", "ip link set " + dev + " down", "link"},
		{"D10 the device's MAC", "ip link set " + dev + " address 02:00:00:00:00:07", "link"},
		{"D20 the device's MTU", "ip link set " + dev + " mtu 1300", "link"},
	} {
		t.Run(test.name, func(t *testing.T) {
			repairs.Try(t, test.name, func() {
				a.told()
				f := strings.Fields(test.command)
				a.ns.Run(t, f[0], f[1:]...)
				wired.Eventually(t, func() error {
					if got := a.changed(); !slices.Contains(got, test.kind) {
						return fmt.Errorf("told were %q, want %q", got, test.kind)
					}
					return nil
				})
				a.healed(t, before)
			})
			reaches(t)
		})
	}
	repairs.Tell(t)
	t.Run("and then nothing more is done", func(t *testing.T) { a.quiet(t) })
}

// told forgets what was told so far.
func (h *host) told() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.foreign = nil
}

// quiet waits for some time in which nothing is done.
func (h *host) quiet(t *testing.T) {
	t.Helper()
	tick := time.NewTicker(300 * time.Millisecond) // more than it takes to look at what was told
	defer tick.Stop()
	last := h.fabric.Counts()
	for range 20 {
		<-tick.C
		now := h.fabric.Counts()
		if now == last {
			return
		}
		last = now
	}
	t.Errorf("node %s is never at rest: %+v", h.node.Name, last)
}

func TestSettingsArePutRight(t *testing.T) {
	w := newWorld(t)
	a, c := w.nodes[0], w.nodes[2]
	for _, key := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		a.ns.Sysctl(t, key, "0")
	}
	a.ns.Sysctl(t, "net.ipv4.conf.all.rp_filter", "1")
	w.start(t, config())
	reaches := func(t *testing.T) {
		t.Helper()
		for _, to := range c.podAddrs() {
			wired.Eventually(t, func() error { _, err := ask(a.pod, to, 1450, time.Second); return err })
		}
	}
	reaches(t)
	if got := a.changed(); len(got) > 0 {
		t.Errorf("told at the start were %q, want nothing", got)
	}
	dev := layout.DeviceName
	var repairs wired.Repairs
	for _, test := range []struct{ name, key, bad, good, kind string }{
		{"D27 forwarding of the machine", "net/ipv4/ip_forward", "0", "1", "forwarding"},
		{"D27 IPv6 forwarding of the machine", "net/ipv6/conf/all/forwarding", "0", "1", "forwarding"},
		{"D27 forwarding of a pod's link", "net/ipv4/conf/onepod-a/forwarding", "0", "1", "forwarding"},
		{"D27 IPv6 forwarding of a pod's link", "net/ipv6/conf/onepod-a/forwarding", "0", "1", "forwarding"},
		{"D27 forwarding of the uplink", "net/ipv4/conf/eth0/forwarding", "0", "1", "forwarding"},
		{"D27 forwarding of the VXLAN device", "net/ipv4/conf/" + dev + "/forwarding", "0", "1", "forwarding"},
		{"D26 strict rp_filter of the VXLAN device", "net/ipv4/conf/" + dev + "/rp_filter", "1", "2", "rp_filter"},
	} {
		t.Run(test.name, func(t *testing.T) {
			repairs.Try(t, test.name, func() {
				a.told()
				a.ns.Sysctl(t, test.key, test.bad)
				wired.Eventually(t, func() error {
					if told := a.changed(); !slices.Contains(told, test.kind) {
						return fmt.Errorf("told were %q, want %q", told, test.kind)
					}
					return nil
				})
				a.waitFor(t, test.key, test.good)
			})
			reaches(t)
		})
	}
	repairs.Tell(t)
	a.quiet(t)
}

// While a link is down, what would go by it is refused, and VXLAN stays as it is.
func TestALinkThatGoesDown(t *testing.T) {
	w := newWorld(t)
	w.start(t, config())
	a := w.nodes[0]
	before := a.holds(t)
	a.ns.Run(t, "ip", "link", "set", "eth0", "down")
	wired.Eventually(t, func() error {
		now := a.holds(t)
		if !strings.Contains(now, "unreachable 10.1.2.0/24") || !strings.Contains(now, "10.1.3.0/24 via 10.1.3.0 dev "+layout.DeviceName) {
			return fmt.Errorf("while it is down:\n%s", now)
		}
		return nil
	})
	a.ns.Run(t, "ip", "link", "set", "eth0", "up")
	a.ns.Addr(t, "eth0", "fd00:16:1::1/64")
	a.ns.Route(t, "default", "172.16.1.254")
	a.ns.Route(t, "default", "fd00:16:1::fe")
	a.healed(t, before)
	for _, to := range slices.Concat(w.nodes[1].podAddrs(), w.nodes[2].podAddrs()) {
		wired.Eventually(t, func() error { _, err := ask(a.pod, to, 1450, time.Second); return err })
	}
	if got := a.changed(); len(got) > 0 {
		t.Errorf("told were %q, want nothing: nobody touched what is ours", got)
	}
}

// With a link that goes down the kernel drops IPv4 routes and tells nobody. When it is up
// again at once, nothing else has changed.
func TestALinkThatIsDownForAMoment(t *testing.T) {
	w := newWorld(t)
	for _, h := range w.nodes {
		h.node.Addrs, h.node.PodCIDRs = h.node.Addrs[:1], h.node.PodCIDRs[:1]
	}
	w.start(t, config())
	a := w.nodes[0]
	a.quiet(t)
	before := a.holds(t)
	batch := "link set eth0 down\nlink set eth0 up\nroute add default via 172.16.1.254\n"
	a.ns.Run(t, "sh", "-c", "printf '"+batch+"' | ip -batch -")
	a.healed(t, before)
	if _, err := ask(a.pod, w.nodes[1].podAddrs()[0], 1500, patience); err != nil {
		t.Error(err)
	}
}

// D20: what the underlay's MTU becomes counts for pods that run already.
func TestD20_MTUFollowsTheUnderlay(t *testing.T) {
	w := newWorld(t)
	w.start(t, config())
	a, c := w.nodes[0], w.nodes[2]
	w.reach(t, routed, 50)
	for _, h := range w.nodes {
		h.ns.Run(t, "ip", "link", "set", "eth0", "mtu", "1400")
	}
	for _, h := range w.nodes {
		w.router.Run(t, "ip", "link", "set", h.router, "mtu", "1400")
	}
	a.learnsMTU(t, c, 1450, 1350) // what it knows already
	for _, to := range c.podAddrs() {
		wired.Eventually(t, func() error { _, err := ask(a.pod, to, 1350, time.Second); return err })
		if err := transfer(a.pod, to); err != nil {
			t.Error(err)
		}
	}
	if got := a.changed(); len(got) > 0 {
		t.Errorf("told were %q, want nothing: this is no change of ours", got)
	}
}

// The device has the node's address, and is made anew when that changes.
func TestThisNodeHasAnotherAddress(t *testing.T) {
	w := newWorld(t)
	w.start(t, config())
	w.reach(t, routed, 50)
	a := w.nodes[0]
	a.ns.Addr(t, "eth0", "172.16.1.11/24")
	a.node.Addrs = addrs("172.16.1.11", "fd00:16:1::1")
	for _, h := range w.nodes {
		h.fabric.Set(h.node.Name, w.list())
	}
	for _, h := range w.nodes {
		h.quiet(t)
	}
	a.ns.Run(t, "ip", "addr", "del", "172.16.1.1/24", "dev", "eth0")
	a.ns.Addr(t, "eth0", "172.16.1.11/24")
	a.ns.Route(t, "default", "172.16.1.254")
	w.reach(t, routed, 50)
	for _, h := range w.nodes {
		if got := h.changed(); len(got) > 0 && h != a {
			t.Errorf("node %s told of %q: others changed nothing there", h.node.Name, got)
		}
		if strings.Contains(h.holds(t), "172.16.1.1 ") {
			t.Errorf("node %s still has the old address:\n%s", h.node.Name, h.holds(t))
		}
	}
}

func TestCostsOfAChange(t *testing.T) {
	w := newWorld(t)
	cfg := config()
	cfg.Layout.Encapsulation = layout.Always
	w.start(t, cfg)
	a, c := w.nodes[0], &w.nodes[2].node
	a.quiet(t)
	all := a.holds(t)
	steps := []struct {
		name   string
		change func()
		want   fabric.Counts
	}{
		{"the same nodes again", func() {}, fabric.Counts{}},
		{"another address of a node", func() { c.Addrs = addrs("172.16.2.7", "fd00:16:2::1") }, fabric.Counts{Sets: 1, Lookups: 1}},
		{"its old address again", func() { c.Addrs = addrs("172.16.2.1", "fd00:16:2::1") }, fabric.Counts{Sets: 1, Lookups: 1}},
		{"other ranges of a node", func() { c.PodCIDRs = prefixes("10.1.33.0/24", "fd00:1:0:33::/112") }, fabric.Counts{Sets: 4, Deletes: 4}},
		{"its old ranges again", func() { c.PodCIDRs = prefixes("10.1.3.0/24", "fd00:1:0:3::/112") }, fabric.Counts{Sets: 4, Deletes: 4}},
	}
	for _, step := range steps {
		step.change()
		t.Run(step.name, func(t *testing.T) { a.costs(t, w.list(), step.want) })
	}
	if diff := cmp.Diff(all, a.holds(t)); diff != "" {
		t.Errorf("all as in the beginning (-then +now):\n%s", diff)
	}
	t.Run("a node that goes", func(t *testing.T) {
		a.costs(t, w.list()[:2], fabric.Counts{Deletes: 5})
		if now := a.holds(t); strings.Contains(now, "10.1.3.") || strings.Contains(now, layout.DeviceMAC("c").String()) {
			t.Errorf("something is left of it:\n%s", now)
		}
	})
	t.Run("the last other node that goes takes the device along", func(t *testing.T) {
		a.costs(t, w.list()[:1], fabric.Counts{Deletes: 1})
		if now := a.holds(t); !strings.Contains(now, "ip -br link show dev "+layout.DeviceName+": none") || strings.Contains(now, "10.1.2.") {
			t.Errorf("something is left of it:\n%s", now)
		}
	})
}

// costs sets nodes, and compares the operations that it took.
func (h *host) costs(t *testing.T, nodes []layout.Node, want fabric.Counts) {
	t.Helper()
	before := h.fabric.Counts()
	differ := func() string {
		now := h.fabric.Counts()
		got := fabric.Counts{
			Sets: now.Sets - before.Sets, Deletes: now.Deletes - before.Deletes, Settings: now.Settings - before.Settings,
			Reads: now.Reads - before.Reads, Lookups: now.Lookups - before.Lookups, Repairs: now.Repairs - before.Repairs,
		}
		return cmp.Diff(want, got)
	}
	h.fabric.Set(h.node.Name, nodes)
	// A busy machine begins late; and what is right at first may become too much.
	wired.Eventually(t, func() error {
		if diff := differ(); diff != "" {
			return fmt.Errorf("operations (-want +got):\n%s", diff)
		}
		return nil
	})
	h.quiet(t)
	if diff := differ(); diff != "" {
		t.Errorf("operations in the end (-want +got):\n%s", diff)
	}
}
