// Package test holds the rules of the whole repository: which package may import
// which, what stands at package level, how long files and functions may be.
package test

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Budgets, in lines.
const (
	maxFile     = 400
	maxTestFile = 800
	maxFunction = 60
)

const module = "onerule"

func TestRepositoryKeepsItsRules(t *testing.T) {
	found, err := check(os.DirFS(".."))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		t.Error(f)
	}
}

// A finding is a place where a rule is broken.
type finding struct {
	file string
	line int // 0: the file or folder as a whole
	text string
}

func (f finding) String() string {
	if f.line == 0 {
		return f.file + ": " + f.text
	}
	return fmt.Sprintf("%s:%d: %s", f.file, f.line, f.text)
}

// A source is a Go file.
type source struct {
	path  string // from the root, with slashes
	lines int
	set   *token.FileSet
	ast   *ast.File
}

func (s *source) dir() string { return path.Dir(s.path) }

// test says whether the file is test code: nothing of the product.
func (s *source) test() bool {
	return strings.HasSuffix(s.path, "_test.go") || within(s.dir(), "test")
}

func (s *source) at(pos token.Pos, format string, args ...any) finding {
	return finding{s.path, s.set.Position(pos).Line, fmt.Sprintf(format, args...)}
}

// check gives all findings of a repository, sorted by place.
func check(root fs.FS) ([]finding, error) {
	sources, err := parse(root)
	if err != nil {
		return nil, err
	}
	found, err := topLevel(root)
	if err != nil {
		return nil, err
	}
	packages := map[string][]*source{}
	for _, s := range sources {
		for _, rule := range []func(*source) []finding{arrows, libraries, packageState, noInit, budgets, packageName} {
			found = append(found, rule(s)...)
		}
		packages[s.dir()] = append(packages[s.dir()], s)
	}
	for _, files := range packages {
		found = append(found, packageComment(files)...)
	}
	slices.SortFunc(found, func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line), cmp.Compare(a.text, b.text))
	})
	return found, nil
}

// parse reads every Go file of the module, whatever its build constraints.
func parse(root fs.FS) ([]*source, error) {
	var sources []*source
	err := fs.WalkDir(root, ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && skipped(root, p):
			return fs.SkipDir
		case d.IsDir() || path.Ext(p) != ".go":
			return nil
		}
		text, err := fs.ReadFile(root, p)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, p, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		sources = append(sources, &source{path: p, lines: bytes.Count(text, []byte("\n")), set: set, ast: file})
		return nil
	})
	return sources, err
}

// skipped says which folders hold no code of this module.
func skipped(root fs.FS, dir string) bool {
	if dir == "." {
		return false
	}
	if _, err := fs.Stat(root, dir+"/go.mod"); err == nil {
		return true
	}
	name := path.Base(dir)
	return name == "testdata" || dir == "bin" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")
}

// topLevel holds the list of what stands at the top. bin is what make builds.
func topLevel(root fs.FS) ([]finding, error) {
	known := []string{
		"plugin", "daemon", "bpf", "nft", "localproxy", "install", "test", "docs", "bin",
		"go.mod", "go.sum", "Makefile", "README.md", "LICENSE",
	}
	entries, err := fs.ReadDir(root, ".")
	if err != nil {
		return nil, err
	}
	var found []finding
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && !slices.Contains(known, e.Name()) {
			found = append(found, finding{e.Name(), 0, "belongs in one of the folders that the top level has"})
		}
	}
	return found, nil
}

// within says whether a folder or an import path is one or lies below it.
func within(p, folder string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }

func withinAny(p string, folders []string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return within(p, f) })
}

// standard says whether an import path is of the standard library: its first part
// has no dot and is not ours.
func standard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return first != module && !strings.Contains(first, ".")
}

func imports(s *source) map[string]token.Pos {
	found := map[string]token.Pos{}
	for _, i := range s.ast.Imports {
		if p, err := strconv.Unquote(i.Path.Value); err == nil {
			found[p] = i.Pos()
		}
	}
	return found
}

// arrows holds which of our packages may import which.
func arrows(s *source) []finding {
	var found []finding
	for imported, pos := range imports(s) {
		ours, isOurs := strings.CutPrefix(imported, module+"/")
		if !isOurs {
			continue
		}
		for _, end := range [][2]string{{"plugin", "daemon"}, {"daemon", "plugin"}} {
			if within(s.dir(), end[0]) && within(ours, end[1]) {
				found = append(found, s.at(pos, "%s and %s never import each other", end[0], end[1]))
			}
		}
		if s.test() {
			continue
		}
		if within(ours, "test") {
			found = append(found, s.at(pos, "the product does not import test code"))
			continue
		}
		if allowed, limited := ourImports(s.dir()); limited && !withinAny(ours, allowed) {
			found = append(found, s.at(pos, "imports %s, and may import of ours only %s", imported, list(allowed)))
		}
	}
	return found
}

// ourImports gives the folders of ours that a folder may import, where they are
// limited.
func ourImports(dir string) (allowed []string, limited bool) {
	if within(dir, "daemon/model") || within(dir, "daemon/fabric/layout") {
		return nil, true
	}
	if within(dir, "daemon/plan") {
		return []string{"daemon/model"}, true
	}
	if within(dir, "plugin") {
		return []string{"plugin", "nft"}, true
	}
	for _, leaf := range []string{"nft", "bpf", "localproxy", "install"} {
		if within(dir, leaf) {
			return []string{leaf}, true
		}
	}
	return nil, false
}

