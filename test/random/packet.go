package random

import (
	"fmt"
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
	packet := g.from(p, pick(g, FromPod, FromNode, FromOutside, FromOtherPod))
	packet.Dst = pick(g, append(vips(p), outsides(p)...)...)
	packet.Protocol = pick(g, model.TCP, model.TCP, model.UDP, model.UDP, model.SCTP)
	packet.Port = pick(g, servicePorts()...)
	switch g.rand.IntN(16) {
	case 0:
		packet.Port = 81
	case 1: // an endpoint's own address, which is not ours
		packet.Dst = pick(g, slices.SortedFunc(maps.Keys(Endpoints(p)), netip.Addr.Compare)...)
		packet.Port = pick(g, TargetPorts()...)
	case 2:
		packet.Protocol = echo(p)
		packet.Port = uint16(g.rand.Uint32()) // the checksum is where a port would be
	case 3: // what came back from the load balancer
		packet.From, packet.Iif, packet.Src = oracle.Outside, "uplink", pick(g, p.BalancerIP(0), p.BalancerIP(1))
	}
	if g.one(4) { // a NodePort, if it is one there
		packet.Dst = pick(g, p.Node(), p.Node(), p.NodeBetween(), p.PodGateway(0), p.OtherNode(), loopback(p))
		packet.Port = pick(g, nodePorts()...)
		if packet.Dst.IsLoopback() {
			packet = oracle.Packet{From: oracle.Node, Src: packet.Dst, Dst: packet.Dst, Protocol: packet.Protocol, Port: packet.Port}
		}
	}
	return packet
}

// from gives a packet of somebody.
func (g *Generator) from(p addr.Plan, client uint8) oracle.Packet {
	switch client {
	case FromPod:
		i := g.rand.IntN(Pods)
		return oracle.Packet{From: oracle.Pod, Iif: fmt.Sprintf("pod%d", i), Src: p.Pod(i)}
	case FromNode:
		// Who sends from an address in the range of pods is taken for one.
		return oracle.Packet{From: oracle.Node, Src: pick(g, p.Node(), p.Node(), p.NodeBetween(), p.PodGateway(0))}
	case FromOtherPod:
		return oracle.Packet{From: oracle.Outside, Iif: "between", Src: p.OtherPod(g.rand.IntN(Pods))}
	}
	if g.one(3) {
		return oracle.Packet{From: oracle.Outside, Iif: "between", Src: p.OtherNode()}
	}
	return oracle.Packet{From: oracle.Outside, Iif: "uplink", Src: p.Outside()}
}

// PacketTo draws a packet, two of three times to a frontend of the cluster.
func (g *Generator) PacketTo(c oracle.Cluster) oracle.Packet {
	packet := g.Packet()
	if g.one(3) || len(c.Services) == 0 || packet.Dst.IsLoopback() {
		return packet
	}
	for range 20 {
		s := pick(g, c.Services...)
		if len(s.Ports) == 0 {
			continue
		}
		port := pick(g, s.Ports...)
		to, number := pick(g, slices.Concat(s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs)...), port.Port
		if port.NodePort != 0 && g.one(3) {
			p := g.plan()
			to, number = pick(g, p.Node(), p.NodeBetween()), port.NodePort
		}
		if to.Is4() == packet.Src.Is4() {
			packet.Dst, packet.Protocol, packet.Port = to, port.Protocol, number
			// What came back from the load balancer. No packet comes in from the node itself.
			if slices.Contains(s.LoadBalancerIPs, to) && !isNodes(to) && g.one(4) {
				packet.From, packet.Iif, packet.Src = oracle.Outside, "uplink", to
			}
			break
		}
	}
	return packet
}

func isNodes(a netip.Addr) bool {
	return slices.ContainsFunc(addr.Both(), func(p addr.Plan) bool { return a == p.Node() || a == p.NodeBetween() })
}

func echo(p addr.Plan) model.Protocol {
	if p.ServiceCIDR.Addr().Is4() {
		return oracle.ICMP
	}
	return oracle.ICMPv6
}

// Again says whether a packet that was sent before is to be sent now.
func (g *Generator) Again() bool { return g.one(4) }

// Recall draws one that was sent before.
func (g *Generator) Recall(list []oracle.Packet) oracle.Packet { return pick(g, list...) }
