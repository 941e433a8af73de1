package fabric

import (
	"net/netip"
	"slices"

	"onerule/daemon/fabric/layout"
)

// Addresses are those of nodes whose ways are asked for, sorted, so that it costs little to
// find out whether a route leads to one of them.
type addresses []netip.Addr

func addressesOf(m layout.Members) addresses {
	list := slices.Clone(addresses(m.Self.Addrs))
	for _, n := range m.Peers {
		list = append(list, n.Addrs...)
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

func (l addresses) has(a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(l, a, netip.Addr.Compare)
	return found
}

// within says whether a range has one of them.
func (l addresses) within(p netip.Prefix) bool {
	i, _ := slices.BinarySearchFunc(l, p.Masked().Addr(), netip.Addr.Compare)
	return i < len(l) && p.Contains(l[i])
}

// concern says whether a route to a range may lead to one of them, or be a default route, or
// hide one.
func (l addresses) concern(p netip.Prefix) bool {
	four, six := probes()[0], probes()[1]
	return p.Bits() == 0 || p.Contains(four) || p.Contains(six) || l.within(p)
}
