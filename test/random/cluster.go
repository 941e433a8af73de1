package random

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/oracle"
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

// vips are the addresses that Services may have in one family.
func vips(p addr.Plan) []netip.Addr {
	list := []netip.Addr{addr.Nth(p.SecondServiceCIDR, 1), addr.Nth(p.StrayVIPs, 1)}
	for i := range 6 {
		list = append(list, p.VIP(i))
	}
	return list
}

func servicePorts() []uint16 { return []uint16{53, 80, 443} }

func portNames() []string { return []string{"", "http"} }

func protocols() []model.Protocol { return []model.Protocol{model.TCP, model.UDP, model.SCTP} }

// A World is a cluster that changes.
type World struct {
	objects map[model.Key]model.Change
}

// NewWorld gives a world without any object.
func NewWorld() *World { return &World{map[model.Key]model.Change{}} }

// Apply makes the changes, in order.
func (w *World) Apply(changes []model.Change) {
	for _, c := range changes {
		if c.Service == nil && c.EndpointSlice == nil && c.ServiceCIDR == nil {
			delete(w.objects, c.Key)
		} else {
			w.objects[c.Key] = c
		}
	}
}

// Cluster gives the objects as they are now, for the oracle.
func (w *World) Cluster() oracle.Cluster {
	var c oracle.Cluster
	for _, o := range w.Objects() {
		switch {
		case o.Service != nil:
			c.Services = append(c.Services, *o.Service)
		case o.EndpointSlice != nil:
			c.Slices = append(c.Slices, *o.EndpointSlice)
		case o.ServiceCIDR != nil:
			c.ServiceCIDRs = append(c.ServiceCIDRs, *o.ServiceCIDR)
		}
	}
	return c
}

// Objects gives the objects as the changes that made them, sorted by key.
func (w *World) Objects() []model.Change {
	return slices.SortedFunc(maps.Values(w.objects), func(a, b model.Change) int {
		return cmp.Or(cmp.Compare(a.Key.Kind, b.Key.Kind), a.Key.Name.Compare(b.Key.Name))
	})
}

// Begin draws a first set of objects. All ranges of ClusterIPs but the second are
// in it.
func (g *Generator) Begin() []model.Change {
	var list []model.Change
	cidr := &model.ServiceCIDR{Name: "kubernetes"}
	for _, p := range addr.Both() {
		cidr.CIDRs = append(cidr.CIDRs, p.ServiceCIDR)
	}
	list = append(list, change(model.KindServiceCIDR, model.Name{Name: cidr.Name}, func(c *model.Change) { c.ServiceCIDR = cidr }))
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
		case n < 18:
			c = g.slice()
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

func change(kind model.Kind, name model.Name, set func(c *model.Change)) model.Change {
	c := model.Change{Key: model.Key{Kind: kind, Name: name}}
	set(&c)
	return c
}

func (g *Generator) namespace() string { return pick(g, "blue", "green") }

func (g *Generator) serviceName() string { return fmt.Sprintf("svc-%d", g.rand.IntN(4)) }

func (g *Generator) service() model.Change {
	s := &model.Service{
		Name:    model.Name{Namespace: g.namespace(), Name: g.serviceName()},
		Created: int64(g.rand.IntN(4)), // often as old as another
	}
	families := pick(g, addr.Both(), addr.Both(), addr.Both()[:1], addr.Both()[1:])
	for _, p := range families {
		s.ClusterIPs = append(s.ClusterIPs, pick(g, vips(p)...))
	}
	for range g.rand.IntN(4) {
		// Now and then one port twice: the first counts.
		s.Ports = append(s.Ports, model.ServicePort{
			Name:     pick(g, portNames()...),
			Protocol: pick(g, protocols()...),
			Port:     pick(g, servicePorts()...),
		})
	}
	return change(model.KindService, s.Name, func(c *model.Change) { c.Service = s })
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
	for range g.rand.IntN(8) {
		a := pick(g, addrs...)
		s.Endpoints = append(s.Endpoints, g.conditions(model.Endpoint{Addr: a, Node: nodes[a]}))
	}
	return change(model.KindEndpointSlice, s.Name, func(c *model.Change) { c.EndpointSlice = s })
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

// cidr draws ranges that come and go, some within others.
func (g *Generator) cidr() model.Change {
	s := &model.ServiceCIDR{Name: pick(g, "kubernetes", "second")}
	for _, p := range addr.Both() {
		if !g.one(4) {
			half := netip.PrefixFrom(p.ServiceCIDR.Addr(), p.ServiceCIDR.Bits()+1)
			s.CIDRs = append(s.CIDRs, pick(g, p.ServiceCIDR, p.SecondServiceCIDR, half))
		}
	}
	return change(model.KindServiceCIDR, model.Name{Name: s.Name}, func(c *model.Change) { c.ServiceCIDR = s })
}
