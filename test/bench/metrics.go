package main

import (
	"strconv"
	"strings"
)

// A sample is one line of Prometheus' text.
type sample struct {
	labels map[string]string
	value  float64
}

// samples gives the samples of a metric. Label values hold no commas and no quotes
// in what is read here.
func samples(text, metric string) []sample {
	var found []sample
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), metric)
		if !ok {
			continue
		}
		labels := ""
		value, ok := strings.CutPrefix(rest, " ")
		if strings.HasPrefix(rest, "{") {
			labels, value, ok = strings.Cut(rest[1:], "} ")
		}
		number, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if !ok || err != nil {
			continue // another metric whose name begins in the same way
		}
		s := sample{labels: map[string]string{}, value: number}
		for pair := range strings.SplitSeq(labels, ",") {
			if name, quoted, ok := strings.Cut(pair, "="); ok {
				s.labels[name] = strings.Trim(quoted, `"`)
			}
		}
		found = append(found, s)
	}
	return found
}
