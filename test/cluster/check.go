package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A surroundings is what a cluster needs of the machine. Tests pass other ones in.
type surroundings struct {
	proc string // the folder /proc
	uid  int
	find func(program string) (string, error)
}

func thisMachine() surroundings {
	return surroundings{"/proc", os.Geteuid(), exec.LookPath}
}

// check says what the machine lacks, and gives the folders of our cgroup in each
// hierarchy.
func (s surroundings) check() (hierarchies []string, err error) {
	if s.uid != 0 {
		return nil, errors.New("needs root: namespaces, mounts and cgroups")
	}
	filesystems, err := os.ReadFile(filepath.Join(s.proc, "filesystems"))
	if err != nil {
		return nil, fmt.Errorf("find file systems: %w", err)
	}
	if !slices.Contains(strings.Fields(string(filesystems)), "overlay") {
		return nil, errors.New("the kernel has no overlay file system, which containers lie on (modprobe overlay)")
	}
	for _, program := range []string{"runc", "ip", "conntrack", "nft"} {
		if _, err := s.find(program); err != nil {
			return nil, fmt.Errorf("%s is missing (sh test/setup.sh %s installs it)", program, program)
		}
	}
	mounts, err := os.ReadFile(filepath.Join(s.proc, "self/mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	own, err := os.ReadFile(filepath.Join(s.proc, "self/cgroup"))
	if err != nil {
		return nil, fmt.Errorf("the kernel has no cgroups, which hold containers: %w", err)
	}
	return hierarchiesOf(string(mounts), string(own))
}

// hierarchiesOf finds where our cgroups are, from the texts of mountinfo and cgroup of
// a process: one in each hierarchy of version 1, and one of version 2. With version 2
// alone it is the root: the others hold processes, and can't hand controllers down.
func hierarchiesOf(mountinfo, own string) ([]string, error) {
	mounts := map[string]mounted{} // by controllers; version 2 has none
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) < 5 || len(right) < 3 {
			continue
		}
		switch right[0] {
		case "cgroup2":
			mounts[""] = mounted{left[4], left[3]}
		case "cgroup":
			for _, option := range strings.Split(right[2], ",") {
				mounts[option] = mounted{left[4], left[3]}
			}
		}
	}
	var found []string
	for line := range strings.Lines(own) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		first, _, _ := strings.Cut(fields[1], ",")
		if m, ok := mounts[first]; ok {
			found = append(found, m.folder(fields[2]))
		}
	}
	if only, second := strings.CutPrefix(strings.TrimSpace(own), "0::"); second && len(found) == 1 && !strings.Contains(only, "\n") {
		return []string{mounts[""].at}, nil
	}
	if len(found) == 0 {
		return nil, errors.New("no cgroups are mounted, which hold containers (mount one at /sys/fs/cgroup)")
	}
	return found, nil
}

// A mounted is where a hierarchy is mounted, and which part of it.
type mounted struct{ at, root string }

// folder gives that of a cgroup.
func (m mounted) folder(cgroup string) string {
	if m.root != "/" {
		cgroup = strings.TrimPrefix(cgroup, m.root)
	}
	return filepath.Join(m.at, cgroup)
}

// makeCgroups makes those of the cluster and of each node.
func (c *Cluster) makeCgroups() error {
	for _, n := range c.nodes {
		var all strings.Builder
		for _, g := range c.settings.Cgroups {
			own := filepath.Join(g, n.name)
			if err := os.MkdirAll(own, 0o755); err != nil {
				return fmt.Errorf("make cgroup: %w", err)
			}
			for _, folder := range []string{g, own} {
				if err := inherit(folder); err != nil {
					return err
				}
			}
			handDown(filepath.Dir(g))
			handDown(g)
			fmt.Fprintln(&all, own)
		}
		if err := os.WriteFile(n.cgroupsFile(), []byte(all.String()), 0o644); err != nil {
			return fmt.Errorf("note cgroups of %s: %w", n.name, err)
		}
	}
	return nil
}

// inherit gives a new cgroup of the hierarchy cpuset (version 1) what its parent has:
// before that, no process may go in.
func inherit(folder string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		text, err := os.ReadFile(filepath.Join(folder, "..", file))
		if _, none := os.Stat(filepath.Join(folder, "tasks")); os.IsNotExist(err) || none != nil {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, file), text, 0o644)
		}
		if err != nil {
			return fmt.Errorf("set up cgroup: %w", err)
		}
	}
	return nil
}

// handDown gives all controllers of a cgroup of version 2 to those below. Not all can
// be given, and what nodes need in the end containerd says better.
func handDown(folder string) {
	have, err := os.ReadFile(filepath.Join(folder, "cgroup.controllers"))
	if err != nil {
		return // version 1
	}
	for _, c := range strings.Fields(string(have)) {
		_ = os.WriteFile(filepath.Join(folder, "cgroup.subtree_control"), []byte("+"+c), 0)
	}
}
