package guard_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"onerule/nft"
	"onerule/nft/guard"
	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/wired"
)

const (
	vxlanPort = 8472
	vni       = 111
	// servicePort is where Services and NodePorts are that lead to the port of VXLAN.
	servicePort = 31000
)

// An end is a node with a VXLAN device and the guard.
type end struct {
	ns      *netns.NS
	uplink  netip.Addr
	first   netip.Addr // of the device
	pod     netip.Addr // that frames are forged to
	mac     net.HardwareAddr
	program *guard.Program
}

// A tunnel is two nodes with VXLAN between them, and a pod on the other one.
type tunnel struct {
	*wired.World
	plan       addr.Plan
	family     nft.Family
	here, away *end
	elsewhere  *netns.NS // has OtherPod(1)
}

// newTunnel makes one whose guards do not look at VXLAN.
func newTunnel(t *testing.T, f nft.Family, p addr.Plan) *tunnel {
	t.Helper()
	w := &tunnel{World: wired.New(t, 2), plan: p, family: f, elsewhere: netns.New(t, "pod elsewhere")}
	w.here = &end{ns: w.Node, uplink: p.Node(), first: p.NodePods.Addr(), pod: p.Pod(1), mac: net.HardwareAddr{2, 0, 0, 0, 1, 1}}
	w.away = &end{ns: w.Outside, uplink: p.Outside(), first: p.OtherPods.Addr(), pod: p.OtherPod(0), mac: net.HardwareAddr{2, 0, 0, 0, 2, 2}}
	w.here.connect(t, w.away)
	w.away.connect(t, w.here)
	w.wireElsewhere(t)
	for _, e := range []*end{w.here, w.away} {
		e.ns.Forward(t)
		e.count(t, f)
		e.program = open(t, e.ns, f)
		e.program.VXLAN(0)
		load(t, e.ns, e.program, w.ranges(e))
	}
	return w
}

func (w *tunnel) ranges(e *end) guard.Ranges {
	own, others := w.plan.NodePods, w.plan.OtherPods
	if e == w.away {
		own, others = others, own
	}
	return guard.Ranges{Pods: []netip.Prefix{own}, AllPods: []netip.Prefix{others}}
}

// guard has both look at VXLAN. What more is not to be masqueraded counts for both.
func (w *tunnel) guard(t *testing.T, more ...netip.Prefix) {
	t.Helper()
	for _, e := range []*end{w.here, w.away} {
		e.program.VXLAN(vxlanPort)
		want := w.ranges(e)
		want.Cluster = more
		load(t, e.ns, e.program, want)
	}
}

// connect makes the device, by which the first address of the other end is reached.
func (e *end) connect(t *testing.T, to *end) {
	t.Helper()
	const device = "vxlan-onerule"
	e.ns.Run(t, "ip", "link", "add", device, "address", e.mac.String(), "type", "vxlan", "id", fmt.Sprint(vni),
		"local", e.uplink.String(), "remote", to.uplink.String(), "dstport", fmt.Sprint(vxlanPort), "nolearning")
	e.ns.Run(t, "ip", "link", "set", device, "up")
	e.ns.Addr(t, device, netip.PrefixFrom(e.first, e.first.BitLen()).String())
	e.ns.Run(t, "ip", "route", "add", to.first.String(), "dev", device)
	e.ns.Run(t, "ip", "neigh", "add", to.first.String(), "lladdr", to.mac.String(), "dev", device, "nud", "permanent")
}

// count counts what comes out of the tunnel for the pod that frames are forged to.
func (e *end) count(t *testing.T, f nft.Family) {
	t.Helper()
	e.ns.Run(t, "nft", fmt.Sprintf(`table inet observer {
	counter came { }
	chain prerouting {
		type filter hook prerouting priority -300; policy accept;
		iifname "vxlan-onerule" %s daddr %s counter name came
	}
}`, f, e.pod))
}

func (e *end) came(t *testing.T) (n int) {
	t.Helper()
	listing := e.ns.Run(t, "nft", "list", "counter", "inet", "observer", "came")
	_, packets, _ := strings.Cut(listing, "packets ")
	if _, err := fmt.Sscan(packets, &n); err != nil {
		t.Fatalf("read counter: %v in %q", err, listing)
	}
	return n
}

