package plugin

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// routeProtocol marks our routes, on the node and in pods, so that people and
	// programs can tell them from others. No daemon is known to use it.
	routeProtocol netlink.RouteProtocol = 111
	protocolRA    netlink.RouteProtocol = unix.RTPROT_RA
	// rulePriority stands before that of the main table, 32766.
	rulePriority = 11_100
)

// gateway gives the link-local address that pods send everything to. For IPv4
// nobody has it: a permanent neighbour entry is all that is needed.
func gateway(f family) netip.Addr {
	if f == ipv4 {
		return netip.AddrFrom4([4]byte{169, 254, 1, 1})
	}
	return netip.MustParseAddr("fe80::1")
}

// ownTable is the table in a pod for the default routes of an interface that came
// when the main table had some already.
func ownTable(link int) int { return 111_000_000 + link }

// familiesOf gives the families of some addresses, IPv4 first.
func familiesOf(addrs []netip.Addr) []family {
	var fs []family
	for _, f := range []family{ipv4, ipv6} {
		if slices.ContainsFunc(addrs, func(a netip.Addr) bool { return familyOf(a) == f }) {
			fs = append(fs, f)
		}
	}
	return fs
}

func anywhere(f family) netip.Prefix {
	if f == ipv4 {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// podDefaultRoute is a pod's way out. Onlink, because no address of the pod covers
// the gateway; a route to the gateway itself could exist once only in a pod with
// two interfaces.
func podDefaultRoute(f family, link, table int) *netlink.Route {
	return &netlink.Route{
		LinkIndex: link,
		Gw:        gateway(f).AsSlice(),
		Flags:     int(netlink.FLAG_ONLINK),
		Table:     table,
		Protocol:  routeProtocol,
	}
}

// sourceRule sends what comes from an address to the table of its interface. With
// table 0 it names the rule to any table, for its deletion.
func sourceRule(a netip.Addr, table int) *netlink.Rule {
	r := netlink.NewRule()
	r.Src = ipNet(a)
	r.Table = table
	r.Priority = rulePriority
	r.Protocol = uint8(routeProtocol)
	r.Family = netlinkFamily(familyOf(a))
	return r
}

// hostRoute is the node's way to a pod. It names no source address: the kernel
// would delete the route together with that address when the node's lease ends.
func hostRoute(a netip.Addr, link int) *netlink.Route {
	return &netlink.Route{LinkIndex: link, Dst: ipNet(a), Scope: netlink.SCOPE_LINK, Protocol: routeProtocol}
}

// lookupOptions narrow a lookup; zero values do not.
type lookupOptions struct {
	link int        // index of the device that the packet leaves by
	from netip.Addr // source address
}

// lookup asks the kernel for the route that an address takes, as the table has it.
// A get, never a dump: dumps of busy nodes are interrupted.
func lookup(h *netlink.Handle, a netip.Addr, o lookupOptions) (netlink.Route, bool) {
	opts := &netlink.RouteGetOptions{FIBMatch: true, OifIndex: o.link}
	if o.from.IsValid() {
		opts.SrcAddr = o.from.AsSlice()
	}
	routes, err := h.RouteGetWithOptions(a.AsSlice(), opts)
	if err != nil || len(routes) != 1 {
		return netlink.Route{}, false
	}
	return routes[0], true
}

// defaultRoute finds a default route. It looks for addresses of documentation
// ranges, which nobody routes, and takes what matches with a prefix of no length.
func defaultRoute(h *netlink.Handle, f family, o lookupOptions) (netlink.Route, bool) {
	probes := []string{"198.51.100.1", "203.0.113.1", "192.0.2.1"}
	if f == ipv6 {
		probes = []string{"2001:db8:ffff:ffff::1", "3fff::1", "2001:db8::1"}
	}
	for _, p := range probes {
		r, ok := lookup(h, netip.MustParseAddr(p), o)
		// With a source address the IPv6 lookup only prefers the device.
		if ok && isDefault(r) && (o.link == 0 || r.LinkIndex == o.link) {
			return r, true
		}
	}
	return netlink.Route{}, false
}

func isDefault(r netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

// uplinkMTU gives the MTU of the device, or the smallest of the devices, that the
// node's default routes of the families leave by; 0 without any. A route may have
// an MTU of its own.
func uplinkMTU(h *netlink.Handle, families []family) int {
	mtu := 0
	lower := func(m int) {
		if m > 0 && (mtu == 0 || m < mtu) {
			mtu = m
		}
	}
	for _, f := range families {
		r, ok := defaultRoute(h, f, lookupOptions{})
		if !ok {
			continue
		}
		lower(r.MTU)
		links := []int{r.LinkIndex}
		for _, hop := range r.MultiPath {
			links = append(links, hop.LinkIndex)
		}
		for _, index := range links {
			if link, err := h.LinkByIndex(index); err == nil && link.Attrs().Flags&unix.IFF_LOOPBACK == 0 {
				lower(link.Attrs().MTU)
			}
		}
	}
	return mtu
}
