package random

import (
	"maps"
	"slices"
	"strings"

	"onerule/nft"
)

// A Fault is a mistake that the comparison must find.
type Fault struct {
	Name string
	// Seed puts it into rules or state, and gives false if there is nothing that
	// could break that way.
	Seed func(g *Generator, s nft.Skeleton, state nft.State) bool
}

// Faults are mistakes in a rule, in a set and in every kind of map.
func Faults() []Fault {
	return []Fault{
		{"masquerade swapped", swapMasquerade},
		{"an endpoint set emptied", slotsGone(nft.Endpoints)},
		{"frontends forgotten", routesGone(nft.ServiceIPs)},
		{"the endpoints on this node emptied", slotsGone(nft.LocalEndpoints)},
		{"the endpoints of a NodePort emptied", slotsGone(nft.NodePortEndpoints)},
		{"the endpoints of a NodePort on this node emptied", slotsGone(nft.NodePortLocalEndpoints)},
		{"NodePorts forgotten", routesGone(nft.ServiceNodePorts)},
		{"pins not read", routesGone(nft.Sticky)},
		{"pins not written", routesGone(nft.Pinning)},
		{"source ranges forgotten", forgetSources},
		{"an external IP not owned", disownExternal},
	}
}

// swapMasquerade inverts the condition under which a packet is marked.
func swapMasquerade(_ *Generator, s nft.Skeleton, _ nft.State) bool {
	swapped := false
	for _, c := range s.Chains {
		for i, r := range c.Rules {
			if strings.Contains(r, " saddr != @") && strings.Contains(r, "jump mark-for-masquerade") {
				c.Rules[i] = strings.Replace(r, " saddr != @", " saddr @", 1)
				swapped = true
			}
		}
	}
	return swapped
}

// slotsGone empties what all frontends with endpoints in a map choose from.
func slotsGone(m nft.SlotMap) func(*Generator, nft.Skeleton, nft.State) bool {
	return func(_ *Generator, _ nft.Skeleton, state nft.State) bool {
		emptied := len(state.Slots[m]) > 0
		clear(state.Slots[m])
		return emptied
	}
}

// routesGone deletes some of the frontends in a map.
func routesGone(m nft.RouteMap) func(*Generator, nft.Skeleton, nft.State) bool {
	return func(g *Generator, _ nft.Skeleton, state nft.State) bool {
		return drop(g, state.Routes[m])
	}
}

func forgetSources(g *Generator, _ nft.Skeleton, state nft.State) bool { return drop(g, state.Sources) }

// drop deletes one key of three, and one at least.
func drop[V any](g *Generator, m map[nft.Frontend]V) bool {
	list := slices.SortedFunc(maps.Keys(m), nft.Frontend.Compare)
	if len(list) == 0 {
		return false
	}
	for _, f := range append(some(g, 3, list...), pick(g, list...)) {
		delete(m, f)
	}
	return true
}

func disownExternal(_ *Generator, _ nft.Skeleton, state nft.State) bool {
	owned := len(state.Addrs[nft.ExternalIPs]) > 0
	clear(state.Addrs[nft.ExternalIPs])
	return owned
}
