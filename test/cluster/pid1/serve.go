package pid1

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// killAfter is how long a command may take to end.
const killAfter = 10 * time.Second

// processes are what the first process started.
type processes struct {
	mu     sync.Mutex
	byName map[string]*process
	byPID  map[int]*process
}

// A process is a command that was started.
type process struct {
	pid   int
	ended chan struct{}
	how   string // read it after ended is closed
}

func (p *process) runs() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Serve answers at a socket until SIGTERM. Only the first process of a PID namespace
// may call it: it waits for every child, and gets those of others that have ended.
func Serve(socket string) error {
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	all := &processes{byName: map[string]*process{}, byPID: map[int]*process{}}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("serve the first process: %w", err)
	}
	go func() { // ends with the process
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go all.answer(conn)
		}
	}()
	for {
		select {
		case <-children:
			all.reap()
		case <-end:
			return nil
		}
	}
}

func (all *processes) answer(conn net.Conn) {
	defer conn.Close()
	var r request
	if json.NewDecoder(conn).Decode(&r) != nil {
		return // who only wanted to know whether somebody is here
	}
	a, err := all.do(r)
	if err != nil {
		a.Error = err.Error()
	}
	_ = json.NewEncoder(conn).Encode(a) // nobody is left to be told
}

func (all *processes) do(r request) (reply, error) {
	switch r.Do {
	case "start":
		return reply{}, all.start(r.Command)
	case "stop":
		all.stop(r.Command.Name, syscall.Signal(r.Signal))
		return reply{}, nil
	case "runs":
		p := all.find(r.Command.Name)
		if p == nil {
			return reply{Ended: "never started"}, nil
		}
		if p.runs() {
			return reply{Runs: true}, nil
		}
		return reply{Ended: p.how}, nil
	}
	return reply{}, fmt.Errorf("no such request: %q", r.Do)
}

func (all *processes) find(name string) *process {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.byName[name]
}

// start holds the lock until the child is known, so that reap finds it however soon
// it ends.
func (all *processes) start(c Command) error {
	all.mu.Lock()
	defer all.mu.Unlock()
	if p := all.byName[c.Name]; p != nil && p.runs() {
		return fmt.Errorf("%s runs already", c.Name)
	}
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("log of %s: %w", c.Name, err)
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return fmt.Errorf("input of %s: %w", c.Name, err)
	}
	defer null.Close()
	// Not os/exec: it would wait for the child, as reap does.
	pid, err := syscall.ForkExec(c.Args[0], c.Args, &syscall.ProcAttr{
		Env:   append(os.Environ(), c.Env...),
		Files: []uintptr{null.Fd(), log.Fd(), log.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("run %s: %w", c.Args[0], err)
	}
	p := &process{pid: pid, ended: make(chan struct{})}
	all.byName[c.Name], all.byPID[pid] = p, p
	return nil
}

// stop returns when the process has ended.
func (all *processes) stop(name string, s syscall.Signal) {
	p := all.find(name)
	if p == nil || !p.runs() {
		return
	}
	_ = syscall.Kill(p.pid, s) // fails if it has just ended
	late := time.NewTimer(killAfter)
	defer late.Stop()
	select {
	case <-p.ended:
	case <-late.C:
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
		<-p.ended
	}
}

// reap collects all children that have ended.
func (all *processes) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		all.mu.Lock()
		p := all.byPID[pid]
		delete(all.byPID, pid)
		all.mu.Unlock()
		if p != nil {
			p.how = how(status)
			close(p.ended)
		}
	}
}

// how says in words how a process ended.
func how(s syscall.WaitStatus) string {
	if s.Signaled() {
		return "ended by " + s.Signal().String()
	}
	return fmt.Sprintf("ended with %d", s.ExitStatus())
}
