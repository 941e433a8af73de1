package main

import (
	"fmt"
	"strings"
)

// mixTables show a cluster of all kinds at each size, and its changes by kind.
func mixTables(list []*scale) []*table {
	return append([]*table{mixTable(list)}, kindTables(list)...)
}

func mixTable(list []*scale) *table {
	t, each := bySize("The daemon by number of Services of mixed kinds, 10 endpoints each", list)
	loadRows(each)
	changeRows(each, "endpoint replaced", func(s *scale) series { return s.replaced })
	changeRows(each, "one endpoint less or more", func(s *scale) series { return s.numbered })
	firstRow(each)
	rulesRow(each)
	memoryRows(each)
	t.note("The mix: %s. NodePorts and load balancers have a ClusterIP, too, and load balancers and Local Services a NodePort.", mixWords())
	t.note("Measured as with ClusterIPs alone. A change is to whatever Service comes, in the shares of the mix; its operations are those of all its frontends.")
	t.note("Rules: of table ip onerule in the kernel, before the changes and after them. They follow from how many service ports have session affinity and from which numbers of endpoints are in use, and from nothing else.")
	for _, s := range list {
		t.note("%s Services: %s and %s changes timed, one after the other; %s changes looked up in the kernel afterwards, with those of each kind, for every frontend of the Service: all as they should be.",
			count(s.services), count(len(s.replaced.event)), count(len(s.numbered.event)), count(s.verified))
	}
	return t
}

func mixWords() string {
	each := shares()
	var parts []string
	for _, k := range serviceKinds() {
		parts = append(parts, fmt.Sprintf("%s %d %%", k, 100*each[k]/mixEvery))
	}
	return strings.Join(parts, ", ")
}

// kindTables show what a change costs by the kind of its Service.
func kindTables(list []*scale) []*table {
	var tables []*table
	for _, s := range list {
		t := &table{
			title: fmt.Sprintf("One change by kind, in a mix of %s Services", count(s.services)),
			header: []string{"kind", "Services", "endpoint replaced, p50 / p99", "goal of p99", "operations, mean",
				"one endpoint less or more, p50 / p99", "goal of p99", "operations, mean"},
		}
		for _, k := range s.kinds {
			line := []string{k.kind.String(), count(k.services)}
			for _, of := range []series{k.replaced, k.numbered} {
				spread := spreadOf(of.event)
				line = append(line, fmt.Sprintf("%s / %s", short(spread.p50), short(spread.p99)),
					short(changeGoal)+" "+verdict(spread.p99 < changeGoal), perChange(of))
			}
			t.row(line...)
		}
		t.note("Event to kernel, %s changes of each sort. Of Services with Local policies the endpoint on this node is replaced.", count(len(s.replaced.event)))
		t.note("A listing is of one map: the pins of the service port with session affinity whose endpoint left.")
		tables = append(tables, t)
	}
	return tables
}
