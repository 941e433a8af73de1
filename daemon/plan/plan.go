// Package plan decides: from the facts of the model to what each frontend does
// with a new connection. It is pure, and knows nothing of nftables.
package plan

import (
	"cmp"
	"net/netip"

	"onerule/daemon/model"
)

// A Config is what decisions depend on besides the objects.
type Config struct {
	// NodeName is the node that this daemon runs on.
	NodeName string
	// ClusterCIDRs are the ranges of pods, of both families.
	ClusterCIDRs []netip.Prefix
}

// A Frontend is where clients send.
type Frontend struct {
	Addr     netip.Addr
	Protocol model.Protocol
	Port     uint16
}

// Compare orders frontends by address, protocol and port.
func (f Frontend) Compare(o Frontend) int {
	return cmp.Or(f.Addr.Compare(o.Addr), cmp.Compare(f.Protocol, o.Protocol), cmp.Compare(f.Port, o.Port))
}

// A Decision says what a new connection to a frontend gets: one of the endpoints,
// or a refusal when there are none.
type Decision struct {
	Frontend Frontend
	// Endpoints are sorted and distinct.
	Endpoints []netip.AddrPort
}

// A Service is the plan of one Service, both families together.
type Service struct {
	// Created is the creation time that the plan was made with, in Unix seconds.
	Created   int64
	Decisions []Decision // sorted by frontend, distinct
	// ClusterIPs are the addresses whose every other port is refused.
	ClusterIPs []netip.Addr
	// Hairpins are the chosen endpoints on this node: they may be their own clients.
	Hairpins []netip.Addr
}

// Keys name outcomes that may have changed.
type Keys struct {
	Frontends map[Frontend]bool
	Addrs     map[netip.Addr]bool // among ClusterIPs and hairpins
	Ranges    bool
}

// NewKeys gives keys that name nothing.
func NewKeys() Keys {
	return Keys{Frontends: map[Frontend]bool{}, Addrs: map[netip.Addr]bool{}}
}

// Empty says whether the keys name nothing.
func (k Keys) Empty() bool { return len(k.Frontends) == 0 && len(k.Addrs) == 0 && !k.Ranges }

// An Outcome is what holds for some keys, or for all there are. A key that it does
// not hold is none of ours.
type Outcome struct {
	// Decisions holds the endpoints of each frontend, sorted; none: refuse.
	Decisions  map[Frontend][]netip.AddrPort
	ClusterIPs map[netip.Addr]bool
	Hairpins   map[netip.Addr]bool
	// The ranges are disjoint and sorted. They are set if the keys name Ranges.
	PodCIDRs     []netip.Prefix
	ServiceCIDRs []netip.Prefix
}
