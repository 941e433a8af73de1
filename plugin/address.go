package plugin

import (
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// A family is an IP family by its number of address bits.
type family int

const (
	ipv4 family = 32
	ipv6 family = 128
)

func (f family) String() string {
	if f == ipv4 {
		return "IPv4"
	}
	return "IPv6"
}

func familyOf(a netip.Addr) family { return family(a.BitLen()) }

func netlinkFamily(f family) int {
	if f == ipv6 {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// ipNet gives an address as a whole prefix of netlink's type.
func ipNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// A span is a range of addresses, both ends included. The gateway is never given.
type span struct{ first, last, gateway netip.Addr }

// A rangeSet is what a pod gets one address from.
type rangeSet []span

func (s span) holds(a netip.Addr) bool {
	return s.first.Compare(a) <= 0 && a.Compare(s.last) <= 0 && a != s.gateway
}

func (set rangeSet) holds(a netip.Addr) bool {
	for _, s := range set {
		if s.holds(a) {
			return true
		}
	}
	return false
}

func (set rangeSet) String() string {
	text := ""
	for i, s := range set {
		if i > 0 {
			text += ", "
		}
		text += s.first.String() + "-" + s.last.String()
	}
	return text
}
