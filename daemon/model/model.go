// Package model holds the facts of a cluster as plain values: what the sources
// deliver and what plan reads. It knows neither Kubernetes' API types nor
// nftables, and imports the standard library only.
package model

import (
	"cmp"
	"net/netip"
)

// A Protocol is an IANA protocol number, as in the IP header.
type Protocol uint8

// The protocols that a Service can have.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String gives the name as Kubernetes writes it.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return "unknown"
}

// A Name identifies a namespaced object. Cluster-wide objects have an empty
// Namespace.
type Name struct{ Namespace, Name string }

// String gives namespace/name, or the name alone of a cluster-wide object.
func (n Name) String() string {
	if n.Namespace == "" {
		return n.Name
	}
	return n.Namespace + "/" + n.Name
}

// Compare orders names by namespace, then name.
func (n Name) Compare(o Name) int {
	return cmp.Or(cmp.Compare(n.Namespace, o.Namespace), cmp.Compare(n.Name, o.Name))
}

// A Service is a Service that a proxy answers for. Headless and ExternalName
// Services, and those handed to another proxy, are never one.
type Service struct {
	Name Name
	// Created is the creation time in Unix seconds, 0 if unknown. The older of
	// two Services that claim one frontend keeps it.
	Created int64
	// ClusterIPs holds at most one address of each family.
	ClusterIPs []netip.Addr
	// ExternalIPs are of both families, distinct.
	ExternalIPs []netip.Addr
	// LoadBalancerIPs are those of status.loadBalancer that the node answers for
	// itself: of mode VIP. They are of both families, distinct.
	LoadBalancerIPs []netip.Addr
	// SourceRanges are those that may reach LoadBalancerIPs, as the Service lists
	// them: they may overlap. Without one of a family, all sources of it may.
	SourceRanges []netip.Prefix
	// ExternalLocal and InternalLocal say that the policy for traffic to NodePorts,
	// external and load balancer IPs, or to ClusterIPs, is Local.
	ExternalLocal, InternalLocal bool
	// Affinity is how long a client that is idle stays with its endpoint, in seconds;
	// 0: there is no session affinity.
	Affinity uint32
	// HealthCheckNodePort is where load balancers ask for local endpoints; 0: nowhere.
	// Only a Service of type LoadBalancer whose external policy is Local has one.
	HealthCheckNodePort uint16
	Ports               []ServicePort
}

// A ServicePort is one port of a Service.
type ServicePort struct {
	Name     string
	Protocol Protocol
	Port     uint16
	NodePort uint16 // 0: none
}

// An EndpointSlice is a part of the endpoints of a Service, of one family.
type EndpointSlice struct {
	Name    Name
	Service string // the Service's name, in the slice's namespace
	Ports   []SlicePort
	// Endpoints holds the first address of each endpoint.
	Endpoints []Endpoint
	// Triggered is when the change of a pod or Service was seen that this state of the
	// slice follows from, in Unix nanoseconds; 0 if the slice does not say.
	Triggered int64
}

// A SlicePort is a port that every endpoint of a slice has.
type SlicePort struct {
	Name     string // that of the service port
	Protocol Protocol
	Port     uint16
}

// An Endpoint is one address that may serve.
type Endpoint struct {
	Addr                        netip.Addr
	Node                        string // empty: unknown, never local
	Ready, Serving, Terminating bool
	Hints                       *Hints // nil: none
}

// Hints say whom an endpoint is meant for. They are shared between endpoints.
type Hints struct{ Zones, Nodes []string }

// A Node is the node that the daemon runs on, or another one.
type Node struct {
	Name string
	// Created is the creation time in Unix seconds, 0 if unknown. Of two nodes that claim
	// one range of pods, the older keeps it.
	Created  int64
	PodCIDRs []netip.Prefix
	// Addrs holds the node's InternalIPs, then its ExternalIPs.
	Addrs       []netip.Addr
	InternalIPs []netip.Addr
	// Zone is the label topology.kubernetes.io/zone; empty: unknown.
	Zone string
	// Leaving says that the node is being deleted, or has the taint
	// ToBeDeletedByClusterAutoscaler.
	Leaving bool
}

// A ServiceCIDR is a range that ClusterIPs are allocated from.
type ServiceCIDR struct {
	Name  string
	CIDRs []netip.Prefix
}

// A Kind tells the kinds of objects apart.
type Kind uint8

// The kinds of objects that sources deliver.
const (
	KindService Kind = iota
	KindEndpointSlice
	KindNode
	KindServiceCIDR
)

// String gives the kind as Kubernetes writes it.
func (k Kind) String() string {
	return [...]string{"Service", "EndpointSlice", "Node", "ServiceCIDR"}[k]
}

// A Key identifies an object of any kind.
type Key struct {
	Kind Kind
	Name Name
}

// String gives "Kind namespace/name".
func (k Key) String() string { return k.Kind.String() + " " + k.Name.String() }

// A Change is an object as it is now. One of the pointers is set, that of the
// key's kind, or none when the object is gone or not for us. The values behind
// the pointers are never written again.
type Change struct {
	Key           Key
	Service       *Service
	EndpointSlice *EndpointSlice
	Node          *Node
	ServiceCIDR   *ServiceCIDR
}

// A Reason is a short fixed text that says why something was skipped: the label
// of a metric.
type Reason string

// The reasons why an object, or a part of one, is skipped.
const (
	ReasonParse             Reason = "parse"              // not YAML or JSON, or fields of the wrong type
	ReasonUnknownKind       Reason = "unknown-kind"       // an API version and kind that no source reads
	ReasonInvalidName       Reason = "invalid-name"       // missing, or no DNS label
	ReasonInvalidAddress    Reason = "invalid-address"    // not an IP address or prefix, or of the wrong family
	ReasonInvalidPort       Reason = "invalid-port"       // out of 1..65535, or missing
	ReasonInvalidProtocol   Reason = "invalid-protocol"   // not TCP, UDP or SCTP
	ReasonInvalidTimeout    Reason = "invalid-timeout"    // out of 1..86400 seconds
	ReasonNoService         Reason = "no-service"         // a slice without the label of its Service
	ReasonAddressType       Reason = "address-type"       // a slice of addresses that are neither IPv4 nor IPv6
	ReasonDuplicateObject   Reason = "duplicate-object"   // an object that another file holds already
	ReasonDuplicateFrontend Reason = "duplicate-frontend" // a frontend that another Service, or another port, holds already
	ReasonRefusedAddress    Reason = "refused-address"    // an external IP outside the ranges that are allowed
)

// A Note says that an object, or a part of one, was skipped and why.
type Note struct {
	Reason Reason
	Field  string // path of the field, like spec.ports[0].port; may be empty
	Detail string // for people: what was found and what was expected
}

// Reasons lists all reasons.
func Reasons() []Reason {
	return []Reason{
		ReasonParse, ReasonUnknownKind, ReasonInvalidName, ReasonInvalidAddress, ReasonInvalidPort,
		ReasonInvalidProtocol, ReasonInvalidTimeout, ReasonNoService, ReasonAddressType, ReasonDuplicateObject, ReasonDuplicateFrontend,
		ReasonRefusedAddress,
	}
}
