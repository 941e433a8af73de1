package daemon

import (
	"net/netip"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"onerule/bpf"
	"onerule/daemon/config"
	"onerule/daemon/model"
	"onerule/daemon/plan"
	"onerule/localproxy"
	"onerule/nft"
	"onerule/nft/hostport"
	"onerule/test/netns"
)

func TestWhereALoopbackNodePortLeads(t *testing.T) {
	all, local := backends(plan.IPv4, 0, 3), backends(plan.IPv4, 1, 2)
	sticky := plan.ServicePort{Service: model.Name{Name: "web"}}
	for name, c := range map[string]struct {
		of   plan.Decision
		want localproxy.Service
		ok   bool
	}{
		"nobody's":                 {ok: false},
		"A7.2 all endpoints":       {plan.Decision{Endpoints: all, LocalEndpoints: local}, localproxy.Service{Endpoints: all}, true},
		"A7.4 the local ones":      {plan.Decision{Endpoints: all, LocalEndpoints: local, Local: true}, localproxy.Service{Endpoints: local}, true},
		"F10 without a local one":  {plan.Decision{Endpoints: all, Local: true}, localproxy.Service{Endpoints: all}, true},
		"A7.6 without an endpoint": {plan.Decision{Local: true}, localproxy.Service{}, false},
		"A7.5 affinity": {
			plan.Decision{Endpoints: all, Affinity: sticky, AffinitySeconds: 10},
			localproxy.Service{Endpoints: all, Affinity: 10 * time.Second}, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := loopbackService(c.of)
			if diff := cmp.Diff(c.want, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" || ok != c.ok {
				t.Errorf("ok %t, want %t (-want +got): %s", ok, c.ok, diff)
			}
		})
	}
}

