package oracle

import (
	"maps"
	"net/netip"
	"slices"

	"onerule/daemon/model"
)

// A ServicePort is what a client is pinned for (A5.2): whichever frontend it used
// (A5.1), in one family.
type ServicePort struct {
	Service  model.Name
	Port     string // the port's name
	Protocol model.Protocol
	IPv6     bool
}

// A Pin says where a client goes again. Any is for frontends that spread over all
// endpoints. Local is for those that may only use endpoints on this node: a client that
// was pinned elsewhere has one besides (A5.6). The zero values say nothing.
type Pin struct{ Any, Local netip.AddrPort }

// Pins are the pins of each client, by the address that it has before masquerade (A5.7).
type Pins map[ServicePort]map[netip.Addr]Pin

// Clone gives pins that the caller may change.
func (p Pins) Clone() Pins {
	c := Pins{}
	for port, clients := range p {
		c[port] = maps.Clone(clients)
	}
	return c
}

// Affinity gives the service port that clients of the hit are pinned for, and false if
// they are not.
func (h Hit) Affinity() (ServicePort, bool) {
	return ServicePort{h.Service.Name, h.Port.Name, h.Port.Protocol, h.IPv6}, h.Service.Affinity > 0
}

// Pinned gives the endpoint that a client must reach, and false if it is free to reach
// any. A pin to what is no longer chosen is void (A5.4).
func (h Hit) Pinned(pins Pins, client netip.Addr) (netip.AddrPort, bool) {
	port, ok := h.Affinity()
	if !ok {
		return netip.AddrPort{}, false
	}
	pin := h.valid(pins[port][client])
	to := pin.Any
	if h.OnlyLocal {
		to = pin.Local
	}
	return to, to.IsValid()
}

// valid gives a pin without what is void. Pins are for the frontends that there are: what
// no frontend reads is not kept, so that after a change of policy clients begin anew.
func (h Hit) valid(pin Pin) Pin {
	if !h.ReadsAny || !has(h.Cluster, pin.Any) {
		pin.Any = netip.AddrPort{}
	}
	if !h.ReadsLocal || !has(h.Here, pin.Local) {
		pin.Local = netip.AddrPort{}
	}
	return pin
}

func has(list []Endpoint, to netip.AddrPort) bool {
	return slices.ContainsFunc(list, func(e Endpoint) bool { return e.To == to })
}

// After gives the pins that follow when a packet arrives at an endpoint. What the client
// is pinned to stays (A5.3); where it has no pin, it gets one to the endpoint, for every
// kind of frontend that may use the endpoint.
func After(c Cluster, cfg Config, pins Pins, p Packet, arrived netip.AddrPort) Pins {
	hit, ok := Find(c, cfg, p)
	if !ok {
		return pins
	}
	port, ok := hit.Affinity()
	if !ok {
		return pins
	}
	pin := hit.valid(pins[port][p.Src])
	if !pin.Any.IsValid() && hit.ReadsAny && has(hit.Cluster, arrived) {
		pin.Any = arrived
	}
	if !pin.Local.IsValid() && hit.ReadsLocal && has(hit.Here, arrived) {
		pin.Local = arrived
	}
	after := pins.Clone()
	if after[port] == nil {
		after[port] = map[netip.Addr]Pin{}
	}
	after[port][p.Src] = pin
	return after
}

// Prune gives the pins without those that are void in a cluster as it is now: an endpoint
// that comes back begins anew.
func Prune(c Cluster, cfg Config, pins Pins) Pins {
	kept := Pins{}
	for port, clients := range pins {
		hit, ok := c.portOf(port, cfg)
		if !ok {
			continue
		}
		for client, pin := range clients {
			if pin = hit.valid(pin); pin != (Pin{}) {
				if kept[port] == nil {
					kept[port] = map[netip.Addr]Pin{}
				}
				kept[port][client] = pin
			}
		}
	}
	return kept
}

// portOf finds a service port with affinity by its name.
func (c Cluster) portOf(port ServicePort, cfg Config) (Hit, bool) {
	for _, s := range c.Services {
		if s.Name != port.Service || s.Affinity == 0 {
			continue
		}
		if !slices.ContainsFunc(s.ClusterIPs, func(vip netip.Addr) bool { return vip.Is6() == port.IPv6 }) {
			continue
		}
		for _, sp := range s.Ports {
			if sp.Name == port.Port && sp.Protocol == port.Protocol {
				hit := Hit{Service: s, Port: sp, IPv6: port.IPv6}
				hit.choose(c, cfg)
				hit.readers(cfg)
				return hit, true
			}
		}
	}
	return Hit{}, false
}

// HasAffinity says whether clients are pinned for a service port.
func HasAffinity(c Cluster, port ServicePort) bool {
	_, ok := c.portOf(port, Config{})
	return ok
}
