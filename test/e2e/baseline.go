package main

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"

	"onerule/test/cluster"
)

// What passed with kube-proxy and the reference plugins on a machine like this, a file
// for each family: lines of a state and a test's name. That of a
// dual-stack cluster has only what is more than in one of its primary family.
//
//go:embed baseline-*.txt
var baselines embed.FS

// A list is how tests ended: passed, failed or skipped, by their names.
type list map[string]string

// baseline reads the list of a family, an empty one if there is none.
func baseline(f cluster.Family) (list, error) {
	names := []string{string(f)}
	switch f {
	case cluster.Dual:
		names = append(names, string(cluster.IPv4))
	case cluster.Dual6:
		names = append(names, string(cluster.IPv6))
	}
	l := list{}
	for _, name := range names {
		text, err := baselines.ReadFile("baseline-" + name + ".txt")
		if errors.Is(err, fs.ErrNotExist) {
			continue // none has been made yet
		}
		if err != nil {
			return nil, fmt.Errorf("read what is on record: %w", err)
		}
		more, err := parseList(string(text))
		if err != nil {
			return nil, err
		}
		maps.Copy(l, more)
	}
	return l, nil
}

func parseList(text string) (list, error) {
	l := list{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		state, name, ok := strings.Cut(line, " ")
		if !ok || !slices.Contains(states(), state) {
			return nil, fmt.Errorf("read a list of tests: no state in %q", line)
		}
		l[strings.TrimSpace(name)] = state
	}
	return l, nil
}

func states() []string { return []string{"PASSED", "FAILED", "SKIPPED"} }

// write writes a list as parseList reads it.
func (l list) write(w io.Writer) {
	for _, name := range slices.Sorted(maps.Keys(l)) {
		fmt.Fprintf(w, "%s %s\n", l[name], name)
	}
}

func (l list) count(state string) int {
	n := 0
	for _, s := range l {
		if s == state {
			n++
		}
	}
	return n
}

// A difference is a test that ended otherwise than with kube-proxy.
type difference struct {
	name, ours, theirs string
	worse              bool // we fail, and kube-proxy is not known to
}

// wantsNodes is what tests say that skip themselves for want of nodes. With as many as
// the lists were made with (NODES=3) they run.
var wantsNodes = regexp.MustCompile(`(?i)\b(needs?|requires?) (at least|>=) \d+ .*(nodes|zones)|with schedulable nodes, need at least`)

// compare looks at the tests that were to run. What did not run although it should have
// counts as failed. reasons are those of what was skipped.
func compare(ours, theirs list, selected []string, reasons map[string]string) []difference {
	var found []difference
	for _, name := range selected {
		our, their := ours[name], theirs[name]
		if our == "" {
			our = "MISSING"
		}
		if their == "" {
			their = "-"
		}
		if our == their || (our == "PASSED" && their == "-") {
			continue
		}
		bad := our == "FAILED" || our == "MISSING"
		found = append(found, difference{
			name: name, ours: our, theirs: their,
			worse: (bad && their != "FAILED") || (their == "PASSED" && our == "SKIPPED" && !wantsNodes.MatchString(reasons[name])),
		})
	}
	slices.SortFunc(found, func(a, b difference) int { return strings.Compare(a.name, b.name) })
	return found
}
