package hostport

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"onerule/nft/inspect"
)

// A Lead is what the kernel does with a packet to a port of the node that a pod has.
type Lead struct {
	Pod   netip.AddrPort
	Owner string
	// Element is what matches, in nft's words, and Map what has it.
	Map, Element string
	// Itself says that the sender is the pod, which sees an address of the node.
	Itself bool
	// Whole says that the table's rules are as written.
	Whole bool
}

// A Packet is the first one of a connection to an address of the node.
type Packet struct {
	Protocol Protocol
	From     netip.Addr
	To       netip.AddrPort
	// Local says that a process of the node sends it.
	Local bool
}

// Find asks the kernel where a packet is led. It reads two elements at most.
func Find(p Packet) (lead Lead, found bool, err error) {
	f := familyOf(Claim{Pod: p.To})
	if !f.leads(p) {
		return lead, false, nil
	}
	r, err := inspect.Open()
	if err != nil {
		return lead, false, err
	}
	defer func() { _ = r.Close() }()
	port := appendPort([]byte{byte(p.Protocol), 0, 0, 0}, p.To.Port())
	words := fmt.Sprintf("%s . %d", p.Protocol, p.To.Port())
	for _, look := range []struct {
		set   string
		key   []byte
		words string
	}{
		{atAddress, append(appendAddr(nil, p.To.Addr()), port...), fmt.Sprintf("%s . %s", p.To.Addr(), words)},
		{atAny, port, words},
	} {
		e, there, err := r.Element(f.inspected(), look.set, look.key)
		if err != nil {
			return lead, false, err
		}
		pod, ok := f.target(e.Value)
		if !there || !ok {
			continue
		}
		c, err := r.Read(f.inspected(), f.version())
		return Lead{
			Pod: pod, Owner: e.Comment, Map: look.set, Element: fmt.Sprintf("%s : %s . %d", look.words, pod.Addr(), pod.Port()),
			Itself: p.From == pod.Addr(), Whole: c.Sealed(),
		}, true, err
	}
	return lead, false, nil
}

// leads says whether the rules ask the maps about a packet: see the chains.
func (f family) leads(p Packet) bool {
	to := p.To.Addr()
	if f.reachable(to) {
		return true
	}
	return p.Local && to.IsLoopback() && p.From.IsValid() && f.reachable(p.From)
}

// reachable says whether others reach an address, or can answer to it: see ofOthers.
func (f family) reachable(a netip.Addr) bool {
	return !a.IsLoopback() && (len(f.linkLocal) == 0 || !a.IsLinkLocalUnicast())
}

// target reads the value of an element.
func (f family) target(value []byte) (netip.AddrPort, bool) {
	size := int(f.size)
	if len(value) < size+2 {
		return netip.AddrPort{}, false
	}
	a, ok := netip.AddrFromSlice(slices.Clone(value[:size]))
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(value[size:])), ok
}