// loopbackDaemon gives one that counts, and serves loopback addresses.
func loopbackDaemon(t *testing.T, ns *netns.NS, c *bpf.Counters, families ...nft.Family) *Daemon {
	t.Helper()
	s := testSettings()
	s.NodePortAddresses = config.NodePortAddresses{Localhost: true, All: true}
	var d *Daemon
	err := ns.Do(func() (err error) {
		d, err = New(Config{Settings: s, Families: families, Version: "test", Log: logr.Discard()})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	d.tally.use(c, nil)
	d.HostAddrs(nil)
	d.Synced()
	return d
}

// nodePorts puts a Service with so many NodePorts of UDP into the mailbox.
func nodePorts(d *Daemon, n int) {
	name := model.Name{Namespace: "ns", Name: "web"}
	s := &model.Service{Name: name}
	for _, a := range []string{"10.96.0.1", "fd96::1"} {
		s.ClusterIPs = append(s.ClusterIPs, netip.MustParseAddr(a))
	}
	for i := range uint16(n) {
		s.Ports = append(s.Ports, model.ServicePort{Name: string(rune('a' + i)), Protocol: model.UDP, Port: 80 + i, NodePort: 30000 + i})
	}
	d.Changed(model.Change{Key: model.Key{Kind: model.KindService, Name: name}, Service: s})
}

func refusedIn(t *testing.T, c *bpf.Counters) map[bpf.Reject]uint64 {
	t.Helper()
	got := map[bpf.Reject]uint64{}
	if err := c.Rejects(func(r bpf.Reject, n uint64) { got[r] = n }); err != nil {
		t.Fatal(err)
	}
	return got
}

// What a daemon before this one had refused is counted on for the same NodePorts only.
func TestA7_8RefusalsFollowTheNodePorts(t *testing.T) {
	c, ns := newCounters(t, 0), netns.New(t, "node")
	udp := func(ipv6 bool, port uint16) bpf.Reject {
		return bpf.Reject{IPv6: ipv6, Protocol: uint8(model.UDP), Port: port}
	}
	if err := c.SetRejects([]bpf.Reject{udp(false, 30000), udp(true, 30000), udp(false, 31000), udp(true, 31000)}); err != nil {
		t.Fatal(err)
	}
	d := loopbackDaemon(t, ns, c, nft.IPv4, nft.IPv6)
	t.Cleanup(func() { _ = d.close() })
	for _, step := range []struct {
		ports int
		want  map[bpf.Reject]uint64
	}{
		{2, map[bpf.Reject]uint64{udp(false, 30000): 0, udp(true, 30000): 0, udp(false, 30001): 0, udp(true, 30001): 0}},
		{1, map[bpf.Reject]uint64{udp(false, 30000): 0, udp(true, 30000): 0}},
		{0, map[bpf.Reject]uint64{}},
	} {
		nodePorts(d, step.ports)
		if err := ns.Do(func() error { return d.sync(t.Context()) }); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, refusedIn(t, c)); diff != "" {
			t.Errorf("with %d NodePorts (-want +got): %s", step.ports, diff)
		}
	}
}

// A change of endpoints takes as much whatever other NodePorts are refused.
func TestAChangeOfEndpointsLooksAtNoOtherRefusal(t *testing.T) {
	d := loopbackDaemon(t, netns.New(t, "node"), newCounters(t, 0), nft.IPv4)
	t.Cleanup(func() { _ = d.close() })
	f := plan.Frontend{Family: plan.IPv4, Protocol: model.UDP, Port: 30000}
	keys, out := plan.NewKeys(), plan.Outcome{Decisions: map[plan.Frontend]plan.Decision{f: {}}}
	keys.Frontends[f] = true
	allocations := func(others uint16) float64 {
		for n := range others {
			d.rejects[bpf.Reject{Protocol: uint8(model.UDP), Port: 30000 + n}] = true
		}
		return testing.AllocsPerRun(50, func() { d.serveLoopback(nft.IPv4, keys, out) })
	}
	if few, many := allocations(1), allocations(2000); few != many {
		t.Errorf("%v allocations with one NodePort, %v with 2000", few, many)
	}
}

// A NodePort has the loopback address before a host port of its number, whichever comes
// first, and also while it has no endpoint.
func TestR40NodePortsComeBeforeHostPorts(t *testing.T) {
	ns := netns.New(t, "node")
	d := loopbackDaemon(t, ns, nil, nft.IPv4)
	t.Cleanup(func() { _ = d.close() })
	l, at, pod := d.loopback, netip.MustParseAddrPort("127.0.0.1:8080"), netip.MustParseAddrPort("10.1.0.2:80")
	service := localproxy.Service{Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.1.0.3:80")}}
	port := hostport.Claim{Protocol: hostport.TCP, HostPort: 8080, Pod: pod}
	udp := port
	udp.Protocol = hostport.UDP
	none := func(netip.AddrPort) bool { return false }
	for _, step := range []struct {
		name                 string
		do                   func()
		hostPorts, nodePorts int
	}{
		{"a host port", func() { l.claim([]hostport.Claim{port, udp}) }, 1, 0},
		{"a NodePort of its number", func() { l.take(at, service, true) }, 0, 1},
		{"the host ports are read again", func() { l.claim([]hostport.Claim{port}) }, 0, 1},
		{"the NodePort has no endpoint", func() { l.take(at, localproxy.Service{}, false) }, 0, 0},
		{"the NodePort is gone", func() { l.leave(at) }, 1, 0},
		{"a load that has no NodePort", func() { l.keep(none) }, 1, 0},
		{"a NodePort again", func() { l.take(at, service, true) }, 0, 1},
		{"a load that has none", func() { l.keep(none) }, 1, 0},
		{"only UDP is claimed", func() { l.claim([]hostport.Claim{udp}) }, 0, 0},
		{"a NodePort without a host port", func() { l.take(at, service, true) }, 0, 1},
		{"nothing", func() { l.leave(at) }, 0, 0},
	} {
		if err := ns.Do(func() error { step.do(); return nil }); err != nil {
			t.Fatal(err)
		}
		if h, n := l.hostPorts.Listening(false), l.nodePorts.Listening(false); h != step.hostPorts || n != step.nodePorts {
			t.Fatalf("%s: %d host ports and %d NodePorts are served, want %d and %d", step.name, h, n, step.hostPorts, step.nodePorts)
		}
	}
}
