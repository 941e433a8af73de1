package daemon

import (
	"net/netip"

	"onerule/daemon/plan"
	"onerule/nft"
)

// Spell gives the part of an outcome that is of one family in the words of its
// table, and the keys that it covers.
func Spell(family nft.Family, keys plan.Keys, out plan.Outcome) (nft.Keys, nft.State) {
	ofFamily := func(a netip.Addr) bool { return a.Is4() == (family == nft.IPv4) }
	k, s := nft.NewKeys(), nft.NewState()
	for f := range keys.Frontends {
		if !ofFamily(f.Addr) {
			continue
		}
		spelled := frontend(f)
		k.Frontends[spelled] = true
		if endpoints, ours := out.Decisions[f]; ours {
			s.Balance(spelled, endpoints)
		}
	}
	for addr := range keys.Addrs {
		if !ofFamily(addr) {
			continue
		}
		k.Addrs[addr] = true
		if out.ClusterIPs[addr] {
			s.Addrs[nft.ClusterIPs][addr] = true
		}
		if out.Hairpins[addr] {
			s.Addrs[nft.Hairpins][addr] = true
		}
	}
	if keys.Ranges {
		k.Ranges = true
		spellRanges(s, nft.PodCIDRs, out.PodCIDRs, ofFamily)
		spellRanges(s, nft.ServiceCIDRs, out.ServiceCIDRs, ofFamily)
	}
	return k, s
}

func frontend(f plan.Frontend) nft.Frontend {
	return nft.Frontend{Addr: f.Addr, Protocol: uint8(f.Protocol), Port: f.Port}
}

func spellRanges(s nft.State, name nft.RangeSet, prefixes []netip.Prefix, ofFamily func(netip.Addr) bool) {
	var list []netip.Prefix
	for _, p := range prefixes {
		if ofFamily(p.Addr()) {
			list = append(list, p)
		}
	}
	if len(list) > 0 {
		s.Ranges[name] = list
	}
}
