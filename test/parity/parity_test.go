package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"onerule/test/conformance"

	"github.com/google/go-cmp/cmp"
)

// These run the real go test over a module made here.
func TestProofsOfARealRun(t *testing.T) {
	for _, c := range []struct {
		name  string
		tests string
		want  map[string][]proof
	}{
		{
			"a function that names rows",
			`func TestA1_1R7Works(t *testing.T) {}; func TestOther(t *testing.T) {}`,
			map[string][]proof{"A1.1": {{"sub", "TestA1_1R7", pass}}, "R7": {{"sub", "TestA1_1R7", pass}}},
		},
		{
			"sub-tests that do",
			`func TestAll(t *testing.T) { for _, n := range []string{"A1.1 one", "A1.2, A1.3: two"} { t.Run(n, func(t *testing.T) { if n[3] == '2' { t.Error("no") } }) } }`,
			map[string][]proof{
				"A1.1": {{"sub", "TestAll/A1.1", pass}},
				"A1.2": {{"sub", "TestAll/A1.2,_A1.3", fail}},
				"A1.3": {{"sub", "TestAll/A1.2,_A1.3", fail}},
			},
		},
		{
			"a test fails with what is below it",
			`func TestA1_1(t *testing.T) { t.Run("a", func(t *testing.T) { t.Error("no") }); t.Run("b", func(*testing.T) {}) }`,
			map[string][]proof{"A1.1": {{"sub", "TestA1_1", fail}}},
		},
		{
			"a test that holds nothing but skips is skipped",
			`func TestA1_1(t *testing.T) { t.Run("a", func(t *testing.T) { t.Run("b", func(t *testing.T) { t.Skip() }) }); t.Run("c", func(t *testing.T) { t.Skip() }) }`,
			map[string][]proof{"A1.1": {{"sub", "TestA1_1", skip}}},
		},
		{
			"and has passed if one below it did",
			`func TestA1_1(t *testing.T) { t.Run("a", func(t *testing.T) { t.Skip() }); t.Run("A1.2/b", func(t *testing.T) {}) }`,
			map[string][]proof{"A1.1": {{"sub", "TestA1_1", pass}}, "A1.2": {{"sub", "TestA1_1/A1.2", pass}}},
		},
		{
			"a test whose process died has failed",
			`func TestA1_1(t *testing.T) { t.Run("A1.2", func(t *testing.T) { os.Exit(3) }) }`,
			map[string][]proof{"A1.1": {{"sub", "TestA1_1", fail}}, "A1.2": {{"sub", "TestA1_1/A1.2", fail}}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := options{command: goTest(seededModule(t, c.tests)), tell: t.Output()}
			r, err := o.results()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, r.proofs("seeded", newReader()), cmp.AllowUnexported(proof{})); diff != "" {
				t.Errorf("proofs (-want +got):\n%s", diff)
			}
			if broken := r.broken(); len(broken) > 0 {
				t.Errorf("got %v as broken, want none", broken)
			}
		})
	}
}

// seededModule writes a test file, given without package and imports, as a module
// whose root has a test that names nothing.
func seededModule(t *testing.T, tests string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	head := "package seeded\nimport (\"os\"; \"testing\")\nvar _ = os.Exit\n"
	for name, text := range map[string]string{
		"go.mod":        "module seeded\n\ngo 1.26\n",
		"a_test.go":     head + "func TestNothing(*testing.T) {}\n",
		"sub/b_test.go": head + tests + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func goTest(dir string) []string {
	return []string{"go", "test", "-C", dir, "-count=1", "-json", "./..."}
}

func TestPackageThatProvesNothingIsNamed(t *testing.T) {
	for name, tests := range map[string]string{
		"it does not build":        `func TestA1_1(t *testing.T) { undefined() }`,
		"it ends before its tests": `func TestMain(*testing.M) { os.Exit(3) }; func TestA1_1(t *testing.T) {}`,
		"it fails after its tests": `func TestMain(m *testing.M) { m.Run(); os.Exit(3) }; func TestA1_1(t *testing.T) {}`,
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			err := parity(options{command: goTest(seededModule(t, tests)), out: &out, tell: t.Output()})
			if !errors.Is(err, errOwed) || !strings.HasSuffix(err.Error(), ": seeded/sub") {
				t.Errorf("got error %v, want %v with seeded/sub", err, errOwed)
			}
			if !strings.Contains(out.String(), "MISSING") {
				t.Errorf("there is no table:\n%s", out.String())
			}
		})
	}
}

func TestRunIsKeptAndReadAgain(t *testing.T) {
	kept := filepath.Join(t.TempDir(), "run.json")
	var first, again strings.Builder
	dir := seededModule(t, `func TestA1_1(t *testing.T) {}`)
	for _, o := range []options{
		{command: goTest(dir), save: kept, out: &first, tell: t.Output(), missing: true},
		{in: kept, out: &again, tell: t.Output(), missing: true},
	} {
		if err := parity(o); !errors.Is(err, errOwed) {
			t.Fatalf("got error %v, want %v", err, errOwed)
		}
	}
	if diff := cmp.Diff(first.String(), again.String()); diff != "" {
		t.Errorf("the table of the run and of the file (-first +again):\n%s", diff)
	}
	if !strings.Contains(first.String(), ": 1 passed, 0 failed,") || strings.Contains(first.String(), "A1.1 ") {
		t.Errorf("A1.1 is not proven:\n%s", first.String())
	}
}

