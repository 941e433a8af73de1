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

// The field and the annotations tell a controller what hints to write. Here only hints
// count.
func testDistribution(t *testing.T, w *world) {
	w.put(t, "node.yaml", nodeIn("a"))
	each(t, func(t *testing.T, p addr.Plan) {
		zoned := func(hints bool) []string {
			var list []string
			for a, zone := range map[netip.Addr]string{here(p): "b", there(p): "a"} {
				more := []string{"conditions: {" + isReady + "}", "zone: " + zone}
				if hints {
					more = append(more, "hints: {forZones: [{name: "+zone+"}]}")
				}
				list = append(list, endpoint(a, nodeOf(p, a), more...))
			}
			return list
		}
		outside, to := hosts.Clients(p)[oracle.Outside], at(p.VIP(0), model.TCP, 80)
		for name, c := range distributions() {
			service := rawService("name: web, annotations: {"+c.annotation+"}", webSpec(p.VIP(0).String(), c.field))
			w.put(t, "web.yaml", service, webSliceOf(p, zoned(false)...))
			w.sees(t, outside, to, reaches(true, here(p), there(p)))
			w.put(t, "web.yaml", service, webSliceOf(p, zoned(true)...))
			w.sees(t, outside, to, reaches(true, there(p)))
			if t.Failed() {
				t.Fatalf("with %s", name)
			}
		}
	})
}

// distributions are the ways to ask a controller for hints, with none among them.
func distributions() map[string]struct{ field, annotation string } {
	all := map[string]struct{ field, annotation string }{
		"nothing":            {},
		"the annotation":     {annotation: `service.kubernetes.io/topology-mode: Auto`},
		"the old annotation": {annotation: `service.kubernetes.io/topology-aware-hints: auto`},
	}
	for _, d := range []string{"PreferClose", "PreferSameZone", "PreferSameNode"} {
		all[d] = struct{ field, annotation string }{field: ", trafficDistribution: " + d}
	}
	return all
}

// What goes to a load balancer that terminates connections itself reaches it as it was
// sent, from every port of the address, whatever the Service has.
func testProxyModeLeaves(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		balancer := p.BalancerIP(1)
		w.h.Outside.Addr(t, "eth0", netip.PrefixFrom(balancer, balancer.BitLen()).String())
		for _, port := range []uint16{80, 81} {
			w.h.ServeOn(t, w.h.Outside, netip.AddrPortFrom(balancer, port))
		}
		ingress := fmt.Sprintf("status: {loadBalancer: {ingress: [{ip: %q, ipMode: Proxy}, {ip: %q}]}}\n", balancer, p.BalancerIP(2))
		service := rawService("name: web", webSpec(p.VIP(0).String(), ", type: LoadBalancer, loadBalancerSourceRanges: ["+fmt.Sprintf("%q, %q", p.ClusterCIDR, p.Uplink)+"]")) + ingress
		w.put(t, "web.yaml", service, webSlice(p, here(p)))
		for _, client := range hosts.Clients(p)[:2] { // somebody outside has the address
			for _, proto := range []model.Protocol{model.TCP, model.UDP} {
				for _, port := range []uint16{80, 81} {
					w.sees(t, client, at(balancer, proto, port), oracle.Outcome{Verdict: oracle.Untouched})
				}
			}
			w.sees(t, client, at(p.BalancerIP(2), model.TCP, 80), reaches(true, here(p)))
		}
		w.h.Outside.Run(t, "ip", "addr", "del", netip.PrefixFrom(balancer, balancer.BitLen()).String(), "dev", "eth0")
	})
}

// otherNodePort is that of a second Service.
const otherNodePort = 30081

// A host firewall that drops by default, in a table of its own, lets exactly those
// NodePorts through that it names.
func testHostFirewall(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		nodePorts := func(name string, i int, port int, e netip.Addr) []string {
			spec := fmt.Sprintf("type: NodePort, clusterIP: %q, clusterIPs: [%q], ports: [{name: p, protocol: TCP, port: 80, nodePort: %d}]", p.VIP(i), p.VIP(i), port)
			return []string{rawService("name: "+name, spec), slice(p, name+"-1", name, "", []string{"p/TCP/8080"}, ready(p, e)...)}
		}
		w.put(t, "web.yaml", append(nodePorts("one", 1, nodePort, here(p)), nodePorts("two", 2, otherNodePort, there(p))...)...)
		w.put(t, "host.yaml", nodePorts("host", 3, nodePort+2, p.Node())...)
		one, two, host := at(p.Node(), model.TCP, nodePort), at(p.Node(), model.TCP, otherNodePort), at(p.Node(), model.TCP, nodePort+2)
		outside := hosts.Clients(p)[oracle.Outside]
		// What ends on the node is not sent on, and so not masqueraded.
		reached := map[place]oracle.Outcome{one: reaches(true, here(p)), two: reaches(true, there(p)), host: reaches(false, p.Node())}
		for _, c := range firewalls() {
			t.Run(c.name, func(t *testing.T) {
				script(t, w.h.Node, fmt.Sprintf(c.table, nftFamily(p)))
				defer script(t, w.h.Node, fmt.Sprintf("delete table %s firewall", nftFamily(p)))
				w.h.Forget(t)
				for i, to := range []place{one, two, host} {
					want := reached[to]
					if !c.passes[i] {
						want = silence()
					}
					w.sees(t, outside, to, want)
				}
			})
		}
		w.remove(t, "web.yaml")
		w.remove(t, "host.yaml")
	})
}

