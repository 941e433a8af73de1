package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"onerule/test/netns"
)

// A process is a program that ends with ours.
type process struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{}
	err   error // how it ended; read it after ended is closed
}

// start starts a program in a namespace with both its streams in a log file.
//
// The kernel kills a child with parent-death signal when the thread that started
// it ends. ns.Do gives us a thread of our own and ends it when the function
// returns: so the function waits for the program, and the program dies with our
// process, even when that is killed.
func start(ns *netns.NS, log, program string, args ...string) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", program, err)
	}
	p := &process{cmd: exec.Command(program, args...), log: log, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = file, file
	// A process group of its own: an interrupt from the terminal is ours to handle.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error, 1)
	go func() { // ends with the program
		defer close(p.ended)
		defer file.Close()
		err := ns.Do(func() error {
			err := p.cmd.Start()
			started <- err
			if err == nil {
				p.err = p.cmd.Wait()
			}
			return nil
		})
		if err != nil { // the namespace could not be entered: nothing was started
			started <- err
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s in %s: %w", program, ns.Name(), err)
	}
	return p, nil
}

func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// kill ends the program and returns when it is gone. It may be gone already.
func (p *process) kill() {
	if p.running() {
		_ = p.cmd.Process.Kill() // fails only when the program has just ended by itself
		<-p.ended
	}
}

// lastWords gives the end of the log.
func (p *process) lastWords() string {
	if p == nil {
		return "it never ran"
	}
	text, err := os.ReadFile(p.log)
	if err != nil {
		return fmt.Sprintf("no log: %v", err)
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-20):], []byte("\n")))
}

// buildTool gives the path of a Go tool of a module below test/cluster, which Go
// builds when it is not in its cache.
func buildTool(ctx context.Context, folder, tool string) (string, error) {
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	root := filepath.Dir(strings.TrimSpace(string(mod)))
	cmd := exec.CommandContext(ctx, "go", "-C", filepath.Join(root, "test", "cluster", folder), "tool", "-n", tool)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return "", fmt.Errorf("build %s: %w: %s", tool, err, exit.Stderr)
		}
		return "", fmt.Errorf("build %s: %w", tool, err)
	}
	return strings.TrimSpace(string(out)), nil
}
