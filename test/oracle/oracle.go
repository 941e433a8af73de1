// Package oracle says what a ClusterIP proxy must do, a second time and slowly:
// from the objects of a cluster and one packet to what becomes of the packet. It
// is written from the specification, row by row, and shares nothing with the code
// that it judges but the facts: it sorts nothing away, remembers nothing and is in
// no hurry, so that it can be checked by reading.
//
// The IDs in the comments are the rows of the specification.
package oracle

import (
	"cmp"
	"net/netip"
	"slices"

	"onerule/daemon/model"
)

// ICMP and ICMPv6 are the protocols of an echo request, which a packet can have
// and a Service can't.
const (
	ICMP   model.Protocol = 1
	ICMPv6 model.Protocol = 58
)

// A Cluster holds the objects as they are now, in any order.
type Cluster struct {
	Services     []model.Service
	Slices       []model.EndpointSlice
	ServiceCIDRs []model.ServiceCIDR
}

// A Config says which node it is about and how the proxy there is set up.
type Config struct {
	NodeName string
	// NodeAddrs are the addresses of the node itself.
	NodeAddrs []netip.Addr
	// ClusterCIDRs tell pods from others, by source address. The first of a family
	// counts. Without one of a family, nobody is told apart in that family (A2.1).
	ClusterCIDRs  []netip.Prefix
	MasqueradeAll bool
}

// An Origin is where the sender of a packet is.
type Origin uint8

// The origins: the three rows of the flow matrix (A2).
const (
	Pod Origin = iota // a pod on the node
	Node
	Outside
)

// String gives the word of the flow matrix.
func (o Origin) String() string { return [...]string{"pod", "node", "outside"}[o] }

// A Packet is the first of a connection, as it arrives at the node, or as the node
// sends it.
type Packet struct {
	From     Origin
	Src, Dst netip.Addr
	Protocol model.Protocol
	Port     uint16 // destination port; means nothing in an echo request
}

// A Verdict is what becomes of a packet.
type Verdict uint8

// The verdicts.
const (
	Untouched Verdict = iota // not ours: goes where it would go without a proxy
	Reached                  // goes to one of the endpoints
	Refused                  // the sender is told at once that nobody serves here
	Dropped                  // the sender hears nothing
)

// String gives the verdict as a word.
func (v Verdict) String() string {
	return [...]string{"untouched", "reached", "refused", "dropped"}[v]
}

// An Arrival is an endpoint that the packet may reach, and whether the endpoint
// sees an address of the node in place of the sender's.
type Arrival struct {
	Endpoint    netip.AddrPort
	Masqueraded bool
}

// An Outcome is a verdict and, when it is Reached, every endpoint that must be
// possible, sorted. No other may be.
type Outcome struct {
	Verdict  Verdict
	Arrivals []Arrival
}

// Judge says what must become of a packet.
func Judge(c Cluster, cfg Config, p Packet) Outcome {
	if service, port, ok := c.owner(p); ok {
		chosen := choose(c.endpoints(service, port, p.Dst))
		if len(chosen) == 0 {
			return Outcome{Verdict: Refused} // A3.1
		}
		return Outcome{Verdict: Reached, Arrivals: arrivals(chosen, cfg, p)} // A1.1
	}
	if c.isClusterIP(p.Dst) {
		// A1.3: a port or protocol that no Service has there. A1.4: nor an echo.
		return Outcome{Verdict: Refused}
	}
	if c.inServiceCIDR(p.Dst) {
		return Outcome{Verdict: Dropped} // A1.5
	}
	return Outcome{Verdict: Untouched}
}

// owner finds the Service and its port that answer for the packet's destination.
// Where several claim it, the oldest Service has it, and of two as old the one
// with the lower name. A1.2: the protocol is part of the claim.
func (c Cluster) owner(p Packet) (model.Service, model.ServicePort, bool) {
	byAge := slices.Clone(c.Services)
	slices.SortFunc(byAge, func(a, b model.Service) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), a.Name.Compare(b.Name))
	})
	for _, s := range byAge {
		if !slices.Contains(s.ClusterIPs, p.Dst) { // A1.23: its address of the packet's family, if it has one
			continue
		}
		for _, port := range s.Ports {
			if port.Protocol == p.Protocol && port.Port == p.Port {
				return s, port, true
			}
		}
	}
	return model.Service{}, model.ServicePort{}, false
}

