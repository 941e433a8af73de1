package random

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"onerule/daemon/model"
	"onerule/test/addr"
)

// Pods is the number of pods on each node. The last one on ours is an endpoint
// whose node nobody knows.
const Pods = 4

// TargetPorts are where endpoints listen.
func TargetPorts() []uint16 { return []uint16{8080, 8081} }

// Endpoints are the addresses that serve, of one family, with the node that each
// is said to be on. An address is never said to be on two.
func Endpoints(p addr.Plan) map[netip.Addr]string {
	list := map[netip.Addr]string{p.Node(): addr.NodeName} // a pod in the node's network
	for i := range Pods {
		list[p.Pod(i)] = addr.NodeName
		list[p.OtherPod(i)] = addr.OtherNodeName
	}
	list[p.Pod(Pods-1)] = ""
	return list
}

// MaxEndpoints is the most that a frontend can have.
func MaxEndpoints() int { return (2*Pods + 1) * len(TargetPorts()) }

// vips are the ClusterIPs that Services may have in one family.
func vips(p addr.Plan) []netip.Addr {
	list := []netip.Addr{addr.Nth(p.SecondServiceCIDR, 1), addr.Nth(p.StrayVIPs, 1)}
	for i := range 6 {
		list = append(list, p.VIP(i))
	}
	return list
}

// outsides are the external and load balancer IPs that Services may have: addresses
// in both roles, the node's own, and one that is a ClusterIP, too.
func outsides(p addr.Plan) []netip.Addr {
	return []netip.Addr{p.ExternalIP(0), p.ExternalIP(1), p.BalancerIP(0), p.BalancerIP(1), p.Node(), p.NodeBetween(), p.VIP(0)}
}

func servicePorts() []uint16 { return []uint16{53, 80, 443} }

// nodePorts has one that frontends with an address use, too.
func nodePorts() []uint16 { return []uint16{30080, 30081, 443} }

func portNames() []string { return []string{"", "http", "more"} }

func protocols() []model.Protocol { return []model.Protocol{model.TCP, model.UDP, model.SCTP} }

func zoneNames() []string { return []string{"east", "west"} }

// Begin draws a first set of objects. All ranges of ClusterIPs but the second are
// in it.
func (g *Generator) Begin() []model.Change {
	cidr := &model.ServiceCIDR{Name: "kubernetes"}
	for _, p := range addr.Both() {
		cidr.CIDRs = append(cidr.CIDRs, p.ServiceCIDR)
	}
	list := []model.Change{cidrObject(cidr), g.node()}
	for range 3 + g.rand.IntN(5) {
		list = append(list, g.service())
	}
	for range 15 + g.rand.IntN(10) {
		list = append(list, g.slice())
	}
	return list
}

// Changes draws a few changes: objects that come, change and go.
func (g *Generator) Changes() []model.Change {
	var list []model.Change
	for range 1 + g.rand.IntN(3) {
		var c model.Change
		switch n := g.rand.IntN(20); {
		case n < 7:
			c = g.service()
		case n < 17:
			c = g.slice()
		case n < 19:
			c = g.node()
		default:
			c = g.cidr()
		}
		if g.one(4) {
			c = model.Change{Key: c.Key} // it goes, or is none of ours
		}
		list = append(list, c)
	}
	return list
}

func (g *Generator) namespace() string { return pick(g, "blue", "green") }

func (g *Generator) serviceName() string { return fmt.Sprintf("svc-%d", g.rand.IntN(4)) }

func (g *Generator) service() model.Change {
	s := &model.Service{
		Name:          model.Name{Namespace: g.namespace(), Name: g.serviceName()},
		Created:       int64(g.rand.IntN(4)), // often as old as another
		ExternalLocal: g.one(2),
		InternalLocal: g.one(3),
		Affinity:      pick(g, 0, 0, uint32(10800), uint32(60)),
	}
	for _, p := range pick(g, addr.Both(), addr.Both(), addr.Both()[:1], addr.Both()[1:]) {
		s.ClusterIPs = append(s.ClusterIPs, pick(g, vips(p)...))
	}
	numbers := g.outside(s)
	names := portNames()
	g.rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names[:g.rand.IntN(4)] {
		// Now and then one port twice: the first counts.
		port := model.ServicePort{Name: name, Protocol: pick(g, protocols()...), Port: pick(g, servicePorts()...)}
		if numbers {
			port.NodePort = pick(g, nodePorts()...)
		}
		s.Ports = append(s.Ports, port)
	}
	return serviceObject(s)
}

