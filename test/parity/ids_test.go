package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func TestIDsOfNames(t *testing.T) {
	r := newReader()
	for _, c := range []struct {
		name string
		read func(string) ([]string, int)
		in   string
		want []string
		upTo string
	}{
		{"a function with one", r.ofFunction, "TestA9_7AnAddress", []string{"A9.7"}, "TestA9_7"},
		{"a function with several", r.ofFunction, "TestA10_3A10_4R39ANodeThatLeaves", []string{"A10.3", "A10.4", "R39"}, "TestA10_3A10_4R39"},
		{"a function with nothing else", r.ofFunction, "TestA2", []string{"A2"}, "TestA2"},
		{"a function with all flags", r.ofFunction, "TestA14_FEveryFlag", []string{"A14-F"}, "TestA14_F"},
		{"a function with a section and a fault", r.ofFunction, "TestA14_CF5Fields", []string{"A14-C", "F5"}, "TestA14_CF5"},
		{"a function of a section that is none", r.ofFunction, "TestA14_Flags", []string{"A14"}, "TestA14"},
		{"a function with a word in lower case behind", r.ofFunction, "TestF5th", nil, "Test"},
		{"a function without", r.ofFunction, "TestAnything", nil, "Test"},
		{"another function", r.ofFunction, "testA9_7", nil, ""},
		{"the first word", r.inWords, "A1.19 load balancer IPs", []string{"A1.19"}, "A1.19"},
		{"as go test shows it", r.inWords, "A1.19_load_balancer_IPs", []string{"A1.19"}, "A1.19"},
		{"with an underscore for the point", r.inWords, "A4_2_the_local_set", []string{"A4.2"}, "A4_2"},
		{"several", r.inWords, "A5.1,_A5.2:_one,_not_A5.1", []string{"A5.1", "A5.2"}, "A5.1,_A5.2:_one,_not_A5.1"},
		{"in the middle", r.inWords, "the end (R36)", []string{"R36"}, "the end (R36"},
		{"with a further name", r.inWords, "A2.1.external", []string{"A2.1"}, "A2.1"},
		{"with a further name only", r.inWords, "A2.external", []string{"A2"}, "A2"},
		{"before a number", r.inWords, "A2_2nd_time", []string{"A2"}, "A2"},
		{"the sections of A14", r.inWords, "A14-F and A14.C", []string{"A14-F", "A14-C"}, "A14-F and A14.C"},
		{"not within a word", r.inWords, "0xF1 BA1.1 A1.1b R2D2 F5s", nil, ""},
		{"not of other lists", r.inWords, "D34 IN.parse B1", nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, end := c.read(c.in)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("IDs of %q (-want +got):\n%s", c.in, diff)
			}
			if c.in[:end] != c.upTo {
				t.Errorf("they end with %q, want %q", c.in[:end], c.upTo)
			}
		})
	}
}

// Each ID of the list is one that names of tests can hold.
func TestListIsWellFormed(t *testing.T) {
	r, seen := newReader(), map[string]bool{}
	for _, row := range owed() {
		if ids, _ := r.inWords(row.ID); !slices.Equal(ids, []string{row.ID}) {
			t.Errorf("%s is read as %v", row.ID, ids)
		}
		if seen[row.ID] {
			t.Errorf("%s stands there twice", row.ID)
		}
		seen[row.ID] = true
		if row.Says == "" {
			t.Errorf("%s does not say what one sees", row.ID)
		}
		if (row.ID[0] == 'R') != (row.Report != "") {
			t.Errorf("%s has report %q: only what was reported has one", row.ID, row.Report)
		}
	}
}

// The list has every number of a section.
func TestListIsComplete(t *testing.T) {
	ids := map[string]bool{}
	for _, row := range owed() {
		ids[row.ID] = true
	}
	for section, last := range map[string]int{
		"A1": 26, "A2": 11, "A3": 9, "A4": 13, "A5": 7, "A6": 11, "A7": 9, "A8": 7, "A9": 10, "A10": 8, "A11": 8,
		"A12": 9, "A13": 6, "A14": 26,
	} {
		for i := range last {
			id := fmt.Sprintf("%s.%d", section, i+1)
			if !ids[id] {
				t.Errorf("%s is missing", id)
			}
			delete(ids, id)
		}
	}
	unnumbered := map[string]int{}
	for id := range ids {
		unnumbered[id[:1]]++
	}
	want := map[string]int{"A": 5, "R": 30 + 12, "F": 10} // A2, A11, A13, A14-F, A14-C
	if diff := cmp.Diff(want, unnumbered); diff != "" {
		t.Errorf("the others (-want +got):\n%s", diff)
	}
}

// Every row that tests of this repository name is in the list.
func TestNoTestNamesAnUnknownRow(t *testing.T) {
	found, err := mentions(os.DirFS("../.."), newReader())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(found, func(m mention) bool { return m.dir == "test/rows" && m.id == "A1.1" }) {
		t.Errorf("test/rows does not seem to name A1.1: are tests read at all?")
	}
	for _, line := range unknown(found, owed()) {
		t.Error(line)
	}
}

func TestMentions(t *testing.T) {
	const text = `package a

import "testing"

// A1.1 in a comment is none.
func TestA9_99Typo(t *testing.T) {
	for _, c := range []struct{ name string }{{"A12: of no row"}, {"A13.2: of one"}} {
		t.Run(c.name, func(*testing.T) {})
	}
	_ = 'A'
}
`
	root := fstest.MapFS{
		"a/a_test.go":             {Data: []byte(text)},
		"a/a.go":                  {Data: []byte(`package a; const x = "A1.2"`)},
		"a/testdata/a_test.go":    {Data: []byte(`package a; const x = "A1.3"`)},
		".git/a_test.go":          {Data: []byte(`package a; const x = "A1.4"`)},
		"b/go.mod":                {Data: []byte("module b")},
		"b/b_test.go":             {Data: []byte(`package b; const x = "A1.5"`)},
		"test/parity/ids_test.go": {Data: []byte(`package main; const x = "A1.6"`)},
		"c/d/c_test.go":           {Data: []byte("package d; const x = `F5`")},
	}
	found, err := mentions(root, newReader())
	if err != nil {
		t.Fatal(err)
	}
	want := []mention{
		{"A9.99", "a", "a/a_test.go", 6, "TestA9_99"},
		{"A12", "a", "a/a_test.go", 7, "A12"},
		{"A13.2", "a", "a/a_test.go", 7, "A13.2"},
		{"F5", "c/d", "c/d/c_test.go", 1, "F5"},
	}
	if diff := cmp.Diff(want, found, cmp.AllowUnexported(mention{})); diff != "" {
		t.Errorf("mentions (-want +got):\n%s", diff)
	}
	lines := []string{
		`a/a_test.go:6: "TestA9_99" names A9.99, which is no row`,
		`a/a_test.go:7: "A12" names A12, which is no row; there are A12.1 to A12.9`,
	}
	if diff := cmp.Diff(lines, unknown(found, owed())); diff != "" {
		t.Errorf("unknown rows (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"./a", "./c/d"}, packages(found)); diff != "" {
		t.Errorf("packages (-want +got):\n%s", diff)
	}
}

func TestFileThatDoesNotParseIsNamed(t *testing.T) {
	_, err := mentions(fstest.MapFS{"a/a_test.go": {Data: []byte("package")}}, newReader())
	if err == nil || !strings.HasPrefix(err.Error(), "parse tests: a/a_test.go:1:") {
		t.Errorf("got error %v, want one that names the file", err)
	}
}
