package plan_test

import (
	"fmt"
	"net/netip"
	"strings"

	"onerule/daemon/model"
	"onerule/daemon/plan"
)

// on gives an endpoint that is ready on a node.
func on(node, a string) model.Endpoint {
	e := ready(a)
	e.Node = node
	return e
}

// goes gives one that serves while it terminates.
func goes(node, a string) model.Endpoint {
	return model.Endpoint{Addr: addr(a), Node: node, Serving: true, Terminating: true}
}

// hinted gives one with hints for a node or a zone, or for none where they are empty.
func hinted(e model.Endpoint, node, zone string) model.Endpoint {
	e.Hints = &model.Hints{}
	if node != "" {
		e.Hints.Nodes = []string{"n9", node}
	}
	if zone != "" {
		e.Hints.Zones = []string{"z9", zone}
	}
	return e
}

func addrs(list ...string) []netip.Addr {
	var all []netip.Addr
	for _, s := range list {
		all = append(all, addr(s))
	}
	return all
}

func ranges(list ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range list {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

// words gives decisions as lines of text: what they say, and nothing where they say
// nothing.
func words(decisions []plan.Decision) []string {
	var lines []string
	for _, d := range decisions {
		lines = append(lines, wordsOf(d))
	}
	return lines
}

func wordsOf(d plan.Decision) string {
	kinds := map[plan.Kind]string{plan.ClusterIP: "cluster", plan.ExternalIP: "external", plan.LoadBalancerIP: "lb", plan.NodePort: "node"}
	line := fmt.Sprintf("%s %s %s", kinds[d.Kind], d.Frontend, short(d.Endpoints))
	if d.Frontend.Family != 0 {
		line = fmt.Sprint("v", d.Frontend.Family, " ", line)
	}
	if d.Local {
		line += " local " + short(d.LocalEndpoints)
	} else if d.LocalEndpoints != nil {
		line += " local endpoints without a local policy"
	}
	if d.Guarded {
		line += fmt.Sprint(" from ", d.Sources)
	} else if d.Sources != nil {
		line += " sources without a guard"
	}
	return line
}

// short gives endpoints by the last part of their addresses.
func short(endpoints []netip.AddrPort) string {
	var list []string
	for _, to := range endpoints {
		b := to.Addr().AsSlice()
		list = append(list, fmt.Sprint(b[len(b)-1]))
	}
	return "[" + strings.Join(list, " ") + "]"
}
