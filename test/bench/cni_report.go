package main

import (
	"fmt"
	"slices"
	"time"
)

// cniGoal is the share of ptp's median that ours may take for an ADD.
const cniGoal = 0.6

// cniTable shows wirers beside each other; the first is ours, the second the one that the
// goals name.
func cniTable(when string, list []wirer, all []calls) *table {
	t := &table{title: "ADD and DEL of a pod " + when, header: []string{"p50 / p90 / p99 of each call"}}
	for _, w := range list {
		t.header = append(t.header, w.name)
	}
	t.header = append(t.header, fmt.Sprintf("%s : %s, p50 and p99", list[0].name, list[1].name), "goal")
	for _, verb := range []struct {
		name string
		of   func(calls) map[int][]time.Duration
	}{{"ADD", func(c calls) map[int][]time.Duration { return c.add }}, {"DEL", func(c calls) map[int][]time.Duration { return c.del }}} {
		for _, wave := range waves() {
			line := []string{fmt.Sprintf("%s, %d at once", verb.name, wave.pods)}
			for _, c := range all {
				line = append(line, spreadText(verb.of(c)[wave.pods]))
			}
			line = append(line, cniGoals(verb.name, wave.pods, verb.of(all[0])[wave.pods], verb.of(all[1])[wave.pods])...)
			t.row(line...)
		}
	}
	t.note("The executables, called as a runtime calls them, in turns on one node in a namespace, with the same pods in namespaces of their own; a DEL follows each ADD. The time is from the start of the process to its end.")
	t.note("All give a pod an address and a default route of each family. IPv6 duplicate detection is off for all of them (accept_dad 0 on the node and in the pods): it would cost the reference plugins a second or two for each pod, and onerule asks for none.")
	t.note("The reference plugins are those of containernetworking/plugins 1.10.0, without ipMasq; onerule has no host ports. Calls timed for each: %s.", waveSizes())
	return t
}

func waveSizes() string {
	text := ""
	for i, wave := range waves() {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%d with %d at once", wave.pods*wave.turns, wave.pods)
	}
	return text
}

func spreadText(list []time.Duration) string {
	return fmt.Sprintf("%s / %s / %s", short(median(list)), short(quantile(list, 0.9)), short(quantile(list, 0.99)))
}

// cniGoals gives the shares of ours in theirs, and which goals were reached.
func cniGoals(verb string, pods int, ours, theirs []time.Duration) []string {
	p50 := float64(median(ours)) / float64(median(theirs))
	p99 := float64(quantile(ours, 0.99)) / float64(quantile(theirs, 0.99))
	goal := fmt.Sprintf("p50 at most %.3g %s", cniGoal, verdict(p50 <= cniGoal))
	if verb == "DEL" {
		goal = "p50 at most 1 " + verdict(p50 <= 1)
	}
	most := slices.MaxFunc(waves(), func(a, b wave) int { return a.pods - b.pods }).pods
	if verb == "ADD" && pods == most {
		goal += ", p99 below 1 " + verdict(p99 < 1)
	}
	return []string{fmt.Sprintf("%.2f, %.2f", p50, p99), goal}
}