func list(folders []string) string {
	if len(folders) == 0 {
		return "nothing"
	}
	return strings.Join(folders, ", ")
}

// libraries holds where each third-party library ends, and what pure packages do
// without.
func libraries(s *source) []finding {
	if s.test() {
		return nil
	}
	ends := map[string]string{
		"k8s.io/client-go":           "daemon/source",
		"k8s.io/api":                 "daemon/source",
		"sigs.k8s.io/knftables":      "nft",
		"github.com/google/nftables": "nft",
		"github.com/cilium/ebpf":     "bpf",
	}
	onlyStandard := []string{"daemon/model", "daemon/plan", "daemon/fabric/layout", "localproxy"}
	pure := []string{"daemon/model", "daemon/plan", "daemon/fabric/layout"}
	impure := []string{"context", "log", "net", "net/http", "os", "syscall"} // net/netip is none
	var found []finding
	for imported, pos := range imports(s) {
		for library, home := range ends {
			if within(imported, library) && !within(s.dir(), home) {
				found = append(found, s.at(pos, "%s ends in %s", library, home))
			}
		}
		ours := within(imported, module)
		if withinAny(s.dir(), onlyStandard) && !ours && !standard(imported) {
			found = append(found, s.at(pos, "imports %s, and may import the standard library only", imported))
		}
		if withinAny(s.dir(), pure) && (slices.Contains(impure, imported) || within(imported, "log") || within(imported, "os")) {
			found = append(found, s.at(pos, "imports %s, and is pure", imported))
		}
	}
	return found
}

// packageState forbids variables of packages in the product: not assertions, not
// embedded files, not errors to compare with, not the version that the linker sets
// in a program.
func packageState(s *source) []finding {
	if s.test() {
		return nil
	}
	var found []finding
	for _, d := range s.ast.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.VAR {
			continue
		}
		for _, spec := range decl.Specs {
			v := spec.(*ast.ValueSpec)
			if embedded(decl.Doc) || embedded(v.Doc) || sentinels(v) {
				continue
			}
			for _, name := range v.Names {
				if name.Name != "_" && !(name.Name == "version" && s.ast.Name.Name == "main") {
					found = append(found, s.at(name.Pos(), "variable %s at package level", name.Name))
				}
			}
		}
	}
	return found
}

func embedded(doc *ast.CommentGroup) bool {
	return doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool {
		return strings.HasPrefix(c.Text, "//go:embed ")
	})
}

// sentinels says whether all values are errors.New("...").
func sentinels(v *ast.ValueSpec) bool {
	for _, value := range v.Values {
		call, ok := value.(*ast.CallExpr)
		if !ok {
			return false
		}
		f, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || f.Sel.Name != "New" {
			return false
		}
		if p, ok := f.X.(*ast.Ident); !ok || p.Name != "errors" {
			return false
		}
	}
	return len(v.Values) > 0
}

func functions(s *source) []*ast.FuncDecl {
	var found []*ast.FuncDecl
	for _, d := range s.ast.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			found = append(found, f)
		}
	}
	return found
}

func noInit(s *source) []finding {
	var found []finding
	for _, f := range functions(s) {
		if f.Name.Name == "init" && f.Recv == nil && !s.test() {
			found = append(found, s.at(f.Pos(), "func init"))
		}
	}
	return found
}

// budgets holds how long files and functions may be. Nobody reads generated code.
func budgets(s *source) []finding {
	if ast.IsGenerated(s.ast) {
		return nil
	}
	limit := maxFile
	if s.test() {
		limit = maxTestFile
	}
	var found []finding
	if s.lines > limit {
		found = append(found, finding{s.path, limit + 1, fmt.Sprintf("%d lines, more than %d", s.lines, limit)})
	}
	for _, f := range functions(s) {
		n := s.set.Position(f.End()).Line - s.set.Position(f.Pos()).Line + 1
		if n > maxFunction && !s.test() {
			found = append(found, s.at(f.Pos(), "function %s has %d lines, more than %d", f.Name.Name, n, maxFunction))
		}
	}
	return found
}

// packageName refuses names that say nothing.
func packageName(s *source) []finding {
	name := strings.TrimSuffix(s.ast.Name.Name, "_test")
	for _, empty := range []string{"manager", "helper", "helpers", "util", "utils", "common"} {
		if name == empty {
			return []finding{s.at(s.ast.Name.Pos(), "a package named %s says nothing", name)}
		}
	}
	return nil
}

// packageComment wants one comment for each package, in one of its files.
func packageComment(files []*source) []finding {
	slices.SortFunc(files, func(a, b *source) int { return cmp.Compare(a.path, b.path) })
	product := slices.DeleteFunc(slices.Clone(files), func(s *source) bool { return strings.HasSuffix(s.path, "_test.go") })
	if len(product) > 0 {
		files = product // a comment in a test file is not shown
	}
	var found []finding
	var first *source
	for _, s := range files {
		switch {
		case s.ast.Doc == nil:
		case first == nil:
			first = s
			if want := "Package " + s.ast.Name.Name + " "; s.ast.Name.Name != "main" && !strings.HasPrefix(s.ast.Doc.Text(), want) {
				found = append(found, s.at(s.ast.Doc.Pos(), "the package comment does not begin with %q", want))
			}
		default:
			found = append(found, s.at(s.ast.Doc.Pos(), "package %s has its comment in %s already", s.ast.Name.Name, first.path))
		}
	}
	if first == nil {
		found = append(found, files[0].at(files[0].ast.Package, "package %s has no comment", files[0].ast.Name.Name))
	}
	return found
}
