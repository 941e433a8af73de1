// Package layout decides how the nodes of a cluster reach each other's pods: which
// routes, which VXLAN device with which entries, which settings. What the kernel
// should hold is a value, and so is the difference to what it holds. The package
// knows no netlink and asks nobody.
package layout

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
)

const (
	// DeviceName is the one VXLAN device. It must not begin as links of pods do: rules
	// about those match by the beginning of a name.
	DeviceName = "vxlan-onerule"
	// Metric is that of our routes. It makes them ours alone: a write replaces a route
	// of the same destination and metric, and others have other metrics.
	Metric = 112
	// Weakest is the metric of IPv6 routes that refuse: any route that leads somewhere comes
	// before it. That of the kernel to what is on a link has 256 (of IPv4: 0), so the pods
	// of a bridge that is still there would be refused by one of Metric.
	Weakest = 0x7fffffff
)

// An Encapsulation says which peers are reached by VXLAN.
type Encapsulation uint8

// The encapsulations.
const (
	Auto   Encapsulation = iota // those that are not on a layer 2 with this node
	Always                      // all
	Never                       // none
)

// ParseEncapsulation reads auto, always or never.
func ParseEncapsulation(s string) (Encapsulation, error) {
	for _, e := range []Encapsulation{Auto, Always, Never} {
		if e.String() == s {
			return e, nil
		}
	}
	return Auto, fmt.Errorf("encapsulation %q is not auto, always or never", s)
}

// String gives the word that ParseEncapsulation reads.
func (e Encapsulation) String() string {
	switch e {
	case Always:
		return "always"
	case Never:
		return "never"
	}
	return "auto"
}

// A Config is what all nodes of a cluster must agree on. Only ChecksumOffload is
// each node's own.
type Config struct {
	Encapsulation Encapsulation
	VNI           int // 1 to 16777215
	Port          int // UDP, 1 to 65535
	// ChecksumOffload lets network cards compute the checksums of packets that are
	// encapsulated. Some drivers get them wrong, and all such packets are lost.
	ChecksumOffload bool
}

// A Node is what its object says.
type Node struct {
	Name string
	// Created is in Unix seconds, 0 if unknown: the oldest. Of two nodes that claim one
	// address or range, the older keeps it.
	Created  int64
	PodCIDRs []netip.Prefix
	Addrs    []netip.Addr // InternalIPs, of both families
}

// A Problem is what is wrong with a node, in one line.
type Problem struct{ Node, Detail string }

func (p Problem) String() string { return "node " + p.Node + ": " + p.Detail }

// A Link is a device of this node.
type Link struct {
	Name string
	MTU  int
	// Resolves says that neighbours on it are found by ARP and neighbour discovery: it
	// is a layer 2, as a tunnel is none.
	Resolves bool
}

// A Way is how the kernel sends to an address.
type Way struct {
	Link    int  // the device that packets leave by, or that has the address if it is ours
	Gateway bool // by routers
	Local   bool // the address is this node's
	MTU     int  // that the route has of its own; 0: that of the device
}

// Facts are what this node is like.
type Facts struct {
	Links map[int]Link       // by index: those of ways and uplinks
	Ways  map[netip.Addr]Way // to addresses of nodes; those that no route leads to have none
	// Uplinks have the default routes. Advertised are those of them whose default route
	// came by a router advertisement that the kernel itself obeys.
	Uplinks    []int
	Advertised []int
	PodLinks   []string
	IPv6       bool // the kernel speaks it
	// Refused are routes to peers that the kernel did not take, with why.
	Refused map[Route]string
}

// A MAC is a MAC address.
type MAC [6]byte

func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// DeviceMAC gives the MAC of a node's VXLAN device. All nodes derive it from the
// name, so none has to be told. It is locally administered.
func DeviceMAC(node string) MAC {
	sum := sha256.Sum256([]byte("onerule vxlan " + node))
	m := MAC(sum[:6])
	m[0] = m[0]&0xfc | 2
	return m
}

// deviceAddr is the address of a node's VXLAN device for one of its ranges: the first
// one, which no pod gets. The node sends from it to pods of others, and they answer to
// it by the same way; to another address of the node they would not.
func deviceAddr(cidr netip.Prefix) netip.Addr { return cidr.Masked().Addr() }
