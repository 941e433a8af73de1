package fabric

import (
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"onerule/daemon/fabric/layout"
	"onerule/daemon/rtnl"
)

// listen opens a journal of what is told about links, addresses, routes, rules, neighbours
// and settings.
func listen() (*rtnl.Journal, error) {
	return rtnl.Listen(
		unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
		unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
}

// A suspicion is what events give reason to look at again.
type suspicion struct {
	rules    bool // what leads to the main table
	state    bool // what the kernel holds of ours
	facts    bool // what this node is like
	settings bool
	links    bool // which pods have links, and the settings of new ones
}

func (s *suspicion) join(o suspicion) {
	s.rules = s.rules || o.rules
	s.state = s.state || o.state
	s.facts = s.facts || o.facts
	s.settings = s.settings || o.settings
	s.links = s.links || o.links
}

// A belief is by what messages are judged.
type belief struct {
	have  layout.State
	facts layout.Facts
	asked addresses
}

// suspect judges a message by what the kernel is believed to hold. What agrees with that
// is the echo of an own write.
func (k *kernel) suspect(m rtnl.Message, b belief) suspicion {
	switch m.Kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return k.suspectLink(m, b)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return k.suspectAddress(m, b)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return k.suspectRoute(m, b)
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return suspectRule(m, b)
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return k.suspectNeighbour(m, b.have)
	case unix.RTM_NEWNETCONF:
		return k.suspectSettings(m)
	}
	return suspicion{}
}

// suspectLink looks at links of pods only when they come: of them, nothing but their settings
// matters here.
func (k *kernel) suspectLink(m rtnl.Message, b belief) suspicion {
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
		d := b.have.Device
		same := m.Kind == unix.RTM_NEWLINK && d != nil && index == k.device && name == layout.DeviceName &&
			d.MTU == mtu && d.MAC == mac && d.Up == (h.Flags&unix.IFF_UP != 0)
		return suspicion{state: !same}
	case strings.HasPrefix(name, k.podLinks):
		if m.Kind == unix.RTM_DELLINK {
			b.have.ForgetLink(name)
			return suspicion{}
		}
		const created = ^uint32(0) // what differs is everything
		return suspicion{links: h.Change == created}
	}
	// With a link that goes down, the kernel drops IPv4 routes without a word. Of one that
	// no way uses, it tells what routes it gives.
	_, used := b.facts.Links[int(h.Index)]
	return suspicion{facts: used || k.skipsDead(name), state: used}
}

// skipsDead says whether routes by a device count only while it has a carrier: then they
// come and go without a word.
func (k *kernel) skipsDead(dev string) bool {
	const setting = "/ignore_routes_with_linkdown"
	return slices.ContainsFunc([]string{"ipv4/conf/all", "ipv4/conf/" + dev, "ipv6/conf/" + dev}, func(of string) bool {
		v, err := k.readSysctl(of + setting)
		return err == nil && v != "0"
	})
}

func (k *kernel) suspectAddress(m rtnl.Message, b belief) suspicion {
	a, link := parseAddress(m.Data)
	if link == k.device && k.device != 0 {
		return suspicion{state: b.have.Addresses[a] != (m.Kind == unix.RTM_NEWADDR)}
	}
	if !a.IsValid() || a.IsLinkLocalUnicast() || link == k.former {
		return suspicion{}
	}
	// With the last address of a link, too, its IPv4 routes go without a word, and so do
	// those by any link that prefer to send from an address.
	_, used := b.facts.Links[link]
	return suspicion{facts: used || b.asked.has(a) || k.sources[a], state: used}
}

// suspectRoute ignores the routes that come and go with pods, and those that lead to no
// node: there may be very many, which change all the time. Ways need no look at routes to
// their gateways: these counted only when the way was made.
func (k *kernel) suspectRoute(m rtnl.Message, b belief) suspicion {
	r, ok := parseRoute(m.Data)
	if !ok || r.cloned {
		return suspicion{}
	}
	held, known := b.have.Routes[r.Place]
	switch {
	case r.ours():
		same := known && held == k.route(r)
		return suspicion{state: same != (m.Kind == unix.RTM_NEWROUTE)}
	case known && r.table == unix.RT_TABLE_MAIN:
		return suspicion{state: true} // another's in the place of ours
	case r.protocol == pluginProtocol || r.device != 0 && (r.device == k.device || r.device == k.former):
	case r.Dst.Addr().IsLinkLocalUnicast() || r.Dst.Addr().IsMulticast():
	default:
		return suspicion{facts: b.asked.concern(r.Dst)}
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
