package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"onerule/test/conformance"

	"github.com/google/go-cmp/cmp"
)

func TestCNIIDsOfNames(t *testing.T) {
	r := newCNIReader()
	for _, c := range []struct {
		name string
		read func(string) ([]string, int)
		in   string
		want []string
	}{
		{"a function", r.ofFunction, "TestD10MACsAreSet", []string{"D10"}},
		{"a function with several", r.ofFunction, "TestC3C24D28Name", []string{"C3", "C24", "D28"}},
		{"a function with a word in lower case behind", r.ofFunction, "TestC3a", nil},
		{"a sub-test", r.inWords, "C15,_C28:_killed_(D2)", []string{"C15", "C28", "D2"}},
		{"not of the other list, nor within a word", r.inWords, "A14-C R36 ABC12 C1x 0xD1", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _ := c.read(c.in)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("IDs of %q (-want +got):\n%s", c.in, diff)
			}
		})
	}
}

func TestCNIListIsComplete(t *testing.T) {
	r, seen := newCNIReader(), map[string]bool{}
	for _, row := range conformance.Items() {
		if ids, _ := r.inWords(row.ID); !slices.Equal(ids, []string{row.ID}) || seen[row.ID] {
			t.Errorf("%s is read as %v, or stands there twice", row.ID, ids)
		}
		seen[row.ID] = true
		if row.Says == "" || (row.ID[0] == 'D') != strings.Contains(row.Report, "#") {
			t.Errorf("%s says %q, reported as %q", row.ID, row.Says, row.Report)
		}
	}
	for i := range 60 {
		if id := fmt.Sprintf("C%d", i+1); !seen[id] {
			t.Errorf("%s is missing", id)
		}
	}
}

// Every item that tests of this repository name is in the list.
func TestNoTestNamesAnUnknownItem(t *testing.T) {
	found, err := mentions(os.DirFS("../.."), newCNIReader())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(found, func(m mention) bool { return m.dir == "plugin" && m.id == "C44" }) {
		t.Errorf("plugin does not seem to name C44: are tests read at all?")
	}
	for _, line := range unknown(found, conformance.Items()) {
		t.Error(line)
	}
}

func TestListsAreTakenByName(t *testing.T) {
	for of, first := range map[string]string{"": "A1.1", "kube-proxy": "A1.1", "cni": "C1"} {
		if rows, _ := (options{of: of}).list(); rows[0].ID != first {
			t.Errorf("%q: got %s first, want %s", of, rows[0].ID, first)
		}
	}
	if err := parity(options{of: "other", named: true}); err == nil || !strings.Contains(err.Error(), "-of other") {
		t.Errorf("got error %v, want one that names the list", err)
	}
}
