// Package plan decides: from the facts of the model to what each frontend does
// with a new connection. It is pure, and knows nothing of nftables.
package plan

import (
	"cmp"
	"maps"
	"net/netip"

	"onerule/daemon/model"
)

// A Config is what decisions depend on besides the objects.
type Config struct {
	// NodeName is the node that this daemon runs on. Its zone is taken from the Node
	// object of that name.
	NodeName string
	// ClusterCIDRs are the ranges of pods, of both families.
	ClusterCIDRs []netip.Prefix
	// WithoutExternalIPs leaves spec.externalIPs out (gate AllowServiceExternalIPs).
	WithoutExternalIPs bool
	// ExternalIPs are the ranges that spec.externalIPs must lie in; nil: they may be any.
	ExternalIPs []netip.Prefix
	// KeepListed asks for all endpoints as Keep of TCP frontends, whatever their conditions.
	KeepListed bool
}

// A Frontend is where clients send. A NodePort has no Addr but a Family: it is at
// every address of the node that is configured for NodePorts.
type Frontend struct {
	Addr     netip.Addr
	Family   Family // of a NodePort; 0 where there is an Addr
	Protocol model.Protocol
	Port     uint16
}

// A Family is an IP family: 4 or 6.
type Family uint8

// The families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// FamilyOf gives the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// InFamily gives the family that the frontend is of.
func (f Frontend) InFamily() Family {
	if f.Addr.IsValid() {
		return FamilyOf(f.Addr)
	}
	return f.Family
}

// Compare orders frontends by address, family, protocol and port.
func (f Frontend) Compare(o Frontend) int {
	return cmp.Or(f.Addr.Compare(o.Addr), cmp.Compare(f.Family, o.Family), cmp.Compare(f.Protocol, o.Protocol), cmp.Compare(f.Port, o.Port))
}

// A Kind says what a frontend is to the Service: traffic policies and masquerade
// depend on it.
type Kind uint8

// The kinds of frontends.
const (
	ClusterIP Kind = iota
	ExternalIP
	LoadBalancerIP
	NodePort
)

// A Decision says what a new connection to a frontend gets.
type Decision struct {
	Frontend Frontend
	Kind     Kind
	// Local says that the policy for this kind of traffic is Local.
	Local bool
	// Endpoints are those of the Cluster policy: what connections are spread over
	// unless Local says otherwise. A frontend without any refuses, also if Local.
	// They are sorted and distinct.
	Endpoints []netip.AddrPort
	// LocalEndpoints are those on this node, sorted and distinct; nil unless Local.
	// For a Local frontend with Endpoints but without LocalEndpoints, connections that
	// may only go to local ones are dropped.
	LocalEndpoints []netip.AddrPort
	// Keep are the endpoints whose flows may go on, whatever topology and policies say: all
	// that serve; of TCP frontends all that there are, if Config.KeepListed asks for them.
	// Sorted and distinct.
	Keep []netip.AddrPort
	// Guarded says that only clients in Sources are let in; the others are dropped.
	// Sources are disjoint and sorted, of the frontend's family.
	Guarded bool
	Sources []netip.Prefix
	// Affinity names the service port whose pins hold for this frontend, or nothing.
	// AffinitySeconds and AffinityLocal repeat what Affinity says of it.
	Affinity        ServicePort
	AffinitySeconds uint32
	AffinityLocal   bool
	// PortName is the name of the service port.
	PortName string
}

// A ServicePort names a port of a Service in one family: what ClientIP affinity
// belongs to. The zero value names none.
type ServicePort struct {
	Service  model.Name
	Port     string // the port's name
	Protocol model.Protocol
	Family   Family
}

// An Affinity says how clients are pinned to the endpoints of a service port.
type Affinity struct {
	Seconds uint32 // that a client may be idle
	// Endpoints are those that a client may be pinned to. Local says that there is a
	// frontend with a Local policy, which has pins of its own, to LocalEndpoints.
	Endpoints      []netip.AddrPort
	Local          bool
	LocalEndpoints []netip.AddrPort
}

