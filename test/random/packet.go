package random

import (
	"maps"
	"net/netip"
	"slices"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/oracle"
)

// Packet draws a packet, mostly to an address that a Service may have.
func (g *Generator) Packet() oracle.Packet {
	p := g.plan()
	packet := oracle.Packet{
		From:     pick(g, oracle.Pod, oracle.Node, oracle.Outside),
		Dst:      pick(g, vips(p)...),
		Protocol: pick(g, model.TCP, model.TCP, model.UDP, model.UDP, model.SCTP),
		Port:     pick(g, servicePorts()...),
	}
	switch packet.From {
	case oracle.Pod:
		packet.Src = p.Pod(g.rand.IntN(Pods))
	case oracle.Node:
		packet.Src = pick(g, p.Node(), p.NodeBetween())
	case oracle.Outside:
		packet.Src = pick(g, p.Outside(), p.Outside(), p.OtherPod(g.rand.IntN(Pods)))
	}
	switch g.rand.IntN(12) {
	case 0:
		packet.Port = 81
	case 1: // an endpoint's own address, which is not ours
		packet.Dst = pick(g, slices.SortedFunc(maps.Keys(Endpoints(p)), netip.Addr.Compare)...)
		packet.Port = pick(g, TargetPorts()...)
	case 2:
		packet.Protocol = echo(p)
		packet.Port = uint16(g.rand.Uint32()) // the checksum is where a port would be
	}
	return packet
}

// PacketTo draws a packet, two of three times to a frontend of the cluster.
func (g *Generator) PacketTo(c oracle.Cluster) oracle.Packet {
	packet := g.Packet()
	if g.one(3) || len(c.Services) == 0 {
		return packet
	}
	for range 20 {
		s := pick(g, c.Services...)
		if len(s.Ports) == 0 {
			continue
		}
		vip, port := pick(g, s.ClusterIPs...), pick(g, s.Ports...)
		if vip.Is4() == packet.Src.Is4() {
			packet.Dst, packet.Protocol, packet.Port = vip, port.Protocol, port.Port
			break
		}
	}
	return packet
}

func echo(p addr.Plan) model.Protocol {
	if p.ServiceCIDR.Addr().Is4() {
		return oracle.ICMP
	}
	return oracle.ICMPv6
}
