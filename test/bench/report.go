package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// The goals.
const (
	loadGoal     = 1500 * time.Millisecond
	loadGoalAt   = 10_000 // Services
	changeGoal   = 5 * time.Millisecond
	memoryGoal   = 120_000_000 // bytes
	memoryGoalAt = 10_000      // Services
)

// bySize begins a table with a column for each size.
func bySize(title string, list []*scale) (*table, eachSize) {
	t := &table{title: title, header: []string{"measured"}}
	for _, s := range list {
		t.header = append(t.header, count(s.services)+" Services")
	}
	t.header = append(t.header, "goal")
	return t, func(name, goal string, cell func(*scale) string) {
		line := []string{name}
		for _, s := range list {
			line = append(line, cell(s))
		}
		t.row(append(line, goal)...)
	}
}

// scaleTable shows the daemon at each size, a column each.
func scaleTable(list []*scale) *table {
	t, each := bySize("The daemon by number of Services, 10 endpoints each", list)
	loadRows(each)
	for _, sort := range []struct {
		name string
		of   func(*scale) series
	}{
		{"endpoint replaced", func(s *scale) series { return s.replaced }},
		{"one endpoint less or more", func(s *scale) series { return s.numbered }},
	} {
		changeRows(each, sort.name, sort.of)
		floorRow(each, sort.name, sort.of)
	}
	firstRow(each)
	each("not taken: the verdict of a frontend written anew, the kernel alone, p50 / p99", "", func(s *scale) string {
		verdicts := spreadOf(s.verdicts)
		return fmt.Sprintf("%s / %s", short(verdicts.p50), short(verdicts.p99))
	})
	rulesRow(each)
	memoryRows(each)
	scaleNotes(t, list)
	return t
}

func firstRow(each eachSize) {
	each("first time that a number of endpoints is in use, p50 / max", "", func(s *scale) string {
		first := spreadOf(s.first.event)
		return fmt.Sprintf("%s / %s", short(first.p50), short(first.max))
	})
}

func rulesRow(each eachSize) {
	each("rules in the kernel, after the load / after all changes", "", func(s *scale) string {
		return fmt.Sprintf("%s / %s", count(s.rules[0]), count(s.rules[1]))
	})
}

type eachSize func(name, goal string, cell func(*scale) string)

func loadRows(each eachSize) {
	each(fmt.Sprintf("first full load, from synced informers (median of %d, slowest)", loads), fmt.Sprintf("%s at %s", short(loadGoal), count(loadGoalAt)),
		func(s *scale) string {
			all := durations(s.loads, func(l load) time.Duration { return l.synced })
			cell := fmt.Sprintf("%s, %s", short(median(all)), short(quantile(all, 1)))
			if s.services == loadGoalAt {
				cell += " " + verdict(median(all) < loadGoal)
			}
			return cell
		})
	each("the same, from the start of the process", "", func(s *scale) string {
		return short(median(durations(s.loads, func(l load) time.Duration { return l.began })))
	})
	each("restart over the loaded table, from synced informers", "", func(s *scale) string {
		r := s.restart
		return fmt.Sprintf("%s, %.0f elements written", short(r.synced), r.did["add"]+r.did["delete"])
	})
}

func changeRows(each eachSize, name string, of func(*scale) series) {
	each(name+": event to kernel, p50", "", func(s *scale) string { return short(spreadOf(of(s).event).p50) })
	each(name+": event to kernel, p99", short(changeGoal), func(s *scale) string {
		p99 := spreadOf(of(s).event).p99
		return short(p99) + " " + verdict(p99 < changeGoal)
	})
	each(name+": event to kernel, max", "", func(s *scale) string { return short(spreadOf(of(s).event).max) })
	each(name+": in the daemon alone, p50 / p99", "", func(s *scale) string {
		inside := spreadOf(of(s).inside)
		return fmt.Sprintf("%s / %s", short(inside.p50), short(inside.p99))
	})
	each(name+": operations per change, mean", "", func(s *scale) string { return perChange(of(s)) })
}

func floorRow(each eachSize, name string, of func(*scale) series) {
	each(name+": the kernel's floor, p50 / p99", "", func(s *scale) string {
		floor := spreadOf(of(s).floor)
		return fmt.Sprintf("%s / %s", short(floor.p50), short(floor.p99))
	})
}

// perChange says how many operations of each sort a change took.
func perChange(s series) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(s.did)) {
		if s.did[name] != 0 {
			parts = append(parts, fmt.Sprintf("%.3g %s", s.did[name]/float64(len(s.event)), name))
		}
	}
	return strings.Join(parts, ", ")
}

func memoryRows(each eachSize) {
	goal := fmt.Sprintf("%s at %s", megabytes(memoryGoal), count(memoryGoalAt))
	judged := func(s *scale, n int64) string {
		if s.services == memoryGoalAt {
			return megabytes(n) + " " + verdict(n < memoryGoal)
		}
		return megabytes(n)
	}
	each("RSS after the load", goal, func(s *scale) string { return judged(s, s.memory.loaded) })
	each("RSS after load and all changes", goal, func(s *scale) string { return judged(s, s.memory.settled) })
	each("RSS, the highest ever", goal, func(s *scale) string {
		peak := s.memory.peak
		for _, l := range s.loads {
			peak = max(peak, l.peak)
		}
		return judged(s, peak)
	})
	each("RSS after a forced collection, for comparison", "", func(s *scale) string { return megabytes(s.memory.freed) })
}

func durations(list []load, of func(load) time.Duration) []time.Duration {
	var all []time.Duration
	for _, l := range list {
		all = append(all, of(l))
	}
	return all
}

func scaleNotes(t *table, list []*scale) {
	t.note("Each daemon is a process of its own in a new network namespace: package daemon with both families, fed by its real API client from a server in another process that lists and watches in protobuf over plain HTTP on loopback (no TLS, no etcd).")
	t.note("From event: from the moment before the API server sends the watch event. In the daemon alone: from the change coming in at the loop. To kernel: the transaction is acknowledged.")
	t.note("Floor: the same elements written by google/nftables, nothing around it, to a table of the same size in another namespace, in turns with the daemon's changes.")
	t.note("Not taken: a change of the number of endpoints would write the frontend's verdict, too, if that said how many there are.")
	for _, s := range list {
		t.note("%s Services: %s and %s changes timed, one after the other; %s of all changes looked up in the kernel afterwards, with the number of endpoints and every one of them, all as they should be.",
			count(s.services), count(len(s.replaced.event)), count(len(s.numbered.event)), count(s.verified))
	}
}
