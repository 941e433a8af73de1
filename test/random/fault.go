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

// Faults are mistakes in a rule, in a set and in a map.
func Faults() []Fault {
	return []Fault{
		{"masquerade swapped", swapMasquerade},
		{"an endpoint set emptied", emptyEndpoints},
		{"a frontend forgotten", forgetFrontend},
	}
}

// swapMasquerade inverts the condition under which a packet is marked.
func swapMasquerade(_ *Generator, s nft.Skeleton, _ nft.State) bool {
	for _, c := range s.Chains {
		for i, r := range c.Rules {
			if strings.Contains(r, " saddr != @") && strings.Contains(r, "jump mark-for-masquerade") {
				c.Rules[i] = strings.Replace(r, " saddr != @", " saddr @", 1)
				return true
			}
		}
	}
	return false
}

func emptyEndpoints(g *Generator, _ nft.Skeleton, state nft.State) bool {
	f, ok := served(g, state)
	if ok {
		delete(state.Slots[nft.Endpoints], f)
	}
	return ok
}

func forgetFrontend(g *Generator, _ nft.Skeleton, state nft.State) bool {
	f, ok := served(g, state)
	if ok {
		delete(state.Routes[nft.ServiceIPs], f)
	}
	return ok
}

// served draws a frontend that has endpoints.
func served(g *Generator, state nft.State) (nft.Frontend, bool) {
	list := slices.SortedFunc(maps.Keys(state.Slots[nft.Endpoints]), nft.Frontend.Compare)
	list = slices.DeleteFunc(list, func(f nft.Frontend) bool { return len(state.Slots[nft.Endpoints][f]) == 0 })
	if len(list) == 0 {
		return nft.Frontend{}, false
	}
	return pick(g, list...), true
}
