package network

import (
	"maps"

	"onerule/daemon/config"
	"onerule/daemon/metrics"
)

// Sample gives what there is to say now. Counters of the guard are read from the kernel;
// what can't be read is left out.
func (n *Network) Sample() metrics.Network {
	n.mu.Lock()
	seen, problems, guards, removed := n.seen, len(n.problems), n.guards, maps.Clone(n.swept)
	n.mu.Unlock()
	c := n.fabric.Counts()
	_, uninstalled := n.installed()
	s := metrics.Network{
		RouteLocalnet: len(seen.localnet),
		NodeProblems:  problems,
		Failing:       seen.failing != nil || n.fabric.Err() != nil || uninstalled != nil,
		Operations:    map[string]int{"set": c.Sets, "delete": c.Deletes, "setting": c.Settings, "read": c.Reads, "lookup": c.Lookups},
		Dropped:       map[string]map[string]uint64{},
		Swept:         removed,
		Neighbours:    map[string]metrics.NeighbourTable{},
	}
	for family, t := range seen.neighbours {
		s.Neighbours[family.String()] = metrics.NeighbourTable{Entries: t.Entries, Limit: t.Limit, Refused: t.Refused}
	}
	reported := map[metrics.Barrier]bool{}
	for _, b := range seen.barriers {
		m := metrics.Barrier{Family: b.Family, Table: b.Table, Chain: b.Chain}
		if !reported[m] {
			reported[m] = true
			s.Barriers = append(s.Barriers, m)
		}
	}
	for family, g := range guards {
		counted, err := g.Dropped()
		if err != nil {
			n.cfg.Log.Error(err, "what the guard drops is not known")
			continue
		}
		reasons := map[string]uint64{}
		for counter, packets := range counted {
			reasons[string(counter)] = packets
		}
		s.Dropped[config.Family(family).String()] = reasons
	}
	return s
}
