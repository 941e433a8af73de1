package rows_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/rig"
)

// familyTests are the rows about the fields of a Service: families, names, updates.
func familyTests() map[string]func(*testing.T, *world) {
	return map[string]func(*testing.T, *world){
		"A1.18": testLeadingZeros, "A1.23": testFamilies, "A1.24": testFamiliesNotSaid,
		"A1.25": testUpdates, "A1.26": testLongestNames, "R7": testLongestNamesWithoutEndpoint,
	}
}

// zeros writes an address with leading zeros: 010.096.000.001, fd00:0096::0001.
func zeros(a netip.Addr) string {
	separator, width := ".", 3
	if a.Is6() {
		separator, width = ":", 4
	}
	parts := strings.Split(a.String(), separator)
	for i, part := range parts {
		if part != "" { // the gap in ::
			parts[i] = fmt.Sprintf("%0*s", width, part)
		}
	}
	return strings.Join(parts, separator)
}

func testLeadingZeros(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		e := fmt.Sprintf("{addresses: [%q], nodeName: node}", zeros(p.Pod(1)))
		w.put(t, "web.yaml", rawService("name: web", webSpec(zeros(p.VIP(0)), "")), slice(p, "web-1", "web", "", []string{webTarget}, e))
		w.reached(t, p, at(p.VIP(0), model.TCP, 80), ports(8080, p.Pod(1))...)
		w.passes(t, p)
		second := p.SecondServiceCIDR
		w.put(t, "second.yaml", strings.Replace(rig.ServiceCIDR("second", second), second.Addr().String(), zeros(second.Addr()), 1))
		w.strangerDropped(t, p)
		w.remove(t, "second.yaml")
	})
}

func testFamilies(t *testing.T, w *world) {
	p4, p6 := addr.IPv4(), addr.IPv6()
	slices := []string{webSlice(p4, p4.Pod(1)), strings.Replace(webSlice(p6, p6.Pod(2)), "web-1", "web-6", 1)}
	for _, order := range [][]netip.Addr{{p4.VIP(0), p6.VIP(0)}, {p6.VIP(0), p4.VIP(0)}} {
		w.put(t, "web.yaml", append(slices, rig.Service("web", order, webPort, dnsPort))...)
		w.reached(t, p4, at(p4.VIP(0), model.TCP, 80), ports(8080, p4.Pod(1))...)
		w.reached(t, p6, at(p6.VIP(0), model.TCP, 80), ports(8080, p6.Pod(2))...)
	}
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", append(slices, web(p))...)
		w.reached(t, p, at(p.VIP(0), model.UDP, 80), ports(8080, map[bool]netip.Addr{true: p.Pod(1), false: p.Pod(2)}[p == p4])...)
		for _, other := range addr.Both() {
			if other != p {
				w.dropped(t, other, at(other.VIP(0), model.TCP, 80))
				if n := w.elements()[familyOf(other)+" service-ips"]; n != 0 {
					t.Errorf("the table of the other family holds %v frontends", n)
				}
			}
		}
	})
	// What says one family and has an address of the other has none.
	wrong := strings.Replace(web(p4), "IPv4", "IPv6", 1)
	w.put(t, "web.yaml", append(slices, wrong)...)
	w.dropped(t, p4, at(p4.VIP(0), model.TCP, 80))
}

func testFamiliesNotSaid(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		for _, spec := range []string{
			webSpec(p.VIP(0).String(), ""),
			fmt.Sprintf("clusterIP: %q, ports: [{name: web, protocol: TCP, port: 80}]", p.VIP(0)), // older still
		} {
			w.put(t, "web.yaml", rawService("name: web", spec), webSlice(p, p.Pod(1)))
			w.reached(t, p, at(p.VIP(0), model.TCP, 80), ports(8080, p.Pod(1))...)
		}
	})
}

