package nft

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// A Frontend is where clients send: an address, an IANA protocol number and a
// port.
type Frontend struct {
	Addr     netip.Addr
	Protocol uint8
	Port     uint16
}

// Compare orders frontends by address, protocol and port.
func (f Frontend) Compare(o Frontend) int {
	return cmp.Or(f.Addr.Compare(o.Addr), cmp.Compare(f.Protocol, o.Protocol), cmp.Compare(f.Port, o.Port))
}

// An AddrSet is the name of a set of addresses.
type AddrSet string

// A RangeSet is the name of an interval set of addresses.
type RangeSet string

// A RouteMap is the name of a map from frontends to verdicts.
type RouteMap string

// A SlotMap is what the maps from frontend and slot to endpoint have in common in
// their names: one for each protocol, with -tcp, -udp or -sctp behind it.
type SlotMap string

// What a table holds.
const (
	// ClusterIPs holds the addresses whose every port is ours: traffic that no
	// frontend takes is refused.
	ClusterIPs AddrSet = "cluster-ips"
	// Hairpins holds the endpoints on this node, each concatenated with itself: a
	// pod that reaches itself through a frontend is masqueraded.
	Hairpins AddrSet = "hairpins"

	// ServiceCIDRs are the ranges of ClusterIPs. Traffic to an address in them that
	// no Service holds is dropped.
	ServiceCIDRs RangeSet = "service-cidrs"
	// PodCIDRs are the ranges whose sources keep their address on the way to a
	// ClusterIP.
	PodCIDRs RangeSet = "pod-cidrs"

	// NoEndpoints holds the frontends that refuse: see State.Counts.
	NoEndpoints = "no-endpoints"

	// ServiceIPs holds the decision for each frontend: the chain that it goes to. It
	// does not depend on the endpoints: a verdict that goes to a chain makes the
	// kernel walk every such verdict in the table, 6 ms for 30,000 frontends (6.18).
	ServiceIPs RouteMap = "service-ips"

	// Endpoints holds the endpoints of each frontend, numbered from 0 without gaps.
	Endpoints SlotMap = "endpoints"
)

// A State says what the sets and maps of one table hold, or a part of that. It is
// a value: Settle, Diff and At read it, and only Put writes.
//
// The slots of a frontend are consecutive from 0, and the order of its endpoints
// is free: Settle chooses it so that little has to be written.
type State struct {
	Addrs  map[AddrSet]map[netip.Addr]bool
	Ranges map[RangeSet][]netip.Prefix // disjoint and sorted
	Routes map[RouteMap]map[Frontend]string
	Slots  map[SlotMap]map[Frontend][]netip.AddrPort
	// Counts says which set of counts a frontend is in: that of its number of
	// endpoints, NoEndpoints for 0.
	Counts map[SlotMap]map[Frontend]int
}

// NewState gives an empty state.
func NewState() State {
	return State{
		Addrs:  map[AddrSet]map[netip.Addr]bool{ClusterIPs: {}, Hairpins: {}},
		Ranges: map[RangeSet][]netip.Prefix{},
		Routes: map[RouteMap]map[Frontend]string{ServiceIPs: {}},
		Slots:  map[SlotMap]map[Frontend][]netip.AddrPort{Endpoints: {}},
		Counts: map[SlotMap]map[Frontend]int{Endpoints: {}},
	}
}

// Keys name a part of a state.
type Keys struct {
	Frontends map[Frontend]bool
	Addrs     map[netip.Addr]bool
	Ranges    bool
}

// Balance says that new connections to a frontend at a ClusterIP go to one of these
// endpoints, or are refused if there are none.
func (s State) Balance(f Frontend, endpoints []netip.AddrPort) {
	s.Routes[ServiceIPs][f] = ClusterIPChain(f.Protocol)
	s.Counts[Endpoints][f] = len(endpoints)
	if len(endpoints) > 0 {
		s.Slots[Endpoints][f] = endpoints
	}
}

// NewKeys gives keys that name nothing.
func NewKeys() Keys {
	return Keys{Frontends: map[Frontend]bool{}, Addrs: map[netip.Addr]bool{}}
}

