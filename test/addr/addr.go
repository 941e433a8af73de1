// Package addr is the addressing plan of the tests: who has which address, in
// both families, said once.
//
//	outside ---- node ---- other node, with pods of its own
//	              |  |
//	            pod  pod
package addr

import (
	"encoding/binary"
	"net/netip"
)

// The names of the two nodes.
const (
	NodeName      = "node"
	OtherNodeName = "other-node"
)

// A Plan holds the addresses of one family.
type Plan struct {
	// ServiceCIDR is where ClusterIPs come from, and SecondServiceCIDR a range that
	// was added later.
	ServiceCIDR, SecondServiceCIDR netip.Prefix
	// StrayVIPs is a range outside both, for ClusterIPs that no ServiceCIDR covers.
	StrayVIPs netip.Prefix
	// External and Balancers are ranges of addresses that only Services have: external
	// IPs, and those of load balancers.
	External, Balancers netip.Prefix
	// ClusterCIDR holds the pods of all nodes.
	ClusterCIDR netip.Prefix
	// NodePods and OtherPods are the parts of it for each node.
	NodePods, OtherPods netip.Prefix
	// Uplink is the link between the node and what is outside.
	Uplink netip.Prefix
	// Between is the link between the two nodes.
	Between netip.Prefix
}

// IPv4 gives the plan for IPv4.
func IPv4() Plan {
	return Plan{
		ServiceCIDR:       netip.MustParsePrefix("10.96.0.0/16"),
		SecondServiceCIDR: netip.MustParsePrefix("10.97.0.0/24"),
		StrayVIPs:         netip.MustParsePrefix("10.98.0.0/24"),
		External:          netip.MustParsePrefix("198.51.100.0/25"),
		Balancers:         netip.MustParsePrefix("198.51.100.128/25"),
		ClusterCIDR:       netip.MustParsePrefix("10.244.0.0/16"),
		NodePods:          netip.MustParsePrefix("10.244.1.0/24"),
		OtherPods:         netip.MustParsePrefix("10.244.2.0/24"),
		Uplink:            netip.MustParsePrefix("192.0.2.0/24"),
		Between:           netip.MustParsePrefix("203.0.113.0/24"),
	}
}

// IPv6 gives the plan for IPv6.
func IPv6() Plan {
	return Plan{
		ServiceCIDR:       netip.MustParsePrefix("fd00:96::/112"),
		SecondServiceCIDR: netip.MustParsePrefix("fd00:97::/112"),
		StrayVIPs:         netip.MustParsePrefix("fd00:98::/112"),
		External:          netip.MustParsePrefix("2001:db8:51::/64"),
		Balancers:         netip.MustParsePrefix("2001:db8:52::/64"),
		ClusterCIDR:       netip.MustParsePrefix("fd00:244::/48"),
		NodePods:          netip.MustParsePrefix("fd00:244:0:1::/64"),
		OtherPods:         netip.MustParsePrefix("fd00:244:0:2::/64"),
		Uplink:            netip.MustParsePrefix("2001:db8:1::/64"),
		Between:           netip.MustParsePrefix("2001:db8:2::/64"),
	}
}

// Both gives the plans of both families, IPv4 first.
func Both() []Plan { return []Plan{IPv4(), IPv6()} }

// Node is the node's address, on the uplink.
func (p Plan) Node() netip.Addr { return Nth(p.Uplink, 1) }

// Outside is the host that belongs to no cluster.
func (p Plan) Outside() netip.Addr { return Nth(p.Uplink, 2) }

// NodeBetween and OtherNode are the ends of the link between the nodes.
func (p Plan) NodeBetween() netip.Addr { return Nth(p.Between, 1) }

// OtherNode is the other node's address.
func (p Plan) OtherNode() netip.Addr { return Nth(p.Between, 2) }

// Pod is the address of a pod on the node, with a link of its own: 4 addresses
// from PodGateway(i) - 1 on. i is 0 to 62.
func (p Plan) Pod(i int) netip.Addr { return Nth(p.NodePods, 4*i+2) }

// PodGateway is the node's end of a pod's link.
func (p Plan) PodGateway(i int) netip.Addr { return Nth(p.NodePods, 4*i+1) }

// PodLinkBits is the prefix length of a pod's link.
func (p Plan) PodLinkBits() int { return p.ServiceCIDR.Addr().BitLen() - 2 }

// OtherPod is the address of a pod on the other node. i is 0 to 199.
func (p Plan) OtherPod(i int) netip.Addr { return Nth(p.OtherPods, 10+i) }

// VIP is the ClusterIP with a number, 0 to 999.
func (p Plan) VIP(i int) netip.Addr { return Nth(p.ServiceCIDR, 1+i) }

// ExternalIP and BalancerIP are the external and the load balancer IP with a number, 0
// to 99.
func (p Plan) ExternalIP(i int) netip.Addr { return Nth(p.External, 1+i) }

// BalancerIP is described with ExternalIP.
func (p Plan) BalancerIP(i int) netip.Addr { return Nth(p.Balancers, 1+i) }

// Nth gives the nth address of a range, 0 being its first.
func Nth(p netip.Prefix, n int) netip.Addr {
	bytes := p.Masked().Addr().AsSlice()
	low := bytes[len(bytes)-4:]
	binary.BigEndian.PutUint32(low, binary.BigEndian.Uint32(low)+uint32(n))
	addr, _ := netip.AddrFromSlice(bytes)
	return addr
}
