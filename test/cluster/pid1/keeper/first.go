package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"onerule/test/cluster/pid1"
)

// node runs the first process of a node. The cgroups come before the namespaces, since
// they are the roots of the new cgroup namespace.
func node(name, dir, cgroups string) error {
	if err := join(cgroups); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find ourselves: %w", err)
	}
	cmd := exec.Command(self, "first", "node", name, dir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS |
			unix.CLONE_NEWIPC | unix.CLONE_NEWCGROUP,
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("make namespaces: %w", err)
	}
	return errors.Join(makeRoom(cgroups), cmd.Wait())
}

// makeRoom leaves the root of a node's only cgroup: see delegate.
func makeRoom(cgroups string) error {
	text, err := os.ReadFile(cgroups)
	if err != nil {
		return fmt.Errorf("cgroups of the machine: %w", err)
	}
	folder := strings.TrimSpace(string(text))
	if !onlySecond() {
		return nil
	}
	if err := folders(filepath.Join(folder, innerCgroup)); err != nil {
		return err
	}
	return join(cgroups)
}

// first is the first process of new namespaces: it makes them look like a machine, and
// serves.
func first(isNode bool, name, dir string) error {
	// Nothing that is mounted here is seen outside.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("have mounts of our own: %w", err)
	}
	if err := mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	furnish := controlMounts
	if isNode {
		furnish = nodeMounts
	}
	if err := furnish(name, dir); err != nil {
		return err
	}
	if err := network(); err != nil {
		return err
	}
	return pid1.Serve(filepath.Join(dir, "s"))
}

// network sets up the loopback, and forwarding as a router of pods has it.
func network() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set up loopback: %w", err)
	}
	for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := os.WriteFile(filepath.Join("/proc/sys/net", key), []byte("1"), 0); err != nil {
			return fmt.Errorf("set up forwarding: %w", err)
		}
	}
	return nil
}
