package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"onerule/test/cluster/pid1"
)

// Down ends the cluster in a folder, whoever started it, and removes what it left.
// Empty: DefaultDir.
func Down(dir string) error {
	dir = orDefault(dir)
	if _, err := readSettings(dir); os.IsNotExist(err) {
		return fmt.Errorf("no cluster in %s", dir)
	}
	return remove(dir)
}

// remove ends the first process of the control plane. The kernel ends with it all
// that runs in its PID namespace, and those of the nodes below it, and lets go of
// networks and mounts. Then cgroups and files go.
func remove(dir string) error {
	s, err := readSettings(dir)
	if err != nil {
		return fmt.Errorf("take down the cluster: %w", err)
	}
	if pid, err := pid1.PID(filepath.Join(dir, "control", "s")); err == nil {
		if err := end(pid, filepath.Join(dir, "bin", "keeper")); err != nil {
			return fmt.Errorf("take down the cluster: %w", err)
		}
	}
	for _, g := range s.Cgroups {
		if err := removeCgroup(g); err != nil {
			return fmt.Errorf("take down the cluster: %w", err)
		}
	}
	return removeFolder(dir)
}

// end kills a process if it is the one that it is taken for, and waits until it is
// gone.
func end(pid int, program string) error {
	cmdline, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return nil // it has just ended
	}
	if got, _, _ := strings.Cut(string(cmdline), "\x00"); got != program {
		return fmt.Errorf("process %d is %s, not the cluster's: left alone", pid, got)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil // it has just ended
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end process %d: %w", pid, err)
	}
	// Readable when it is gone, after all others of its namespace.
	for begin := time.Now(); time.Since(begin) < time.Minute; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000)
		if n > 0 || (err != nil && !errors.Is(err, unix.EINTR)) {
			return nil
		}
	}
	return fmt.Errorf("process %d has not ended within a minute", pid)
}

// removeCgroup removes a cgroup and those below it, deepest first. The kernel may take
// a moment to see that the last process is gone.
func removeCgroup(root string) error {
	err := until(context.Background(), 5*time.Second, func() (last error) {
		var all []string
		_ = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, p)
			}
			return nil // what goes meanwhile needs no removal
		})
		slices.Reverse(all)
		for _, p := range all {
			if err := os.Remove(p); err != nil && !os.IsNotExist(err) {
				last = err
			}
		}
		return last
	})
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return nil
}

// removeFolder removes the state, unless something is mounted below it here: then it
// would go, too.
func removeFolder(dir string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			return fmt.Errorf("%s is mounted: unmount it, then remove %s", fields[4], dir)
		}
	}
	// Not in one go: the last processes' files may be on their way out.
	if err := until(context.Background(), 5*time.Second, func() error { return os.RemoveAll(dir) }); err != nil {
		return fmt.Errorf("remove the cluster's state: %w", err)
	}
	return nil
}
