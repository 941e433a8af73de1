package random

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"onerule/test/addr"
	"onerule/test/oracle"
)

// A Cell says in which of the situations that matter a packet meets a frontend: a value
// of each dimension, by its index.
type Cell [7]uint8

// The dimensions, in the order in which they stand in a cell.
const (
	DimFrontend = iota
	DimPolicy
	DimClient
	DimFamily
	DimAffinity
	DimEndpoints
	DimHints
)

// The frontends.
const (
	AtClusterIP uint8 = iota
	AtNodePort
	AtExternalIP
	AtBalancer
	AtGuardedBalancer // with source ranges
)

// The traffic policies, of the kind of traffic that the packet is.
const (
	PolicyCluster uint8 = iota
	PolicyLocal
)

// The clients.
const (
	FromPod uint8 = iota
	FromNode
	FromOutside
	FromOtherPod // a pod of another node, which comes by this one
)

// The families.
const (
	OfIPv4 uint8 = iota
	OfIPv6
)

// What the client is pinned to.
const (
	WithoutAffinity uint8 = iota
	NotPinned
	Pinned          // to an endpoint that this frontend may use
	PinnedElsewhere // it was, but not to any that this frontend may use now
)

// Where endpoints are.
const (
	ReadyInBoth uint8 = iota // on this node and on another one
	ReadyHere
	ReadyElsewhere
	OnlyLeaving // those that serve while they terminate are all there is to choose from
	NoEndpoints
)

// What hints come to, as oracle.Hints counts them.
const (
	HintsNone    = uint8(oracle.NoHints)
	HintsZone    = uint8(oracle.ForZone)
	HintsNode    = uint8(oracle.ForNode)
	HintsIgnored = uint8(oracle.HintsIgnored)
)

// A Dimension has a name and its values.
type Dimension struct {
	Name   string
	Values []string
}

// Dimensions gives those of a cell.
func Dimensions() []Dimension {
	return []Dimension{
		{"frontend", []string{"ClusterIP", "NodePort", "external IP", "load balancer IP", "load balancer IP with ranges"}},
		{"policy", []string{"Cluster", "Local"}},
		{"client", []string{"pod", "node", "outside", "other node's pod"}},
		{"family", []string{"IPv4", "IPv6"}},
		{"affinity", []string{"none", "not pinned", "pinned", "pinned elsewhere"}},
		{"endpoints", []string{"ready here and elsewhere", "ready here", "ready elsewhere", "terminating", "none"}},
		{"hints", []string{"none", "zone", "node", "ignored"}},
	}
}

// String names the values.
func (c Cell) String() string {
	var words []string
	for i, d := range Dimensions() {
		words = append(words, fmt.Sprintf("%s %s", d.Name, d.Values[c[i]]))
	}
	return strings.Join(words, ", ")
}

// Cells gives all there are.
func Cells() []Cell {
	list := []Cell{{}}
	for i, d := range Dimensions() {
		var longer []Cell
		for _, c := range list {
			for v := range d.Values {
				c[i] = uint8(v)
				longer = append(longer, c)
			}
		}
		list = longer
	}
	return list
}

// CellOf gives the cell of a packet, and false if it meets no frontend.
func CellOf(c oracle.Cluster, cfg oracle.Config, m *Memory, p oracle.Packet) (Cell, bool) {
	hit, ok := oracle.Find(c, cfg, p)
	if !ok {
		return Cell{}, false
	}
	var cell Cell
	cell[DimFrontend] = frontendOf(hit)
	cell[DimPolicy] = yes(hit.Local)
	cell[DimClient] = clientOf(p)
	cell[DimFamily] = yes(hit.IPv6)
	cell[DimAffinity] = affinityOf(hit, m, p.Src)
	cell[DimEndpoints] = endpointsOf(hit, cfg)
	cell[DimHints] = uint8(oracle.ReadHints(hinted(hit), c.Node, cfg))
	return cell, true
}

func yes(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

func frontendOf(hit oracle.Hit) uint8 {
	switch {
	case hit.Guarded:
		return AtGuardedBalancer
	case hit.Kind == oracle.ClusterIP:
		return AtClusterIP
	case hit.Kind == oracle.NodePort:
		return AtNodePort
	case hit.Kind == oracle.ExternalIP:
		return AtExternalIP
	}
	return AtBalancer
}

func clientOf(p oracle.Packet) uint8 {
	within := func(of func(addr.Plan) netip.Prefix) bool {
		return slices.ContainsFunc(addr.Both(), func(plan addr.Plan) bool { return of(plan).Contains(p.Src) })
	}
	switch {
	case p.From == oracle.Node:
		return FromNode
	case within(func(p addr.Plan) netip.Prefix { return p.NodePods }):
		return FromPod
	case within(func(p addr.Plan) netip.Prefix { return p.OtherPods }):
		return FromOtherPod
	}
	return FromOutside
}

func affinityOf(hit oracle.Hit, m *Memory, client netip.Addr) uint8 {
	port, sticky := hit.Affinity()
	if !sticky {
		return WithoutAffinity
	}
	if _, pinned := hit.Pinned(m.Pins, client); pinned {
		return Pinned
	}
	if m.had(port, client) {
		return PinnedElsewhere
	}
	return NotPinned
}

func ready(list []oracle.Endpoint) []oracle.Endpoint {
	return slices.DeleteFunc(slices.Clone(list), func(e oracle.Endpoint) bool { return !e.Fact.Ready })
}

func endpointsOf(hit oracle.Hit, cfg oracle.Config) uint8 {
	candidates := hit.Candidates()
	switch {
	case len(hit.Cluster) == 0:
		return NoEndpoints
	case len(candidates) == 0:
		return ReadyElsewhere // or what terminates there: none here in any case
	case !candidates[0].Fact.Ready:
		return OnlyLeaving
	}
	here, elsewhere := false, false
	for _, e := range ready(hit.All) {
		here = here || e.IsHere(cfg)
		elsewhere = elsewhere || !e.IsHere(cfg)
	}
	switch {
	case here && elsewhere:
		return ReadyInBoth
	case here:
		return ReadyHere
	}
	return ReadyElsewhere
}

// hinted gives the endpoints whose hints are, or might be taken for, those that count.
func hinted(hit oracle.Hit) []oracle.Endpoint {
	switch r := ready(hit.All); {
	case len(r) > 0:
		return r
	case len(hit.Cluster) > 0:
		return hit.Cluster
	}
	return hit.All
}
