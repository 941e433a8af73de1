package wired

import (
	"fmt"
	"net/netip"
	"testing"

	"onerule/test/netns"
)

// A Family is one of the two.
type Family uint8

// The families.
const (
	IPv4 Family = iota
	IPv6
)

// Of gives the family of an address.
func Of(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// A Shape says of which families the addresses of nodes are, and those of pods.
type Shape struct{ Nodes, Pods []Family }

// Dual is both everywhere.
func Dual() Shape { return Shape{Nodes: []Family{IPv4, IPv6}, Pods: []Family{IPv4, IPv6}} }

// A Cluster is three nodes: a and b are on one layer 2, c is behind a router, which knows
// nothing of pods, and stands for the outside as well.
//
//	       br0 172.16.1.254        172.16.2.254
//	a .1 ──┤  router                     ├── .1 c
//	b .2 ──┘  fd00:16:1::fe  fd00:16:2::fe
type Cluster struct {
	Router  *netns.NS
	Members []*Member
}

// A Member is a node. Its pod has no wire yet.
type Member struct {
	Name   string
	Number int    // from 1
	Router string // the router's device that leads to it; its own is eth0
	Addrs  []netip.Addr
	Ranges []netip.Prefix // of its pods
	NS     *netns.NS
	Pod    *netns.NS
}

// Routed says whether packets between two members pass the router.
func (m *Member) Routed(to *Member) bool { return m.behind() || to.behind() }

func (m *Member) behind() bool { return m.network() == 2 }

// network is that of the node's address, which c alone has the second of.
func (m *Member) network() int {
	if m.Number == 3 {
		return 2
	}
	return 1
}

// NewCluster makes one.
func NewCluster(t testing.TB, s Shape) *Cluster {
	t.Helper()
	c := &Cluster{Router: Quiet(t, "router")}
	c.Router.Run(t, "ip", "link", "add", "br0", "type", "bridge")
	c.Router.Run(t, "ip", "link", "set", "br0", "up")
	c.Router.Forward(t)
	for _, f := range s.Nodes {
		c.Router.Addr(t, "br0", f.gateway(1)+f.bits())
	}
	for i, name := range []string{"a", "b", "c"} {
		c.Members = append(c.Members, c.member(t, s, name, i+1))
	}
	return c
}

// Quiet makes a namespace whose devices look for no duplicates of their addresses: until
// that is over, a router can't ask for neighbours.
func Quiet(t testing.TB, name string) *netns.NS {
	t.Helper()
	ns := netns.New(t, name)
	ns.Sysctl(t, "net.ipv6.conf.default.accept_dad", "0")
	ns.Sysctl(t, "net.ipv6.conf.default.dad_transmits", "0")
	return ns
}

func (f Family) gateway(network int) string {
	if f == IPv6 {
		return fmt.Sprintf("fd00:16:%d::fe", network)
	}
	return fmt.Sprintf("172.16.%d.254", network)
}

func (f Family) bits() string {
	if f == IPv6 {
		return "/64"
	}
	return "/24"
}

func (f Family) node(network, number int) netip.Addr {
	if f == IPv6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00:16:%d::%d", network, number))
	}
	return netip.MustParseAddr(fmt.Sprintf("172.16.%d.%d", network, number))
}

func (f Family) pods(number int) netip.Prefix {
	if f == IPv6 {
		return netip.MustParsePrefix(fmt.Sprintf("fd00:1:0:%d::/112", number))
	}
	return netip.MustParsePrefix(fmt.Sprintf("10.1.%d.0/24", number))
}

func (c *Cluster) member(t testing.TB, s Shape, name string, number int) *Member {
	t.Helper()
	m := &Member{Name: name, Number: number, Router: "to-" + name, NS: Quiet(t, name), Pod: Quiet(t, "pod-"+name)}
	host := number
	if m.behind() {
		host = 1
	}
	netns.Wire(t, m.NS, "eth0", c.Router, m.Router)
	if !m.behind() {
		c.Router.Run(t, "ip", "link", "set", m.Router, "master", "br0")
	}
	for _, f := range s.Nodes {
		if m.behind() {
			c.Router.Addr(t, m.Router, f.gateway(2)+f.bits())
		}
		a := f.node(m.network(), host)
		m.Addrs = append(m.Addrs, a)
		m.NS.Addr(t, "eth0", a.String()+f.bits())
		m.NS.Route(t, "default", f.gateway(m.network()))
	}
	for _, f := range s.Pods {
		m.Ranges = append(m.Ranges, f.pods(number))
	}
	return m
}