// wireElsewhere gives the other node a pod.
func (w *tunnel) wireElsewhere(t *testing.T) {
	t.Helper()
	const link = "oneffffffffffff"
	pod := w.plan.OtherPod(1)
	netns.Wire(t, w.Outside, link, w.elsewhere, "eth0")
	w.elsewhere.Addr(t, "eth0", netip.PrefixFrom(pod, pod.BitLen()).String())
	w.elsewhere.Run(t, "ip", "route", "add", w.plan.Outside().String(), "dev", "eth0")
	w.elsewhere.Run(t, "ip", "route", "add", "default", "via", w.plan.Outside().String())
	w.elsewhere.Run(t, "ip", "neigh", "add", w.plan.Outside().String(), "lladdr", wired.MAC(t, w.Outside, link).String(), "dev", "eth0")
	w.Outside.Run(t, "ip", "route", "add", pod.String(), "dev", link)
	w.Outside.Run(t, "ip", "neigh", "add", pod.String(), "lladdr", wired.MAC(t, w.elsewhere, "eth0").String(), "dev", link)
}

// lead translates what goes to an address and servicePort, as a Service does.
func (w *tunnel) lead(t *testing.T, on *netns.NS, from, to netip.Addr) {
	t.Helper()
	target := netip.AddrPortFrom(to, vxlanPort)
	table := fmt.Sprintf("%s service-%s", w.family, strings.NewReplacer(".", "-", ":", "-").Replace(from.String()))
	on.Run(t, "nft", fmt.Sprintf(`table %s {
	chain prerouting {
		type nat hook prerouting priority -110; policy accept;
		%s daddr %s udp dport %d dnat to %s
	}
}`, table, w.family, from, servicePort, target))
}

// forged is what a pod sends to the port of VXLAN of an end: a frame with a datagram of a
// pod that does not exist.
func (w *tunnel) forged(to *end) []byte {
	inner := udp(netip.AddrPortFrom(addr.Nth(w.plan.ClusterCIDR, 77), 40000), netip.AddrPortFrom(to.pod, port))
	b := make([]byte, 8)
	b[0] = 8 // a VNI follows
	binary.BigEndian.PutUint32(b[4:], vni<<8)
	b = slices.Concat(b, to.mac, net.HardwareAddr{2, 0, 0, 0, 9, 9})
	kind := uint16(0x0800)
	if w.family == nft.IPv6 {
		kind = 0x86dd
	}
	return append(binary.BigEndian.AppendUint16(b, kind), inner...)
}

// An attack is a forged frame that pod 0 sends, for an end.
type attack struct {
	name   string
	to     netip.AddrPort
	victim *end
	drops  *end // whose guard drops it
}

func (w *tunnel) attacks() []attack {
	at, p := netip.AddrPortFrom, w.plan
	list := []attack{
		{"to its own node", at(p.Node(), vxlanPort), w.here, w.here},
		{"to the device of its own node", at(w.here.first, vxlanPort), w.here, w.here},
		{"to a Service that leads to its own node", at(p.VIP(0), servicePort), w.here, w.here},
		{"to another node", at(p.Outside(), vxlanPort), w.away, w.here},
		{"to a Service that leads to another node", at(p.VIP(1), servicePort), w.away, w.here},
		{"to the device of another node", at(w.away.first, vxlanPort), w.away, w.away},
		{"to a NodePort of another node", at(p.Outside(), servicePort), w.away, w.away},
		{"to a Service of another node that leads back", at(addr.Nth(p.External, 1), servicePort), w.here, w.away},
	}
	if w.family == nft.IPv6 {
		gateway := netip.MustParseAddr("fe80::1").WithZone("eth0")
		list = append(list, attack{"to its gateway", at(gateway, vxlanPort), w.here, w.here})
	}
	return list
}

func (w *tunnel) try(t *testing.T, a attack) {
	t.Helper()
	wired.Do(t, w.Pods[0], func() error {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(a.to))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(w.forged(a.victim))
		return err
	})
}

// comesThrough wants a forged frame to come through, or the rest would prove nothing.
func (w *tunnel) comesThrough(t *testing.T, a attack) {
	t.Helper()
	before := a.victim.came(t)
	w.try(t, a)
	wired.Eventually(t, func() error {
		if a.victim.came(t) == before {
			return fmt.Errorf("without a look at VXLAN nothing comes %s", a.name)
		}
		return nil
	})
}

