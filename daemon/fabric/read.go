package fabric

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"onerule/daemon/fabric/layout"
)

// read gives what the kernel holds of ours, and of the settings those that are wanted.
func (k *kernel) read(settings map[string]string) (layout.State, error) {
	k.counts.Reads++
	s := layout.NewState()
	var err error
	if s.Device, err = k.readDevice(); err != nil {
		return s, err
	}
	if err := k.readRoutes(s); err != nil {
		return s, fmt.Errorf("read routes: %w", err)
	}
	if err := k.readSettings(s, settings); err != nil {
		return s, err
	}
	if s.Device == nil {
		return s, nil
	}
	if err := k.readAddresses(s); err != nil {
		return s, fmt.Errorf("read addresses of %s: %w", layout.DeviceName, err)
	}
	if err := k.readNeighbours(s); err != nil {
		return s, fmt.Errorf("read neighbours of %s: %w", layout.DeviceName, err)
	}
	return s, nil
}

// readDevice gives the VXLAN device. One of its name that is no VXLAN device is not
// seen: making ours will fail, and say so.
func (k *kernel) readDevice() (*layout.Device, error) {
	k.device = 0
	link, err := k.handle.LinkByName(layout.DeviceName)
	var gone netlink.LinkNotFoundError
	if errors.As(err, &gone) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", layout.DeviceName, err)
	}
	v, ok := link.(*netlink.Vxlan)
	if !ok {
		return nil, nil
	}
	k.device = v.Index
	offload, err := checksumOffload(v.Name)
	if err != nil {
		return nil, err
	}
	return &layout.Device{
		MAC:             macOf(v.HardwareAddr),
		MTU:             v.MTU,
		Up:              v.Flags&unix.IFF_UP != 0,
		ChecksumOffload: offload,
		Local:           addrOf(v.SrcAddr).Unmap(),
		VNI:             v.VxlanId,
		Port:            v.Port,
		Learning:        v.Learning,
	}, nil
}

func (k *kernel) readRoutes(s layout.State) error {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		header := &nl.RtMsg{}
		header.Family, header.Table, header.Protocol = family, unix.RT_TABLE_MAIN, protocol
		msgs, err := k.dump(unix.RTM_GETROUTE, unix.RTM_NEWROUTE, header)
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
			continue
		}
		if err != nil {
			return err
		}
		for _, m := range msgs {
			if r, ok := parseRoute(m); ok && r.ours() {
				s.Routes[r.Place] = k.route(r)
			}
		}
	}
	return nil
}

// route names the VXLAN device as plans do.
func (k *kernel) route(r routeMessage) layout.Route {
	if r.Link == k.device {
		r.Link = 0
	}
	return r.Route
}

// A routeMessage is a route as the kernel tells it. One of a shape that ours never have
// differs from every route of a plan.
type routeMessage struct {
	layout.Route
	device   int // that it leads to, whatever the route's shape
	protocol uint8
	table    uint32
	cloned   bool
}

// ours says whether a route is one that this package writes.
func (r routeMessage) ours() bool {
	return r.protocol == protocol && r.table == unix.RT_TABLE_MAIN && ownMetric(r.Metric) && !r.cloned
}

func ownMetric(m uint32) bool { return m == layout.Metric || m == layout.Weakest }

func parseRoute(m []byte) (routeMessage, bool) {
	if len(m) < unix.SizeofRtMsg {
		return routeMessage{}, false
	}
	h := nl.DeserializeRtMsg(m)
	attrs, err := nl.ParseRouteAttr(m[unix.SizeofRtMsg:])
	if err != nil || h.Family != unix.AF_INET && h.Family != unix.AF_INET6 {
		return routeMessage{}, false
	}
	r := routeMessage{protocol: h.Protocol, table: uint32(h.Table), cloned: h.Flags&unix.RTM_F_CLONED != 0}
	dst := netip.IPv4Unspecified()
	if h.Family == unix.AF_INET6 {
		dst = netip.IPv6Unspecified()
	}
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.RTA_DST:
			dst = addrOf(a.Value)
		case unix.RTA_GATEWAY:
			r.Via = addrOf(a.Value)
		case unix.RTA_OIF:
			r.Link = int(nl.NativeEndian().Uint32(a.Value))
			r.device = r.Link
		case unix.RTA_PRIORITY:
			r.Metric = nl.NativeEndian().Uint32(a.Value)
		case unix.RTA_TABLE:
			r.table = nl.NativeEndian().Uint32(a.Value)
		case unix.RTA_METRICS:
			r.MTU = parseMTU(a.Value)
		}
	}
	r.Dst = netip.PrefixFrom(dst, int(h.Dst_len))
	if h.Type != unix.RTN_UNICAST {
		r.Via = netip.Addr{}
	}
	if h.Type == unix.RTN_UNREACHABLE {
		r.Link, r.MTU = 0, 0 // IPv6 has the loopback as its device
	} else if !r.Via.IsValid() {
		r.Link = -1 // no route of ours is like this
	}
	return r, dst.IsValid()
}

