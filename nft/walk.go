package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// A Packet is the first of a connection.
type Packet struct {
	Local    bool   // sent by this node
	Iif      string // the interface that it comes in by; empty if this node sends it
	Returns  bool   // it would leave by that one, too
	Src, Dst netip.Addr
	Protocol uint8
	Port     uint16
}

// Frontend is the destination.
func (p Packet) Frontend() Frontend {
	return Frontend{Addr: p.Dst, Protocol: p.Protocol, Port: p.Port}
}

func (p Packet) nodePort() Frontend { return Frontend{Protocol: p.Protocol, Port: p.Port} }

// Pins are where a client is pinned to, by the ID of the affinity: at frontends that
// spread over all endpoints, and at those that only use some on this node.
type Pins struct{ Any, Local map[string]netip.AddrPort }

func (p Pins) of(scope, id string) netip.AddrPort {
	if scope == localPins {
		return p.Local[id]
	}
	return p.Any[id]
}

// A Verdict is what becomes of a packet.
type Verdict uint8

// The verdicts.
const (
	Passed     Verdict = iota // untouched: no rule of ours is about it
	Translated                // to an endpoint
	Refused                   // the sender is told at once
	Dropped                   // the sender hears nothing
	Astray                    // the table leads to where no rule of ours is
)

// String gives the verdict as a word.
func (v Verdict) String() string {
	return [...]string{"passes", "translated", "refused", "dropped", "astray"}[v]
}

// A Stage is one look-up, or one decision, on a packet's way.
type Stage struct {
	Chain string
	// Found is what was looked at, Then what follows from it.
	Found, Then string
}

// An Arrival is an endpoint that a packet may reach, and whether it comes there with an
// address of this node.
type Arrival struct {
	Endpoint    netip.AddrPort
	Masqueraded bool
}

// A Way is what becomes of a packet, and by which rules.
type Way struct {
	Stages  []Stage
	Verdict Verdict
	// Counter names what the packet is counted with if it is refused or dropped.
	Counter string
	// Frontend is what took the packet, a NodePort if it has no address; the zero value:
	// nothing did. Local says that only endpoints on this node count for the packet, and
	// Pinned that there is one endpoint since the client was there before.
	Frontend      Frontend
	Local, Pinned bool
	// Marked says that the packet is masqueraded whatever endpoint it is given.
	Marked   bool
	Arrivals []Arrival // sorted and distinct
}

// Walk says what becomes of a packet by the rules of a configuration, with what the
// state holds. own are the addresses of this node. The state needs to hold only what
// concerns the frontend, the NodePort of its number, and the two addresses.
func Walk(c Config, s State, pins Pins, own []netip.Addr, p Packet) Way {
	w := &way{Config: c, State: s, pins: pins, own: own, packet: p}
	w.services()
	slices.SortFunc(w.Arrivals, compareArrivals)
	w.Arrivals = slices.Compact(w.Arrivals)
	return w.Way
}

// A way is a Way that is being walked.
type way struct {
	Way
	Config
	State
	pins   Pins
	own    []netip.Addr
	packet Packet
}

func (w *way) stage(chain, then, format string, args ...any) {
	w.Stages = append(w.Stages, Stage{chain, fmt.Sprintf(format, args...), then})
}

func (w *way) end(v Verdict, counter string) { w.Verdict, w.Counter = v, counter }

// services is the chain of that name.
func (w *way) services() {
	const chain = "services"
	p, f, dst := w.packet, w.packet.Frontend(), w.packet.Dst
	if to, ok := w.Routes[ServiceIPs][f]; ok {
		w.found(chain, ServiceIPs, f, to)
		return
	}
	switch {
	case w.Addrs[ClusterIPs][dst]:
		w.ownedBy(ClusterIPs)
		return
	}
	nodePort := p.nodePort()
	if to, ok := w.Routes[ServiceNodePorts][nodePort]; ok && w.takesNodePorts(dst) {
		w.stage(chain, "jump nodeports", "%s", w.whyNodePorts())
		w.found("nodeports", ServiceNodePorts, nodePort, to)
		return
	}
	if r, ok := rangeOf(w.Ranges[ServiceCIDRs], dst); ok {
		w.stage(chain, "drop", "%s is in %s (%s), and no Service has it", dst, ServiceCIDRs, r)
		w.end(Dropped, DroppedNoService)
		return
	}
	if _, ok := w.Routes[LocalhostNodePorts][nodePort]; ok && w.LocalhostNodePorts && dst.IsLoopback() {
		w.stage(chain, "refuse", "%s has %s", LocalhostNodePorts, nodePort.text(w.proto()))
		w.Frontend = nodePort
		w.end(Refused, RefusedLocalhost)
		return
	}
	if w.Addrs[ExternalIPs][dst] && p.Returns && !w.WithoutFib {
		w.stage("nat-prerouting", "goto owned", "%s has %s, which is reached by where the packet comes from", ExternalIPs, dst)
		w.stage("owned", "refuse", "%s has nothing for this port and protocol", ServiceIPs)
		w.end(Refused, RefusedNoPort)
		return
	}
	if _, ok := w.Routes[ServiceNodePorts][nodePort]; ok {
		w.stage(chain, "pass", "%s has %s, and %s takes no NodePorts", ServiceNodePorts, nodePort.text(w.proto()), dst)
		return
	}
	w.stage(chain, "pass", "nothing is held for %s, nor for its port", f.text(w.proto()))
}

