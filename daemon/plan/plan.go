// Package plan decides: from the facts of the model to what each frontend does
// with a new connection. It is pure, and knows nothing of nftables.
package plan

import (
	"net/netip"

	"onerule/daemon/model"
)

// A Config is what decisions depend on besides the objects.
type Config struct {
	// NodeName is the node that this daemon runs on.
	NodeName string
}

// A Frontend is where clients send.
type Frontend struct {
	Addr     netip.Addr
	Protocol model.Protocol
	Port     uint16
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
	Decisions []Decision // sorted by frontend, distinct
	// ClusterIPs are the addresses whose every other port is refused.
	ClusterIPs []netip.Addr
	// Hairpins are the chosen endpoints on this node: they may be their own clients.
	Hairpins []netip.Addr
}
