package daemon

import (
	"maps"
	"net/netip"
	"slices"

	"onerule/daemon/config"
	"onerule/nft"
)

// addresses are the node's own, as far as rules ask for them: they are elements, but
// follow from no object.
type addresses struct {
	host []netip.Addr // that the kernel has, but for loopback
	node config.NodeIPs
}

// everywhere says whether NodePorts are at all addresses of a family.
func (a addresses) everywhere(s config.Settings, family nft.Family) bool {
	ranges := s.NodePortAddresses.Ranges(config.Family(family), a.node)
	return len(ranges) == 1 && ranges[0].Bits() == 0
}

// nodePorts gives the addresses of a family that take NodePorts.
func (a addresses) nodePorts(s config.Settings, family nft.Family) []netip.Addr {
	ranges := s.NodePortAddresses.Ranges(config.Family(family), a.node)
	var list []netip.Addr
	for _, addr := range a.of(family) {
		if slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			list = append(list, addr)
		}
	}
	return list
}

func (a addresses) of(family nft.Family) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(a.host), func(addr netip.Addr) bool {
		return addr.IsLoopback() || !isOf(family, addr)
	})
}

type addrs map[netip.Addr]bool

// held are the elements that follow from addresses, of one table.
type held map[nft.AddrSet]map[netip.Addr]bool

func (a addresses) held(s config.Settings, family nft.Family, fib bool) held {
	h := held{nft.NodePortIPs: {}, nft.NodeIPs: {}}
	if fib && a.everywhere(s, family) { // the kernel knows
		return h
	}
	for _, addr := range a.nodePorts(s, family) {
		h[nft.NodePortIPs][addr] = true
	}
	if fib {
		return h
	}
	for _, addr := range a.of(family) {
		h[nft.NodeIPs][addr] = true
	}
	return h
}

// changed gives the addresses whose elements differ.
func (h held) changed(now held) addrs {
	list := addrs{}
	for _, set := range []nft.AddrSet{nft.NodePortIPs, nft.NodeIPs} {
		all := maps.Clone(now[set])
		if all == nil {
			all = map[netip.Addr]bool{}
		}
		maps.Copy(all, h[set])
		for addr := range all {
			if h[set][addr] != now[set][addr] {
				list[addr] = true
			}
		}
	}
	return list
}

// spell adds the elements of the addresses that the keys name: what a state says of an
// address, it says of all sets.
func (h held) spell(keys nft.Keys, s nft.State) {
	for set, list := range h {
		for addr := range keys.Addrs {
			if list[addr] {
				s.Addrs[set][addr] = true
			}
		}
	}
}

// all names the addresses that there are elements for.
func (h held) all() addrs {
	all := addrs{}
	for _, list := range h {
		maps.Copy(all, list)
	}
	return all
}
