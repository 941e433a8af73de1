package fabric

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"onerule/daemon/fabric/layout"
)

// A journal holds what the kernel told and nobody has looked at. Beyond its room it
// only knows that something was lost.
type journal struct {
	mu     sync.Mutex
	events []message
	lost   bool
	err    error
	wake   chan struct{} // holds one
}

// A message is what the kernel told.
type message struct {
	kind uint16
	data []byte
}

const journalRoom = 4096

func (j *journal) put(m message) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.events) < journalRoom {
		j.events = append(j.events, m)
	} else {
		j.lost = true
	}
	j.signal()
}

// lose says that messages are missing.
func (j *journal) lose() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lost = true
	j.signal()
}

// end says that no message will come any more.
func (j *journal) end(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.err = err
	j.signal()
}

func (j *journal) signal() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

func (j *journal) take() (events []message, lost bool, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	events, lost, err = j.events, j.lost, j.err
	j.events, j.lost = nil, false
	return events, lost, err
}

// listen opens a socket for what is told about links, addresses, routes, neighbours and
// their settings. What comes is put into the journal until the socket is closed.
func listen() (*journal, *nl.NetlinkSocket, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE,
		unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
	if err != nil {
		return nil, nil, fmt.Errorf("listen for changes of routes and links: %w", err)
	}
	// Not all of them need to fit: what is lost is read. This is only cheaper.
	_ = s.SetReceiveBufferSize(1<<20, true)
	j := &journal{wake: make(chan struct{}, 1)}
	go j.receive(s) // ends when s is closed
	return j, s, nil
}

func (j *journal) receive(s *nl.NetlinkSocket) {
	for {
		msgs, from, err := s.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS):
			j.lose()
			continue
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			j.end(fmt.Errorf("receive changes of routes and links: %w", err))
			return
		case from.Pid != 0:
			continue // not from the kernel
		}
		for _, m := range msgs {
			j.put(message{m.Header.Type, m.Data})
		}
	}
}

// A suspicion is what events give reason to look at again.
type suspicion struct {
	state    bool // what the kernel holds of ours
	facts    bool // what this node is like
	settings bool
}

func (s *suspicion) join(o suspicion) {
	s.state = s.state || o.state
	s.facts = s.facts || o.facts
	s.settings = s.settings || o.settings
}

// suspect judges a message by what the kernel is believed to hold. What agrees with that
// is the echo of an own write.
func (k *kernel) suspect(m message, have layout.State, f layout.Facts) suspicion {
	switch m.kind {
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

// suspectLink ignores links of pods: nothing here depends on them.
func (k *kernel) suspectLink(m message, have layout.State, f layout.Facts) suspicion {
	if len(m.data) < unix.SizeofIfInfomsg {
		return suspicion{}
	}
	h := nl.DeserializeIfInfomsg(m.data)
	attrs, err := nl.ParseRouteAttr(m.data[unix.SizeofIfInfomsg:])
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
		same := m.kind == unix.RTM_NEWLINK && d != nil && index == k.device && name == layout.DeviceName &&
			d.MTU == mtu && d.MAC == mac && d.Up == (h.Flags&unix.IFF_UP != 0)
		return suspicion{state: !same}
	case strings.HasPrefix(name, k.podLinks):
		return suspicion{}
	}
	// With a link that goes down, the kernel drops IPv4 routes without a word.
	_, used := f.Links[int(h.Index)]
	return suspicion{facts: true, state: used}
}

func (k *kernel) suspectAddress(m message, have layout.State, f layout.Facts) suspicion {
	a, link := parseAddress(m.data)
	if link == k.device && k.device != 0 {
		return suspicion{state: have.Addresses[a] != (m.kind == unix.RTM_NEWADDR)}
	}
	if !a.IsValid() || a.IsLinkLocalUnicast() || link == k.former {
		return suspicion{}
	}
	// With the last address of a link, too, its IPv4 routes go without a word.
	_, used := f.Links[link]
	return suspicion{facts: true, state: used}
}

// suspectRoute ignores the routes that come and go with pods.
func (k *kernel) suspectRoute(m message, have layout.State) suspicion {
	r, ok := parseRoute(m.data)
	if !ok || r.cloned || r.table != unix.RT_TABLE_MAIN {
		return suspicion{}
	}
	_, known := have.Routes[r.Dst]
	switch {
	case r.ours():
		held := known && have.Routes[r.Dst] == k.route(r)
		return suspicion{state: held != (m.kind == unix.RTM_NEWROUTE)}
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

func (k *kernel) suspectNeighbour(m message, have layout.State) suspicion {
	const index = 4 // where struct ndmsg has that of the device: most are others'
	if k.device == 0 || len(m.data) < index+4 || int(nl.NativeEndian().Uint32(m.data[index:])) != k.device {
		return suspicion{}
	}
	n, ok := parseNeighbour(m.data)
	if !ok {
		return suspicion{}
	}
	set := m.kind == unix.RTM_NEWNEIGH
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
func (k *kernel) suspectSettings(m message) suspicion {
	const (
		header     = 4 // struct netconfmsg, aligned
		ifindex    = 1 // NETCONFA_IFINDEX and so on, of linux/netconf.h
		forwarding = 2
		rpFilter   = 3
	)
	if len(m.data) < header {
		return suspicion{}
	}
	attrs, err := nl.ParseRouteAttr(m.data[header:])
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
