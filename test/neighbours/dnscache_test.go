// Package neighbours_test runs the real daemon beside what others run on nodes.
package neighbours_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/netns"
	"onerule/test/oracle"
	"onerule/test/rig"
)

const (
	pods        = 3 // of the node; pod 0 is the client
	dnsPort     = 53
	dnsTarget   = 8053
	metricsPort = 9153
)

// A cache of DNS on the node has the ClusterIP of the DNS Service and a link-local
// address, and takes what is sent to these out of tracking: pods and the node go on to
// reach it at both, before oneruled is there, with it, and after it; the Service's other
// port, and the same Service from outside, lead to its endpoints.
func TestANodeLocalDNSCacheKeepsItsTraffic(t *testing.T) {
	w := newWorld(t)
	w.reachCache(t, "before oneruled")
	d := rig.New(t, w.h.Node, "--cluster-cidr", fmt.Sprintf("%s,%s", addr.IPv4().ClusterCIDR, addr.IPv6().ClusterCIDR))
	for _, p := range addr.Both() {
		d.Write("dns-"+familyOf(p)+".yaml", dnsService(p), rig.Slice("dns-"+familyOf(p)+"-1", "dns-"+familyOf(p), endpoints(p), "dns/UDP/8053", "dns-tcp/TCP/8053", "metrics/TCP/8053"))
	}
	d.Run()
	d.AwaitHealthy()
	with := func(when string) {
		w.reachCache(t, when)
		w.reachEndpoints(t, when)
	}
	with("with oneruled")
	w.loadNotrack(t) // the cache starts again: its rules are behind ours
	with("with the rules of the cache loaded last")
	d.Stop()
	d.Run()
	d.AwaitHealthy()
	with("after a restart of oneruled")
	w.h.Node.Run(t, "nft", "delete table inet nodelocaldns")
	w.h.Forget(t)
	for _, p := range addr.Both() {
		w.sees(t, "without the rules of the cache the Service answers", hosts.Clients(p)[0], p.VIP(0), model.UDP, dnsPort, endpointsAt(p, false))
	}
}

// A world is a node with a cache, and the endpoints of the DNS Service behind it.
type world struct{ h *hosts.Hosts }

// newWorld gives the cache its addresses on a link of its own, and starts it.
func newWorld(t *testing.T) *world {
	w := &world{hosts.New(t, pods, dnsTarget)}
	// A link with nobody behind it; not every kernel has those of type dummy.
	netns.Wire(t, w.h.Node, "nodelocaldns", netns.New(t, "nobody"), "eth0")
	for _, p := range addr.Both() {
		for _, a := range cacheAddrs(p) {
			w.h.Node.Addr(t, "nodelocaldns", netip.PrefixFrom(a, a.BitLen()).String())
			w.h.ServeOn(t, w.h.Node, netip.AddrPortFrom(a, dnsPort))
		}
	}
	w.loadNotrack(t)
	return w
}

// cacheAddrs are the ClusterIP of the DNS Service and an address of the cache's own.
func cacheAddrs(p addr.Plan) []netip.Addr {
	if p.VIP(0).Is4() {
		return []netip.Addr{p.VIP(0), netip.MustParseAddr("169.254.20.10")}
	}
	return []netip.Addr{p.VIP(0), netip.MustParseAddr("fd00:169:254::20:10")}
}

// endpoints are a pod of the node and one of the other node.
func endpoints(p addr.Plan) []netip.Addr { return []netip.Addr{p.Pod(1), p.OtherPod(0)} }

// loadNotrack loads the rules of the cache anew, behind all others.
func (w *world) loadNotrack(t *testing.T) {
	t.Helper()
	var to, from strings.Builder
	for _, p := range addr.Both() {
		ip := map[bool]string{true: "ip", false: "ip6"}[p.VIP(0).Is4()]
		for _, a := range cacheAddrs(p) {
			fmt.Fprintf(&to, "%s daddr %s th dport 53 notrack\n", ip, a)
			fmt.Fprintf(&from, "%s saddr %s th sport 53 notrack\n", ip, a)
		}
	}
	text := "add table inet nodelocaldns\ndelete table inet nodelocaldns\ntable inet nodelocaldns {\n" +
		"chain prerouting { type filter hook prerouting priority raw\n" + to.String() + "}\n" +
		"chain output { type filter hook output priority raw\n" + to.String() + from.String() + "}\n}"
	w.h.Node.Run(t, "nft", text)
	w.h.Forget(t)
}

func dnsService(p addr.Plan) string {
	return rig.Service("dns-"+familyOf(p), []netip.Addr{p.VIP(0)}, "dns/UDP/53", "dns-tcp/TCP/53", "metrics/TCP/9153")
}

func familyOf(p addr.Plan) string {
	if p.VIP(0).Is4() {
		return "ipv4"
	}
	return "ipv6"
}

// reachCache checks that pods and the node are answered by the cache, at the address
// that they ask, and are seen by it as they are.
func (w *world) reachCache(t *testing.T, when string) {
	t.Helper()
	for _, p := range addr.Both() {
		for _, client := range hosts.Clients(p)[:2] {
			for _, a := range cacheAddrs(p) {
				for _, proto := range []model.Protocol{model.UDP, model.TCP} {
					w.sees(t, when, client, a, proto, dnsPort, oracle.Outcome{Verdict: oracle.Reached, Arrivals: []oracle.Arrival{{Endpoint: netip.AddrPortFrom(a, dnsPort)}}})
				}
			}
		}
	}
}

// reachEndpoints checks the Service's other port.
func (w *world) reachEndpoints(t *testing.T, when string) {
	t.Helper()
	for _, p := range addr.Both() {
		for _, client := range hosts.Clients(p) {
			w.sees(t, when, client, p.VIP(0), model.TCP, metricsPort, endpointsAt(p, client.From != oracle.Pod))
		}
	}
}

// endpointsAt says that the Service's endpoints are reached.
func endpointsAt(p addr.Plan, masqueraded bool) oracle.Outcome {
	want := oracle.Outcome{Verdict: oracle.Reached}
	for _, e := range endpoints(p) {
		want.Arrivals = append(want.Arrivals, oracle.Arrival{Endpoint: netip.AddrPortFrom(e, dnsTarget), Masqueraded: masqueraded})
	}
	return want
}

func (w *world) sees(t *testing.T, when string, client oracle.Packet, to netip.Addr, proto model.Protocol, port uint16, want oracle.Outcome) {
	t.Helper()
	client.Dst, client.Protocol, client.Port = to, proto, port
	wrong, err := w.h.Check(client, want, hosts.Patience)
	if err != nil || wrong != "" {
		t.Errorf("%s: from %s to %s %s: %s, %v", when, client.From, netip.AddrPortFrom(to, port), proto, wrong, err)
	}
}
