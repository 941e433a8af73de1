package plan

import (
	"maps"
	"net/netip"
	"slices"

	"onerule/daemon/model"
)

// ForService plans one Service from its slices, which come sorted by name.
func ForService(cfg Config, s *model.Service, parts []*model.EndpointSlice) Service {
	p := Service{Created: s.Created, ClusterIPs: slices.Clone(s.ClusterIPs)}
	hairpins := map[netip.Addr]bool{}
	for _, port := range s.Ports {
		all := endpointsOf(port, parts)
		for _, vip := range s.ClusterIPs {
			chosen := clusterSet(all, vip.Is4())
			p.Decisions = append(p.Decisions, Decision{
				Frontend:  Frontend{vip, port.Protocol, port.Port},
				Endpoints: slices.SortedFunc(maps.Keys(chosen), netip.AddrPort.Compare),
			})
			for addrPort, e := range chosen {
				if e.Node != "" && e.Node == cfg.NodeName {
					hairpins[addrPort.Addr()] = true
				}
			}
		}
	}
	slices.SortStableFunc(p.Decisions, func(a, b Decision) int { return a.Frontend.Compare(b.Frontend) })
	p.Decisions = slices.CompactFunc(p.Decisions, func(a, b Decision) bool { return a.Frontend == b.Frontend })
	p.Hairpins = slices.SortedFunc(maps.Keys(hairpins), netip.Addr.Compare)
	return p
}

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

// clusterSet chooses for the cluster policy: the ready endpoints of a family, or
// while there are none, those that still serve while they terminate.
func clusterSet(all map[netip.AddrPort]model.Endpoint, is4 bool) map[netip.AddrPort]model.Endpoint {
	choose := func(good func(model.Endpoint) bool) map[netip.AddrPort]model.Endpoint {
		chosen := map[netip.AddrPort]model.Endpoint{}
		for key, e := range all {
			if e.Addr.Is4() == is4 && good(e) {
				chosen[key] = e
			}
		}
		return chosen
	}
	if ready := choose(func(e model.Endpoint) bool { return e.Ready }); len(ready) > 0 {
		return ready
	}
	return choose(func(e model.Endpoint) bool { return e.Serving && e.Terminating })
}

// Merge gives the same addresses as the fewest prefixes, disjoint and sorted: the
// kernel refuses ranges that overlap, and with them the whole transaction.
func Merge(prefixes []netip.Prefix) []netip.Prefix {
	sorted := make([]netip.Prefix, len(prefixes))
	for i, p := range prefixes {
		sorted[i] = p.Masked()
	}
	slices.SortFunc(sorted, netip.Prefix.Compare)
	var merged []netip.Prefix
	for _, p := range sorted {
		if n := len(merged); n > 0 && merged[n-1].Overlaps(p) {
			continue // sorted by address, then by length: it lies within the last one
		}
		merged = append(merged, p)
		for n := len(merged); n > 1 && siblings(merged[n-2], merged[n-1]); n-- {
			merged = append(merged[:n-2], netip.PrefixFrom(merged[n-2].Addr(), merged[n-2].Bits()-1))
		}
	}
	return merged
}

// siblings says whether two prefixes, the lower one first, are the halves of one.
func siblings(a, b netip.Prefix) bool {
	if a.Bits() != b.Bits() || a.Bits() == 0 || a.Addr().BitLen() != b.Addr().BitLen() {
		return false
	}
	parent := netip.PrefixFrom(a.Addr(), a.Bits()-1).Masked()
	return parent.Addr() == a.Addr() && parent.Contains(b.Addr())
}
