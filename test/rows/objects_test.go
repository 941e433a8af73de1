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
	"onerule/test/rig"
)

// objectTests are the rows about which objects count, and which of their parts.
func objectTests() map[string]func(*testing.T, *world) {
	return map[string]func(*testing.T, *world){
		"A1.1": testTargetPort, "A1.2": testProtocols, "A1.3": testUndefinedPorts, "A1.4": testPing,
		"A1.5": testUnallocated, "A1.6": testHeadless, "A1.7": testExternalName, "A1.8": testOtherProxy,
		"A1.9": testHeadlessSlice, "A1.10": testNamelessSlice, "A1.11": testSliceOfNames,
		"A1.12": testSlicePorts, "A1.13": testFirstAddress, "A1.14": testNoNode,
		"A1.15": testConditionDefaults, "A1.16": testMergedSlices, "A1.17": testTargetPortsDiffer,
	}
}

func testTargetPort(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", web(p), webSlice(p, p.Pod(1)))
		w.reached(t, p, at(p.VIP(0), model.TCP, 80), ports(8080, p.Pod(1))...)
		w.reached(t, p, at(p.VIP(0), model.UDP, 80), ports(8080, p.Pod(1))...)
	})
}

func testProtocols(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "dns.yaml",
			rig.Service("dns", []netip.Addr{p.VIP(0)}, "a/TCP/53", "b/UDP/53", "c/SCTP/53"),
			slice(p, "dns-1", "dns", "", []string{"a/TCP/8080", "b/UDP/8081", "c/SCTP/8082"}, ready(p, p.Pod(1))...))
		w.reached(t, p, at(p.VIP(0), model.TCP, 53), ports(8080, p.Pod(1))...)
		w.reached(t, p, at(p.VIP(0), model.UDP, 53), ports(8081, p.Pod(1))...)
		dispatch := fmt.Sprintf("%s . sctp . 53 : goto cluster-ip-sctp", p.VIP(0))
		choice := fmt.Sprintf("%s . 53 . 0 : %s . 8082", p.VIP(0), p.Pod(1))
		for _, element := range []string{dispatch, choice} {
			if !strings.Contains(w.ruleset(t, p), element) {
				t.Errorf("no element %q in\n%s", element, w.ruleset(t, p))
			}
		}
		t.Run("SCTP packets", func(t *testing.T) {
			w.sctp(t, p, netip.AddrPortFrom(p.VIP(0), 53), netip.AddrPortFrom(p.Pod(1), 8082))
		})
	})
}

func testUndefinedPorts(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml",
			rig.Service("web", []netip.Addr{p.VIP(0)}, webPort),
			slice(p, "web-1", "web", "", []string{webTarget}, ready(p, p.Pod(1))...))
		w.refused(t, p, at(p.VIP(0), model.TCP, 81), at(p.VIP(0), model.UDP, 81), at(p.VIP(0), model.UDP, 80))
		w.reached(t, p, at(p.VIP(0), model.TCP, 80), ports(8080, p.Pod(1))...)
	})
}

func testPing(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", web(p), webSlice(p, p.Pod(1)))
		w.refused(t, p, at(p.VIP(0), echo(p), 0))
	})
}

func echo(p addr.Plan) model.Protocol {
	if p.VIP(0).Is4() {
		return oracle.ICMP
	}
	return oracle.ICMPv6
}

func testUnallocated(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.silent(t, senders(p), at(squatter(p), model.TCP, 80), at(squatter(p), model.UDP, 80), at(squatter(p), echo(p), 0))
		w.passes(t, p)
	})
}

func testHeadless(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		for _, address := range []string{"None", ""} {
			w.put(t, "web.yaml", web(p), webSlice(p, p.Pod(1)))
			w.reached(t, p, at(p.VIP(0), model.TCP, 80), ports(8080, p.Pod(1))...)
			spec := fmt.Sprintf("clusterIP: %q, ports: [{name: web, protocol: TCP, port: 80}]", address)
			w.put(t, "web.yaml", rawService("name: web", spec), webSlice(p, p.Pod(1)))
			w.absent(t, p)
		}
	})
}

// absent checks that the Service web is not there: its address is one of those that
// nobody holds, and no set holds anything of it.
func (w *world) absent(t *testing.T, p addr.Plan) {
	t.Helper()
	w.sees(t, hosts.Clients(p)[0], at(p.VIP(0), model.TCP, 80), oracle.Outcome{Verdict: oracle.Dropped})
	if got, want := fmt.Sprint(w.elements()), fmt.Sprint(w.empty); got != want {
		t.Errorf("the sets hold %s, want %s as without the Service", got, want)
	}
}