// isClusterIP says whether any Service holds the address, be it one whose
// frontends all went to an older Service.
func (c Cluster) isClusterIP(a netip.Addr) bool {
	for _, s := range c.Services {
		if slices.Contains(s.ClusterIPs, a) {
			return true
		}
	}
	return false
}

func (c Cluster) inServiceCIDR(a netip.Addr) bool {
	for _, object := range c.ServiceCIDRs {
		for _, cidr := range object.CIDRs {
			if cidr.Contains(a) {
				return true
			}
		}
	}
	return false
}

// An endpoint is an address and port of a service port, with what is known of it.
type endpoint struct {
	to   netip.AddrPort
	fact model.Endpoint
}

// endpoints gathers the endpoints of a service port, of the destination's family
// (A1.23), from all slices of the Service (A1.16), by the name of the slices. The
// number of the port is the slice's, so that it may differ between slices (A1.17)
// and from the Service's (A1.1).
func (c Cluster) endpoints(s model.Service, port model.ServicePort, dst netip.Addr) []endpoint {
	byName := slices.Clone(c.Slices)
	slices.SortFunc(byName, func(a, b model.EndpointSlice) int { return a.Name.Compare(b.Name) })
	var all []endpoint
	for _, slice := range byName {
		if slice.Name.Namespace != s.Name.Namespace || slice.Service != s.Name.Name {
			continue
		}
		for _, sp := range slice.Ports {
			if sp.Name != port.Name || sp.Protocol != port.Protocol {
				continue
			}
			for _, ep := range slice.Endpoints {
				if ep.Addr.Is4() == dst.Is4() {
					all = merge(all, endpoint{netip.AddrPortFrom(ep.Addr, sp.Port), ep})
				}
			}
		}
	}
	return all
}

// merge adds an endpoint. A1.16: where address and port are there already, a
// terminating one never replaces what is there, and any other does.
func merge(all []endpoint, e endpoint) []endpoint {
	for i := range all {
		if all[i].to == e.to {
			if !e.fact.Terminating {
				all[i] = e
			}
			return all
		}
	}
	return append(all, e)
}

// choose gives the endpoints that new connections go to. A4.1: those that are
// ready, and if there are none, those that serve while they terminate. A4.3: what
// is neither ready nor terminating is never chosen. A4.4: ready is ready, whatever
// else is said.
func choose(all []endpoint) []endpoint {
	var ready, leaving []endpoint
	for _, e := range all {
		if e.fact.Ready {
			ready = append(ready, e)
		}
		if e.fact.Serving && e.fact.Terminating {
			leaving = append(leaving, e)
		}
	}
	if len(ready) > 0 {
		return ready
	}
	return leaving
}

func arrivals(chosen []endpoint, cfg Config, p Packet) []Arrival {
	var list []Arrival
	for _, e := range chosen {
		list = append(list, Arrival{e.to, masqueraded(e, cfg, p)})
	}
	slices.SortFunc(list, func(a, b Arrival) int { return a.Endpoint.Compare(b.Endpoint) })
	return list
}

// masqueraded says whether an endpoint sees the node's address in place of the
// sender's.
func masqueraded(e endpoint, cfg Config, p Packet) bool {
	if p.From != Node && slices.Contains(cfg.NodeAddrs, e.to.Addr()) {
		// A2.11: the packet is at its end on this node, and answers come from here
		// again. Masquerade is for what is sent on.
		return false
	}
	if cfg.MasqueradeAll { // A2.2
		return true
	}
	if cidr, ok := cfg.clusterCIDR(p.Dst); ok && !cidr.Contains(p.Src) {
		return true // A2: not from a pod
	}
	// A2.4: a pod that reaches itself. A1.14: only where the node is known to be ours.
	return p.Src == e.to.Addr() && e.fact.Node != "" && e.fact.Node == cfg.NodeName
}

// clusterCIDR gives the range that tells pods of the address's family (A13: the
// first), or false (A2.1).
func (c Config) clusterCIDR(a netip.Addr) (netip.Prefix, bool) {
	for _, cidr := range c.ClusterCIDRs {
		if cidr.Addr().Is4() == a.Is4() {
			return cidr, true
		}
	}
	return netip.Prefix{}, false
}
