package fabric

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"onerule/daemon/fabric/layout"
)

// apply makes one change.
func (k *kernel) apply(c layout.Change) error {
	var err error
	switch c.Kind {
	case layout.KindRule:
		k.counts.operation(c.Delete)
		err = k.addRules(c.IPv6)
	case layout.KindSetting, layout.KindDeviceSetting:
		err = k.setSetting(c.Setting, c.Value)
	case layout.KindDevice:
		k.counts.operation(c.Delete)
		err = k.applyDevice(c)
	case layout.KindAddress:
		k.counts.operation(c.Delete)
		err = k.applyAddress(c)
	case layout.KindEntry, layout.KindNeighbour:
		k.counts.operation(c.Delete)
		err = k.applyNeighbour(c)
	case layout.KindRoute:
		k.counts.operation(c.Delete)
		err = k.applyRoute(c)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c, err)
	}
	return nil
}

// gone says that what was to be deleted is not there, or its device is not.
func gone(err error) bool {
	return errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) ||
		errors.Is(err, unix.EADDRNOTAVAIL)
}

func unlessGone(err error) error {
	if gone(err) {
		return nil
	}
	return err
}

// applyRoute names no source address: the kernel would delete a route together with
// that address. The next hop is on the link, whatever addresses the node has on it.
func (k *kernel) applyRoute(c layout.Change) error {
	r := &netlink.Route{
		Dst:      ipNet(c.Route.Dst),
		Protocol: protocol,
		Priority: int(c.Route.Metric),
		MTU:      c.Route.MTU,
		Table:    unix.RT_TABLE_MAIN,
	}
	switch {
	case c.Route.Refuses():
		r.Type = unix.RTN_UNREACHABLE
	default:
		r.Gw = c.Route.Via.AsSlice()
		r.Flags = int(netlink.FLAG_ONLINK)
		if r.LinkIndex = c.Route.Link; r.LinkIndex == 0 {
			r.LinkIndex = k.device
		}
	}
	if !c.Delete {
		return k.handle.RouteReplace(r)
	}
	// Whatever it looks like: destination, metric and protocol make it ours.
	return unlessGone(k.handle.RouteDel(&netlink.Route{
		Dst: r.Dst, Protocol: protocol, Priority: r.Priority, Table: unix.RT_TABLE_MAIN,
		Type: unix.RTN_UNSPEC, Scope: unix.RT_SCOPE_NOWHERE,
	}))
}

// applyNeighbour sets permanent entries, which nothing on the wire changes.
func (k *kernel) applyNeighbour(c layout.Change) error {
	n := &netlink.Neigh{
		LinkIndex:    k.device,
		HardwareAddr: net.HardwareAddr(c.MAC[:]),
		State:        netlink.NUD_PERMANENT,
	}
	if c.Kind == layout.KindEntry {
		n.Family, n.Flags = unix.AF_BRIDGE, netlink.NTF_SELF
		n.IP = c.Remote.AsSlice()
	} else {
		n.IP = c.Address.AsSlice()
	}
	if c.Delete {
		return unlessGone(k.handle.NeighDel(n))
	}
	return k.handle.NeighSet(n)
}

func (k *kernel) applyAddress(c layout.Change) error {
	link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: k.device}}
	bits := c.Address.BitLen()
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: c.Address.AsSlice(), Mask: net.CIDRMask(bits, bits)}}
	if !c.Address.Is4() {
		addr.Flags = unix.IFA_F_NODAD
	}
	if c.Delete {
		return unlessGone(k.handle.AddrDel(link, addr))
	}
	err := k.handle.AddrAdd(link, addr)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}