// A firewall is a table, and which NodePorts pass: two that lead to pods, and one to an
// endpoint on the node itself.
type firewall struct {
	name, table string
	passes      [3]bool
}

// Neighbour discovery, ICMP and what is established pass everywhere.
const keeping = "ct state established,related accept; meta l4proto { icmp, ipv6-icmp } accept;"

func firewalls() []firewall {
	forward := func(accept string) string {
		return "table %s firewall { chain c { type filter hook forward priority 0; policy drop; " + keeping + accept + " }; }"
	}
	input := func(accept string) string {
		return "table %s firewall { chain c { type filter hook input priority 0; policy drop; " + keeping + accept + " }; }"
	}
	return []firewall{
		{"forward accepts nothing", forward(""), [3]bool{false, false, true}},
		{"forward accepts what is translated", forward("ct status dnat accept;"), [3]bool{true, true, true}},
		{"forward accepts one NodePort", forward("ct status dnat meta l4proto tcp ct original proto-dst 30080 accept;"), [3]bool{true, false, true}},
		{"input accepts nothing, which is about endpoints on the node only", input(""), [3]bool{true, true, false}},
		{"input accepts the NodePort's number, which it does not see", input("tcp dport 30082 accept;"), [3]bool{true, true, false}},
		{"input accepts what is translated", input("ct status dnat accept;"), [3]bool{true, true, true}},
		{"input accepts one NodePort", input("meta l4proto tcp ct original proto-dst 30082 accept;"), [3]bool{true, true, true}},
		{"the number is seen before", "table %s firewall { chain c { type filter hook prerouting priority -150; tcp dport 30080 drop; }; }", [3]bool{false, true, true}},
	}
}

// Two Services claim the same external IP, load balancer IP or NodePort: the one that was
// made first has it, whichever is seen first, and nothing that happens to the other one
// moves a client. Without the first the other one has it.
func testClaims(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		outside := hosts.Clients(p)[oracle.Outside]
		for name, c := range claims(p) {
			t.Run(name, func(t *testing.T) {
				of := func(name, created string, i int, endpoints ...netip.Addr) []string {
					meta := fmt.Sprintf("name: %s, creationTimestamp: %q", name, created)
					spec := fmt.Sprintf("clusterIP: %q, clusterIPs: [%q], ports: [{name: web, protocol: TCP, port: 80%s}]%s", p.VIP(i), p.VIP(i), c.port, c.spec)
					return []string{rawService(meta, spec) + c.status, slice(p, name+"-1", name, "", []string{webTarget}, ready(p, endpoints...)...)}
				}
				older, younger := of("older", "2024-05-01T00:00:00Z", 1, here(p)), of("younger", "2024-05-02T00:00:00Z", 2, there(p))
				w.put(t, "younger.yaml", younger...)
				w.sees(t, outside, c.to, reaches(true, there(p)))
				w.put(t, "older.yaml", older...)
				w.sees(t, outside, c.to, reaches(true, here(p)))
				for range 3 {
					w.remove(t, "younger.yaml")
					w.put(t, "younger.yaml", of("younger", "2024-05-02T00:00:00Z", 2, there(p), p.Pod(2))...)
					w.sees(t, outside, c.to, reaches(true, here(p)))
					w.put(t, "older.yaml", older...)
				}
				if n := w.skips("duplicate-frontend"); n != 1 {
					t.Errorf("%v duplicate frontends are counted, want 1", n)
				}
				w.remove(t, "older.yaml")
				w.sees(t, outside, c.to, reaches(true, there(p), p.Pod(2)))
				if n := w.skips("duplicate-frontend"); n != 0 {
					t.Errorf("%v duplicate frontends are counted when one Service is left, want 0", n)
				}
				w.remove(t, "younger.yaml")
			})
		}
	})
}

// A claim is what two Services have in common: parts of their port, spec and status, and
// where that leads clients.
type claim struct {
	port, spec, status string
	to                 place
}

func claims(p addr.Plan) map[string]claim {
	return map[string]claim{
		"an external IP": {spec: fmt.Sprintf(", externalIPs: [%q]", p.ExternalIP(0)), to: at(p.ExternalIP(0), model.TCP, 80)},
		"a load balancer IP": {
			spec:   ", type: LoadBalancer",
			status: fmt.Sprintf("status: {loadBalancer: {ingress: [{ip: %q}]}}\n", p.BalancerIP(0)),
			to:     at(p.BalancerIP(0), model.TCP, 80),
		},
		"a NodePort": {port: fmt.Sprintf(", nodePort: %d", nodePort), spec: ", type: NodePort", to: at(p.Node(), model.TCP, nodePort)},
	}
}
