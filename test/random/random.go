// Package random makes clusters, changes and packets from one seed, and compares
// what our rules do with them with what the oracle says. The pools that it draws
// from are small, so that Services meet: at frontends, at endpoints, at names. What
// chance alone would meet too seldom is aimed at: see Cell.
package random

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"

	"onerule/test/addr"
	"onerule/test/oracle"
)

// SeedVariable names the environment variable that repeats a run.
const SeedVariable = "ONERULE_SEED"

// Seed gives the seed of this run: the one in the environment, or a new one.
func Seed() (uint64, error) {
	text := os.Getenv(SeedVariable)
	if text == "" {
		return rand.Uint64(), nil
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s=%q is no number from 0 to 2^64-1: %w", SeedVariable, text, err)
	}
	return seed, nil
}

// A Generator draws everything from one seed. Rounds do not depend on each other,
// so that one can be repeated alone.
type Generator struct {
	rand *rand.Rand
	aims int // drawn so far
}

// NewGenerator gives the generator of a round.
func NewGenerator(seed uint64, round int) *Generator {
	return &Generator{rand: rand.New(rand.NewPCG(seed, uint64(round)))}
}

// one says yes once in n times.
func (g *Generator) one(n int) bool { return g.rand.IntN(n) == 0 }

func pick[T any](g *Generator, list ...T) T { return list[g.rand.IntN(len(list))] }

// some draws a part of a list, each of its values once in n times, in its order.
func some[T any](g *Generator, n int, list ...T) []T {
	var part []T
	for _, v := range list {
		if g.one(n) {
			part = append(part, v)
		}
	}
	return part
}

func (g *Generator) plan() addr.Plan { return pick(g, addr.Both()...) }

// Pick draws from what may become of a packet.
func (g *Generator) Pick(list []oracle.Arrival) oracle.Arrival { return pick(g, list...) }

// A Setup is how a node is configured.
type Setup struct{ oracle.Config }

// Setup draws one. Where every cell must be within reach, pods are told apart by their
// range in both families, and every kind of frontend is to be had.
func (g *Generator) Setup(everyCell bool) Setup {
	s := Usual()
	s.NodePortRanges = g.nodePortRanges()
	s.MasqueradeAll = g.one(5)
	s.RefuseWithoutLocal = g.one(5)
	s.WithoutFib = g.one(4)
	if !everyCell {
		g.detector(&s.Config)
		s.WithoutExternalIPs = g.one(8)
		if g.one(4) {
			s.NodePortRanges = append(s.NodePortRanges, host(loopback(g.plan())))
		}
	}
	return s
}

// detector tells pods apart by their range in both families, in one, or in none, or by
// their interface.
func (g *Generator) detector(c *oracle.Config) {
	v4, v6 := addr.IPv4().ClusterCIDR, addr.IPv6().ClusterCIDR
	switch g.rand.IntN(8) {
	case 0:
		c.ClusterCIDRs = []netip.Prefix{v4}
	case 1:
		c.ClusterCIDRs = []netip.Prefix{v6}
	case 2:
		c.ClusterCIDRs = nil
	case 3:
		c.ClusterCIDRs, c.PodInterface = nil, pick(g, "pod*", "pod1", "p*")
	}
}

// nodePortRanges is all addresses, the first one, or those of one link, by family.
func (g *Generator) nodePortRanges() []netip.Prefix {
	var list []netip.Prefix
	for _, p := range addr.Both() {
		switch g.rand.IntN(8) {
		case 0, 1:
			list = append(list, host(p.Node()))
		case 2:
			list = append(list, p.Uplink, host(p.NodeBetween()), p.Uplink)
		case 3:
			list = append(list, netip.PrefixFrom(p.Node(), 0).Masked())
		case 4:
			list = append(list, p.Between)
		}
	}
	return list
}

func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func loopback(p addr.Plan) netip.Addr {
	if p.Node().Is4() {
		return netip.MustParseAddr("127.0.0.1")
	}
	return netip.IPv6Loopback()
}

// Usual is the usual setup: pods are told apart by their range in both families, and
// every address takes NodePorts.
func Usual() Setup {
	s := Setup{Config: oracle.Config{
		NodeName:     addr.NodeName,
		ClusterCIDRs: []netip.Prefix{addr.IPv4().ClusterCIDR, addr.IPv6().ClusterCIDR},
	}}
	for _, p := range addr.Both() {
		s.NodeAddrs = append(s.NodeAddrs, p.Node(), p.NodeBetween())
		for i := range Pods {
			s.NodeAddrs = append(s.NodeAddrs, p.PodGateway(i))
		}
	}
	return s
}
