// Package random makes clusters, changes and packets from one seed, and compares
// what our rules do with them with what the oracle says. The pools that it draws
// from are small, so that Services meet: at frontends, at endpoints, at names.
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
}

// NewGenerator gives the generator of a round.
func NewGenerator(seed uint64, round int) *Generator {
	return &Generator{rand.New(rand.NewPCG(seed, uint64(round)))}
}

// one says yes once in n times.
func (g *Generator) one(n int) bool { return g.rand.IntN(n) == 0 }

func pick[T any](g *Generator, list ...T) T { return list[g.rand.IntN(len(list))] }

func (g *Generator) plan() addr.Plan { return pick(g, addr.Both()...) }

// Config draws a configuration: with pods told apart in both families, in one, or
// in none.
func (g *Generator) Config() oracle.Config {
	v4, v6 := addr.IPv4().ClusterCIDR, addr.IPv6().ClusterCIDR
	c := config(pick(g, []netip.Prefix{v4, v6}, []netip.Prefix{v4, v6}, []netip.Prefix{v4}, []netip.Prefix{v6}, nil)...)
	c.MasqueradeAll = g.one(5)
	return c
}

// DetectBoth is the usual configuration: pods are told apart in both families.
func DetectBoth() oracle.Config {
	return config(addr.IPv4().ClusterCIDR, addr.IPv6().ClusterCIDR)
}

func config(clusterCIDRs ...netip.Prefix) oracle.Config {
	c := oracle.Config{NodeName: addr.NodeName, ClusterCIDRs: clusterCIDRs}
	for _, p := range addr.Both() {
		c.NodeAddrs = append(c.NodeAddrs, p.Node(), p.NodeBetween())
		for i := range Pods {
			c.NodeAddrs = append(c.NodeAddrs, p.PodGateway(i))
		}
	}
	return c
}