func (w *way) ownedBy(set AddrSet) {
	w.stage("services", "goto owned", "%s has %s", set, w.packet.Dst)
	w.stage("owned", "refuse", "%s has nothing for this port and protocol", ServiceIPs)
	w.end(Refused, RefusedNoPort)
}

// found goes to the entry that a frontend's element names.
func (w *way) found(chain string, m RouteMap, f Frontend, to string) {
	w.Frontend = f
	w.stage(chain, "goto "+to, "%s has %s", m, f.text(protocolWord(f.Protocol)))
	for _, e := range allEntries() {
		if e.Chain(f.Protocol) == to && e.NodePort == m.NodePorts() {
			w.entry(e)
			return
		}
	}
	w.end(Astray, "")
}

func allEntries() []Entry {
	var list []Entry
	for _, local := range []bool{false, true} {
		list = append(list, Entry{Local: local}, Entry{External: true, Local: local},
			Entry{External: true, NodePort: true, Local: local}, Entry{External: true, Guarded: true, Local: local})
	}
	return list
}

func (w *way) entry(e Entry) {
	chain := e.Chain(w.packet.Protocol)
	if e.Guarded {
		r, ok := rangeOf(w.Sources[w.Frontend], w.packet.Src)
		if !ok {
			w.stage(chain, "drop", "%s has no range of the frontend that %s is in", AllowedSources, w.packet.Src)
			w.end(Dropped, DroppedSource)
			return
		}
		open := Entry{External: true, Local: e.Local}
		w.stage(chain, "goto "+open.Chain(w.packet.Protocol), "%s lets %s in", AllowedSources, r)
		w.entry(open)
		return
	}
	all, local := Endpoints, LocalEndpoints
	if e.NodePort {
		all, local = NodePortEndpoints, NodePortLocalEndpoints
	}
	switch {
	case !e.External:
		w.clusterIP(chain)
		if e.Local {
			all = local
		}
	case !e.Local:
		w.mark(chain, "clients from outside are masqueraded")
	default:
		if all = w.inside(chain, e, all, local); all == "" {
			return
		}
	}
	w.balance(all)
}

// inside says which endpoints count at a frontend from outside whose policy is Local:
// all of them for who is inside already.
func (w *way) inside(chain string, e Entry, all, local SlotMap) SlotMap {
	if pod, why := w.isPod(); pod {
		w.stage(chain, "goto "+all.balanceChain(w.proto()), "%s: pods reach all endpoints", why)
		return all
	}
	if w.fromOwn() {
		open := Entry{External: true, NodePort: e.NodePort}.Chain(w.packet.Protocol)
		w.stage(chain, "goto "+open, "%s is this node's: the node reaches all endpoints", w.packet.Src)
		w.mark(open, "clients from outside are masqueraded")
		return all
	}
	w.stage(chain, "goto "+local.balanceChain(w.proto()), "%s is neither a pod nor this node: it keeps its address", w.packet.Src)
	return local
}

func (w *way) clusterIP(chain string) {
	if w.MasqueradeAll {
		w.mark(chain, "all clients are masqueraded")
		return
	}
	if w.Detector == DetectNone {
		w.stage(chain, "go on", "it is not known who is a pod: clients keep their addresses")
		return
	}
	pod, why := w.isPod()
	if !pod {
		w.mark(chain, why)
		return
	}
	w.stage(chain, "go on", "%s: it keeps its address", why)
}

func (w *way) mark(chain, why string) {
	w.Marked = true
	w.stage(chain, "mark for masquerade", "%s", why)
}

func (w *way) proto() string { return protocolWord(w.packet.Protocol) }

// isPod says whether the client is taken for a pod, and why.
func (w *way) isPod() (pod bool, why string) {
	switch w.Detector {
	case DetectCIDR:
		if r, ok := rangeOf(w.Ranges[PodCIDRs], w.packet.Src); ok {
			return true, fmt.Sprintf("%s is in %s (%s)", w.packet.Src, PodCIDRs, r)
		}
		return false, fmt.Sprintf("%s is not in %s", w.packet.Src, PodCIDRs)
	case DetectInterface:
		if w.packet.Iif != "" && w.IsPodInterface(w.packet.Iif) {
			return true, fmt.Sprintf("it comes in by %s, an interface of pods (%s)", w.packet.Iif, w.PodInterface)
		}
		if w.packet.Iif == "" {
			return false, "this node sends it: by no interface of pods"
		}
		return false, fmt.Sprintf("it comes in by %s, no interface of pods (%s)", w.packet.Iif, w.PodInterface)
	}
	return false, "it is not known who is a pod"
}

// IsPodInterface says whether what comes in by an interface is a pod's, where pods are
// told by that.
func (c Config) IsPodInterface(name string) bool {
	prefix, many := strings.CutSuffix(c.PodInterface, "*")
	if many {
		return strings.HasPrefix(name, prefix)
	}
	return name == c.PodInterface
}
