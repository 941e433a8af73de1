package bpf

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// What is committed is what the source gives: the objects, and their Go files.
func TestObjectsAreThoseOfTheirSource(t *testing.T) {
	args := generator(t)
	for _, flag := range []string{"-cc", "-strip"} {
		tool := args[slices.Index(args, flag)+1]
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("NOT COMPARED: whether the objects are those of c/hits.bpf.c; it takes %s (Debian: clang-16, llvm)", tool)
		}
	}
	dir := t.TempDir()
	args = slices.Insert(args, len(strings.Fields("go tool bpf2go")), "-output-dir", dir)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "GOPACKAGE=bpf")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", cmd, err, out)
	}
	made, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(made) != 4 {
		t.Fatalf("an object and a Go file for each byte order are made: %v, %v", made, err)
	}
	for _, path := range made {
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Base(path)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what is made of c/hits.bpf.c: go generate ./bpf (%v)", filepath.Base(path), err)
		}
	}
}

// generator gives the command of go generate.
func generator(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("gen.go")
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(text), "//go:generate ")
	var args []string
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimSpace(line) {
		word, _, _ := strings.Cut(line, " ")
		arg := word
		if quoted, err := strconv.QuotedPrefix(line); err == nil {
			word = quoted
			if arg, err = strconv.Unquote(quoted); err != nil {
				t.Fatal(err)
			}
		}
		args, line = append(args, arg), line[len(word):]
	}
	return args
}
