package nft

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A SlotMap is a way to choose an endpoint, and what the maps from frontend and slot
// to endpoint have in common in their names: there is one for each protocol, with -tcp,
// -udp or -sctp behind it.
type SlotMap string

// The maps of endpoints, numbered from 0 without gaps. NodePorts have maps of their
// own, since they have no address in the key. The local ones hold the endpoints on this
// node, for frontends whose traffic policy is Local.
const (
	Endpoints              SlotMap = "endpoints"
	LocalEndpoints         SlotMap = "local-endpoints"
	NodePortEndpoints      SlotMap = "nodeport-endpoints"
	NodePortLocalEndpoints SlotMap = "nodeport-local-endpoints"
)

// SlotMaps lists them.
func SlotMaps() []SlotMap {
	return []SlotMap{Endpoints, LocalEndpoints, NodePortEndpoints, NodePortLocalEndpoints}
}

func (m SlotMap) prefix() string { return strings.TrimSuffix(string(m), string(Endpoints)) }

// NodePorts says whether the frontends of the map are NodePorts.
func (m SlotMap) NodePorts() bool { return strings.HasPrefix(string(m), "nodeport-") }
func (m SlotMap) local() bool     { return m == LocalEndpoints || m == NodePortLocalEndpoints }

// cluster gives the map of all endpoints for a map of local ones.
func (m SlotMap) cluster() SlotMap {
	if m.NodePorts() {
		return NodePortEndpoints
	}
	return Endpoints
}

func (m SlotMap) words() string {
	if m.local() {
		return "the endpoints on this node"
	}
	return "the endpoints"
}

// frontKey is the frontend of a packet as an expression.
func (m SlotMap) frontKey(f Family) string {
	if m.NodePorts() {
		return "meta l4proto . th dport"
	}
	return fmt.Sprintf("%s daddr . meta l4proto . th dport", f)
}

// key is the same where the protocol is known.
func (m SlotMap) key(f Family, proto string) string {
	if m.NodePorts() {
		return proto + " dport"
	}
	return fmt.Sprintf("%s daddr . %s dport", f, proto)
}

// Of names the map of a protocol.
func (m SlotMap) Of(protocol uint8) string { return string(m) + "-" + protocolWord(protocol) }

// EmptySet names the set of the frontends without endpoints in this map.
func (m SlotMap) EmptySet() string { return m.prefix() + noEndpoints }

const noEndpoints = "no-endpoints"

func (m SlotMap) balanceChain(proto string) string { return m.prefix() + "balance-" + proto }

// findChain names the chain that finds a frontend's number of endpoints.
func (m SlotMap) findChain(proto string) string { return m.prefix() + "lb-" + proto }

// countName names both the set of the frontends with n endpoints and the chain
// that spreads their connections.
func (m SlotMap) countName(protocol uint8, n int) string {
	return fmt.Sprintf("%slb-%s-%d", m.prefix(), protocolWord(protocol), n)
}

// pinScope says which pins count for its frontends.
func (m SlotMap) pinScope() string {
	if m.local() {
		return localPins
	}
	return anyPins
}

// sticky names the map from frontends to where clients are pinned.
func (m SlotMap) sticky() RouteMap { return RouteMap(m.prefix() + string(Sticky)) }

// slotMapOf is the inverse of Of.
func slotMapOf(set string) (SlotMap, uint8, bool) {
	for _, m := range SlotMaps() {
		for _, p := range Protocols() {
			if set == m.Of(p.Number) {
				return m, p.Number, true
			}
		}
	}
	return "", 0, false
}

// emptySetOf is the inverse of EmptySet.
func emptySetOf(set string) (SlotMap, bool) {
	prefix, ok := strings.CutSuffix(set, noEndpoints)
	if !ok {
		return "", false // as with nearly every element: it is asked for each
	}
	m := SlotMap(prefix + string(Endpoints))
	return m, slices.Contains(SlotMaps(), m)
}

// countOf is the inverse of countName.
func countOf(name string) (c count, ok bool) {
	prefix, rest, ok := strings.Cut(name, "lb-")
	if !ok {
		return c, false
	}
	word, digits, ok := strings.Cut(rest, "-")
	if !ok {
		return c, false
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 || strconv.Itoa(n) != digits {
		return c, false
	}
	for _, m := range SlotMaps() {
		for _, p := range Protocols() {
			if m.prefix() == prefix && p.Word == word {
				return count{m, p.Number, n}, true
			}
		}
	}
	return c, false
}

// A RouteMap is the name of a map from frontends to verdicts.
type RouteMap string

// The maps from frontends to verdicts. No verdict depends on the endpoints: see
// Entry.Chain.
const (
	// ServiceIPs and ServiceNodePorts hold the decision for each frontend: the chain of
	// its Entry.
	ServiceIPs       RouteMap = "service-ips"
	ServiceNodePorts RouteMap = "service-nodeports"

	// Sticky and the others of that name hold the frontends of service ports with
	// session affinity, for each way to choose an endpoint. Their chain looks for a pin
	// and returns if there is none.
	Sticky              RouteMap = "sticky"
	LocalSticky         RouteMap = "local-sticky"
	NodePortSticky      RouteMap = "nodeport-sticky"
	NodePortLocalSticky RouteMap = "nodeport-local-sticky"

	// Pinning and NodePortPinning hold the same frontends, for the chains that pin a
	// client to the endpoint that it was given.
	Pinning         RouteMap = "pinning"
	NodePortPinning RouteMap = "nodeport-pinning"

	// LocalhostNodePorts holds the NodePorts that are refused on loopback addresses: see
	// Config.LocalhostNodePorts.
	LocalhostNodePorts RouteMap = "localhost-nodeports"
)

// RouteMaps lists them.
func RouteMaps() []RouteMap {
	return []RouteMap{ServiceIPs, ServiceNodePorts, Sticky, LocalSticky, NodePortSticky, NodePortLocalSticky, Pinning, NodePortPinning, LocalhostNodePorts}
}

// NodePorts says whether the frontends of the map are NodePorts.
func (m RouteMap) NodePorts() bool {
	return m == ServiceNodePorts || m == LocalhostNodePorts || strings.HasPrefix(string(m), "nodeport-")
}

// Returns says whether verdicts of the map jump: the walk goes on behind them.
func (m RouteMap) Returns() bool { return strings.HasSuffix(string(m), string(Sticky)) }

func (m RouteMap) comment() string {
	switch {
	case m.Returns():
		return "frontends with session affinity: where a client is pinned to"
	case m == Pinning || m == NodePortPinning:
		return "frontends with session affinity: how a client is pinned"
	case m == LocalhostNodePorts:
		return "NodePorts that are refused on loopback addresses"
	}
	return "the decision for each frontend"
}

func isRouteMap(set string) bool {
	for _, m := range RouteMaps() {
		if set == string(m) {
			return true
		}
	}
	return false
}
