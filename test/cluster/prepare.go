package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"onerule/test/cluster/pid1"
)

// DefaultDir is where a cluster is kept that nobody names a folder for.
const DefaultDir = "/var/tmp/onerule-cluster"

func orDefault(dir string) string { return cmp.Or(dir, DefaultDir) }

func nodeName(n int) string { return "n" + strconv.Itoa(n) }

// prepare checks the options and the machine, and makes the folders. What it leaves
// when it fails is nothing.
func prepare(ctx context.Context, o *Options, cache *Cache) (_ *Cluster, err error) {
	o.Dir, o.Family, o.With = orDefault(o.Dir), cmp.Or(o.Family, IPv4), cmp.Or(o.With, Onerule)
	o.Nodes = cmp.Or(o.Nodes, 2)
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, fmt.Errorf("folder of the cluster: %w", err)
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	if missing := cache.Missing(); len(missing) > 0 {
		return nil, fmt.Errorf("not built yet: %s (bin/e2e build does)", strings.Join(missing, ", "))
	}
	if err := o.image(cache.root); err != nil {
		return nil, err
	}
	hierarchies, err := thisMachine().check()
	if err != nil {
		return nil, err
	}
	if err := makeRoom(o.Dir); err != nil {
		return nil, err
	}
	s := settings{Nodes: o.Nodes, Family: o.Family, With: o.With, Pieces: cache.folders}
	name := fmt.Sprintf("onerule-%08x", rand.Uint32()) // a process may have several
	for _, h := range hierarchies {
		s.Cgroups = append(s.Cgroups, filepath.Join(h, name))
	}
	if err := s.write(o.Dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(o.Dir))
	}
	if _, err := buildKeeper(ctx, cache.root, o.Dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(o.Dir))
	}
	c := assemble(o.Dir, s, cache)
	c.say = timed(o.Out)
	return c, nil
}

// check says what is wrong with the options.
func (o *Options) check() error {
	if !slices.Contains(Families(), o.Family) {
		return fmt.Errorf("no such IP family: %q (ipv4, dual, dual6 or ipv6)", o.Family)
	}
	if o.Nodes < 1 || o.Nodes > maxNodes {
		return fmt.Errorf("%d nodes: from 1 to %d are possible", o.Nodes, maxNodes)
	}
	for _, w := range []string{Onerule, OneruleBinaries, KubeProxy, KubeProxyTables, Nothing} {
		if o.With == w {
			return nil
		}
	}
	return fmt.Errorf("no such network: %q (%s, %s, %s, %s or %s)", o.With, Onerule, OneruleBinaries, KubeProxy, KubeProxyTables, Nothing)
}

// makeRoom makes the folder, after what a cluster has left that no longer runs.
func makeRoom(dir string) error {
	if _, err := pid1.PID(filepath.Join(dir, "control", "s")); err == nil {
		return fmt.Errorf("a cluster runs already in %s: take it down first (make cluster-down)", dir)
	}
	if _, err := os.Stat(dir); err == nil {
		if _, err := os.Stat(filepath.Join(dir, settingsFile)); err != nil {
			return fmt.Errorf("%s is there, and is no cluster's: remove it, or name another folder", dir)
		}
		if err := remove(dir); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("folder of the cluster: %w", err)
	}
	return nil
}

const settingsFile = "cluster.json"

func (s settings) write(dir string) error {
	text, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("settings of the cluster: %w", err)
	}
	// First of all: without it nobody removes the folder.
	if err := os.WriteFile(filepath.Join(dir, settingsFile), text, 0o644); err != nil {
		return fmt.Errorf("settings of the cluster: %w", err)
	}
	machines := []string{"control"}
	for i := range s.Nodes {
		machines = append(machines, nodeName(i+1))
	}
	for _, m := range machines {
		if err := os.MkdirAll(filepath.Join(dir, m, "log"), 0o755); err != nil {
			return fmt.Errorf("folder of %s: %w", m, err)
		}
	}
	return nil
}

// load reads the settings of a cluster.
func load(ctx context.Context, dir string) (*Cluster, error) {
	s, err := readSettings(dir)
	if os.IsNotExist(err) {
		return nil, fmt.Errorf("no cluster runs in %s: start one first (make cluster-up)", dir)
	}
	if err != nil {
		return nil, err
	}
	root, err := repository(ctx)
	if err != nil {
		return nil, err
	}
	return assemble(dir, s, &Cache{root: root, folders: s.Pieces, programs: pieces(), images: true}), nil
}

func readSettings(dir string) (s settings, err error) {
	text, err := os.ReadFile(filepath.Join(dir, settingsFile))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("settings of the cluster in %s: %w", dir, err)
	}
	return s, nil
}

// assemble makes the machines of a cluster, none of which needs to run.
func assemble(dir string, s settings, cache *Cache) *Cluster {
	c := &Cluster{dir: dir, settings: s, pieces: cache, say: timed(nil)}
	machine := func(name string, number int) *Machine {
		return &Machine{
			name: name, number: number, dir: filepath.Join(dir, name), family: s.Family,
			keeper: filepath.Join(dir, "bin", "keeper"), pieces: cache,
		}
	}
	c.control = machine("control", 0)
	c.control.addresses = s.Family.controlAddresses()
	c.control.commands = c.controlCommands()
	for i := range s.Nodes {
		n := machine(nodeName(i+1), i+1)
		n.addresses = s.Family.nodeAddresses(n.number)
		n.commands = c.nodeCommands(n)
		c.nodes = append(c.nodes, n)
	}
	return c
}

// timed gives a function that prints lines with the time since now.
func timed(w io.Writer) func(string, ...any) {
	if w == nil {
		return func(string, ...any) {}
	}
	begin := time.Now()
	return func(format string, args ...any) {
		fmt.Fprintf(w, "%6.1f s  %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
	}
}
