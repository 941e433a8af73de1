package rig

import (
	"errors"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// By makes the daemon be run by a program that gets its command line after these
// arguments, such as setpriv.
func (d *Daemon) By(line ...string) { d.by = line }

// Env adds to the daemon's environment, as NAME=VALUE.
func (d *Daemon) Env(list ...string) { d.env = append(d.env, list...) }

// Pid gives the process while it runs.
func (d *Daemon) Pid() int {
	d.t.Helper()
	if d.cmd == nil {
		d.t.Fatal("oneruled does not run")
	}
	return d.cmd.Process.Pid
}

// Signal sends a signal and does not wait.
func (d *Daemon) Signal(signal unix.Signal) {
	d.t.Helper()
	if err := unix.Kill(d.Pid(), signal); err != nil {
		d.t.Fatalf("signal oneruled: %v", err)
	}
}

// Ended waits until the daemon has ended by itself, for 20 s at the most, and gives its
// exit code, or -1 if a signal ended it.
func (d *Daemon) Ended() int {
	d.t.Helper()
	cmd, ended := d.cmd, make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the process, which Cleanup kills
	select {
	case err := <-ended:
		d.cmd = nil
		if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
			d.t.Fatalf("wait for oneruled: %v", err)
		}
	case <-time.After(20 * time.Second):
		d.t.Fatal("oneruled does not end within 20 s")
	}
	return cmd.ProcessState.ExitCode()
}

// LastLine gives the last line that the daemon has said.
func (d *Daemon) LastLine() string {
	lines := strings.Split(strings.TrimSpace(d.Log()), "\n")
	return lines[len(lines)-1]
}
