package daemon

import (
	"fmt"
	"net/netip"

	"onerule/daemon/plan"
	"onerule/nft"
)

// Spell gives the part of an outcome that is of one family in the words of its
// table, and the keys that it covers.
func Spell(family nft.Family, keys plan.Keys, out plan.Outcome) (nft.Keys, nft.State) {
	k, s := nft.NewKeys(), nft.NewState()
	for f := range keys.Frontends {
		if f.InFamily() != plan.Family(family) {
			continue
		}
		k.Frontends[frontend(f)] = true
		if d, ours := out.Decisions[f]; ours {
			s.Set(frontend(f), route(d))
		}
	}
	for addr := range keys.Addrs {
		if !isOf(family, addr) {
			continue
		}
		k.Addrs[addr] = true
		for set, holds := range map[nft.AddrSet]map[netip.Addr]bool{
			nft.ClusterIPs: out.ClusterIPs, nft.ExternalIPs: out.ExternalIPs, nft.Hairpins: out.Hairpins,
		} {
			if holds[addr] {
				s.Addrs[set][addr] = true
			}
		}
	}
	for port := range keys.Affinities {
		if port.Family != plan.Family(family) {
			continue
		}
		k.Affinities[affinityID(port)] = true
		if a, ours := out.Affinities[port]; ours {
			s.Pin(affinity(port, a.Seconds, a.Local), a.Endpoints, a.LocalEndpoints)
		}
	}
	if keys.Ranges {
		k.Ranges = true
		spellRanges(s, nft.PodCIDRs, out.PodCIDRs, family)
		spellRanges(s, nft.ServiceCIDRs, out.ServiceCIDRs, family)
	}
	return k, s
}

func isOf(f nft.Family, a netip.Addr) bool { return a.Is4() == (f == nft.IPv4) }

func frontend(f plan.Frontend) nft.Frontend {
	return nft.Frontend{Addr: f.Addr, Protocol: uint8(f.Protocol), Port: f.Port}
}

func route(d plan.Decision) nft.Route {
	r := nft.Route{
		Entry: nft.Entry{
			External: d.Kind != plan.ClusterIP,
			NodePort: d.Kind == plan.NodePort,
			Local:    d.Local,
			Guarded:  d.Guarded,
		},
		Endpoints: d.Endpoints,
		Local:     d.LocalEndpoints,
		Sources:   d.Sources,
	}
	if d.Affinity != (plan.ServicePort{}) {
		r.Affinity = affinity(d.Affinity, d.AffinitySeconds, d.AffinityLocal)
	}
	return r
}

func affinity(p plan.ServicePort, seconds uint32, local bool) nft.Affinity {
	return nft.Affinity{ID: affinityID(p), Protocol: uint8(p.Protocol), Seconds: seconds, Local: local}
}

// affinityID is the same in both families, whose tables are not the same.
func affinityID(p plan.ServicePort) string {
	return nft.AffinityID(fmt.Sprintf("%s/%s/%s", p.Service, p.Port, p.Protocol))
}

func spellRanges(s nft.State, name nft.RangeSet, prefixes []netip.Prefix, family nft.Family) {
	var list []netip.Prefix
	for _, p := range prefixes {
		if isOf(family, p.Addr()) {
			list = append(list, p)
		}
	}
	if len(list) > 0 {
		s.Ranges[name] = list
	}
}
