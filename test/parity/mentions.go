package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"onerule/test/conformance"
)

// A mention is a place in a test file that names a row.
type mention struct {
	id   string
	dir  string // of the package, from the root
	file string
	line int
	name string // of the test, up to the ID
}

// mentions parses the test files of a repository. A string counts wherever it stands:
// sub-tests get their names from tables and lists.
func mentions(root fs.FS, r *reader) ([]mention, error) {
	var found []mention
	err := fs.WalkDir(root, ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && skipped(root, p):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(p, "_test.go"):
			return nil
		}
		inFile, err := mentionsIn(root, p, r)
		found = append(found, inFile...)
		return err
	})
	return found, err
}

// skipped says which folders hold no tests of rows: those that go ignores, other
// modules, and this one, whose tests name what they please.
func skipped(root fs.FS, dir string) bool {
	if dir == "." {
		return false
	}
	_, err := fs.Stat(root, dir+"/go.mod")
	name := path.Base(dir)
	return err == nil || dir == "test/parity" || name == "testdata" || name[0] == '.' || name[0] == '_'
}

func mentionsIn(root fs.FS, file string, r *reader) ([]mention, error) {
	text, err := fs.ReadFile(root, file)
	if err != nil {
		return nil, fmt.Errorf("read tests: %w", err)
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse tests: %w", err)
	}
	var found []mention
	add := func(pos token.Pos, name string, ids []string) {
		for _, id := range ids {
			found = append(found, mention{id, path.Dir(file), file, set.Position(pos).Line, name})
		}
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			ids, end := r.ofFunction(n.Name.Name)
			add(n.Pos(), n.Name.Name[:end], ids)
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
				ids, end := r.inWords(text)
				add(n.Pos(), text[:end], ids)
			}
		}
		return true
	})
	return found, nil
}

// unknown says which mentions are of no row.
func unknown(found []mention, rows []conformance.Item) []string {
	var lines []string
	for _, m := range found {
		if !slices.ContainsFunc(rows, func(r conformance.Item) bool { return r.ID == m.id }) {
			lines = append(lines, fmt.Sprintf("%s:%d: %q names %s, which is no row%s", m.file, m.line, m.name, m.id, below(m.id, rows)))
		}
	}
	return lines
}

// below gives the rows of a section that has no ID itself.
func below(section string, rows []conformance.Item) string {
	first, last := "", ""
	for _, r := range rows {
		if strings.HasPrefix(r.ID, section+".") {
			if first == "" {
				first = r.ID
			}
			last = r.ID
		}
	}
	if first == "" {
		return ""
	}
	return fmt.Sprintf("; there are %s to %s", first, last)
}

// packages gives the folders that name rows, as go test takes them.
func packages(found []mention) []string {
	var dirs []string
	for _, m := range found {
		dirs = append(dirs, "./"+m.dir)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// named gives what tests name without running them, for a first look.
func named(found []mention) map[string][]proof {
	proofs := map[string][]proof{}
	for _, m := range found {
		proofs[m.id] = append(proofs[m.id], proof{m.dir, m.name, unrun})
	}
	return proofs
}