func parseMTU(metrics []byte) int {
	attrs, err := nl.ParseRouteAttr(metrics)
	if err != nil {
		return 0
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.RTAX_MTU {
			return int(nl.NativeEndian().Uint32(a.Value))
		}
	}
	return 0
}

func (k *kernel) readAddresses(s layout.State) error {
	header := nl.NewIfAddrmsg(unix.AF_UNSPEC)
	header.Index = uint32(k.device)
	msgs, err := k.dump(unix.RTM_GETADDR, unix.RTM_NEWADDR, header)
	if err != nil {
		return err
	}
	for _, m := range msgs {
		if a, link := parseAddress(m); link == k.device && a.IsValid() {
			s.Addresses[a] = true
		}
	}
	return nil
}

// parseAddress gives an address and its device.
func parseAddress(m []byte) (netip.Addr, int) {
	if len(m) < unix.SizeofIfAddrmsg {
		return netip.Addr{}, 0
	}
	h := nl.DeserializeIfAddrmsg(m)
	attrs, err := nl.ParseRouteAttr(m[unix.SizeofIfAddrmsg:])
	if err != nil {
		return netip.Addr{}, 0
	}
	var addr netip.Addr
	for _, a := range attrs {
		// Of an IPv4 address with a peer, this is the one that is ours.
		if a.Attr.Type == unix.IFA_LOCAL || a.Attr.Type == unix.IFA_ADDRESS && !addr.IsValid() {
			addr = addrOf(a.Value)
		}
	}
	return addr, int(h.Index)
}

// readNeighbours reads neighbours and forwarding entries, which the kernel tells alike.
func (k *kernel) readNeighbours(s layout.State) error {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
		header := &netlink.Ndmsg{Family: family}
		var attrs []*nl.RtAttr
		if family == unix.AF_BRIDGE {
			header.Index = uint32(k.device)
		} else {
			attrs = append(attrs, nl.NewRtAttr(unix.NDA_IFINDEX, nl.Uint32Attr(uint32(k.device))))
		}
		msgs, err := k.dump(unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH, header, attrs...)
		if err != nil {
			return err
		}
		for _, m := range msgs {
			n, ok := parseNeighbour(m)
			switch {
			case !ok || n.link != k.device || !n.told:
			case n.entry:
				s.Entries[n.mac] = n.addr
			default:
				s.Neighbours[n.addr] = n.mac
			}
		}
	}
	return nil
}

// A neighbourMessage is a neighbour, or a forwarding entry, as the kernel tells it.
type neighbourMessage struct {
	link  int
	entry bool
	addr  netip.Addr
	mac   layout.MAC
	// told says that somebody wrote it. The kernel makes others itself, for multicast
	// groups and for what it looks for, and drops them again.
	told bool
}

func parseNeighbour(m []byte) (neighbourMessage, bool) {
	n, err := netlink.NeighDeserialize(m)
	if err != nil {
		return neighbourMessage{}, false
	}
	return neighbourMessage{
		link:  n.LinkIndex,
		entry: n.Family == unix.AF_BRIDGE,
		addr:  addrOf(n.IP).Unmap(),
		mac:   macOf(n.HardwareAddr),
		told:  n.State&netlink.NUD_PERMANENT != 0,
	}, n.Family == unix.AF_BRIDGE || n.Family == unix.AF_INET || n.Family == unix.AF_INET6
}
