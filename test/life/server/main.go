// Command server is a pod of the tests of test/life: who connects is told its name, and
// gets back what it sends. At the next port it answers whether it is ready: until SIGTERM,
// after which it serves on for a while, as a server should that is about to end.
//
//	server PORT SECONDS
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: server PORT SECONDS")
	}
	port, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("port: %w", err)
	}
	seconds, err := strconv.Atoi(args[1])
	if err != nil {
		return fmt.Errorf("seconds to serve on: %w", err)
	}
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("our name: %w", err)
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	failed := make(chan error, 2)
	var ending atomic.Bool
	go func() { failed <- serve(port, name) }() // both end with the process
	go func() { failed <- tell(port+1, &ending) }()
	select {
	case err := <-failed:
		return err
	case <-asked:
		ending.Store(true)
	}
	select {
	case err := <-failed:
		return err
	case <-time.After(time.Duration(seconds) * time.Second):
		return nil
	}
}

// serve says our name to everyone, and then what they say.
func serve(port int, name string) error {
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() { // ends with the connection
			defer conn.Close()
			if _, err := fmt.Fprintln(conn, name); err == nil {
				_, _ = io.Copy(conn, conn) // the client knows best what became of it
			}
		}()
	}
}

// tell answers whether we are ready.
func tell(port int, ending *atomic.Bool) error {
	answer := func(w http.ResponseWriter, _ *http.Request) {
		if ending.Load() {
			http.Error(w, "ending", http.StatusServiceUnavailable)
		}
	}
	return http.ListenAndServe(fmt.Sprintf(":%d", port), http.HandlerFunc(answer))
}