// Empty says whether the keys name nothing.
func (k Keys) Empty() bool { return len(k.Frontends) == 0 && len(k.Addrs) == 0 && !k.Ranges }

// At gives the part of the state that the keys name. It costs what the part
// does, not what the state does.
func (s State) At(k Keys) State {
	part := NewState()
	for name, m := range s.Addrs {
		pick(part.Addrs[name], m, k.Addrs)
	}
	for name, m := range s.Routes {
		pick(part.Routes[name], m, k.Frontends)
	}
	for name, m := range s.Slots {
		pick(part.Slots[name], m, k.Frontends)
	}
	for name, m := range s.Counts {
		pick(part.Counts[name], m, k.Frontends)
	}
	if k.Ranges {
		part.Ranges = maps.Clone(s.Ranges)
	}
	return part
}

func pick[K comparable, V any](to, from map[K]V, keys map[K]bool) {
	for key := range keys {
		if v, ok := from[key]; ok {
			to[key] = v
		}
	}
}

// Put makes the part of the state that the keys name what part says.
func (s State) Put(k Keys, part State) {
	for name, m := range s.Addrs {
		put(m, part.Addrs[name], k.Addrs)
	}
	for name, m := range s.Routes {
		put(m, part.Routes[name], k.Frontends)
	}
	for name, m := range s.Slots {
		put(m, part.Slots[name], k.Frontends)
	}
	for name, m := range s.Counts {
		put(m, part.Counts[name], k.Frontends)
	}
	if k.Ranges {
		clear(s.Ranges)
		maps.Copy(s.Ranges, part.Ranges)
	}
}

func put[K comparable, V any](to, from map[K]V, keys map[K]bool) {
	for key := range keys {
		if v, ok := from[key]; ok {
			to[key] = v
		} else {
			delete(to, key)
		}
	}
}

// sizes gives the number of elements of each set and map, by its name in the
// kernel.
func (s State) sizes() map[string]int {
	n := map[string]int{}
	for name, m := range s.Addrs {
		n[string(name)] = len(m)
	}
	for name, m := range s.Ranges {
		n[string(name)] = len(m)
	}
	for name, m := range s.Routes {
		n[string(name)] = len(m)
	}
	for name, m := range s.Slots {
		for f, endpoints := range m {
			n[name.Of(f.Protocol)] += len(endpoints)
		}
	}
	for _, m := range s.Counts {
		for f, count := range m {
			n[countElement(f, count).Set]++
		}
	}
	return n
}

// Settle gives want with each frontend's endpoints in the slots where have holds
// them already, so that a change of one endpoint writes at most two slots however
// many there are.
func Settle(have, want State) State {
	settled := want
	settled.Slots = make(map[SlotMap]map[Frontend][]netip.AddrPort, len(want.Slots))
	for name, m := range want.Slots {
		to := make(map[Frontend][]netip.AddrPort, len(m))
		for f, endpoints := range m {
			to[f] = Arrange(have.Slots[name][f], endpoints)
		}
		settled.Slots[name] = to
	}
	return settled
}

// Arrange orders the endpoints of want by the slots of have: what is in both stays
// where it is, newcomers fill the gaps, and what is left over at the end moves
// into gaps that remain. Neither argument holds an endpoint twice.
func Arrange(have, want []netip.AddrPort) []netip.AddrPort {
	if slices.Equal(have, want) {
		return want
	}
	missing := make(map[netip.AddrPort]bool, len(want))
	for _, ep := range want {
		missing[ep] = true
	}
	order := make([]netip.AddrPort, len(want))
	var moved []netip.AddrPort
	for slot, ep := range have {
		switch {
		case !missing[ep]:
			continue
		case slot < len(order):
			order[slot] = ep
		default:
			moved = append(moved, ep)
		}
		delete(missing, ep)
	}
	for _, ep := range want { // not by the map: unchanged input gives unchanged output
		if missing[ep] {
			moved = append(moved, ep)
		}
	}
	for slot, ep := range order {
		if !ep.IsValid() {
			order[slot], moved = moved[0], moved[1:]
		}
	}
	return order
}
