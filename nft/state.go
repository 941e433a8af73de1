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

// step gives what is written together with the frontend: all of its address, or a
// NodePort by itself.
func (f Frontend) step() Frontend {
	if f.Addr.IsValid() {
		return Frontend{Addr: f.Addr}
	}
	return f
}

// An AddrSet is the name of a set of addresses.
type AddrSet string

// A RangeSet is the name of an interval set of addresses.
type RangeSet string

// What a table holds besides the maps of frontends.
const (
	// ClusterIPs holds the addresses whose every port is ours: traffic that no
	// frontend takes is refused.
	ClusterIPs AddrSet = "cluster-ips"
	// ExternalIPs is the same for external and load balancer IPs, unless the node has
	// the address itself.
	ExternalIPs AddrSet = "external-ips"
	// NodePortIPs holds the addresses of the node that take NodePorts, unless all do.
	NodePortIPs AddrSet = "nodeport-ips"
	// NodeIPs holds all addresses of the node: see Config.WithoutFib.
	NodeIPs AddrSet = "node-ips"
	// Hairpins holds the endpoints on this node, each concatenated with itself: a
	// pod that reaches itself through a frontend is masqueraded.
	Hairpins AddrSet = "hairpins"

	// ServiceCIDRs are the ranges of ClusterIPs. Traffic to an address in them that
	// no Service holds is dropped.
	ServiceCIDRs RangeSet = "service-cidrs"
	// PodCIDRs are the ranges whose sources keep their address on the way to a
	// ClusterIP.
	PodCIDRs RangeSet = "pod-cidrs"

	// AllowedSources holds, for frontends with source ranges, who is let in.
	AllowedSources = "allowed-sources"
)

// AddrSets lists the sets of addresses.
func AddrSets() []AddrSet { return []AddrSet{ClusterIPs, ExternalIPs, NodePortIPs, NodeIPs, Hairpins} }

// A State says what the sets and maps of one table hold, or a part of that. It is
// a value: Settle, Diff and At read it, and only Put and Set write.
//
// The slots of a frontend are consecutive from 0, and the order of its endpoints
// is free: Settle chooses it so that little has to be written.
type State struct {
	Addrs  map[AddrSet]map[netip.Addr]bool
	Ranges map[RangeSet][]netip.Prefix // disjoint and sorted
	Routes map[RouteMap]map[Frontend]string
	Slots  map[SlotMap]map[Frontend][]netip.AddrPort
	// Counts says which set of counts a frontend is in: that of its number of
	// endpoints, or that of frontends without any.
	Counts map[SlotMap]map[Frontend]int
	// Sources has the frontends with source ranges: disjoint and sorted.
	Sources map[Frontend][]netip.Prefix
	// Members says which endpoints clients may be pinned to, by the name of the set.
	Members map[string]map[netip.AddrPort]bool
	// Affinities are in the rules, not among the elements, by ID.
	Affinities map[string]Affinity
}

// NewState gives an empty state.
func NewState() State {
	s := State{
		Addrs:      map[AddrSet]map[netip.Addr]bool{},
		Ranges:     map[RangeSet][]netip.Prefix{},
		Routes:     map[RouteMap]map[Frontend]string{},
		Slots:      map[SlotMap]map[Frontend][]netip.AddrPort{},
		Counts:     map[SlotMap]map[Frontend]int{},
		Sources:    map[Frontend][]netip.Prefix{},
		Members:    map[string]map[netip.AddrPort]bool{},
		Affinities: map[string]Affinity{},
	}
	for _, name := range AddrSets() {
		s.Addrs[name] = map[netip.Addr]bool{}
	}
	for _, name := range RouteMaps() {
		s.Routes[name] = map[Frontend]string{}
	}
	for _, name := range SlotMaps() {
		s.Slots[name] = map[Frontend][]netip.AddrPort{}
		s.Counts[name] = map[Frontend]int{}
	}
	return s
}

// A Route says what new connections to a frontend get. One without an address is a
// NodePort, and the Entry must say so.
type Route struct {
	Entry
	// Endpoints are all that connections may go to; none: they are refused. Local
	// are those on this node, for an Entry that is Local.
	Endpoints, Local []netip.AddrPort
	// Sources are the ranges of a guarded Entry, disjoint and sorted.
	Sources []netip.Prefix
	// Affinity is the zero value if there is none.
	Affinity Affinity
}

