package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// These run the real go test over modules made here.
func TestCountOfARealRun(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		tier  string
		want  string   // the closing line
		says  []string // parts of what is printed, in this order
		hides []string // what must not be printed
	}{
		{
			name:  "a test with sub-tests counts by them",
			files: map[string]string{"a_test.go": `func TestA(t *testing.T) { for _, n := range []string{"x", "y"} { t.Run(n, func(t *testing.T) { t.Log("chatter") }) } }; func TestB(t *testing.T) {}`},
			want:  "3 passed, 0 failed, 0 skipped",
			says:  []string{"ok   seeded", "3 passed"},
			hides: []string{"chatter", "=== RUN"},
		},
		{
			name:  "a skip is listed with its reason",
			files: map[string]string{"a_test.go": `func TestA(t *testing.T) {}; func TestB(t *testing.T) { t.Skip("needs kernel 6.4: no netfilter programs") }`},
			want:  "1 passed, 0 failed, 1 skipped",
			says:  []string{"skipped:", "seeded TestB: needs kernel 6.4: no netfilter programs"},
		},
		{
			name:  "a failed sub-test counts once and is shown in full",
			files: map[string]string{"a_test.go": `func TestA(t *testing.T) { t.Run("x", func(t *testing.T) { t.Error("got 1, want 2") }); t.Run("y", func(t *testing.T) {}) }`},
			want:  "1 passed, 1 failed, 0 skipped",
			says:  []string{"FAIL seeded", "seeded TestA/x", "a_test.go:4: got 1, want 2"},
		},
		{
			name:  "a test that fails after its sub-tests counts",
			files: map[string]string{"a_test.go": `func TestA(t *testing.T) { t.Run("x", func(t *testing.T) {}); t.Error("afterwards") }`},
			want:  "1 passed, 1 failed, 0 skipped",
			says:  []string{"afterwards"},
		},
		{
			name:  "a panic fails the test that it ends",
			files: map[string]string{"a_test.go": `func TestA(t *testing.T) {}; func TestB(t *testing.T) { panic("boom") }; func TestC(t *testing.T) {}`},
			want:  "1 passed, 1 failed, 0 skipped",
			says:  []string{"boom"},
		},
		{
			name:  "a process that exits fails the test that it was in",
			files: map[string]string{"a_test.go": `func TestA(t *testing.T) {}; func TestB(t *testing.T) { os.Exit(3) }`},
			want:  "1 passed, 1 failed, 0 skipped",
			says:  []string{"did not end"},
		},
		{
			name:  "a package that does not compile fails and says why",
			files: map[string]string{"a_test.go": `func TestA(t *testing.T) { undefined() }`, "sub/b_test.go": `func TestB(t *testing.T) {}`},
			want:  "1 passed, 1 failed, 0 skipped",
			says:  []string{"undefined: undefined"},
		},
		{
			name:  "a run of nothing fails",
			files: map[string]string{"a_test.go": `func helper(t *testing.T) {}`},
			want:  "0 passed, 1 failed, 0 skipped",
			says:  []string{"nothing ran"},
		},
		{
			name:  "a tier whose tests were all skipped fails",
			files: map[string]string{"a_test.go": `func TestA(t *testing.T) {}`, "sub/b_test.go": `func TestB(t *testing.T) { t.Skip("needs root") }`},
			tier:  "seeded,seeded/sub",
			want:  "1 passed, 1 failed, 1 skipped",
			says:  []string{"FAIL seeded/sub needs privilege and ran nothing"},
		},
		{
			name:  "a tier that failed is counted once",
			files: map[string]string{"a_test.go": `func TestA(t *testing.T) { t.Error("no") }`},
			tier:  "seeded",
			want:  "0 passed, 1 failed, 0 skipped",
			hides: []string{"ran nothing"},
		},
		{
			name:  "a tier that is not there fails",
			files: map[string]string{"a_test.go": `func TestA(t *testing.T) {}`},
			tier:  "seeded/gone",
			want:  "1 passed, 1 failed, 0 skipped",
			says:  []string{"FAIL seeded/gone needs privilege and ran nothing"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			tally := newTally(&out)
			err := run([]string{"go", "test", "-C", seededModule(t, c.files), "-count=1", "-json", "./..."}, tally.read)
			tally.finish(err, tierOf(c.tier))
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if got := lines[len(lines)-1]; got != c.want {
				t.Errorf("got %q as the last line, want %q", got, c.want)
			}
			rest := out.String()
			for _, part := range c.says {
				_, after, ok := strings.Cut(rest, part)
				if !ok {
					t.Errorf("%q is missing", part)
				}
				rest = after
			}
			for _, part := range c.hides {
				if strings.Contains(out.String(), part) {
					t.Errorf("%q is printed", part)
				}
			}
			if t.Failed() {
				t.Logf("printed:\n%s", out.String())
			}
		})
	}
}

// seededModule writes test files, given without package and imports, as a module.
func seededModule(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module seeded\n\ngo 1.26\n")
	for name, text := range files {
		write(name, "package seeded\nimport (\"os\"; \"testing\")\nvar _ = os.Exit\n"+text+"\n")
	}
	return dir
}

func TestCommandThatCannotRunFails(t *testing.T) {
	for _, command := range [][]string{
		{filepath.Join(t.TempDir(), "no-such-program")},
		{"go", "test", "-json", "-no-such-flag"},
	} {
		var out strings.Builder
		tally := newTally(&out)
		tally.finish(run(command, tally.read), nil)
		if got, want := tally.line(), "0 passed, 1 failed, 0 skipped"; got != want {
			t.Errorf("%v: got %q, want %q", command, got, want)
		}
		if !strings.Contains(out.String(), filepath.Base(command[0])) {
			t.Errorf("%v: the command is not named in %q", command, out.String())
		}
	}
}

func TestOutputKeepsItsEnd(t *testing.T) {
	var o output
	for range maxLines + 5 {
		o.add("line\n")
	}
	o.add("last\n")
	var out strings.Builder
	o.print(&out)
	lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	got := []string{lines[0], lines[len(lines)-1]}
	if diff := cmp.Diff([]string{"    (6 earlier lines left out)", "    last"}, got); diff != "" {
		t.Errorf("first and last line (-want +got):\n%s", diff)
	}
}

func TestLinesThatAreNoEventsAreShown(t *testing.T) {
	var out strings.Builder
	tally := newTally(&out)
	if err := tally.read(strings.NewReader("go: something is wrong\n{\"Action\":\"start\",\"Package\":\"a\"}")); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "go: something is wrong\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestReadErrorIsGiven(t *testing.T) {
	broken := errors.New("broken pipe")
	err := newTally(&strings.Builder{}).read(failing{broken})
	if !errors.Is(err, broken) {
		t.Errorf("got error %v, want %v", err, broken)
	}
}

// failing is a reader that fails.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