func testExternalName(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		external := rawService("name: web", webSpec(p.VIP(0).String(), ", type: ExternalName, externalName: example.com"))
		w.put(t, "web.yaml", external, webSlice(p, p.Pod(1)))
		w.absent(t, p)
		w.put(t, "web.yaml", rawService("name: web", webSpec(p.VIP(0).String(), ", type: ClusterIP")), webSlice(p, p.Pod(1)))
		w.reached(t, p, at(p.VIP(0), model.TCP, 80), ports(8080, p.Pod(1))...)
		w.put(t, "web.yaml", external, webSlice(p, p.Pod(1)))
		w.absent(t, p)
	})
}

func testOtherProxy(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		// Any value counts, also none.
		for _, value := range []string{`"other"`, `""`} {
			labelled := rawService("name: web, labels: {service.kubernetes.io/service-proxy-name: "+value+"}", webSpec(p.VIP(0).String(), ""))
			w.put(t, "web.yaml", labelled, webSlice(p, p.Pod(1)))
			w.absent(t, p)
			w.put(t, "web.yaml", web(p), webSlice(p, p.Pod(1)))
			w.reached(t, p, at(p.VIP(0), model.TCP, 80), ports(8080, p.Pod(1))...)
			w.put(t, "web.yaml", labelled, webSlice(p, p.Pod(1)))
			w.absent(t, p)
		}
	})
}

func testHeadlessSlice(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		headless := slice(p, "web-1", "web", `service.kubernetes.io/headless: ""`, []string{webTarget, dnsTarget}, ready(p, p.Pod(1))...)
		w.put(t, "web.yaml", web(p), headless)
		w.refused(t, p, at(p.VIP(0), model.TCP, 80), at(p.VIP(0), model.UDP, 80))
		other := slice(p, "web-2", "web", "", []string{webTarget, dnsTarget}, ready(p, p.Pod(2))...)
		w.put(t, "web.yaml", web(p), headless, other)
		w.reached(t, p, at(p.VIP(0), model.TCP, 80), ports(8080, p.Pod(2))...)
	})
}

func testNamelessSlice(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		file := familyOf(p) + "-stray.yaml"
		w.put(t, "web.yaml", web(p))
		w.put(t, file,
			slice(p, "stray", "", "", []string{webTarget}, ready(p, p.Pod(1))...),
			slice(p, `""`, "web", "", []string{webTarget}, ready(p, p.Pod(1))...))
		w.refused(t, p, at(p.VIP(0), model.TCP, 80))
		if n := w.said(file+": EndpointSlice default/stray", `reason="no-service"`); n != 1 {
			t.Errorf("the slice without a Service is logged %d times, want once", n)
		}
		if n := w.said(file, `reason="invalid-name"`); n != 1 {
			t.Errorf("the slice without a name is logged %d times, want once", n)
		}
		w.put(t, "good.yaml", webSlice(p, p.Pod(2)))
		w.reached(t, p, at(p.VIP(0), model.TCP, 80), ports(8080, p.Pod(2))...)
	})
}

func testSliceOfNames(t *testing.T, w *world) {
	p4, p6 := addr.IPv4(), addr.IPv6()
	both := rig.Service("web", []netip.Addr{p4.VIP(0), p6.VIP(0)}, webPort)
	names := rawSlice("web-0", "kubernetes.io/service-name: web", "FQDN", `{name: web, protocol: TCP, port: 8080}`, `{addresses: ["pod.example.com"]}`)
	w.put(t, "web.yaml", both, names)
	for _, p := range addr.Both() {
		w.refused(t, p, at(p.VIP(0), model.TCP, 80))
	}
	if n := w.said("web.yaml: EndpointSlice default/web-0", `reason="address-type"`, "FQDN"); n != 1 {
		t.Errorf("the slice of names is logged %d times, want once", n)
	}
	four := slice(p4, "web-4", "web", "", []string{webTarget}, ready(p4, p4.Pod(1))...)
	w.put(t, "web.yaml", both, names, four)
	w.reached(t, p4, at(p4.VIP(0), model.TCP, 80), ports(8080, p4.Pod(1))...)
	w.refused(t, p6, at(p6.VIP(0), model.TCP, 80))
	six := slice(p6, "web-6", "web", "", []string{webTarget}, ready(p6, p6.Pod(2))...)
	w.put(t, "web.yaml", both, names, four, six)
	w.reached(t, p4, at(p4.VIP(0), model.TCP, 80), ports(8080, p4.Pod(1))...)
	w.reached(t, p6, at(p6.VIP(0), model.TCP, 80), ports(8080, p6.Pod(2))...)
}