// A HealthCheck says what load balancers are told on a healthCheckNodePort.
type HealthCheck struct {
	Service model.Name
	// Endpoints is the number of addresses on this node that are ready, both families
	// together.
	Endpoints int
}

// A Service is the plan of one Service, both families together.
type Service struct {
	// Created is the creation time that the plan was made with, in Unix seconds.
	Created   int64
	Decisions []Decision // sorted by frontend, distinct
	// ClusterIPs and ExternalIPs (with those of load balancers) are the addresses
	// whose every other port is refused, ExternalIPs unless the node has them itself.
	ClusterIPs, ExternalIPs []netip.Addr
	// Hairpins are the chosen endpoints on this node: they may be their own clients.
	Hairpins []netip.Addr
	// Affinities has the service ports with ClientIP affinity.
	Affinities map[ServicePort]Affinity
	// HealthCheckPort is 0 if there is none.
	HealthCheckPort uint16
	HealthCheck     HealthCheck
	// NoLocal counts service ports with a Local policy that have endpoints elsewhere
	// and none on this node, by family, for internal and external traffic.
	NoLocal map[Family]NoLocal

	// hinted and guarded say that the plan depends on the zone or the addresses of the
	// node.
	hinted, guarded bool
}

// NoLocal counts service ports without local endpoints.
type NoLocal struct{ Internal, External int }

// Keys name outcomes that may have changed.
type Keys struct {
	Frontends  map[Frontend]bool
	Addrs      map[netip.Addr]bool // among ClusterIPs, external IPs and hairpins
	Affinities map[ServicePort]bool
	Ranges     bool
}

// NewKeys gives keys that name nothing.
func NewKeys() Keys {
	return Keys{Frontends: map[Frontend]bool{}, Addrs: map[netip.Addr]bool{}, Affinities: map[ServicePort]bool{}}
}

// In leaves the keys of one family, and gives them. Ranges are of both.
func (k Keys) In(f Family) Keys {
	maps.DeleteFunc(k.Frontends, func(front Frontend, _ bool) bool { return front.InFamily() != f })
	maps.DeleteFunc(k.Addrs, func(a netip.Addr, _ bool) bool { return FamilyOf(a) != f })
	maps.DeleteFunc(k.Affinities, func(p ServicePort, _ bool) bool { return p.Family != f })
	return k
}

// Add names what other keys do, too.
func (k *Keys) Add(o Keys) {
	maps.Copy(k.Frontends, o.Frontends)
	maps.Copy(k.Addrs, o.Addrs)
	maps.Copy(k.Affinities, o.Affinities)
	k.Ranges = k.Ranges || o.Ranges
}

// AddIn names what other keys do of a family, too.
func (k *Keys) AddIn(f Family, o Keys) {
	for front := range o.Frontends {
		if front.InFamily() == f {
			k.Frontends[front] = true
		}
	}
	for addr := range o.Addrs {
		if FamilyOf(addr) == f {
			k.Addrs[addr] = true
		}
	}
	for port := range o.Affinities {
		if port.Family == f {
			k.Affinities[port] = true
		}
	}
	k.Ranges = k.Ranges || o.Ranges
}

// Empty says whether the keys name nothing.
func (k Keys) Empty() bool {
	return len(k.Frontends) == 0 && len(k.Addrs) == 0 && len(k.Affinities) == 0 && !k.Ranges
}

// An Outcome is what holds for some keys, or for all there are. A key that it does
// not hold is none of ours.
type Outcome struct {
	Decisions   map[Frontend]Decision
	ClusterIPs  map[netip.Addr]bool
	ExternalIPs map[netip.Addr]bool
	Hairpins    map[netip.Addr]bool
	Affinities  map[ServicePort]Affinity
	// The ranges are disjoint and sorted. They are set if the keys name Ranges.
	PodCIDRs     []netip.Prefix
	ServiceCIDRs []netip.Prefix
}
