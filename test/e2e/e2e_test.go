package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"onerule/test/cluster"
)

func TestListsAreReadAndWritten(t *testing.T) {
	text := "# a comment\n\nPASSED b [Conformance]\nFAILED a\n"
	l, err := parseList(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(list{"a": "FAILED", "b [Conformance]": "PASSED"}, l); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	var out bytes.Buffer
	l.write(&out)
	if got, want := out.String(), "FAILED a\nPASSED b [Conformance]\n"; got != want {
		t.Errorf("written %q, want %q", got, want)
	}
	for _, broken := range []string{"passed a", "PASSED", "[sig-network] a"} {
		if _, err := parseList(broken); err == nil {
			t.Errorf("%q is taken for a list", broken)
		}
	}
}

func TestCompareWithKubeProxy(t *testing.T) {
	ours := list{"same": "PASSED", "both fail": "FAILED", "lost": "FAILED", "skipped": "SKIPPED", "wants nodes": "SKIPPED", "won": "PASSED", "new and good": "PASSED", "new and bad": "FAILED", "not selected": "FAILED"}
	theirs := list{"same": "PASSED", "both fail": "FAILED", "lost": "PASSED", "skipped": "PASSED", "wants nodes": "PASSED", "won": "FAILED", "never ran": "PASSED", "unselected": "PASSED"}
	selected := []string{"won", "same", "both fail", "lost", "skipped", "wants nodes", "new and good", "new and bad", "never ran"}
	want := []difference{
		{"lost", "FAILED", "PASSED", true},
		{"never ran", "MISSING", "PASSED", true},
		{"new and bad", "FAILED", "-", true},
		{"skipped", "SKIPPED", "PASSED", true},
		{"wants nodes", "SKIPPED", "PASSED", false},
		{"won", "PASSED", "FAILED", false},
	}
	reasons := map[string]string{"wants nodes": "Need at least 3 schedulable nodes for this test", "skipped": "the API server has no such resource"}
	if diff := cmp.Diff(want, compare(ours, theirs, selected, reasons), cmp.AllowUnexported(difference{})); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
}

func TestWhoWantsNodes(t *testing.T) {
	for message, want := range map[string]bool{
		"Need at least 3 schedulable nodes for this test":               true,
		"need at least 3 zones, with at least 2 schedulable nodes each": true,
		"Requires >= 3 zones": true,
		"got 2 zones with schedulable nodes, need at least 3": true,
		"the API server has no such resource":                 false,
		"":                                                    false,
	} {
		if got := wantsNodes.MatchString(message); got != want {
			t.Errorf("%q: %v, want %v", message, got, want)
		}
	}
}

func TestTheExitCodeFollowsFromTheLists(t *testing.T) {
	one := func(state string) outcome {
		return outcome{with: "onerule", selected: []string{"a"}, results: []result{{name: "a", state: state, message: "it broke"}}, took: time.Minute}
	}
	for _, c := range []struct {
		name   string
		ours   outcome
		theirs list
		want   string
	}{
		{"both pass", one("PASSED"), list{"a": "PASSED"}, ""},
		{"both fail", one("FAILED"), list{"a": "FAILED"}, ""},
		{"only we fail", one("FAILED"), list{"a": "PASSED"}, "1 of 1 tests are worse than with kube-proxy"},
		{"we fail, and there is no list", one("FAILED"), nil, "1 of 1 tests are worse than with kube-proxy"},
		{"what is before all tests fails", outcome{selected: []string{"a"}, results: one("PASSED").results, beside: []string{"BeforeSuite: no nodes"}}, nil, "1 of 1 tests are worse than with kube-proxy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			got := ""
			if err := conclude(&out, c.ours, c.theirs, "kube-proxy", true); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("error is %q, want %q; printed:\n%s", got, c.want, out.String())
			}
			for _, r := range c.ours.failed() {
				if !strings.Contains(out.String(), "FAILED "+r.name+"\n       it broke\n") {
					t.Errorf("the failure is not printed:\n%s", out.String())
				}
			}
		})
	}
}

func TestWhatIsLeftOutHasAReason(t *testing.T) {
	names := []string{
		"[sig-network] Services should work",
		"[sig-network] Services breaks [Disruptive]",
		"[sig-network] SCTP should allow a Pod",
		"[sig-network] [Feature:IPv6DualStack] should create service",
	}
	for _, c := range []struct {
		family cluster.Family
		runs   []int
	}{{cluster.IPv4, []int{0}}, {cluster.Dual, []int{0, 3}}, {cluster.Dual6, []int{0, 3}}, {cluster.IPv6, []int{0}}} {
		table := skips(c.family)
		run, left, err := divide(names, table)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, i := range c.runs {
			want = append(want, names[i])
		}
		if diff := cmp.Diff(want, run); diff != "" {
			t.Errorf("%s runs (-want +got):\n%s", c.family, diff)
		}
		var out bytes.Buffer
		printSkips(&out, table, left)
		if got := strings.Count(out.String(), "left out   1: "); got != len(names)-len(c.runs) {
			t.Errorf("%s: printed\n%s", c.family, out.String())
		}
		all := regexp.MustCompile(expression(table))
		for _, name := range names {
			if all.MatchString(name) == slices.Contains(run, name) {
				t.Errorf("%s: ginkgo and we disagree on %s", c.family, name)
			}
		}
	}
}

