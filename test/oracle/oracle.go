// Package oracle says what a Service proxy must do, a second time and slowly: from the
// objects of a cluster, what clients were pinned to and one packet to what becomes of
// the packet. It is written from the specification, row by row, and shares nothing with
// the code that it judges but the facts: it sorts nothing away, remembers nothing and is
// in no hurry, so that it can be checked by reading.
//
// The IDs in the comments are the rows of the specification.
package oracle

import (
	"net/netip"
	"slices"
	"strings"

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
	// Node is the object of the node that it is about; nil if there is none.
	Node *model.Node
}

// A Config says which node it is about and how the proxy there is set up.
type Config struct {
	NodeName string
	// NodeAddrs are the addresses that the node really has, but for loopback.
	NodeAddrs []netip.Addr
	// NodePortRanges say which of them take NodePorts. Without a range of a family all
	// of that family do (A6.5).
	NodePortRanges []netip.Prefix
	// ClusterCIDRs tell pods from others, by source address. The first of a family
	// counts. Without one of a family, nobody is told apart in that family (A2.1).
	ClusterCIDRs []netip.Prefix
	// PodInterface tells pods from others in place of ClusterCIDRs, if it is not empty:
	// the name of the interface that their packets come in by, or with * behind it the
	// beginning of such names (A13).
	PodInterface  string
	MasqueradeAll bool
	// RefuseWithoutLocal refuses in place of dropping where there are endpoints, but
	// none that a Local policy allows.
	RefuseWithoutLocal bool
	// WithoutExternalIPs leaves spec.externalIPs out (A1.22).
	WithoutExternalIPs bool
	// WithoutFib says that the kernel can't be asked where an address is reached.
	WithoutFib bool
}

// An Origin is where the sender of a packet is.
type Origin uint8

// The origins: the three rows of the flow matrix (A2). Another node's pod is outside:
// only its address tells it from others there.
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
	Iif      string // the interface that it comes in by; empty if the node sends it
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

// Judge says what must become of a packet, given the pins that earlier ones left.
func Judge(c Cluster, cfg Config, pins Pins, p Packet) Outcome {
	hit, ok := Find(c, cfg, p)
	if !ok {
		return unserved(c, cfg, p)
	}
	if !hit.admits(c.Node, p.Src) {
		return Outcome{Verdict: Dropped} // A8.1, A8.3: also where nobody serves
	}
	if len(hit.Cluster) == 0 {
		return Outcome{Verdict: Refused} // A3.1
	}
	candidates := hit.Candidates()
	if len(candidates) == 0 {
		if cfg.RefuseWithoutLocal {
			return Outcome{Verdict: Refused}
		}
		return Outcome{Verdict: Dropped} // A3.2, A3.3
	}
	if to, pinned := hit.Pinned(pins, p.Src); pinned {
		candidates = slices.DeleteFunc(slices.Clone(candidates), func(e Endpoint) bool { return e.To != to })
	}
	return Outcome{Verdict: Reached, Arrivals: arrivals(candidates, hit, cfg, p)} // A1.1
}

// returns says whether a packet would leave by where it came in. The node reaches addresses
// outside by its uplink.
func (p Packet) returns() bool { return p.From == Outside && (p.Iif == "" || p.Iif == "uplink") }

// unserved says what becomes of a packet that no Service has a port for.
func unserved(c Cluster, cfg Config, p Packet) Outcome {
	switch {
	case c.isClusterIP(p.Dst):
		// A1.3: a port or protocol that no Service has there. A1.4: nor an echo.
		return Outcome{Verdict: Refused}
	case c.inServiceCIDR(p.Dst):
		return Outcome{Verdict: Dropped} // A1.5
	case c.isExternal(cfg, p.Dst) && !slices.Contains(cfg.NodeAddrs, p.Dst) && p.returns() && !cfg.WithoutFib:
		// It would go back to where it came from. What others ask of the address is the
		// business of whoever has it.
		return Outcome{Verdict: Refused}
	}
	return Outcome{Verdict: Untouched}
}

// isClusterIP says whether any Service holds the address, be it one whose
// frontends all went to an older Service.
func (c Cluster) isClusterIP(a netip.Addr) bool {
	return slices.ContainsFunc(c.Services, func(s model.Service) bool { return slices.Contains(s.ClusterIPs, a) })
}

// isExternal says the same of external and load balancer IPs that anything is served
// at.
func (c Cluster) isExternal(cfg Config, a netip.Addr) bool {
	return slices.ContainsFunc(c.Services, func(s model.Service) bool {
		kind, holds := holds(s, cfg, a)
		return holds && kind != ClusterIP && len(s.Ports) > 0
	})
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

func arrivals(chosen []Endpoint, hit Hit, cfg Config, p Packet) []Arrival {
	var list []Arrival
	for _, e := range chosen {
		list = append(list, Arrival{e.To, masqueraded(e, hit, cfg, p)})
	}
	slices.SortFunc(list, func(a, b Arrival) int { return a.Endpoint.Compare(b.Endpoint) })
	return list
}

// masqueraded says whether an endpoint sees the node's address in place of the
// sender's.
func masqueraded(e Endpoint, hit Hit, cfg Config, p Packet) bool {
	if p.From != Node && slices.Contains(cfg.NodeAddrs, e.To.Addr()) {
		// A2.11: the packet is at its end on this node, and answers come from here
		// again. Masquerade is for what is sent on.
		return false
	}
	if p.Src == e.To.Addr() && e.IsHere(cfg) {
		return true // A2.4: a pod that reaches itself. A1.14: only where the node is known to be ours.
	}
	pod, known := cfg.isPod(p)
	switch {
	case hit.Kind == ClusterIP:
		return cfg.MasqueradeAll || known && !pod // A2, A2.1, A2.2
	case !hit.Local:
		return true // A2
	}
	return !pod && p.From == Node // A2: the short circuit of a pod and the way of outside keep the address
}

// isPod says whether the sender is taken for a pod, and whether pods are told apart at
// all (A2.1, A13). Who is taken for one is one, also on the node itself.
func (c Config) isPod(p Packet) (pod, known bool) {
	if c.PodInterface != "" {
		if beginning, open := strings.CutSuffix(c.PodInterface, "*"); open {
			return strings.HasPrefix(p.Iif, beginning), true
		}
		return p.Iif == c.PodInterface, true
	}
	for _, cidr := range c.ClusterCIDRs {
		if cidr.Addr().Is4() == p.Dst.Is4() { // A13: the first of the family
			return cidr.Contains(p.Src), true
		}
	}
	return false, false
}
