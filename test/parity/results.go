package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// A result is what became of a test, or of a row: the last of its tests that stands
// here counts.
type result int

const (
	unrun result = iota
	skip
	pass
	fail
)

func (r result) String() string { return []string{"named", "skipped", "passed", "FAILED"}[r] }

// A proof is a test that names a row.
type proof struct {
	dir    string // of its package, without the module
	name   string // up to the last ID, which go test -run takes
	result result
}

// An event is a line of go test -json.
type event struct{ Action, Package, Test, Output string }

// A testID tells tests of all packages apart.
type testID struct{ pkg, name string }

// A run is what go test -json told.
type run struct {
	tests  map[testID]result
	failed []string // packages
}

// readRun reads events until the end, and tells of each package that ended, and of
// what does not compile. Lines that are no events, which go prints for errors of its
// own, are told as they are.
func readRun(in io.Reader, tell func(string)) (*run, error) {
	r := &run{tests: map[testID]result{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		if text := strings.TrimSpace(string(line)); text == "" {
			// Nothing, or the end.
		} else if json.Unmarshal(line, &e) != nil {
			tell(text)
		} else {
			r.take(e, tell)
		}
		if errors.Is(err, io.EOF) {
			return r, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read events: %w", err)
		}
	}
}

// take leaves a test that began and did not end as failed: its process died.
func (r *run) take(e event, tell func(string)) {
	results := map[string]result{"run": fail, "pass": pass, "fail": fail, "skip": skip}
	became, known := results[e.Action]
	switch {
	case e.Action == "build-output":
		tell(strings.TrimRight(e.Output, "\n"))
	case !known || e.Package == "":
	case e.Test != "":
		r.tests[testID{e.Package, e.Test}] = became
	default:
		tell(fmt.Sprintf("%s: %s", became, e.Package))
		if became == fail {
			r.failed = append(r.failed, e.Package)
		}
	}
}

// broken gives the packages that failed without a test that did: they do not build,
// or do not come to their tests. What they would prove nobody knows.
func (r *run) broken() []string {
	blamed := map[string]bool{}
	for id, became := range r.tests {
		blamed[id.pkg] = blamed[id.pkg] || became == fail
	}
	return slices.DeleteFunc(slices.Clone(r.failed), func(pkg string) bool { return blamed[pkg] })
}

// proofs gives the tests of each row. A test stands for those below it.
func (r *run) proofs(module string, ids *reader) map[string][]proof {
	r.dropHollow()
	found := map[string][]proof{}
	order := slices.SortedFunc(maps.Keys(r.tests), func(a, b testID) int {
		return strings.Compare(a.pkg+" "+a.name, b.pkg+" "+b.name)
	})
	for _, id := range order {
		parent := r.above(id)
		own := strings.TrimPrefix(id.name[len(parent):], "/")
		named, end := ids.inWords(own)
		if parent == "" {
			named, end = ids.ofFunction(own)
		}
		for _, row := range named {
			p := proof{strings.TrimPrefix(strings.TrimPrefix(id.pkg, module), "/"), id.name[:len(id.name)-len(own)+end], r.tests[id]}
			found[row] = append(found[row], p)
		}
	}
	return found
}

// dropHollow calls a test skipped that passed with nothing below it but skips: go
// test says that it passed.
func (r *run) dropHollow() {
	parents := map[testID]bool{}
	for id := range r.tests {
		parents[testID{id.pkg, r.above(id)}] = true
	}
	best := map[testID]result{} // of the tests at or below it that have none below
	for id, became := range r.tests {
		for at := id; at.name != "" && !parents[id]; at.name = r.above(at) {
			best[at] = max(best[at], became)
		}
	}
	for id, became := range r.tests {
		if became == pass && best[id] == skip {
			r.tests[id] = skip
		}
	}
}

// above gives the test that a sub-test is of, empty for a whole test. Names of
// sub-tests can have slashes of their own.
func (r *run) above(id testID) string {
	for end := len(id.name); ; {
		end = strings.LastIndexByte(id.name[:end], '/')
		if end < 0 {
			return ""
		}
		if _, is := r.tests[testID{id.pkg, id.name[:end]}]; is {
			return id.name[:end]
		}
	}
}
