package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// maxLines bounds what is kept of one test's output: its end, which says why.
const maxLines = 2000

// A tally counts tests. One that has sub-tests counts by them, and by itself only
// when it failed and none of them did.
type tally struct {
	out      io.Writer
	packages map[string]*pkg
	builds   map[string]*output
	skips    []string

	passed, failed, skipped int
}

// A pkg is a package whose tests run.
type pkg struct {
	tests          map[string]*test
	order          []string // of the tests, as they began
	output         output
	passed, failed int // when it has ended
}

// A test is a test or a sub-test, between its events.
type test struct {
	result string // pass, fail or skip; empty while it runs
	output output
	// parent says that it has sub-tests, failedBelow that one of them failed.
	parent, failedBelow bool
}

// An output is the end of what was printed.
type output struct {
	lines   []string
	dropped int
}

func newTally(out io.Writer) *tally {
	return &tally{out: out, packages: map[string]*pkg{}, builds: map[string]*output{}}
}

// line is the closing line.
func (t *tally) line() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", t.passed, t.failed, t.skipped)
}

func (t *tally) take(e event) {
	switch {
	case e.Action == "build-output":
		t.build(e.ImportPath).add(e.Output)
	case e.Package == "":
		return
	case e.Test != "":
		t.pkg(e.Package).take(e)
	case e.Action == "output":
		t.pkg(e.Package).output.add(e.Output)
	case e.Action == "pass", e.Action == "fail", e.Action == "skip":
		t.end(e)
	}
}

func (t *tally) build(importPath string) *output {
	if t.builds[importPath] == nil {
		t.builds[importPath] = &output{}
	}
	return t.builds[importPath]
}

func (t *tally) pkg(name string) *pkg {
	if t.packages[name] == nil {
		t.packages[name] = &pkg{tests: map[string]*test{}}
	}
	return t.packages[name]
}

func (p *pkg) take(e event) {
	one := p.tests[e.Test]
	if one == nil {
		one = &test{}
		p.tests[e.Test] = one
		p.order = append(p.order, e.Test)
	}
	switch e.Action {
	case "output":
		one.output.add(e.Output)
	case "pass", "fail", "skip":
		one.result = e.Action
		if e.Action == "pass" {
			one.output = output{}
		}
	}
}

// add keeps a line, unless it only says that a test began or went on, or how a
// whole package ended, which we say ourselves.
func (o *output) add(line string) {
	for _, noise := range []string{"=== RUN ", "=== PAUSE ", "=== CONT ", "=== NAME ", "ok  \t", "FAIL\t"} {
		if strings.HasPrefix(line, noise) {
			return
		}
	}
	if line == "PASS\n" || line == "FAIL\n" {
		return
	}
	if len(o.lines) == maxLines {
		o.lines = o.lines[1:]
		o.dropped++
	}
	o.lines = append(o.lines, line)
}

func (o *output) print(w io.Writer) {
	if o.dropped > 0 {
		fmt.Fprintf(w, "    (%d earlier lines left out)\n", o.dropped)
	}
	for _, line := range o.lines {
		fmt.Fprintf(w, "    %s\n", strings.TrimSuffix(line, "\n"))
	}
}

// end counts a package and shows it.
func (t *tally) end(e event) {
	p := t.pkg(e.Package)
	p.settle(e.Action == "fail")
	var bad []string
	skipped := 0
	for _, name := range p.order {
		one := p.tests[name]
		switch {
		case one.result == "fail":
			bad = append(bad, name)
			if !one.failedBelow {
				p.failed++
			}
		case one.parent:
		case one.result == "skip":
			skipped++
			t.skips = append(t.skips, fmt.Sprintf("%s %s: %s", e.Package, name, one.reason()))
		default:
			p.passed++
		}
	}
	if e.Action == "fail" && len(bad) == 0 {
		p.failed++ // it was not built, or failed outside its tests
	}
	t.passed, t.failed, t.skipped = t.passed+p.passed, t.failed+p.failed, t.skipped+skipped
	fmt.Fprintf(t.out, "%-4s %-36s %6.1fs  %d passed, %d failed, %d skipped\n",
		word(e.Action, p.passed+p.failed+skipped), e.Package, e.Elapsed, p.passed, p.failed, skipped)
	if e.Action == "fail" {
		t.show(e, p, bad)
	}
	p.tests, p.order = map[string]*test{}, nil // their output is shown or not needed
}

func word(action string, tests int) string {
	switch {
	case action == "fail":
		return "FAIL"
	case tests == 0:
		return "-"
	}
	return "ok"
}

// settle finds who is whose sub-test. In a package that failed, a test that never
// ended failed: the process died or was stopped in it.
func (p *pkg) settle(failed bool) {
	for _, name := range p.order {
		one := p.tests[name]
		if one.result == "" && failed {
			one.result = "fail"
			one.output.add("did not end")
		}
		for i, c := range name {
			if above := p.tests[name[:i]]; c == '/' && above != nil {
				above.parent = true
				above.failedBelow = above.failedBelow || one.result == "fail"
			}
		}
	}
}

// reason finds what a skipped test said, without the place in the source.
func (one *test) reason() string {
	var said []string
	for _, line := range one.output.lines {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "--- ") || line == "" {
			continue
		}
		if place, text, ok := strings.Cut(line, ": "); ok && strings.Contains(place, ".go:") {
			line = text
		}
		said = append(said, line)
	}
	if len(said) == 0 {
		return "no reason given"
	}
	return strings.Join(said, " ")
}

// show prints all that a failed package said.
func (t *tally) show(e event, p *pkg, bad []string) {
	if o := t.builds[e.FailedBuild]; o != nil && e.FailedBuild != "" {
		o.print(t.out)
	}
	for _, name := range bad {
		fmt.Fprintf(t.out, "  %s %s\n", e.Package, name)
		p.tests[name].output.print(t.out)
	}
	p.output.print(t.out)
}

// finish shows the skips, what is wrong with the whole, and the closing line.
// commandErr is how go test ended, tier the packages that must have run.
func (t *tally) finish(commandErr error, tier []string) {
	if len(t.skips) > 0 {
		fmt.Fprintln(t.out, "skipped:")
		slices.Sort(t.skips)
		for _, s := range t.skips {
			fmt.Fprintf(t.out, "  %s\n", s)
		}
	}
	if commandErr != nil && t.failed == 0 {
		t.complain(commandErr.Error())
	}
	if commandErr == nil && t.passed == 0 {
		t.complain("no test passed, and none failed: nothing ran")
	}
	for _, name := range tier {
		if p := t.packages[name]; p == nil || p.passed+p.failed == 0 {
			t.complain(name + " needs privilege and ran nothing")
		}
	}
	fmt.Fprintln(t.out, t.line())
}

func (t *tally) complain(what string) {
	t.failed++
	fmt.Fprintf(t.out, "FAIL %s\n", what)
}