// outside draws what a Service has besides ClusterIPs, by its type.
func (g *Generator) outside(s *model.Service) (nodePorts bool) {
	both := append(outsides(addr.IPv4()), outsides(addr.IPv6())...)
	if g.one(2) {
		s.ExternalIPs = some(g, 4, both...)
	}
	switch g.rand.IntN(4) {
	case 0:
		return true
	case 1, 2:
		s.LoadBalancerIPs = some(g, 4, both...)
		if g.one(2) {
			s.SourceRanges = g.ranges()
		}
		return !g.one(4) // allocateLoadBalancerNodePorts
	}
	return false
}

// ranges draws source ranges that overlap, lie in each other and are equal.
func (g *Generator) ranges() []netip.Prefix {
	var list []netip.Prefix
	for range g.rand.IntN(5) {
		list = append(list, g.sourceRange(g.plan()))
	}
	return list
}

func (g *Generator) sourceRange(p addr.Plan) netip.Prefix {
	half := netip.PrefixFrom(p.ClusterCIDR.Addr(), p.ClusterCIDR.Bits()+1)
	all := netip.PrefixFrom(p.Node(), 0).Masked()
	list := []netip.Prefix{
		p.ClusterCIDR, half, p.NodePods, host(p.Pod(0)), host(p.Pod(1)), p.OtherPods, host(p.OtherPod(1)),
		p.Uplink, host(p.Outside()), host(p.Node()), p.Between, p.Between, p.External, all,
	}
	return pick(g, list...)
}

func (g *Generator) slice() model.Change {
	s := &model.EndpointSlice{
		Name:    model.Name{Namespace: g.namespace(), Name: fmt.Sprintf("slice-%d", g.rand.IntN(16))},
		Service: g.serviceName(),
	}
	for range g.rand.IntN(7) {
		s.Ports = append(s.Ports, model.SlicePort{
			Name:     pick(g, portNames()...),
			Protocol: pick(g, protocols()...),
			Port:     pick(g, TargetPorts()...),
		})
	}
	nodes := Endpoints(g.plan())
	addrs := slices.SortedFunc(maps.Keys(nodes), netip.Addr.Compare)
	hints := g.hints()
	for range g.rand.IntN(8) {
		a := pick(g, addrs...)
		s.Endpoints = append(s.Endpoints, g.conditions(model.Endpoint{Addr: a, Node: nodes[a], Hints: hints()}))
	}
	return sliceObject(s)
}

// hints gives those of one slice, an endpoint's at a time: none, for all endpoints or
// for some.
func (g *Generator) hints() func() *model.Hints {
	style := g.rand.IntN(6)
	return func() *model.Hints {
		switch {
		case style < 2, style == 5 && g.one(2):
			return nil
		case style == 2:
			return &model.Hints{Nodes: []string{pick(g, addr.NodeName, addr.OtherNodeName)}}
		case style == 3:
			return &model.Hints{Zones: []string{pick(g, zoneNames()...)}}
		}
		return &model.Hints{Zones: some(g, 2, zoneNames()...), Nodes: some(g, 3, addr.NodeName, addr.OtherNodeName)}
	}
}

// conditions draws the usual ones mostly, and any three otherwise.
func (g *Generator) conditions(e model.Endpoint) model.Endpoint {
	switch g.rand.IntN(6) {
	case 0, 1:
		e.Ready, e.Serving = true, true
	case 2:
		e.Serving, e.Terminating = true, true
	case 3:
		e.Serving = true
	default:
		e.Ready, e.Serving, e.Terminating = g.one(2), g.one(2), g.one(2)
	}
	return e
}

// node draws the Node object, which is seldom another node's.
func (g *Generator) node() model.Change {
	n := &model.Node{Name: addr.NodeName, Zone: pick(g, append(zoneNames(), "")...)}
	if g.one(5) {
		n.Name = addr.OtherNodeName
	}
	for _, p := range addr.Both() {
		n.Addrs = append(n.Addrs, some(g, 2, p.Node(), p.NodeBetween())...)
	}
	return nodeObject(n)
}

// cidr draws ranges that come and go, some within others.
func (g *Generator) cidr() model.Change {
	s := &model.ServiceCIDR{Name: pick(g, "kubernetes", "second")}
	for _, p := range addr.Both() {
		if !g.one(4) {
			half := netip.PrefixFrom(p.ServiceCIDR.Addr(), p.ServiceCIDR.Bits()+1)
			s.CIDRs = append(s.CIDRs, pick(g, p.ServiceCIDR, p.SecondServiceCIDR, half))
		}
	}
	return cidrObject(s)
}