func testUpdates(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		at80, at81 := at(p.VIP(0), model.TCP, 80), at(p.VIP(0), model.TCP, 81)
		service := func(vip netip.Addr, ports ...string) string { return rig.Service("web", []netip.Addr{vip}, ports...) }
		target := slice(p, "web-1", "web", "", []string{"web/TCP/8080", "new/TCP/8081"}, ready(p, p.Pod(1))...)
		w.put(t, "web.yaml", service(p.VIP(0), "web/TCP/80"), target)
		w.reached(t, p, at80, ports(8080, p.Pod(1))...)

		w.put(t, "web.yaml", service(p.VIP(0), "new/TCP/80"), target) // renamed: another target
		w.reached(t, p, at80, ports(8081, p.Pod(1))...)
		w.put(t, "web.yaml", service(p.VIP(0), "nowhere/TCP/80"), target) // renamed to what no slice has
		w.refused(t, p, at80)
		w.put(t, "web.yaml", service(p.VIP(0), "web/TCP/81"), target) // renumbered
		w.refused(t, p, at80)
		w.reached(t, p, at81, ports(8080, p.Pod(1))...)
		w.put(t, "web.yaml", service(p.VIP(0), "web/TCP/81", "new/TCP/80"), target) // one more
		w.reached(t, p, at80, ports(8081, p.Pod(1))...)
		w.put(t, "web.yaml", service(p.VIP(0), "new/TCP/80"), target) // one removed
		w.refused(t, p, at81)
		w.put(t, "web.yaml", service(p.VIP(0), "new/UDP/80"), target) // another protocol, which no slice has
		w.refused(t, p, at80, at(p.VIP(0), model.UDP, 80))
		w.put(t, "web.yaml", service(p.VIP(1), "web/TCP/80"), target) // another address
		w.dropped(t, p, at80)
		w.reached(t, p, at(p.VIP(1), model.TCP, 80), ports(8080, p.Pod(1))...)
		w.put(t, "web.yaml", strings.Replace(service(p.VIP(1), "web/TCP/80"), "spec:\n", "spec:\n  type: NodePort\n", 1), target)
		w.reached(t, p, at(p.VIP(1), model.TCP, 80), ports(8080, p.Pod(1))...)
	})
}

// longest gives the longest name of a label, which begins with a text.
func longest(begin string) string { return begin + strings.Repeat("x", 63-len(begin)) }

// longestService gives a Service with the longest names, and its slice.
func longestService(p addr.Plan, namespace string, endpoints ...netip.Addr) []string {
	meta := fmt.Sprintf("name: %s, namespace: %s", longest("web-"), namespace)
	service := rawService(meta, fmt.Sprintf("clusterIP: %q, ports: [{name: %s, protocol: TCP, port: 80}]", p.VIP(1), longest("port-")))
	part := slice(p, longest("slice-")+"."+longest("x"), longest("web-"), "", []string{longest("port-") + "/TCP/8080"}, ready(p, endpoints...)...)
	return []string{service, strings.Replace(part, "metadata: {", "metadata: {namespace: "+namespace+", ", 1)}
}

func testLongestNames(t *testing.T, w *world) {
	before := w.said("skipped")
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "long.yaml", longestService(p, longest("namespace-"), p.Pod(1))...)
		w.put(t, "web.yaml", web(p), webSlice(p, p.Pod(2)))
		w.reached(t, p, at(p.VIP(1), model.TCP, 80), ports(8080, p.Pod(1))...)
		w.reached(t, p, at(p.VIP(0), model.TCP, 80), ports(8080, p.Pod(2))...)
	})
	if n := w.said("skipped") - before; n != 0 {
		t.Errorf("%d things were skipped", n)
	}
}

func testLongestNamesWithoutEndpoint(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "long.yaml", longestService(p, longest("namespace-")[:62])...)
		w.put(t, "web.yaml", web(p), webSlice(p, p.Pod(2)))
		w.refused(t, p, at(p.VIP(1), model.TCP, 80))
		w.reached(t, p, at(p.VIP(0), model.TCP, 80), ports(8080, p.Pod(2))...)
	})
}
