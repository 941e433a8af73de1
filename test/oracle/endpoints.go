package oracle

import (
	"net/netip"
	"slices"

	"onerule/daemon/model"
)

// An Endpoint is an address and port of a service port, with what is known of it.
type Endpoint struct {
	To   netip.AddrPort
	Fact model.Endpoint
}

// IsHere says whether the endpoint is on the node. A1.14: nowhere, if that is not known.
func (e Endpoint) IsHere(cfg Config) bool { return e.Fact.Node != "" && e.Fact.Node == cfg.NodeName }

// leaving says whether the endpoint still serves while it terminates.
func (e Endpoint) leaving() bool { return e.Fact.Serving && e.Fact.Terminating }

// choose finds the endpoints that new connections go to.
//
// A4.1: for the policy Cluster those that are ready, as hints narrow them down; if
// nothing is ready, those that serve while they terminate. A4.2: for the policy Local
// the same among those on the node, whatever is ready elsewhere and whatever hints say
// (A4.10). A4.3: what is neither ready nor terminating is never chosen. A4.4: ready is
// ready, whatever else is said.
func (h *Hit) choose(c Cluster, cfg Config) {
	h.All = c.endpoints(h.Service, h.Port, h.IPv6)
	var ready, leaving, readyHere, leavingHere []Endpoint
	for _, e := range h.All {
		switch {
		case e.Fact.Ready:
			ready = append(ready, e)
			if e.IsHere(cfg) {
				readyHere = append(readyHere, e)
			}
		case e.leaving():
			leaving = append(leaving, e)
			if e.IsHere(cfg) {
				leavingHere = append(leavingHere, e)
			}
		}
	}
	h.Cluster, h.Here = leaving, leavingHere
	if len(ready) > 0 {
		h.Cluster, _ = hinted(ready, c.Node, cfg) // A4.13
	}
	if len(readyHere) > 0 {
		h.Here = readyHere
	}
}

// Candidates gives those that this packet may go to, before pins.
func (h Hit) Candidates() []Endpoint {
	if h.OnlyLocal {
		return h.Here
	}
	return h.Cluster
}

// endpoints gathers the endpoints of a service port, of one family (A1.23), from all
// slices of the Service (A1.16), by the name of the slices. The number of the port is the
// slice's, so that it may differ between slices (A1.17) and from the Service's (A1.1).
func (c Cluster) endpoints(s model.Service, port model.ServicePort, ipv6 bool) []Endpoint {
	byName := slices.Clone(c.Slices)
	slices.SortFunc(byName, func(a, b model.EndpointSlice) int { return a.Name.Compare(b.Name) })
	var all []Endpoint
	for _, slice := range byName {
		if slice.Name.Namespace != s.Name.Namespace || slice.Service != s.Name.Name {
			continue
		}
		for _, sp := range slice.Ports {
			if sp.Name != port.Name || sp.Protocol != port.Protocol {
				continue
			}
			for _, ep := range slice.Endpoints {
				if ep.Addr.Is6() == ipv6 {
					all = merge(all, Endpoint{netip.AddrPortFrom(ep.Addr, sp.Port), ep})
				}
			}
		}
	}
	return all
}

// merge adds an endpoint. A1.16: where address and port are there already, a
// terminating one never replaces what is there, and any other does.
func merge(all []Endpoint, e Endpoint) []Endpoint {
	for i := range all {
		if all[i].To == e.To {
			if !e.Fact.Terminating {
				all[i] = e
			}
			return all
		}
	}
	return append(all, e)
}

// Hints are what hints of endpoints come to.
type Hints uint8

// What they come to.
const (
	NoHints      Hints = iota // no endpoint has any
	ForZone                   // those for this node's zone are meant
	ForNode                   // those for this node are meant
	HintsIgnored              // some are there, and do not count
)

// ReadHints says what hints would come to if these were the ready endpoints.
func ReadHints(list []Endpoint, node *model.Node, cfg Config) Hints {
	_, hints := hinted(list, node, cfg)
	return hints
}

// hinted narrows ready endpoints down (A4.9: others don't matter).
//
// A4.6: where each has a hint for nodes, and one for this node, those for this node.
// A4.7: else where each has a hint for zones, and one for this node's zone, those for
// this zone. A4.8: else all of them. A4.11: nothing else is looked at.
func hinted(ready []Endpoint, node *model.Node, cfg Config) ([]Endpoint, Hints) {
	zone := ""
	if node != nil {
		zone = node.Zone
	}
	var forNode, forZone []Endpoint
	withNodes, withZones, some := 0, 0, false
	for _, e := range ready {
		h := e.Fact.Hints
		if h == nil {
			continue
		}
		some = some || len(h.Nodes)+len(h.Zones) > 0
		if len(h.Nodes) > 0 {
			withNodes++
		}
		if len(h.Zones) > 0 {
			withZones++
		}
		if cfg.NodeName != "" && slices.Contains(h.Nodes, cfg.NodeName) {
			forNode = append(forNode, e)
		}
		if zone != "" && slices.Contains(h.Zones, zone) {
			forZone = append(forZone, e)
		}
	}
	switch {
	case !some:
		return ready, NoHints
	case withNodes == len(ready) && len(forNode) > 0:
		return forNode, ForNode
	case withZones == len(ready) && len(forZone) > 0:
		return forZone, ForZone
	}
	return ready, HintsIgnored
}