func testSlicePorts(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		unnamed := rig.Service("web", []netip.Addr{p.VIP(0)}, "/TCP/80")
		labels := "kubernetes.io/service-name: web"
		nameless := rawSlice("web-1", labels, familyOf(p), "{protocol: TCP, port: 8081}", ready(p, p.Pod(1))...)
		w.put(t, "web.yaml", unnamed, nameless)
		w.refused(t, p, at(p.VIP(0), model.TCP, 80))
		mixed := `{protocol: TCP, port: 8081}, {name: "", protocol: TCP}, {name: "", protocol: TCP, port: 0}, {name: "", protocol: TCP, port: 8080}`
		w.put(t, "web.yaml", unnamed, rawSlice("web-1", labels, familyOf(p), mixed, ready(p, p.Pod(1))...))
		w.reached(t, p, at(p.VIP(0), model.TCP, 80), ports(8080, p.Pod(1))...)
	})
}

func testFirstAddress(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		two := fmt.Sprintf("{addresses: [%q, %q], nodeName: node}", p.Pod(1), p.Pod(2))
		w.put(t, "web.yaml", web(p), slice(p, "web-1", "web", "", []string{webTarget}, two))
		w.reached(t, p, at(p.VIP(0), model.TCP, 80), ports(8080, p.Pod(1))...)
	})
}

// An endpoint that is not local is not masqueraded on its way to itself, and no host
// takes in what comes from its own address.
func testNoNode(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		itself, other := oracle.Packet{From: oracle.Pod, Src: p.Pod(1)}, oracle.Packet{From: oracle.Pod, Src: p.Pod(0)}
		to := at(p.VIP(0), model.TCP, 80)
		w.put(t, "web.yaml", web(p), slice(p, "web-1", "web", "", []string{webTarget}, endpoint(p.Pod(1), "")))
		w.sees(t, itself, to, oracle.Outcome{Verdict: oracle.Dropped})
		w.sees(t, other, to, w.arriving(other, ports(8080, p.Pod(1))...))
		w.put(t, "web.yaml", web(p), webSlice(p, p.Pod(1)))
		w.sees(t, itself, to, hairpin(ports(8080, p.Pod(1))...))
	})
}

// hairpin is what must come of a pod's packets to itself: masqueraded.
func hairpin(endpoints ...netip.AddrPort) oracle.Outcome {
	want := oracle.Outcome{Verdict: oracle.Reached}
	for _, e := range endpoints {
		want.Arrivals = append(want.Arrivals, oracle.Arrival{Endpoint: e, Masqueraded: true})
	}
	return want
}

func testConditionDefaults(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		to := at(p.VIP(0), model.TCP, 80)
		conditions := func(text string) string {
			return slice(p, "web-1", "web", "", []string{webTarget}, endpoint(p.Pod(1), addr.NodeName, "conditions: {"+text+"}"))
		}
		for _, used := range []string{"", "serving: false", "ready: false, terminating: true"} {
			w.put(t, "web.yaml", web(p), conditions(used))
			w.reached(t, p, to, ports(8080, p.Pod(1))...)
		}
		// terminating is false unless it is said.
		w.put(t, "web.yaml", web(p), conditions("ready: false"))
		w.refused(t, p, to)
	})
}

func testMergedSlices(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		to := at(p.VIP(0), model.TCP, 80)
		part := func(name, target string, endpoints ...string) string {
			return slice(p, name, "web", "", []string{target}, endpoints...)
		}
		leaving := func(a netip.Addr) string {
			return endpoint(a, addr.NodeName, "conditions: {ready: false, serving: true, terminating: true}")
		}
		w.put(t, "web.yaml", web(p),
			part("web-1", "web/TCP/8080", ready(p, p.Pod(1))...), part("web-2", "web/TCP/8081", ready(p, p.Pod(1))...),
			part("web-3", "web/TCP/8080", ready(p, p.Pod(2))...))
		w.reached(t, p, to, append(ports(8081, p.Pod(1)), ports(8080, p.Pod(1), p.Pod(2))...)...)
		// One address and port twice, terminating and ready: the other one shows which
		// counts, since it is used only if none is ready.
		for _, order := range [][2]string{{"web-1", "web-2"}, {"web-2", "web-1"}} {
			w.put(t, "web.yaml", web(p), part("web-3", "web/TCP/8080", leaving(p.Pod(2))),
				part(order[0], "web/TCP/8080", ready(p, p.Pod(1))...), part(order[1], "web/TCP/8080", leaving(p.Pod(1))))
			w.reached(t, p, to, ports(8080, p.Pod(1))...)
		}
	})
}

func testTargetPortsDiffer(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", web(p),
			slice(p, "web-1", "web", "", []string{"web/TCP/8080"}, ready(p, p.Pod(1))...),
			slice(p, "web-2", "web", "", []string{"web/TCP/8081"}, ready(p, p.Pod(2))...))
		w.reached(t, p, at(p.VIP(0), model.TCP, 80), append(ports(8080, p.Pod(1)), ports(8081, p.Pod(2))...)...)
	})
}
