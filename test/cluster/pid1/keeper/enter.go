package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// namespaces gives the flags of clone and setns by the names that /proc has for them,
// in the order to enter them in: the mount namespace after what is found in /proc.
func namespaces(which string) ([]string, error) {
	switch which {
	case "net":
		return []string{"net"}, nil
	case "all":
		return []string{"cgroup", "ipc", "uts", "net", "pid", "mnt"}, nil
	}
	return nil, fmt.Errorf("no such namespaces: %q", which)
}

// enter runs a command in the namespaces of a process and returns when it has ended.
// The command dies with us: the kernel sees to it also when we are killed.
func enter(which, pid, cgroups string, args []string) error {
	names, err := namespaces(which)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find ourselves: %w", err)
	}
	if which == "all" {
		if err := join(cgroups); err != nil {
			return err
		}
	}
	// Of this thread alone, from which the child comes and which stays until it ends.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("have a root folder of our own: %w", err)
	}
	var files []*os.File
	for _, name := range names {
		f, err := os.Open(filepath.Join("/proc", pid, "ns", name))
		if err != nil {
			return fmt.Errorf("namespace of the machine: %w", err)
		}
		defer f.Close()
		files = append(files, f)
	}
	for i, f := range files {
		if err := unix.Setns(int(f.Fd()), 0); err != nil {
			return fmt.Errorf("enter %s namespace: %w", names[i], err)
		}
	}
	cmd := exec.Command(self, append([]string{"become"}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// The terminal sends an interrupt to both of us: the child decides what it means.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run %s: %w", args[0], err)
	}
	go func() { // ends with the process
		for s := range signals {
			if s == syscall.SIGTERM || s == syscall.SIGHUP {
				_ = cmd.Process.Signal(s) // it may have ended
			}
		}
	}()
	return cmd.Wait()
}

// become runs a command in our place, which dies with our parent. Go's own way to ask
// for that looks whether the parent is still the same, and takes it for dead when it is
// in another PID namespace.
func become(args []string) error {
	runtime.LockOSThread() // the kernel notes it for the thread that becomes the program
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("die with our parent: %w", err)
	}
	program, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	if err := syscall.Exec(program, args, os.Environ()); err != nil {
		return fmt.Errorf("run %s: %w", program, err)
	}
	return nil
}

// join moves this process into cgroups: into the part for processes of those that have
// one, see delegate.
func join(file string) error {
	text, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cgroups of the machine: %w", err)
	}
	for folder := range strings.Lines(string(text)) {
		folder = strings.TrimSpace(folder)
		if inner := filepath.Join(folder, innerCgroup); there(inner) {
			folder = inner
		}
		if err := os.WriteFile(filepath.Join(folder, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("go into the machine's cgroup: %w", err)
		}
	}
	return nil
}

func there(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
