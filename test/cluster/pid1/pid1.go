// Package pid1 is the first process of a machine's PID namespace: it starts and stops
// programs there for who asks at its socket, and collects those that nobody waits for.
// Its own end ends everything in the namespace.
package pid1

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Command is what to run.
type Command struct {
	Name string   // what it is stopped by
	Args []string // the program's path first
	Env  []string // beside that of the first process
	Log  string   // file that gets both its streams
}

// A request is what a client asks for, one in each connection.
type request struct {
	Do      string // start, stop, runs
	Command Command
	Signal  int
}

// A reply is the answer.
type reply struct {
	Error string
	Runs  bool
	Ended string // how it ended, if it does not run
}

// Start runs a command. Its output goes to the end of its log. One of that name that
// runs already is an error.
func Start(socket string, c Command) error {
	_, err := ask(socket, request{Do: "start", Command: c})
	return err
}

// Stop sends a signal, and SIGKILL after 10 s to what is left, and returns when the
// command has ended.
func Stop(socket, name string, signal syscall.Signal) error {
	_, err := ask(socket, request{Do: "stop", Command: Command{Name: name}, Signal: int(signal)})
	return err
}

// Runs says whether a command runs, and how it ended if it does not.
func Runs(socket, name string) (runs bool, ended string, err error) {
	r, err := ask(socket, request{Do: "runs", Command: Command{Name: name}})
	return r.Runs, r.Ended, err
}

// PID gives the number, in our PID namespace, of the process that serves a socket.
func PID(socket string) (int, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return 0, fmt.Errorf("find the first process: %w", err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("find the first process: %w", err)
	}
	var peer *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, fmt.Errorf("find the first process: %w", err)
	}
	if failed != nil {
		return 0, fmt.Errorf("find the first process: %w", failed)
	}
	return int(peer.Pid), nil
}

// ask sends a request and reads the answer.
func ask(socket string, r request) (reply, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return reply{}, fmt.Errorf("ask the first process: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(killAfter + 20*time.Second)); err != nil {
		return reply{}, fmt.Errorf("ask the first process: %w", err)
	}
	var a reply
	if err := errors.Join(json.NewEncoder(conn).Encode(r), json.NewDecoder(conn).Decode(&a)); err != nil {
		return reply{}, fmt.Errorf("ask the first process: %w", err)
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}
