package rows_test

import (
	"fmt"
	"net/netip"
	"testing"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/oracle"
)

// outsideTests are the rows about NodePorts, external IPs and load balancers.
func outsideTests() map[string]func(*testing.T, *world) {
	return map[string]func(*testing.T, *world){
		"A1.19": testLoadBalancerIPs, "A1.20": testLoadBalancerClass, "A1.21": testWithoutNodePorts, "A1.22": testExternalIPs,
		"A2.external": testExternalMatrix, "A2.1.external": testExternalNoDetector, "A2.2.external": testExternalMasqueradeAll,
		"A3.2": testInternalLocalElsewhere, "A3.3": testExternalLocalElsewhere, "A3.4": testShortCircuit, "A3.5": testPoliciesApart,
		"A3.1.external": testExternalNoEndpoints, "A4.2": testLocalSet, "A6.10": testNodePortIgnoresRanges, "A6.11": testOneNumberTwoServices,
		"A8.1": testSourceRanges, "A8.2": testAllSources, "A8.3": testRangesForPodsAndNode, "A8.4": testRangeOfTheNode, "A8.5": testRangesOfTheOtherFamily,
		"A8.6": testRangesElsewhere, "A8.7": testRangesByPort, "R14118": testUndefinedExternalPorts, "R17": testRejectWithoutLocal,
	}
}

const nodePort = 30080

// outsideService is a Service of every kind of frontend, with more fields of its spec.
func outsideService(p addr.Plan, more string) string {
	spec := fmt.Sprintf("type: LoadBalancer, clusterIP: %q, clusterIPs: [%q], externalIPs: [%q], "+
		"ports: [{name: web, protocol: TCP, port: 80, nodePort: %d}, {name: dns, protocol: UDP, port: 80, nodePort: %d}]%s",
		p.VIP(0), p.VIP(0), p.ExternalIP(0), nodePort, nodePort, more)
	return rawService("name: web", spec) + fmt.Sprintf("status: {loadBalancer: {ingress: [{ip: %q}]}}\n", p.BalancerIP(0))
}

// frontends are the places of that Service that are reached from outside, TCP and UDP.
func outsidePlaces(p addr.Plan) []place {
	var list []place
	for _, proto := range []model.Protocol{model.TCP, model.UDP} {
		list = append(list, at(p.Node(), proto, nodePort), at(p.ExternalIP(0), proto, 80), at(p.BalancerIP(0), proto, 80))
	}
	return list
}

// here and there are the endpoints of the matrix.
func here(p addr.Plan) netip.Addr  { return p.Pod(1) }
func there(p addr.Plan) netip.Addr { return p.OtherPod(0) }

// reaches says that a client reaches these endpoints.
func reaches(masqueraded bool, endpoints ...netip.Addr) oracle.Outcome {
	want := oracle.Outcome{Verdict: oracle.Reached}
	for _, e := range ports(8080, endpoints...) {
		want.Arrivals = append(want.Arrivals, oracle.Arrival{Endpoint: e, Masqueraded: masqueraded})
	}
	return want
}

func silence() oracle.Outcome { return oracle.Outcome{Verdict: oracle.Dropped} }

// from checks what pod, node and outside see of places.
func (w *world) from(t *testing.T, p addr.Plan, places []place, want [3]oracle.Outcome) {
	t.Helper()
	for _, client := range hosts.Clients(p) {
		if want[client.From].Verdict == oracle.Dropped {
			w.silent(t, []oracle.Packet{client}, places...)
			continue
		}
		for _, to := range places {
			w.sees(t, client, to, want[client.From])
		}
	}
}

func clusterPlaces(p addr.Plan) []place {
	return []place{at(p.VIP(0), model.TCP, 80), at(p.VIP(0), model.UDP, 80)}
}

const (
	externalLocal = ", externalTrafficPolicy: Local"
	internalLocal = ", internalTrafficPolicy: Local"
)

func testExternalMatrix(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		h, th := here(p), there(p)
		for _, c := range []struct {
			policy  string
			cluster [3]oracle.Outcome
			outside [3]oracle.Outcome
		}{
			{"", [3]oracle.Outcome{reaches(false, h, th), reaches(true, h, th), reaches(true, h, th)}, [3]oracle.Outcome{reaches(true, h, th), reaches(true, h, th), reaches(true, h, th)}},
			{externalLocal, [3]oracle.Outcome{reaches(false, h, th), reaches(true, h, th), reaches(true, h, th)}, [3]oracle.Outcome{reaches(false, h, th), reaches(true, h, th), reaches(false, h)}},
			{internalLocal, [3]oracle.Outcome{reaches(false, h), reaches(true, h), reaches(true, h)}, [3]oracle.Outcome{reaches(true, h, th), reaches(true, h, th), reaches(true, h, th)}},
		} {
			w.put(t, "web.yaml", outsideService(p, c.policy), webSlice(p, h, th))
			w.from(t, p, clusterPlaces(p), c.cluster)
			w.from(t, p, outsidePlaces(p), c.outside)
		}
	})
}

