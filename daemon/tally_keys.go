package daemon

import (
	"net/netip"
	"slices"

	"onerule/bpf"
	"onerule/daemon/model"
	"onerule/daemon/plan"
)

// nobody is the endpoint that is counted for all that are gone.
func nobody(family plan.Family) netip.AddrPort {
	if family == plan.IPv6 {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
}

func keysOf(f plan.Frontend, endpoints []netip.AddrPort) []bpf.Key {
	keys := make([]bpf.Key, len(endpoints))
	for i, e := range endpoints {
		keys[i] = bpf.Key{Frontend: netip.AddrPortFrom(f.Addr, f.Port), Endpoint: e, Protocol: uint8(f.Protocol)}
	}
	return keys
}

func frontendOf(k bpf.Key) plan.Frontend {
	f := plan.Frontend{Addr: k.Frontend.Addr(), Protocol: model.Protocol(k.Protocol), Port: k.Frontend.Port()}
	if !f.Addr.IsValid() || f.Addr.IsLoopback() { // a NodePort
		f.Addr, f.Family = netip.Addr{}, plan.FamilyOf(k.Endpoint.Addr())
	}
	return f
}

// ofLoopback says whether a frontend may be served on a loopback address, too.
func ofLoopback(f plan.Frontend) bool { return !f.Addr.IsValid() && f.Protocol == model.TCP }

// allKeysOf gives the keys that endpoints of a frontend may have.
func allKeysOf(f plan.Frontend, endpoints []netip.AddrPort) []bpf.Key {
	keys := keysOf(f, endpoints)
	if ofLoopback(f) {
		at := f
		at.Addr = loopbackOf(familyOf(nobody(f.InFamily()).Addr()))
		keys = append(keys, keysOf(at, endpoints)...)
	}
	return keys
}

// both gives what is in either of two lists that are sorted and distinct, the same way.
func both(a, b []netip.AddrPort) []netip.AddrPort {
	more := missing(b, a)
	if len(more) == 0 {
		return a
	}
	all := slices.Concat(a, more)
	slices.SortFunc(all, netip.AddrPort.Compare)
	return all
}

// missing gives what is in a list and not in another one, which is sorted.
func missing(list, other []netip.AddrPort) []netip.AddrPort {
	var more []netip.AddrPort
	for _, e := range list {
		if !has(other, e) {
			more = append(more, e)
		}
	}
	return more
}

// has says whether an endpoint is in a list that is sorted.
func has(list []netip.AddrPort, e netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(list, e, netip.AddrPort.Compare)
	return found
}