func (w *tunnel) isDropped(t *testing.T, a attack) {
	t.Helper()
	came, counted := a.victim.came(t), dropped(t, a.drops.ns, a.drops.program)[guard.VXLAN]
	w.try(t, a)
	wired.Eventually(t, func() error {
		if n := dropped(t, a.drops.ns, a.drops.program)[guard.VXLAN]; n != counted+1 {
			return fmt.Errorf("%s counts %d, want %d", guard.VXLAN, n, counted+1)
		}
		return nil
	})
	if n := a.victim.came(t); n != came {
		t.Errorf("%d came through", n-came)
	}
}

// A frame of VXLAN says from which pod it is: whoever may send one is any pod.
func TestPodsSendNothingToThePortOfVXLAN(t *testing.T) {
	each(t, func(t *testing.T, f nft.Family, p addr.Plan) {
		w := newTunnel(t, f, p)
		w.lead(t, w.Node, p.VIP(0), p.Node())
		w.lead(t, w.Node, p.VIP(1), p.Outside())
		w.lead(t, w.Outside, p.Outside(), p.Outside())
		w.lead(t, w.Outside, addr.Nth(p.External, 1), p.Node())
		w.Node.Route(t, p.External.String(), p.Outside().String())
		// As Services do with what comes from outside.
		w.Outside.Run(t, "nft", "table "+f.String()+" leaving { chain postrouting { type nat hook postrouting priority 90; ct status dnat masquerade; }; }")
		for _, a := range w.attacks() {
			w.comesThrough(t, a)
		}
		w.guard(t)
		for _, a := range w.attacks() {
			t.Run(a.name, func(t *testing.T) { w.isDropped(t, a) })
		}
		w.guard(t, p.Uplink)
		for _, a := range w.attacks() {
			t.Run(a.name+", with its own address", func(t *testing.T) { w.isDropped(t, a) })
		}
	})
}

// To pods the port is as any other, and what nodes send themselves passes.
func TestPodsUseThePortOfVXLANAmongThemselves(t *testing.T) {
	each(t, func(t *testing.T, f nft.Family, p addr.Plan) {
		w := newTunnel(t, f, p)
		w.lead(t, w.Node, p.VIP(0), p.Pod(1))
		w.guard(t)
		at := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, vxlanPort) }
		wired.Serve(t, w.Pods[0], "pod 0", at(p.Pod(0)))
		wired.Serve(t, w.Pods[1], "pod 1", at(p.Pod(1)))
		wired.Serve(t, w.Pods[1], "pod 1", netip.AddrPortFrom(p.Pod(1), port))
		wired.Serve(t, w.elsewhere, "pod elsewhere", at(p.OtherPod(1)))
		w.Outside.Run(t, "ip", "route", "add", p.Pod(1).String(), "via", w.here.first.String(), "dev", "vxlan-onerule", "onlink")
		for _, c := range []struct {
			name     string
			on       *netns.NS
			from     netip.Addr
			to       netip.AddrPort
			answerer string
		}{
			{"to a pod here", w.Pods[0], p.Pod(0), at(p.Pod(1)), "pod 1"},
			{"to a Service of a pod here", w.Pods[0], p.Pod(0), netip.AddrPortFrom(p.VIP(0), servicePort), "pod 1"},
			{"to a pod elsewhere", w.Pods[0], p.Pod(0), at(p.OtherPod(1)), "pod elsewhere"},
			{"from a pod elsewhere", w.elsewhere, p.OtherPod(1), at(p.Pod(0)), "pod 0"},
			{"from the node", w.Node, p.Node(), at(p.Pod(0)), "pod 0"},
			{"from another node by VXLAN", w.Outside, w.away.first, netip.AddrPortFrom(p.Pod(1), port), "pod 1"},
		} {
			got, err := wired.Ask(c.on, "udp", netip.AddrPortFrom(c.from, 0), c.to)
			if want := c.answerer + " saw " + c.from.String(); err != nil || got != want {
				t.Errorf("%s: %q, %v, want %q", c.name, got, err, want)
			}
		}
		if n := w.here.came(t); n != 1 {
			t.Errorf("%d came by VXLAN, want 1", n)
		}
		for _, e := range []*end{w.here, w.away} {
			if n := dropped(t, e.ns, e.program)[guard.VXLAN]; n != 0 {
				t.Errorf("%s of %s counts %d", guard.VXLAN, e.ns.Name(), n)
			}
		}
	})
}
