package random

import (
	"fmt"
	"net/netip"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/oracle"
)

// A Move is a change and the packet that is sent after it, if any.
type Move struct {
	Changes []model.Change
	Packet  *oracle.Packet
}

// slots is the number of Services that are there for aims. Each takes the place of the
// one before it.
const slots = 4

// An aim makes a Service and packets whose last one is in a cell, if the setup allows for
// such a packet: nobody else claims its frontends.
type aim struct {
	g       *Generator
	cell    Cell
	plan    addr.Plan
	slot    int
	service *model.Service
	client  oracle.Packet
	zone    string
	// spare is an endpoint that serves only at first.
	spare model.Endpoint
}

// Aim gives the moves that lead to a packet in the cell.
func (g *Generator) Aim(s Setup, cell Cell) []Move {
	a := &aim{g: g, cell: cell, plan: addr.Both()[cell[DimFamily]], slot: g.aims % slots, zone: pick(g, zoneNames()...)}
	g.aims++
	a.client = g.from(a.plan, cell[DimClient])
	a.draw()
	packet := a.packet(s)
	node := nodeObject(&model.Node{Name: addr.NodeName, Zone: a.zone, Addrs: some(g, 2, a.plan.Node(), a.plan.NodeBetween())})
	// The one before goes by itself, and its pins with it.
	moves := []Move{{Changes: []model.Change{gone(model.KindService, a.service.Name), gone(model.KindEndpointSlice, a.sliceName("a")), gone(model.KindEndpointSlice, a.sliceName("b"))}}}
	service := serviceObject(a.service)
	switch cell[DimAffinity] {
	case PinnedElsewhere:
		before := packet
		a.spare = model.Endpoint{Addr: a.plan.Pod(2), Node: addr.NodeName, Ready: true, Serving: true}
		if a.staysElsewhere() {
			a.spare.Addr, a.spare.Node = a.plan.OtherPod(0), addr.OtherNodeName
			before.Dst, before.Port = a.service.ClusterIPs[0], a.service.Ports[0].Port
		}
		first := a.slice("a", a.spare)
		return append(moves, Move{[]model.Change{node, service, sliceObject(first)}, &before}, Move{a.slices(), &packet})
	case Pinned:
		return append(moves, Move{append(a.slices(), node, service), &packet}, Move{nil, &packet})
	}
	return append(moves, Move{append(a.slices(), node, service), &packet})
}

// staysElsewhere says whether the client is to be pinned to an endpoint elsewhere, which
// stays, but which the frontend may not use.
func (a *aim) staysElsewhere() bool {
	elsewhere := a.cell[DimEndpoints] == ReadyInBoth || a.cell[DimEndpoints] == ReadyElsewhere
	return elsewhere && a.cell[DimPolicy] == PolicyLocal && a.cell[DimFrontend] != AtClusterIP &&
		a.cell[DimClient] == FromOutside && !a.service.InternalLocal
}

func (a *aim) sliceName(which string) model.Name {
	return model.Name{Namespace: "red", Name: fmt.Sprintf("aim-%d-%s", a.slot, which)}
}

// draw draws the Service: what the cell says, and anything else besides.
func (a *aim) draw() {
	g, frontend := a.g, a.cell[DimFrontend]
	wants := func(is uint8) bool { return frontend == is || g.one(3) }
	s := &model.Service{
		Name:       model.Name{Namespace: "red", Name: fmt.Sprintf("aim-%d", a.slot)},
		Created:    -1, // it is the oldest
		ClusterIPs: []netip.Addr{a.plan.VIP(20 + a.slot)},
		Ports:      []model.ServicePort{{Name: pick(g, portNames()...), Protocol: pick(g, model.TCP, model.TCP, model.UDP, model.UDP, model.SCTP), Port: pick(g, servicePorts()...)}},
	}
	s.ExternalLocal, s.InternalLocal = g.one(2), g.one(2)
	if local := a.cell[DimPolicy] == PolicyLocal; frontend == AtClusterIP {
		s.InternalLocal = local
	} else {
		s.ExternalLocal = local
	}
	if wants(AtNodePort) {
		s.Ports[0].NodePort = uint16(30100 + a.slot)
	}
	if wants(AtExternalIP) {
		s.ExternalIPs = []netip.Addr{a.plan.ExternalIP(20 + a.slot)}
		if g.one(3) {
			s.ExternalIPs[0], s.Ports[0].Port = a.plan.Node(), uint16(8000+a.slot)
		}
	}
	if wants(AtBalancer) || frontend == AtGuardedBalancer {
		s.LoadBalancerIPs = []netip.Addr{a.plan.BalancerIP(20 + a.slot)}
	}
	if a.cell[DimAffinity] != WithoutAffinity {
		s.Affinity = pick(g, uint32(10800), uint32(60))
	}
	a.service = s
	a.ranges()
}

// ranges lets the client in where it must be pinned first.
func (a *aim) ranges() {
	g, s := a.g, a.service
	otherFamily := addr.Both()[1-a.cell[DimFamily]]
	if g.one(2) {
		s.SourceRanges = append(s.SourceRanges, g.sourceRange(otherFamily))
	}
	switch a.cell[DimFrontend] {
	case AtBalancer:
		return
	case AtGuardedBalancer:
		for range 1 + g.rand.IntN(3) {
			if r := g.sourceRange(a.plan); r.Bits() > 0 {
				s.SourceRanges = append(s.SourceRanges, r)
			}
		}
		if a.cell[DimAffinity] >= Pinned || !g.one(3) {
			s.SourceRanges = append(s.SourceRanges, host(a.client.Src), a.plan.Between)
		} else {
			s.SourceRanges = append(s.SourceRanges, a.plan.External)
		}
	default:
		s.SourceRanges = append(s.SourceRanges, g.ranges()...)
	}
}

// packet is the one that the cell is about.
func (a *aim) packet(s Setup) oracle.Packet {
	packet := a.client
	port := a.service.Ports[0]
	packet.Protocol, packet.Port = port.Protocol, port.Port
	switch a.cell[DimFrontend] {
	case AtClusterIP:
		packet.Dst = a.service.ClusterIPs[0]
	case AtExternalIP:
		packet.Dst = a.service.ExternalIPs[0]
	case AtNodePort:
		packet.Dst, packet.Port = a.plan.Node(), port.NodePort
		if !s.TakesNodePorts(packet.Dst) || a.g.one(3) && s.TakesNodePorts(a.plan.NodeBetween()) {
			packet.Dst = a.plan.NodeBetween()
		}
	default:
		packet.Dst = a.service.LoadBalancerIPs[0]
	}
	return packet
}

// slices spreads the endpoints over two slices.
func (a *aim) slices() []model.Change {
	first, second := a.slice("a"), a.slice("b")
	for _, e := range a.endpoints() {
		to := pick(a.g, first, second)
		to.Endpoints = append(to.Endpoints, e)
	}
	return []model.Change{sliceObject(first), sliceObject(second)}
}

func (a *aim) slice(which string, endpoints ...model.Endpoint) *model.EndpointSlice {
	port := a.service.Ports[0]
	number := TargetPorts()[0]
	if which == "b" {
		number = pick(a.g, TargetPorts()...)
	}
	return &model.EndpointSlice{
		Name: a.sliceName(which), Service: a.service.Name.Name,
		Ports:     []model.SlicePort{{Name: port.Name, Protocol: port.Protocol, Port: number}},
		Endpoints: endpoints,
	}
}