func testExternalNoDetector(t *testing.T, w *world) {
	w.restart(t)
	each(t, func(t *testing.T, p addr.Plan) {
		h, th := here(p), there(p)
		w.put(t, "web.yaml", outsideService(p, externalLocal), webSlice(p, h, th))
		w.from(t, p, outsidePlaces(p), [3]oracle.Outcome{reaches(false, h), reaches(true, h, th), reaches(false, h)})
	})
}

func testExternalMasqueradeAll(t *testing.T, w *world) {
	w.restart(t, detectBoth("--masquerade-all")...)
	each(t, func(t *testing.T, p addr.Plan) {
		h, th := here(p), there(p)
		w.put(t, "web.yaml", outsideService(p, externalLocal), webSlice(p, h, th))
		w.from(t, p, outsidePlaces(p), [3]oracle.Outcome{reaches(false, h, th), reaches(true, h, th), reaches(false, h)})
	})
}

func testExternalNoEndpoints(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		for _, policy := range []string{"", externalLocal, internalLocal} {
			w.put(t, "web.yaml", outsideService(p, policy), webSlice(p))
			w.refused(t, p, append(outsidePlaces(p), clusterPlaces(p)...)...)
		}
	})
}

func testInternalLocalElsewhere(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", outsideService(p, internalLocal), webSlice(p, there(p)))
		w.dropped(t, p, clusterPlaces(p)...)
	})
}

func testExternalLocalElsewhere(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", outsideService(p, externalLocal), webSlice(p, there(p)))
		w.silent(t, hosts.Clients(p)[oracle.Outside:], outsidePlaces(p)...)
	})
}

func testShortCircuit(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		th := there(p)
		w.put(t, "web.yaml", outsideService(p, externalLocal), webSlice(p, th))
		w.from(t, p, outsidePlaces(p), [3]oracle.Outcome{reaches(false, th), reaches(true, th), silence()})
	})
}

func testPoliciesApart(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		th := there(p)
		w.put(t, "web.yaml", outsideService(p, externalLocal), webSlice(p, th))
		w.from(t, p, clusterPlaces(p), [3]oracle.Outcome{reaches(false, th), reaches(true, th), reaches(true, th)})
		w.put(t, "web.yaml", outsideService(p, internalLocal), webSlice(p, th))
		w.from(t, p, outsidePlaces(p), [3]oracle.Outcome{reaches(true, th), reaches(true, th), reaches(true, th)})
	})
}

// The local set is chosen by itself: a ready endpoint elsewhere does not keep one that
// terminates here from being used.
func testLocalSet(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		leaving := endpoint(here(p), addr.NodeName, "conditions: {ready: false, serving: true, terminating: true}")
		gone := endpoint(p.Pod(2), addr.NodeName, "conditions: {ready: false, serving: false, terminating: true}")
		endpoints := append(ready(p, there(p)), leaving, gone)
		w.put(t, "web.yaml", outsideService(p, externalLocal), slice(p, "web-1", "web", "", []string{webTarget, dnsTarget}, endpoints...))
		th := there(p)
		w.from(t, p, outsidePlaces(p), [3]oracle.Outcome{reaches(false, th), reaches(true, th), reaches(false, here(p))})
		w.from(t, p, clusterPlaces(p), [3]oracle.Outcome{reaches(false, th), reaches(true, th), reaches(true, th)})
	})
}

func testLoadBalancerIPs(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		service := func(ingress string) string {
			return rawService("name: web", webSpec(p.VIP(0).String(), ", type: LoadBalancer")) + "status: {loadBalancer: {ingress: [" + ingress + "]}}\n"
		}
		balancer := netip.AddrPortFrom(p.BalancerIP(0), 80)
		w.h.Outside.Addr(t, "eth0", netip.PrefixFrom(balancer.Addr(), balancer.Addr().BitLen()).String())
		w.h.ServeOn(t, w.h.Outside, balancer)
		to := at(p.BalancerIP(0), model.TCP, 80)
		pod := hosts.Clients(p)[oracle.Pod]
		for ingress, taken := range map[string]bool{
			fmt.Sprintf("{ip: %q}", p.BalancerIP(0)):                true,
			fmt.Sprintf("{ip: %q, ipMode: VIP}", p.BalancerIP(0)):   true,
			fmt.Sprintf("{ip: %q, ipMode: Proxy}", p.BalancerIP(0)): false,
			"{hostname: lb.example.com}":                            false,
		} {
			w.put(t, "web.yaml", service(ingress), webSlice(p, here(p)))
			want := reaches(true, here(p))
			if !taken {
				want = oracle.Outcome{Verdict: oracle.Untouched}
			}
			w.sees(t, pod, to, want)
		}
		w.h.Outside.Run(t, "ip", "addr", "del", netip.PrefixFrom(balancer.Addr(), balancer.Addr().BitLen()).String(), "dev", "eth0")
	})
}