func TestNothingOnRecordIsLeftOut(t *testing.T) {
	for _, f := range cluster.Families() {
		l, err := baseline(f)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for name := range l {
			names = append(names, name)
		}
		run, _, err := divide(names, skips(f))
		if err != nil {
			t.Fatal(err)
		}
		if len(run) != len(names) {
			t.Errorf("%s: %d of %d tests on record are left out", f, len(names)-len(run), len(names))
		}
	}
}

func TestTheShortListIsOnRecord(t *testing.T) {
	l, err := baseline(cluster.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	focus := regexp.MustCompile(shortFocus())
	var matched []string
	for name := range l {
		if focus.MatchString("Kubernetes e2e suite " + name) {
			matched = append(matched, name)
		}
	}
	less := cmpopts.SortSlices(strings.Compare)
	if diff := cmp.Diff(short(), matched, less); diff != "" {
		t.Errorf("short list (-want +got):\n%s", diff)
	}
	for _, name := range short() {
		if l[name] != "PASSED" {
			t.Errorf("%s: %q with kube-proxy", name, l[name])
		}
	}
}

func TestReportOfGinkgo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.json")
	report := `[{"SpecReports": [
		{"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed", "Failure": {"Message": "no nodes\nat all"}},
		{"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": "should work", "State": "passed", "RunTime": 2000000000},
		{"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": "out of focus", "State": "skipped"},
		{"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": "lacks a zone", "State": "skipped", "Failure": {"Message": "too few zones"}},
		{"LeafNodeType": "It", "LeafNodeText": "hung", "State": "timedout", "Failure": {"Message": "\nafter an hour"}}]}]`
	if err := os.WriteFile(file, []byte(report), 0o644); err != nil {
		t.Fatal(err)
	}
	results, beside, err := readReport(file)
	if err != nil {
		t.Fatal(err)
	}
	want := []result{
		{"[sig-network] Services should work", "PASSED", "", 2 * time.Second},
		{"[sig-network] Services lacks a zone", "SKIPPED", "too few zones", 0},
		{"hung", "FAILED", "after an hour", 0},
	}
	if diff := cmp.Diff(want, results, cmp.AllowUnexported(result{})); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"SynchronizedBeforeSuite: no nodes"}, beside); diff != "" {
		t.Errorf("beside tests (-want +got):\n%s", diff)
	}
}

func TestProgressIsReadFromGinkgo(t *testing.T) {
	text := `Will run 4 of 3206 specs
------------------------------
[SynchronizedBeforeSuite] PASSED [0.083 seconds]
[SynchronizedBeforeSuite] 
------------------------------
• [2.944 seconds]
[sig-network] Services should be rejected when no endpoints exist [sig-network]
/somewhere/service.go:2419
------------------------------
• [FAILED] [97.100 seconds]
[sig-network] Networking Granular Checks should function [sig-network, Conformance]
------------------------------
• [PANICKED] in [It] [1.000 seconds]
[sig-network] HostPort [It] panics [sig-network]
------------------------------
S [SKIPPED] [0.101 seconds]
[sig-network] Traffic Distribution wants zones [sig-network]
`
	var log, out bytes.Buffer
	p := &progress{log: &log, out: &out, begin: time.Now(), total: 4}
	for _, chunk := range []string{text[:7], text[7:300], text[300:]} { // cut anywhere
		if n, err := p.Write([]byte(chunk)); n != len(chunk) || err != nil {
			t.Fatalf("wrote %d: %v", n, err)
		}
	}
	if log.String() != text {
		t.Errorf("the log is not what ginkgo wrote:\n%s", log.String())
	}
	got := regexp.MustCompile(`(?m)^ *\d+s *`).ReplaceAllString(out.String(), "")
	want := `1 of 4  passed  Services should be rejected when no endpoints exist
2 of 4, 1 failed  failed  Networking Granular Checks should function
3 of 4, 2 failed  failed  HostPort panics
4 of 4, 2 failed  skipped  Traffic Distribution wants zones
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
}

func TestFlagsThatMakeNoSense(t *testing.T) {
	for args, want := range map[string]string{
		"run --baseline maybe":          `no such baseline: "maybe" (show or run)`,
		"run --baseline run --running":  "--baseline run starts clusters itself: it does not go with --running",
		"run --focus (":                 "which tests to run: error parsing regexp: missing closing ): `(`",
		"run --procs 0":                 "0 tests at a time: at least 1",
		"up now":                        `unknown command "now" for "e2e up"`,
		"in":                            "requires at least 2 arg(s), only received 0",
		"down --dir /no/such/directory": "no cluster in /no/such/directory",
	} {
		cmd := newCommand()
		cmd.SetArgs(strings.Fields(args))
		cmd.SetOut(&bytes.Buffer{})
		if got := fmt.Sprint(cmd.ExecuteContext(t.Context())); got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}
