package plan

import (
	"maps"
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
	listed  []netip.AddrPort // all, if the flows to others are to end
	// clusterHere are those of cluster that are on this node, readyHere all endpoints on
	// it that are ready.
	clusterHere, readyHere []netip.AddrPort
	// hinted says that the zone of the node may matter.
	hinted bool
}

// choose sorts endpoints out. The local ones are chosen by themselves: neither hints nor
// ready endpoints elsewhere keep them out.
func (p place) choose(all map[netip.AddrPort]model.Endpoint, family Family) choice {
	sorted := slices.SortedFunc(maps.Keys(all), netip.AddrPort.Compare)
	of := func(list []netip.AddrPort, good func(model.Endpoint) bool) []netip.AddrPort {
		var some []netip.AddrPort
		for _, to := range list {
			if FamilyOf(to.Addr()) == family && good(all[to]) {
				some = append(some, to)
			}
		}
		return some
	}
	c := choice{serving: of(sorted, servable), cluster: of(sorted, isReady)}
	if len(c.serving) == len(c.cluster) {
		c.serving = c.cluster // who is ready serves: one list is enough for most Services
	}
	c.readyHere = of(c.cluster, p.here)
	c.hinted = slices.ContainsFunc(c.cluster, func(to netip.AddrPort) bool { return all[to].Hints != nil })
	if c.hinted {
		c.cluster = p.nearest(c.cluster, all)
	}
	if len(c.cluster) == 0 {
		c.cluster = of(sorted, leaving)
	}
	if c.local = c.readyHere; len(c.local) == 0 {
		c.local = of(of(sorted, leaving), p.here)
	}
	c.clusterHere = of(c.cluster, p.here)
	return c
}

// listed gives all endpoints of a family, sorted.
func listed(all map[netip.AddrPort]model.Endpoint, family Family) []netip.AddrPort {
	var list []netip.AddrPort
	for to := range all {
		if FamilyOf(to.Addr()) == family {
			list = append(list, to)
		}
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}

func isReady(e model.Endpoint) bool { return e.Ready }

// leaving endpoints are used while there are no ready ones.
func leaving(e model.Endpoint) bool { return e.Serving && e.Terminating }

// servable endpoints may keep the flows that they have. An endpoint is ready without
// serving when its Service publishes pods that are not: whatever gets new flows must not
// lose them again.
func servable(e model.Endpoint) bool { return e.Serving || e.Ready }
