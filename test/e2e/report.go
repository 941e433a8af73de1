package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// A result is how one test ended.
type result struct {
	name, state string // as in lists
	message     string // of a failure or a skip, one line
	took        time.Duration
}

// ginkgoReport is what we read of a report of ginkgo.
type ginkgoReport []struct {
	SpecReports []struct {
		ContainerHierarchyTexts []string
		LeafNodeType            string
		LeafNodeText            string
		State                   string
		RunTime                 time.Duration
		Failure                 struct{ Message string }
	}
}

// readReport gives all tests of a report that were selected, and what failed beside
// tests, such as what is done before all of them. With dry, nothing ran, and all that
// would have are there.
func readReport(file string) (results []result, beside []string, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, fmt.Errorf("read the report of the tests: %w", err)
	}
	var report ginkgoReport
	if err := json.Unmarshal(text, &report); err != nil {
		return nil, nil, fmt.Errorf("read the report of the tests: %w", err)
	}
	for _, suite := range report {
		for _, s := range suite.SpecReports {
			message := firstLine(s.Failure.Message)
			if s.LeafNodeType != "It" {
				if s.State != "passed" && s.State != "skipped" {
					beside = append(beside, s.LeafNodeType+": "+message)
				}
				continue
			}
			state := stateOf(s.State)
			if state == "" || (state == "SKIPPED" && message == "") {
				continue // not selected
			}
			name := strings.Join(append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText), " ")
			results = append(results, result{strings.TrimSpace(name), state, message, s.RunTime})
		}
	}
	return results, beside, nil
}

// stateOf gives our word for a state of ginkgo.
func stateOf(s string) string {
	switch s {
	case "passed":
		return "PASSED"
	case "skipped", "pending":
		return "SKIPPED"
	case "failed", "panicked", "timedout", "interrupted", "aborted":
		return "FAILED"
	}
	return ""
}

func firstLine(text string) string {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	if len(text) > 200 {
		text = text[:200] + "..."
	}
	return text
}

func listOf(results []result) list {
	l := list{}
	for _, r := range results {
		l[r.name] = r.state
	}
	return l
}
