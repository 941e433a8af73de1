package metrics

import "testing"

// Where the machine's limit does not show there is none to compare with, and none is told.
func TestD38_TablesOfNeighboursAreMetrics(t *testing.T) {
	c := config()
	c.Network = func() Network {
		return Network{Neighbours: map[string]NeighbourTable{"IPv4": {Entries: 900, Limit: 1024, Refused: 3}, "IPv6": {Entries: 7}}}
	}
	families := scrape(t, New(c))
	for name, want := range map[string]map[string]float64{
		"onerule_neighbours":               {"IPv4": 900, "IPv6": 7},
		"onerule_neighbours_max":           {"IPv4": 1024},
		"onerule_neighbours_refused_total": {"IPv4": 3, "IPv6": 0},
	} {
		if got := len(families[name].GetMetric()); got != len(want) {
			t.Errorf("%s has %d series, want %d", name, got, len(want))
		}
		for family, n := range want {
			if got := value(families, name, family); got != n {
				t.Errorf("%s of %s is %v, want %v", name, family, got, n)
			}
		}
	}
}
