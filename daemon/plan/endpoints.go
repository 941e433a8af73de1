package plan

import (
	"net/netip"
	"slices"

	"onerule/daemon/model"
)

// endpointsOf collects the endpoints of a service port over all slices. Of two
// entries for one address and port a terminating one yields: a pod that goes must
// not hide that its successor serves.
func endpointsOf(port model.ServicePort, parts []*model.EndpointSlice) map[netip.AddrPort]model.Endpoint {
	all := map[netip.AddrPort]model.Endpoint{}
	for _, slice := range parts {
		for _, p := range slice.Ports {
			if p.Name != port.Name || p.Protocol != port.Protocol {
				continue
			}
			for _, e := range slice.Endpoints {
				key := netip.AddrPortFrom(e.Addr, p.Port)
				if _, held := all[key]; held && e.Terminating {
					continue
				}
				all[key] = e
			}
		}
	}
	return all
}

// A choice is what the endpoints of a service port come to, in one family. The lists
// are sorted.
type choice struct {
	cluster []netip.AddrPort // for the policy Cluster
	local   []netip.AddrPort // for the policy Local: on this node
	serving []netip.AddrPort // whose flows may go on, wherever they are
	// here holds the addresses of chosen endpoints on this node.
	here map[netip.Addr]bool
	// hinted says that the zone of the node may matter.
	hinted bool
}

func (l place) choose(all map[netip.AddrPort]model.Endpoint, family Family) choice {
	of := func(good func(model.Endpoint) bool) []netip.AddrPort {
		var list []netip.AddrPort
		for to, e := range all {
			if FamilyOf(to.Addr()) == family && good(e) {
				list = append(list, to)
			}
		}
		slices.SortFunc(list, netip.AddrPort.Compare)
		return list
	}
	c := choice{here: map[netip.Addr]bool{}}
	c.serving = of(func(e model.Endpoint) bool { return e.Serving || e.Ready })
	c.cluster = of(func(e model.Endpoint) bool { return e.Ready })
	c.hinted = slices.ContainsFunc(c.cluster, func(to netip.AddrPort) bool { return all[to].Hints != nil })
	if c.hinted {
		c.cluster = l.nearest(c.cluster, all)
	}
	if len(c.cluster) == 0 {
		c.cluster = of(leaving)
	}
	c.local = of(func(e model.Endpoint) bool { return l.here(e) && e.Ready })
	if len(c.local) == 0 {
		c.local = of(func(e model.Endpoint) bool { return l.here(e) && leaving(e) })
	}
	for _, to := range slices.Concat(c.cluster, c.local) {
		if l.here(all[to]) {
			c.here[to.Addr()] = true
		}
	}
	return c
}

// leaving endpoints are used while there are no ready ones.
func leaving(e model.Endpoint) bool { return e.Serving && e.Terminating }

// A place is where the node is.
type place struct {
	node, zone string
}

// here says whether an endpoint is on this node.
func (l place) here(e model.Endpoint) bool { return e.Node != "" && e.Node == l.node }

// nearest follows hints: those for nodes if all ready endpoints have some and any is for
// this node, else those for zones in the same way; else it ignores them. Endpoints that
// are not ready do not matter.
func (l place) nearest(ready []netip.AddrPort, all map[netip.AddrPort]model.Endpoint) []netip.AddrPort {
	for _, by := range []struct {
		name  string
		hints func(*model.Hints) []string
	}{
		{l.node, func(h *model.Hints) []string { return h.Nodes }},
		{l.zone, func(h *model.Hints) []string { return h.Zones }},
	} {
		if near, ok := hintedFor(by.name, ready, func(to netip.AddrPort) []string {
			if h := all[to].Hints; h != nil {
				return by.hints(h)
			}
			return nil
		}); ok {
			return near
		}
	}
	return ready
}

func hintedFor(name string, ready []netip.AddrPort, hints func(netip.AddrPort) []string) (near []netip.AddrPort, ok bool) {
	if name == "" {
		return nil, false
	}
	for _, to := range ready {
		list := hints(to)
		if len(list) == 0 {
			return nil, false
		}
		if slices.Contains(list, name) {
			near = append(near, to)
		}
	}
	return near, len(near) > 0
}