func TestWhatCannotBeReadIsAnError(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("go: no such package\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		o    options
		want string
	}{
		{"nothing is asked for", options{}, "give one of -in FILE, -named, -packages, or a command"},
		{"two things are", options{named: true, packages: true}, "give one of"},
		{"no such file", options{in: empty + ".gone"}, "open the run: "},
		{"a file without tests", options{in: empty}, "no test ran"},
		{"no such program", options{command: []string{empty + ".gone"}}, "start the tests: "},
		{"nowhere to keep it", options{command: []string{"true"}, save: empty + "/x"}, "keep the run: "},
		{"no such folder", options{named: true, root: empty + ".gone"}, "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.out, c.o.tell = t.Output(), t.Output()
			err := parity(c.o)
			if err == nil || errors.Is(err, errOwed) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestLinesThatAreNoEventsAreTold(t *testing.T) {
	var told []string
	in := "go: something is wrong\n{\"Action\":\"build-output\",\"Output\":\"a.go:1: no\\n\"}\n{\"Action\":\"start\",\"Package\":\"a\"}\n\n{\"Action\":\"fail\",\"Package\":\"a\"}"
	if _, err := readRun(strings.NewReader(in), func(s string) { told = append(told, s) }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"go: something is wrong", "a.go:1: no", "FAILED: a"}, told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

func TestReadErrorIsGiven(t *testing.T) {
	broken := errors.New("broken pipe")
	if _, err := readRun(failing{broken}, func(string) {}); !errors.Is(err, broken) {
		t.Errorf("got error %v, want %v", err, broken)
	}
}

// failing is a reader that fails.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// rowsOfEachKind and their proofs show every result that a row can have.
func rowsOfEachKind() ([]conformance.Item, map[string][]proof) {
	rows := []conformance.Item{
		{ID: "A1", Says: "one passed"},
		{ID: "A1.2", Says: "one failed"},
		{ID: "R350", Says: "one was skipped", Report: "a/b#350"},
		{ID: "F1", Says: "one is only there"},
		{ID: "F2", Says: "there is none"},
		{ID: "F3", Says: "it comes later", When: conformance.Later},
		{ID: "F4", Says: "it came early and failed", When: conformance.Later},
		{ID: "F5", Says: "nobody sees it — ever", When: conformance.Never},
	}
	return rows, map[string][]proof{
		"A1":   {{"a", "TestA1", pass}, {"b", "TestB/A1", skip}, {"b", "TestB/A1", pass}, {"c", "TestA1", skip}},
		"A1.2": {{"a", "TestA1_2", pass}, {"b", "TestB/A1.2", fail}},
		"R350": {{"a", "TestR350", skip}},
		"F1":   {{"a", "F1", unrun}},
		"F4":   {{"a", "TestF4", fail}},
	}
}

func TestTable(t *testing.T) {
	const whole = `
A1    passed          one passed                 a TestA1; b TestB/A1; c TestA1 (skipped)
A1.2  FAILED          one failed                 a TestA1_2 (passed); b TestB/A1.2
R350  skipped         one was skipped (a/b#350)  a TestR350
F1    named           one is only there          a F1
F2    MISSING         there is none
F3    later           it comes later
F4    FAILED          it came early and failed   a TestF4
F5    does not apply  nobody sees it — ever
8 rows: 1 passed, 2 failed, 1 skipped, 1 named, 1 missing, 1 later, 1 does not apply
`
	const bad = `
A1.2  FAILED          one failed                 a TestA1_2 (passed); b TestB/A1.2
F2    MISSING         there is none
F4    FAILED          it came early and failed   a TestF4
8 rows: 1 passed, 2 failed, 1 skipped, 1 named, 1 missing, 1 later, 1 does not apply
`
	for _, c := range []struct {
		name string
		as   look
		want string
	}{{"whole", look{}, whole}, {"what is missing or failed", look{missingOnly: true}, bad}} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			writeTable(&out, lines(rowsOfEachKind()), c.as)
			if diff := cmp.Diff(c.want[1:], out.String()); diff != "" {
				t.Errorf("table (-want +got):\n%s", diff)
			}
		})
	}
}

func TestColoursLeaveTheTextAlone(t *testing.T) {
	var plain, coloured strings.Builder
	writeTable(&plain, lines(rowsOfEachKind()), look{})
	writeTable(&coloured, lines(rowsOfEachKind()), look{colour: true})
	for want, code := range map[string]string{"passed  ": "\x1b[32m", "FAILED  ": "\x1b[31m", "MISSING ": "\x1b[31m", "skipped ": "\x1b[33m"} {
		if !strings.Contains(coloured.String(), code+want) {
			t.Errorf("%q has not the colour %q", want, code)
		}
	}
	bare := strings.NewReplacer("\x1b[31m", "", "\x1b[32m", "", "\x1b[33m", "", "\x1b[0m", "").Replace(coloured.String())
	if diff := cmp.Diff(plain.String(), bare); diff != "" {
		t.Errorf("text (-plain +coloured):\n%s", diff)
	}
}

func TestExitFollowsTheTable(t *testing.T) {
	rows, proofs := rowsOfEachKind()
	for _, r := range rows {
		err := options{out: t.Output()}.show(lines([]conformance.Item{r}, proofs))
		wantBad := r.ID == "A1.2" || r.ID == "F2" || r.ID == "F4"
		if errors.Is(err, errOwed) != wantBad || !wantBad && err != nil {
			t.Errorf("%s, %q: got error %v, want one: %v", r.ID, r.Says, err, wantBad)
		}
	}
}
