package oracle

import (
	"cmp"
	"net/netip"
	"slices"

	"onerule/daemon/model"
)

// A Kind is what a packet's destination is to the Service that answers for it.
type Kind uint8

// The kinds, in the order in which they count within one Service.
const (
	ClusterIP Kind = iota
	ExternalIP
	LoadBalancerIP
	NodePort
)

// String gives the kind as Kubernetes writes it.
func (k Kind) String() string {
	return [...]string{"ClusterIP", "external IP", "load balancer IP", "NodePort"}[k]
}

// A Hit is the Service port that answers for a packet.
type Hit struct {
	Kind    Kind
	Service model.Service
	Port    model.ServicePort
	IPv6    bool
	// Local is the traffic policy, and OnlyLocal what it comes to for this packet:
	// nothing but endpoints on this node.
	Local, OnlyLocal bool
	// Guarded says that only sources in Ranges are let in.
	Guarded bool
	Ranges  []netip.Prefix
	// All are the endpoints of the port in the packet's family, Cluster those chosen
	// from them for the policy Cluster, and Here those for the policy Local.
	All, Cluster, Here []Endpoint
	// ReadsAny and ReadsLocal say whether the port has a frontend that spreads over
	// Cluster, and one with a Local policy: pins are for those.
	ReadsAny, ReadsLocal bool
}

// Find gives what answers for the packet's destination, and false if no Service does.
func Find(c Cluster, cfg Config, p Packet) (Hit, bool) {
	claims := c.claims(func(s model.Service, port model.ServicePort) (Kind, bool) {
		kind, ok := holds(s, cfg, p.Dst)
		return kind, ok && port.Port == p.Port
	}, p)
	if len(claims) == 0 && cfg.TakesNodePorts(p.Dst) { // an address that a Service has there comes first
		claims = c.claims(func(s model.Service, port model.ServicePort) (Kind, bool) {
			return NodePort, port.NodePort != 0 && port.NodePort == p.Port && inFamily(s, p.Dst)
		}, p)
	}
	if len(claims) == 0 {
		return Hit{}, false
	}
	hit := claims[0]
	hit.IPv6 = p.Dst.Is6()
	hit.Local = hit.Service.ExternalLocal // A3.5
	if hit.Kind == ClusterIP {
		hit.Local = hit.Service.InternalLocal
	}
	hit.OnlyLocal = hit.Local && (hit.Kind == ClusterIP || !inside(cfg, p)) // A3.4
	hit.guard(p.Dst)
	hit.choose(c, cfg)
	hit.readers(cfg)
	return hit, true
}

// inside says whether an external frontend whose policy is Local lets the sender reach
// all endpoints: a pod, or the node itself (A2, A3.4).
func inside(cfg Config, p Packet) bool {
	pod, _ := cfg.isPod(p)
	return pod || p.From == Node
}

// claims gives every Service port that claims the packet, in the order of their right:
// ClusterIPs before others, since whoever may write Services must not take another
// one's traffic, then the oldest, then the lowest name. A1.2: the protocol is part of a
// claim.
func (c Cluster) claims(claim func(model.Service, model.ServicePort) (Kind, bool), p Packet) []Hit {
	var list []Hit
	for _, s := range c.Services {
		for _, port := range s.Ports {
			if kind, ok := claim(s, port); ok && port.Protocol == p.Protocol {
				list = append(list, Hit{Kind: kind, Service: s, Port: port})
			}
		}
	}
	rank := func(k Kind) int { return min(int(k), 1) }
	slices.SortStableFunc(list, func(a, b Hit) int {
		return cmp.Or(
			cmp.Compare(rank(a.Kind), rank(b.Kind)),
			cmp.Compare(a.Service.Created, b.Service.Created),
			a.Service.Name.Compare(b.Service.Name))
	})
	return list
}

// holds says what an address is to a Service.
func holds(s model.Service, cfg Config, a netip.Addr) (Kind, bool) {
	switch {
	case !inFamily(s, a):
		return 0, false
	case slices.Contains(s.ClusterIPs, a):
		return ClusterIP, true
	case slices.Contains(s.ExternalIPs, a) && !cfg.WithoutExternalIPs: // A1.22
		return ExternalIP, true
	case slices.Contains(s.LoadBalancerIPs, a): // A1.19
		return LoadBalancerIP, true
	}
	return 0, false
}

// inFamily says whether a Service is there in the family of an address: it has a
// ClusterIP of that family (A1.23).
func inFamily(s model.Service, a netip.Addr) bool {
	return slices.ContainsFunc(s.ClusterIPs, func(vip netip.Addr) bool { return vip.Is4() == a.Is4() })
}

// TakesNodePorts says whether a NodePort is to be had at an address: one of the node's
// own (A6.6), never a loopback one (A6.7, A7.1), in one of the ranges (A6.4) unless
// there is none of its family (A6.5).
func (c Config) TakesNodePorts(a netip.Addr) bool {
	if a.IsLoopback() || !slices.Contains(c.NodeAddrs, a) {
		return false
	}
	restricted := false
	for _, r := range c.NodePortRanges {
		if r.Contains(a) {
			return true
		}
		restricted = restricted || r.Addr().Is4() == a.Is4()
	}
	return !restricted
}

// guard says who may use the frontend: all, unless it is a load balancer IP (A8.6,
// A6.10) of a Service with ranges of the family (A8.5), none of which is everything
// (A8.2). Whether the Service lists the address as an external IP besides does not
// matter: that must not let others in.
func (h *Hit) guard(dst netip.Addr) {
	if h.Kind == ClusterIP || h.Kind == NodePort || !slices.Contains(h.Service.LoadBalancerIPs, dst) {
		return
	}
	for _, r := range h.Service.SourceRanges {
		if r.Addr().Is4() != dst.Is4() {
			continue
		}
		if r.Bits() == 0 {
			h.Guarded, h.Ranges = false, nil
			return
		}
		h.Guarded, h.Ranges = true, append(h.Ranges, r)
	}
}

// admits says whether a source is let in. A8.4: what the node sent to the load balancer
// may come back with that one's address, if the node itself is let in.
func (h Hit) admits(node *model.Node, src netip.Addr) bool {
	if !h.Guarded {
		return true
	}
	for _, r := range h.Ranges {
		if r.Contains(src) {
			return true
		}
		if node != nil && slices.ContainsFunc(node.Addrs, r.Contains) && slices.Contains(h.Service.LoadBalancerIPs, src) {
			return true
		}
	}
	return false
}

// readers says which sets the frontends of the port spread connections over. A1.23: those
// of the family.
func (h *Hit) readers(cfg Config) {
	external := h.Port.NodePort != 0
	for _, list := range [][]netip.Addr{h.Service.ExternalIPs, h.Service.LoadBalancerIPs} {
		for _, a := range list {
			if kind, ok := holds(h.Service, cfg, a); ok && kind != ClusterIP && a.Is6() == h.IPv6 {
				external = true
			}
		}
	}
	h.ReadsAny = !h.Service.InternalLocal || external
	h.ReadsLocal = h.Service.InternalLocal || h.Service.ExternalLocal && external
}
