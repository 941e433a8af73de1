package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// innerCgroup is where processes of a node are that are in no container, on machines
// with version 2 alone.
const innerCgroup = "machine"

// controllers are the hierarchies of version 1.
func controllers() ([]string, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	var found []string
	for line := range strings.Lines(string(text)) {
		if fields := strings.SplitN(strings.TrimSpace(line), ":", 3); len(fields) == 3 && fields[1] != "" {
			found = append(found, fields[1])
		}
	}
	return found, nil
}

// onlySecond says whether the machine has cgroups of version 2 alone.
func onlySecond() bool {
	first, err := controllers()
	return err == nil && len(first) == 0
}

// cgroupMounts mounts the machine's hierarchies, whose roots are the node's here: all
// of version 1 and version 2 where the machine has both, and version 2 alone else.
func cgroupMounts() error {
	first, err := controllers()
	if err != nil {
		return err
	}
	if len(first) == 0 {
		if err := mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, ""); err != nil {
			return err
		}
		return delegate("/sys/fs/cgroup")
	}
	if err := mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	if err := mount("cgroup2", "/sys/fs/cgroup/unified", "cgroup2", 0, ""); err != nil {
		return err
	}
	for _, c := range first {
		name, named := strings.CutPrefix(c, "name=")
		data := c
		if named {
			data = "none," + c
		}
		if err := mount("cgroup", "/sys/fs/cgroup/"+name, "cgroup", 0, data); err != nil {
			return err
		}
	}
	return nil
}

// delegate hands all controllers down. Version 2 wants a cgroup that does so to hold no
// processes itself: we go into one below, and so does who started us, see makeRoom.
func delegate(root string) error {
	inner := filepath.Join(root, innerCgroup)
	if err := folders(inner); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(inner, "cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("move into the node's inner cgroup: %w", err)
	}
	have, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("read the node's cgroup: %w", err)
	}
	for _, c := range strings.Fields(string(have)) {
		if err := handDown(root, c); err != nil {
			return fmt.Errorf("hand down the cgroup controller %s: %w", c, err)
		}
	}
	return nil
}

// handDown tries for two seconds: who started us may not have gone yet.
func handDown(root, controller string) error {
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for tries := 0; ; tries++ {
		err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+"+controller), 0)
		if !errors.Is(err, unix.EBUSY) || tries == 100 {
			return err
		}
		<-again.C
	}
}
