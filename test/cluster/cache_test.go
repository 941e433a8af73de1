package cluster

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// smallCache has one piece that is built in a second, in a folder of the test's.
func smallCache(t *testing.T) *Cache {
	t.Helper()
	root, err := repository(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := newCache(root, filepath.Join(t.TempDir(), "cache"), pieces()[:1], false)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func build(t *testing.T, c *Cache) (said string) {
	t.Helper()
	var out bytes.Buffer
	if err := c.Build(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestAPieceThatIsNotWholeIsBuiltAgain(t *testing.T) {
	c := smallCache(t)
	if said := build(t, c); !strings.HasPrefix(said, "[ 1 of 1] pause ... ") {
		t.Errorf("the first build says %q", said)
	}
	whole, err := os.ReadFile(c.Program("pause"))
	if err != nil {
		t.Fatal(err)
	}
	if said := build(t, c); said != "" {
		t.Errorf("the second build says %q, and has nothing to do", said)
	}
	for name, spoil := range map[string]func() error{
		"truncated":          func() error { return os.Truncate(c.Program("pause"), 1000) },
		"grown":              func() error { return os.Truncate(c.Program("pause"), int64(len(whole))+1) },
		"gone":               func() error { return os.Remove(c.Program("pause")) },
		"without its record": func() error { return os.Remove(c.record("pause")) },
		"with half a record": func() error { return os.WriteFile(c.record("pause"), nil, 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := spoil(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"pause"}, c.Missing()); diff != "" {
				t.Fatalf("missing (-want +got):\n%s", diff)
			}
			build(t, c)
			again, err := os.ReadFile(c.Program("pause"))
			if err != nil || !bytes.Equal(whole, again) {
				t.Errorf("built again: %d bytes, want %d; %v", len(again), len(whole), err)
			}
			if missing := c.Missing(); len(missing) != 0 {
				t.Errorf("still missing: %s", missing)
			}
		})
	}
	left, err := filepath.Glob(filepath.Join(c.dir, "half-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("half-built pieces are left: %s, %v", left, err)
	}
}

func TestABuildThatFailsLeavesNoPiece(t *testing.T) {
	c := smallCache(t)
	c.programs = append(c.programs, piece{name: "broken", module: ours, path: "./no/such/package"})
	var out bytes.Buffer
	err := c.Build(t.Context(), &out)
	if err == nil || !strings.HasPrefix(err.Error(), "build broken: ") {
		t.Errorf("error is %v", err)
	}
	if diff := cmp.Diff([]string{"broken"}, c.Missing()); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
}

func TestAClusterNamesThePiecesThatItLacks(t *testing.T) {
	c := smallCache(t)
	_, err := up(t.Context(), Options{Dir: filepath.Join(t.TempDir(), "c"), With: Nothing}, c)
	want := "start a cluster: not built yet: pause (bin/e2e build does)"
	if err == nil || err.Error() != want {
		t.Errorf("error is %v, want %s", err, want)
	}
}

func TestVersionsComeFromGoMod(t *testing.T) {
	root, err := repository(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pieces() {
		t.Run(p.name, func(t *testing.T) {
			args, err := p.arguments(root)
			if err != nil {
				t.Fatal(err)
			}
			flags := args[len(args)-1]
			for _, word := range []string{"VERSION", "MAJOR", "MINOR"} {
				if strings.Contains(strings.ReplaceAll(flags, ".Version=", ""), word) {
					t.Errorf("%s is not filled in: %s", word, flags)
				}
			}
			if p.versioned != "" {
				version, err := moduleVersion(filepath.Join(root, p.module), p.versioned)
				if err != nil || !strings.Contains(flags, "ersion="+version) {
					t.Errorf("flags %s do not have version %s: %v", flags, version, err)
				}
			}
		})
	}
}

func TestPackagesAreInTheirModules(t *testing.T) {
	root, err := repository(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	packages := map[string][]string{}
	for _, p := range pieces() {
		packages[p.module] = append(packages[p.module], p.path)
	}
	for module, paths := range packages {
		list := exec.CommandContext(t.Context(), "go", append([]string{"list", "-find"}, paths...)...)
		list.Dir = filepath.Join(root, module)
		list.Env = append(os.Environ(), "GOFLAGS=")
		if out, err := list.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", module, err, out)
		}
	}
}
