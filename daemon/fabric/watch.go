package fabric

import (
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"onerule/daemon/fabric/layout"
	"onerule/daemon/rtnl"
)

// listen opens a journal of what is told about links, addresses, routes, neighbours and
// their settings.
func listen() (*rtnl.Journal, error) {
	return rtnl.Listen(
		unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
}

// A suspicion is what events give reason to look at again.
type suspicion struct {
	state    bool // what the kernel holds of ours
	facts    bool // what this node is like
	settings bool
	links    bool // which pods have links, and the settings of new ones
}

func (s *suspicion) join(o suspicion) {
	s.state = s.state || o.state
	s.facts = s.facts || o.facts
	s.settings = s.settings || o.settings
	s.links = s.links || o.links
}

// suspect judges a message by what the kernel is believed to hold. What agrees with that
// is the echo of an own write.
func (k *kernel) suspect(m rtnl.Message, have layout.State, f layout.Facts) suspicion {
	switch m.Kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return k.suspectLink(m, have, f)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return k.suspectAddress(m, have, f)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return k.suspectRoute(m, have)
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return k.suspectNeighbour(m, have)
	case unix.RTM_NEWNETCONF:
		return k.suspectSettings(m)
	}
	return suspicion{}
}

// suspectLink looks at links of pods only when they come: of them, nothing but their settings
// matters here.
func (k *kernel) suspectLink(m rtnl.Message, have layout.State, f layout.Facts) suspicion {
	if len(m.Data) < unix.SizeofIfInfomsg {
		return suspicion{}
	}
	h := nl.DeserializeIfInfomsg(m.Data)
	attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofIfInfomsg:])
	if err != nil || h.Family != unix.AF_UNSPEC {
		return suspicion{}
	}
	name, mtu, mac := "", 0, layout.MAC{}
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.IFLA_IFNAME:
			name = strings.TrimRight(string(a.Value), "\x00")
		case unix.IFLA_MTU:
			mtu = int(nl.NativeEndian().Uint32(a.Value))
		case unix.IFLA_ADDRESS:
			mac = macOf(a.Value)
		}
	}
	switch index := int(h.Index); {
	case index == k.former:
		return suspicion{}
	case name == layout.DeviceName || index == k.device:
		d := have.Device
		same := m.Kind == unix.RTM_NEWLINK && d != nil && index == k.device && name == layout.DeviceName &&
			d.MTU == mtu && d.MAC == mac && d.Up == (h.Flags&unix.IFF_UP != 0)
		return suspicion{state: !same}
	case strings.HasPrefix(name, k.podLinks):
		if m.Kind == unix.RTM_DELLINK {
			have.ForgetLink(name)
			return suspicion{}
		}
		const created = ^uint32(0) // what differs is everything
		return suspicion{links: h.Change == created}
	}
	// With a link that goes down, the kernel drops IPv4 routes without a word.
	_, used := f.Links[int(h.Index)]
	return suspicion{facts: true, state: used}
}

func (k *kernel) suspectAddress(m rtnl.Message, have layout.State, f layout.Facts) suspicion {
	a, link := parseAddress(m.Data)
	if link == k.device && k.device != 0 {
		return suspicion{state: have.Addresses[a] != (m.Kind == unix.RTM_NEWADDR)}
	}
	if !a.IsValid() || a.IsLinkLocalUnicast() || link == k.former {
		return suspicion{}
	}
	// With the last address of a link, too, its IPv4 routes go without a word.
	_, used := f.Links[link]
	return suspicion{facts: true, state: used}
}

// suspectRoute ignores the routes that come and go with pods.
func (k *kernel) suspectRoute(m rtnl.Message, have layout.State) suspicion {
	r, ok := parseRoute(m.Data)
	if !ok || r.cloned || r.table != unix.RT_TABLE_MAIN {
		return suspicion{}
	}
	_, known := have.Routes[r.Dst]
	switch {
	case r.ours():
		held := known && have.Routes[r.Dst] == k.route(r)
		return suspicion{state: held != (m.Kind == unix.RTM_NEWROUTE)}
	case known && r.metric == layout.Metric:
		return suspicion{state: true} // another's in the place of ours
	case r.protocol == pluginProtocol || r.device != 0 && (r.device == k.device || r.device == k.former):
	case r.Dst.Addr().IsLinkLocalUnicast() || r.Dst.Addr().IsMulticast():
	default:
		return suspicion{facts: true}
	}
	return suspicion{}
}

// pluginProtocol is that of the routes to this node's pods.
const pluginProtocol = 111

func (k *kernel) suspectNeighbour(m rtnl.Message, have layout.State) suspicion {
	const index = 4 // where struct ndmsg has that of the device: most are others'
	if k.device == 0 || len(m.Data) < index+4 || int(nl.NativeEndian().Uint32(m.Data[index:])) != k.device {
		return suspicion{}
	}
	n, ok := parseNeighbour(m.Data)
	if !ok {
		return suspicion{}
	}
	set := m.Kind == unix.RTM_NEWNEIGH
	if n.entry {
		// Linux 6.1 sends a second message for each, which does not say where to.
		remote, known := have.Entries[n.mac]
		held := known && (remote == n.addr || !n.addr.IsValid())
		return suspicion{state: held != set}
	}
	mac, known := have.Neighbours[n.addr]
	switch {
	case !known:
		return suspicion{state: set && n.told}
	case !set:
		return suspicion{state: true}
	}
	return suspicion{state: mac != n.mac || !n.told}
}

// suspectSettings looks for what is turned off, and for rp_filter of our device.
func (k *kernel) suspectSettings(m rtnl.Message) suspicion {
	const (
		header     = 4 // struct netconfmsg, aligned
		ifindex    = 1 // NETCONFA_IFINDEX and so on, of linux/netconf.h
		forwarding = 2
		rpFilter   = 3
	)
	if len(m.Data) < header {
		return suspicion{}
	}
	attrs, err := nl.ParseRouteAttr(m.Data[header:])
	if err != nil {
		return suspicion{}
	}
	index, off := 0, false
	for _, a := range attrs {
		if len(a.Value) < 4 {
			continue
		}
		switch v := int(int32(nl.NativeEndian().Uint32(a.Value))); a.Attr.Type {
		case ifindex:
			index = v
		case forwarding:
			off = off || v == 0
		case rpFilter:
			off = off || index == k.device && v != 2
		}
	}
	return suspicion{settings: off}
}