// Set says what new connections to a frontend get.
func (s State) Set(f Frontend, r Route) {
	routes, pinning, all, local := ServiceIPs, Pinning, Endpoints, LocalEndpoints
	if r.NodePort {
		routes, pinning, all, local = ServiceNodePorts, NodePortPinning, NodePortEndpoints, NodePortLocalEndpoints
	}
	s.Routes[routes][f] = r.Chain(f.Protocol)
	if r.Guarded {
		s.Sources[f] = r.Sources
	}
	if r.Entry.Local {
		s.spread(local, f, r.Local, r.Affinity)
	}
	switch onlyLocal := r.Entry.Local && !r.External; {
	case !onlyLocal:
		s.spread(all, f, r.Endpoints, r.Affinity)
	case len(r.Endpoints) == 0:
		s.Counts[all][f] = 0 // it refuses, and does not drop as one with endpoints elsewhere
	}
	if r.Affinity.ID != "" {
		s.Routes[pinning][f] = r.Affinity.pinChain()
	}
}

// RefuseOnLoopback refuses a NodePort on the node's loopback addresses: what has to be
// translated there can't leave the node.
func (s State) RefuseOnLoopback(f Frontend) { s.Routes[LocalhostNodePorts][f] = localhostChain }

func (s State) spread(m SlotMap, f Frontend, endpoints []netip.AddrPort, a Affinity) {
	s.Counts[m][f] = len(endpoints)
	if len(endpoints) == 0 {
		return // also of who was pinned to one
	}
	s.Slots[m][f] = endpoints
	if a.ID != "" {
		s.Routes[m.sticky()][f] = stickyChain(m.pinScope(), a.ID)
	}
}

// Pin says that clients of a service port with session affinity can be pinned to these
// endpoints, and for frontends whose policy is Local to these.
func (s State) Pin(a Affinity, endpoints, local []netip.AddrPort) {
	s.Affinities[a.ID] = a
	for _, scope := range a.scopes() {
		set := map[netip.AddrPort]bool{}
		list := endpoints
		if scope == localPins {
			list = local
		}
		for _, ep := range list {
			set[ep] = true
		}
		delete(s.Members, memberSet(scope, a.ID))
		if len(set) > 0 {
			s.Members[memberSet(scope, a.ID)] = set
		}
	}
}

// Keys name a part of a state.
type Keys struct {
	Frontends  map[Frontend]bool
	Addrs      map[netip.Addr]bool
	Affinities map[string]bool // IDs
	Ranges     bool
}

// NewKeys gives keys that name nothing.
func NewKeys() Keys {
	return Keys{Frontends: map[Frontend]bool{}, Addrs: map[netip.Addr]bool{}, Affinities: map[string]bool{}}
}

// Empty says whether the keys name nothing.
func (k Keys) Empty() bool {
	return len(k.Frontends) == 0 && len(k.Addrs) == 0 && len(k.Affinities) == 0 && !k.Ranges
}

// memberSets names the sets of the affinities.
func (k Keys) memberSets() map[string]bool {
	names := map[string]bool{}
	for id := range k.Affinities {
		for _, scope := range pinScopes() {
			names[memberSet(scope, id)] = true
		}
	}
	return names
}

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
	pick(part.Sources, s.Sources, k.Frontends)
	pick(part.Affinities, s.Affinities, k.Affinities)
	if len(k.Affinities) > 0 {
		pick(part.Members, s.Members, k.memberSets())
	}
	if k.Ranges {
		part.Ranges = maps.Clone(s.Ranges)
	}
	return part
}

func pick[K comparable, V any](to, from map[K]V, keys map[K]bool) {
	if len(from) == 0 {
		return
	}
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
	put(s.Sources, part.Sources, k.Frontends)
	put(s.Affinities, part.Affinities, k.Affinities)
	if len(k.Affinities) > 0 {
		put(s.Members, part.Members, k.memberSets())
	}
	if k.Ranges {
		clear(s.Ranges)
		maps.Copy(s.Ranges, part.Ranges)
	}
}

func put[K comparable, V any](to, from map[K]V, keys map[K]bool) {
	if len(to)+len(from) == 0 {
		return
	}
	for key := range keys {
		if v, ok := from[key]; ok {
			to[key] = v
		} else {
			delete(to, key)
		}
	}
}

// sizes gives the number of elements of each set and map, by its name in the
// kernel, but those of all service ports with affinity together.
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
	for name, m := range s.Counts {
		for f, count := range m {
			n[countElement(name, f, count).Set]++
		}
	}
	for _, ranges := range s.Sources {
		n[AllowedSources] += len(ranges)
	}
	for _, set := range s.Members {
		n[members] += len(set)
	}
	return n
}

// members is what the sets of members are counted under together.
const members = "members"

// sizeName is what the number of elements of a set is counted under.
func sizeName(set string) string {
	if isMemberSet(set) {
		return members
	}
	return set
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
