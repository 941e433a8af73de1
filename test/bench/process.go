package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"onerule/test/netns"
)

// A process is a program that ends with ours at the latest.
type process struct {
	cmd    *exec.Cmd
	began  time.Duration // monotonic
	output *lastLines    // of its standard error
	ended  chan struct{}
	err    error // how it ended; read it after ended is closed
}

// spawn starts a program in a namespace. The kernel kills it when the thread that
// started it ends, so that thread waits for it.
func spawn(ns *netns.NS, cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, output: &lastLines{}, ended: make(chan struct{})}
	cmd.Stderr = p.output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error, 1)
	go func() { // ends with the program
		defer close(p.ended)
		err := ns.Do(func() error {
			p.began = monotonic()
			err := cmd.Start()
			started <- err
			if err == nil {
				p.err = cmd.Wait()
			}
			return nil
		})
		if err != nil {
			started <- err
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s in %s: %w", cmd.Path, ns.Name(), err)
	}
	return p, nil
}

// kill ends the program and returns when it is gone. It may be gone already.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// failed says how the program ended and what it said last.
func (p *process) failed() error {
	return fmt.Errorf("%s ended: %w; its last words:\n%s", p.cmd.Path, errors.Join(p.err, errors.New("too early")), p.output)
}

// lastLines keeps the end of what is written to it.
type lastLines struct {
	mu   sync.Mutex
	text []byte
}

const kept = 4 << 10

// Write takes all of b.
func (l *lastLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, b...)
	if len(l.text) > 2*kept {
		l.text = append([]byte(nil), l.text[len(l.text)-kept:]...)
	}
	return len(b), nil
}

// String gives what was kept.
func (l *lastLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text[max(0, len(l.text)-kept):])
}

// memory is what a process occupies, in bytes.
type memory struct{ peak, now int64 }

// memoryOf reads the resident set of a process from /proc.
func memoryOf(pid int) (memory, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return memory{}, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	return parseMemory(text)
}

func parseMemory(status []byte) (memory, error) {
	var m memory
	for line := range bytes.Lines(status) {
		name, value, _ := strings.Cut(string(line), ":")
		to := map[string]*int64{"VmHWM": &m.peak, "VmRSS": &m.now}[name]
		if to == nil {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return m, fmt.Errorf("read %s: %w", name, err)
		}
		*to = kib << 10
	}
	if m.peak == 0 || m.now == 0 {
		return m, errors.New("no VmHWM and VmRSS: the process is gone")
	}
	return m, nil
}

// monotonic is a clock that all processes of the machine share.
func monotonic() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0 // the clock is always there
	}
	return time.Duration(t.Nano())
}