func testLoadBalancerClass(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", outsideService(p, ", loadBalancerClass: example.com/any"), webSlice(p, here(p)))
		w.sees(t, hosts.Clients(p)[oracle.Outside], at(p.BalancerIP(0), model.TCP, 80), reaches(true, here(p)))
	})
}

func testWithoutNodePorts(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		service := rawService("name: web", webSpec(p.VIP(0).String(), ", type: LoadBalancer, allocateLoadBalancerNodePorts: false")) +
			fmt.Sprintf("status: {loadBalancer: {ingress: [{ip: %q}]}}\n", p.BalancerIP(0))
		w.put(t, "web.yaml", service, webSlice(p, here(p)))
		outside := hosts.Clients(p)[oracle.Outside]
		w.sees(t, outside, at(p.BalancerIP(0), model.TCP, 80), reaches(true, here(p)))
		w.sees(t, outside, at(p.Node(), model.TCP, nodePort), oracle.Outcome{Verdict: oracle.Refused}) // by the node itself
	})
}

func testExternalIPs(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		own := netip.AddrPortFrom(p.Node(), 80) // also an address of the node, whose other ports stay its own
		w.put(t, "web.yaml", rawService("name: web", webSpec(p.VIP(0).String(), fmt.Sprintf(", externalIPs: [%q, %q]", p.ExternalIP(0), own.Addr()))), webSlice(p, there(p)))
		for _, a := range []netip.Addr{p.ExternalIP(0), own.Addr()} {
			w.from(t, p, []place{at(a, model.TCP, 80), at(a, model.UDP, 80)}, [3]oracle.Outcome{reaches(true, there(p)), reaches(true, there(p)), reaches(true, there(p))})
		}
		w.sees(t, hosts.Clients(p)[oracle.Outside], at(p.Node(), model.TCP, 8080), reaches(false, p.Node()))
	})
	t.Run("off with the gate", func(t *testing.T) {
		w.restart(t, detectBoth("--feature-gates=AllowServiceExternalIPs=false")...)
		p := addr.IPv4()
		w.put(t, "web.yaml", outsideService(p, ""), webSlice(p, here(p)))
		w.sees(t, hosts.Clients(p)[oracle.Outside], at(p.BalancerIP(0), model.TCP, 80), reaches(true, here(p)))
		if out := w.h.Node.Run(t, "nft", "list", "map", "ip", "onerule", "service-ips"); contains(out, p.ExternalIP(0).String()+" . ") {
			t.Errorf("an external IP is served: %s", out)
		}
	})
	t.Run("D19 only in ranges, where some are given", func(t *testing.T) {
		w.restart(t, detectBoth(fmt.Sprintf("--external-ip-cidrs=%s/32", addr.IPv4().ExternalIP(0)))...)
		p := addr.IPv4()
		w.put(t, "web.yaml", rawService("name: web", webSpec(p.VIP(0).String(), fmt.Sprintf(", externalIPs: [%q, %q]", p.ExternalIP(0), p.ExternalIP(1)))), webSlice(p, here(p)))
		outside := hosts.Clients(p)[oracle.Outside]
		w.sees(t, outside, at(p.ExternalIP(0), model.TCP, 80), reaches(true, here(p)))
		if out := w.h.Node.Run(t, "nft", "list", "map", "ip", "onerule", "service-ips"); contains(out, p.ExternalIP(1).String()+" . ") {
			t.Errorf("an external IP that is not allowed is served: %s", out)
		}
		if n := w.skips("refused-address"); n != 1 {
			t.Errorf("%v refused addresses are counted, want 1", n)
		}
		if n := w.mentions("refused-address", p.ExternalIP(1).String()); n != 1 {
			t.Errorf("the log names it %d times, want once", n)
		}
	})
}

func testNodePortIgnoresRanges(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", outsideService(p, fmt.Sprintf(", loadBalancerSourceRanges: [%q]", p.Between)), webSlice(p, here(p)))
		w.sees(t, hosts.Clients(p)[oracle.Outside], at(p.Node(), model.TCP, nodePort), reaches(true, here(p)))
	})
}

func testOneNumberTwoServices(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		one := func(name, proto string, i int) string {
			return rawService("name: "+name, fmt.Sprintf("type: NodePort, clusterIP: %q, clusterIPs: [%q], ports: [{name: p, protocol: %s, port: 80, nodePort: %d}]", p.VIP(i), p.VIP(i), proto, nodePort))
		}
		w.put(t, "two.yaml", one("a", "TCP", 1), one("b", "UDP", 2),
			slice(p, "a-1", "a", "", []string{"p/TCP/8080"}, ready(p, here(p))...), slice(p, "b-1", "b", "", []string{"p/UDP/8080"}, ready(p, there(p))...))
		outside := hosts.Clients(p)[oracle.Outside]
		w.sees(t, outside, at(p.Node(), model.TCP, nodePort), reaches(true, here(p)))
		w.sees(t, outside, at(p.Node(), model.UDP, nodePort), reaches(true, there(p)))
	})
}
