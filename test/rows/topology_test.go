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

// topologyTests are the rows about hints for zones and nodes.
func topologyTests() map[string]func(*testing.T, *world) {
	return map[string]func(*testing.T, *world){
		"A4.6": testNodeHints, "A4.7": testZoneHints, "A4.8": testHintsIgnored, "A4.9": testHintsOfUnready,
		"A4.10": testHintsAndLocal, "A4.12": testZoneChanges, "A4.13": testHintsAndLeaving,
	}
}

// nodeIn is this node in a zone; "" is in none.
func nodeIn(zone string) string {
	labels := ""
	if zone != "" {
		labels = "topology.kubernetes.io/zone: " + zone
	}
	return fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s, labels: {%s}}\n", addr.NodeName, labels)
}

// hinted is an endpoint with a condition and hints for zones and nodes, each divided
// by spaces.
func hinted(p addr.Plan, a netip.Addr, conditions, zones, nodes string) string {
	list := func(names string) string {
		var entries []string
		for _, name := range strings.Fields(names) {
			entries = append(entries, "{name: "+name+"}")
		}
		return "[" + strings.Join(entries, ", ") + "]"
	}
	return endpoint(a, nodeOf(p, a), "conditions: {"+conditions+"}", "hints: {forZones: "+list(zones)+", forNodes: "+list(nodes)+"}")
}

const (
	isReady = "ready: true, serving: true, terminating: false"
	isIdle  = "ready: false, serving: false, terminating: false"
)

// leads checks where a ClusterIP leads to from everywhere, and a frontend of the other
// kind from outside.
func (w *world) leads(t *testing.T, p addr.Plan, endpoints []string, want ...netip.Addr) {
	t.Helper()
	w.put(t, "web.yaml", outsideService(p, ""), webSliceOf(p, endpoints...))
	for _, to := range clusterPlaces(p) {
		w.reached(t, p, to, ports(8080, want...)...)
	}
	w.sees(t, hosts.Clients(p)[oracle.Outside], at(p.Node(), model.TCP, nodePort), reaches(true, want...))
}

func testNodeHints(t *testing.T, w *world) {
	w.put(t, "node.yaml", nodeIn("a"))
	each(t, func(t *testing.T, p addr.Plan) {
		// The hints for zones say otherwise.
		w.leads(t, p, []string{hinted(p, here(p), isReady, "b", "other"), hinted(p, there(p), isReady, "b", "x node")}, there(p))
		w.leads(t, p, []string{hinted(p, here(p), isReady, "a", ""), hinted(p, there(p), isReady, "b", "node")}, here(p))
		w.leads(t, p, []string{hinted(p, here(p), isReady, "a", "x"), hinted(p, there(p), isReady, "b", "y")}, here(p))
	})
}

func testZoneHints(t *testing.T, w *world) {
	w.put(t, "node.yaml", nodeIn("a"))
	each(t, func(t *testing.T, p addr.Plan) {
		w.leads(t, p, []string{hinted(p, here(p), isReady, "b", ""), hinted(p, there(p), isReady, "c a", "")}, there(p))
		w.leads(t, p, []string{hinted(p, here(p), isReady, "a", ""), hinted(p, there(p), isReady, "a", "")}, here(p), there(p))
	})
}

func testHintsIgnored(t *testing.T, w *world) {
	w.put(t, "node.yaml", nodeIn("a"))
	each(t, func(t *testing.T, p addr.Plan) {
		w.leads(t, p, append(ready(p, here(p)), hinted(p, there(p), isReady, "a", "")), here(p), there(p))
		w.leads(t, p, []string{hinted(p, here(p), isReady, "b", ""), hinted(p, there(p), isReady, "c", "")}, here(p), there(p))
	})
	w.put(t, "node.yaml", nodeIn(""))
	each(t, func(t *testing.T, p addr.Plan) {
		w.leads(t, p, []string{hinted(p, here(p), isReady, "a", ""), hinted(p, there(p), isReady, "b", "")}, here(p), there(p))
	})
}

func testHintsOfUnready(t *testing.T, w *world) {
	w.put(t, "node.yaml", nodeIn("a"))
	each(t, func(t *testing.T, p addr.Plan) {
		without := conditioned(p, isIdle, p.Pod(2))
		w.leads(t, p, append(without, hinted(p, here(p), isReady, "b", ""), hinted(p, there(p), isReady, "a", "")), there(p))
		w.leads(t, p, []string{hinted(p, p.Pod(2), isIdle, "a", "node"), hinted(p, here(p), isReady, "b", "x"), hinted(p, there(p), isReady, "b", "x")}, here(p), there(p))
	})
}

func testHintsAndLocal(t *testing.T, w *world) {
	w.put(t, "node.yaml", nodeIn("a"))
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", outsideService(p, externalLocal), webSliceOf(p, hinted(p, here(p), isReady, "b", ""), hinted(p, there(p), isReady, "a", "")))
		for _, to := range outsidePlaces(p) {
			w.sees(t, hosts.Clients(p)[oracle.Outside], to, reaches(false, here(p)))
		}
		w.from(t, p, clusterPlaces(p), [3]oracle.Outcome{reaches(false, there(p)), reaches(true, there(p)), reaches(true, there(p))})
	})
}

func testZoneChanges(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		endpoints := []string{hinted(p, here(p), isReady, "a", ""), hinted(p, there(p), isReady, "b", "")}
		w.leads(t, p, endpoints, here(p), there(p))
		for _, c := range []struct {
			zone string
			want []netip.Addr
		}{{"a", []netip.Addr{here(p)}}, {"b", []netip.Addr{there(p)}}, {"", []netip.Addr{here(p), there(p)}}} {
			w.put(t, "node.yaml", nodeIn(c.zone)) // and no Service is written
			w.reached(t, p, at(p.VIP(0), model.TCP, 80), ports(8080, c.want...)...)
			w.reached(t, p, at(p.VIP(0), model.UDP, 80), ports(8080, c.want...)...)
		}
	})
}

func testHintsAndLeaving(t *testing.T, w *world) {
	w.put(t, "node.yaml", nodeIn("a"))
	each(t, func(t *testing.T, p addr.Plan) {
		w.leads(t, p, []string{hinted(p, here(p), leaving, "a", "node"), hinted(p, there(p), isReady, "b", "x")}, there(p))
	})
}
