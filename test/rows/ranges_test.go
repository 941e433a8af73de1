package rows_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/oracle"
)

func contains(text, part string) bool { return strings.Contains(text, part) }

// ranged is a Service of every kind with source ranges, and an endpoint here.
func (w *world) ranged(t *testing.T, p addr.Plan, ranges ...string) {
	t.Helper()
	w.put(t, "web.yaml", outsideService(p, ", loadBalancerSourceRanges: ["+strings.Join(ranges, ", ")+"]"), webSlice(p, here(p)))
}

func quoted(v any) string { return fmt.Sprintf("%q", fmt.Sprint(v)) }

func lbPlaces(p addr.Plan) []place {
	return []place{at(p.BalancerIP(0), model.TCP, 80), at(p.BalancerIP(0), model.UDP, 80)}
}

// allowed is what a client sees that is let in, masqueraded as all that come from
// outside the cluster.
func allowed(p addr.Plan) oracle.Outcome { return reaches(true, here(p)) }

func testSourceRanges(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		half := netip.PrefixFrom(p.Uplink.Addr(), p.Uplink.Bits()+1)
		for name, ranges := range map[string][]string{
			"one":                {quoted(p.Uplink)},
			"with white space":   {fmt.Sprintf("\" %s \"", p.Uplink)},
			"overlapping":        {quoted(p.Uplink), quoted(half)},
			"nested and equal":   {quoted(half), quoted(p.Uplink), quoted(p.Uplink)},
			"one address of all": {quoted(netip.PrefixFrom(p.Outside(), p.Outside().BitLen()))},
		} {
			t.Run(name, func(t *testing.T) {
				w.ranged(t, p, ranges...)
				for _, to := range lbPlaces(p) {
					w.sees(t, hosts.Clients(p)[oracle.Outside], to, allowed(p))
				}
			})
		}
		w.ranged(t, p, quoted(p.Between))
		w.silent(t, hosts.Clients(p)[oracle.Outside:], lbPlaces(p)...)
	})
}

func testAllSources(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.ranged(t, p, quoted(p.Between), quoted(netip.PrefixFrom(addr.Nth(netip.PrefixFrom(p.Uplink.Addr(), 0), 0), 0)))
		w.sees(t, hosts.Clients(p)[oracle.Outside], lbPlaces(p)[0], allowed(p))
	})
}

func testRangesForPodsAndNode(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.ranged(t, p, quoted(p.Between))
		w.silent(t, hosts.Clients(p)[:oracle.Node], lbPlaces(p)...)
		w.ranged(t, p, quoted(p.NodePods))
		w.sees(t, hosts.Clients(p)[oracle.Pod], lbPlaces(p)[0], allowed(p))
	})
}

// A range with the node's address lets in what comes with the load balancer's own.
func testRangeOfTheNode(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "node.yaml", fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s}\nstatus: {addresses: [{type: InternalIP, address: %q}]}\n", addr.NodeName, p.Node()))
		sources := func() string {
			return w.h.Node.Run(t, "nft", "list", "set", nftFamily(p), "onerule", "allowed-sources")
		}
		w.ranged(t, p, quoted(p.Between))
		if out := sources(); contains(out, ". "+p.BalancerIP(0).String()+" ") {
			t.Errorf("the load balancer's address is let in without the node's: %s", out)
		}
		w.ranged(t, p, quoted(p.Uplink))
		if out := sources(); !contains(out, "80 . "+p.BalancerIP(0).String()) {
			t.Errorf("the load balancer's address is not let in: %s", out)
		}
	})
}

func testRangesOfTheOtherFamily(t *testing.T, w *world) {
	v4, v6 := addr.IPv4(), addr.IPv6()
	for p, other := range map[addr.Plan]addr.Plan{v4: v6, v6: v4} {
		w.ranged(t, p, quoted(other.Between))
		w.sees(t, hosts.Clients(p)[oracle.Outside], lbPlaces(p)[0], allowed(p))
	}
}

func testRangesElsewhere(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.ranged(t, p, quoted(p.Between))
		outside := hosts.Clients(p)[oracle.Outside]
		for _, to := range []place{at(p.VIP(0), model.TCP, 80), at(p.ExternalIP(0), model.TCP, 80), at(p.Node(), model.TCP, nodePort)} {
			w.sees(t, outside, to, allowed(p))
		}
	})
}

func testRangesByPort(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.ranged(t, p, quoted(p.Between))
		other := rawService("name: other", fmt.Sprintf("type: LoadBalancer, clusterIP: %q, clusterIPs: [%q], ports: [{name: web, protocol: TCP, port: 81}]", p.VIP(1), p.VIP(1))) +
			fmt.Sprintf("status: {loadBalancer: {ingress: [{ip: %q}]}}\n", p.BalancerIP(0))
		w.put(t, "other.yaml", other, slice(p, "other-1", "other", "", []string{webTarget}, ready(p, here(p))...))
		w.sees(t, hosts.Clients(p)[oracle.Outside], at(p.BalancerIP(0), model.TCP, 81), allowed(p))
	})
}

// What a Service does not define at its external addresses must not go round between
// the router and the node. Where another machine has the address, such as a node that is its
// own load balancer, its other ports are that machine's.
func testUndefinedExternalPorts(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", outsideService(p, ""), webSlice(p, here(p)))
		outside := hosts.Clients(p)[oracle.Outside]
		for _, to := range []place{at(p.ExternalIP(0), model.TCP, 81), at(p.BalancerIP(0), model.UDP, 81), at(p.BalancerIP(0), echo(p), 0)} {
			w.sees(t, outside, to, oracle.Outcome{Verdict: oracle.Refused})
		}
		prefix := netip.PrefixFrom(p.BalancerIP(0), p.BalancerIP(0).BitLen()).String()
		w.h.Outside.Addr(t, "eth0", prefix)
		w.h.ServeOn(t, w.h.Outside, netip.AddrPortFrom(p.BalancerIP(0), 81))
		for _, from := range []oracle.Origin{oracle.Pod, oracle.Node} {
			for _, proto := range []model.Protocol{model.TCP, model.UDP} {
				w.sees(t, hosts.Clients(p)[from], at(p.BalancerIP(0), proto, 81), oracle.Outcome{Verdict: oracle.Untouched})
			}
			w.sees(t, hosts.Clients(p)[from], at(p.BalancerIP(0), model.TCP, 80), reaches(true, here(p)))
		}
		w.h.Outside.Run(t, "ip", "addr", "del", prefix, "dev", "eth0")
	})
}

func testRejectWithoutLocal(t *testing.T, w *world) {
	w.restart(t, detectBoth("--reject-without-local-endpoints")...)
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", outsideService(p, externalLocal+internalLocal), webSlice(p, there(p)))
		w.refused(t, p, clusterPlaces(p)...)
		for _, to := range outsidePlaces(p) {
			w.sees(t, hosts.Clients(p)[oracle.Outside], to, oracle.Outcome{Verdict: oracle.Refused})
		}
	})
}
