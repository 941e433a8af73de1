package fabric

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"onerule/daemon/fabric/layout"
)

// facts finds out what this node is like, as far as ways to some addresses go. It asks
// for each: of the routes of a node only few matter here, and there may be very many.
func (k *kernel) facts(addrs []netip.Addr) (layout.Facts, error) {
	f := layout.Facts{Links: map[int]layout.Link{}, Ways: map[netip.Addr]layout.Way{}}
	k.sources = map[netip.Addr]bool{}
	_, err := k.devicesOf("ipv6")
	f.IPv6 = err == nil
	for _, a := range addrs {
		if err := k.way(&f, a); err != nil {
			return f, err
		}
	}
	if err := k.uplinks(&f); err != nil {
		return f, err
	}
	f.PodLinks, err = k.linksOfPods()
	return f, err
}

// linksOfPods gives the names of the links to pods.
func (k *kernel) linksOfPods() ([]string, error) {
	names, err := k.devicesOf("ipv4")
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, k.podLinks) }), nil
}

// way looks up the way to an address. The route is taken as the table has it, without
// what was learned about single addresses for a while.
func (k *kernel) way(f *layout.Facts, a netip.Addr) error {
	k.counts.Lookups++
	routes, err := k.handle.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if noWay(err) || err == nil && len(routes) != 1 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up the way to %s: %w", a, err)
	}
	r := routes[0]
	if r.Type != unix.RTN_UNICAST && r.Type != unix.RTN_LOCAL || stray(r) {
		return nil // a broadcast address, such as a bad Node has, is no next hop
	}
	k.prefers(r)
	w := layout.Way{Link: r.LinkIndex, Gateway: r.Gw != nil || r.Via != nil, Local: r.Type == unix.RTN_LOCAL, MTU: r.MTU}
	if len(r.MultiPath) > 0 {
		w.Gateway = true
		w.Link, err = k.narrowest(f, r.MultiPath)
	} else {
		err = k.link(f, w.Link)
	}
	if err != nil {
		return err
	}
	if l, known := f.Links[w.Link]; known && l.Name != layout.DeviceName {
		f.Ways[a] = w
	}
	return nil
}

// stray says that a route to a node's address is one of ours, which an earlier set of nodes
// wanted. It goes, and then the way is asked for again.
func stray(r netlink.Route) bool {
	return r.Protocol == protocol && r.Table == unix.RT_TABLE_MAIN && ownMetric(uint32(r.Priority))
}

// prefers takes down from which address a route sends.
func (k *kernel) prefers(r netlink.Route) {
	if a := addrOf(r.Src).Unmap(); a.IsValid() {
		k.sources[a] = true
	}
}

// noWay says that no route leads to an address, or one that refuses.
func noWay(err error) bool {
	for _, e := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.EAFNOSUPPORT, unix.ESRCH} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// narrowest gives the one of some links that has the least MTU.
func (k *kernel) narrowest(f *layout.Facts, hops []*netlink.NexthopInfo) (int, error) {
	least := 0
	for _, h := range hops {
		if err := k.link(f, h.LinkIndex); err != nil {
			return 0, err
		}
		l, known := f.Links[h.LinkIndex]
		if known && (least == 0 || l.MTU < f.Links[least].MTU) {
			least = h.LinkIndex
		}
	}
	return least, nil
}

// link looks up a device. One that went meanwhile is left out.
func (k *kernel) link(f *layout.Facts, index int) error {
	if _, known := f.Links[index]; known || index == 0 {
		return nil
	}
	link, err := k.handle.LinkByIndex(index)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) || errors.Is(err, unix.ENODEV) {
		k.missed = true
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up link %d: %w", index, err)
	}
	const none = unix.IFF_NOARP | unix.IFF_POINTOPOINT | unix.IFF_LOOPBACK
	at := link.Attrs()
	f.Links[index] = layout.Link{Name: at.Name, MTU: at.MTU, Resolves: at.RawFlags&none == 0}
	return nil
}

// probes are addresses that nobody routes to, of IPv4 and IPv6: what leads to them is the
// default route.
func probes() [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("3fff::1")}
}

// uplinks finds the devices of the default routes. It looks for addresses that nobody
// routes to, and takes what matches with a prefix of no length.
func (k *kernel) uplinks(f *layout.Facts) error {
	for _, a := range probes() {
		if !a.Is4() && !f.IPv6 {
			continue
		}
		routes, err := k.handle.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
		if err != nil && !noWay(err) {
			return fmt.Errorf("look up the default route: %w", err)
		}
		for _, r := range routes {
			if err := k.uplink(f, a, r); err != nil {
				return err
			}
		}
	}
	if !f.IPv6 {
		return nil
	}
	return k.advertised(f)
}

// advertised finds all devices that have a default route by an advertisement: the kernel
// drops those that do not count at the moment, too. It asks for each device that obeys
// advertisements, as if packets could leave by no other.
func (k *kernel) advertised(f *layout.Facts) error {
	devices, err := k.devicesOf("ipv6")
	if err != nil {
		return err
	}
	a := probes()[1]
	for _, dev := range devices {
		if k.within(dev) || !k.obeysRA(dev) {
			continue
		}
		routes, err := k.handle.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true, Oif: dev})
		var missing netlink.LinkNotFoundError
		if err != nil && !noWay(err) && !errors.As(err, &missing) && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("look up the default route by %s: %w", dev, err)
		}
		for _, r := range routes {
			if r.Protocol != unix.RTPROT_RA {
				continue
			}
			if err := k.uplink(f, a, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// within says that no packet leaves the cluster by a device, or that it is none.
func (k *kernel) within(dev string) bool {
	return strings.HasPrefix(dev, k.podLinks) || slices.Contains([]string{"all", "default", "lo", layout.DeviceName}, dev)
}

func (k *kernel) uplink(f *layout.Facts, a netip.Addr, r netlink.Route) error {
	if r.Dst != nil {
		if ones, _ := r.Dst.Mask.Size(); ones > 0 {
			return nil
		}
	}
	k.prefers(r)
	indexes := []int{r.LinkIndex}
	for _, h := range r.MultiPath {
		indexes = append(indexes, h.LinkIndex)
	}
	for _, index := range indexes {
		if err := k.link(f, index); err != nil {
			return err
		}
		l, known := f.Links[index]
		if !known || l.Name == "lo" {
			continue
		}
		if !slices.Contains(f.Uplinks, index) {
			f.Uplinks = append(f.Uplinks, index)
		}
		if !a.Is4() && r.Protocol == unix.RTPROT_RA && !slices.Contains(f.Advertised, index) && k.obeysRA(l.Name) {
			f.Advertised = append(f.Advertised, index)
		}
	}
	return nil
}

// obeysRA says whether the kernel takes router advertisements of a device itself. Where
// a program does, this is off, and must stay so.
func (k *kernel) obeysRA(dev string) bool {
	v, err := k.readSysctl("ipv6/conf/" + dev + "/accept_ra")
	return err == nil && v != "0"
}
