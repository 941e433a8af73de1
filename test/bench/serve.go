package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"onerule/test/netns"
)

// write sets a sysctl of a namespace, named with slashes.
func write(ns *netns.NS, key, value string) error {
	return ns.Do(func() error {
		if err := os.WriteFile("/proc/sys/"+key, []byte(value), 0o644); err != nil {
			return fmt.Errorf("set sysctl %s of %s: %w", key, ns.Name(), err)
		}
		return nil
	})
}

// serve accepts connections on all addresses of the server and closes them, until
// stop is called.
func (n *pathNet) serve() (stop func(), err error) {
	var fd int
	err = n.server.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return fmt.Errorf("open the server's socket: %w", err)
		}
		if err = unix.Bind(fd, &unix.SockaddrInet4{Port: endpointPort}); err == nil {
			err = unix.Listen(fd, 4096)
		}
		if err != nil {
			_ = unix.Close(fd)
			return fmt.Errorf("listen on port %d of the server: %w", endpointPort, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var running sync.WaitGroup
	running.Go(func() {
		runtime.LockOSThread()
		for { // ends when stop shuts the socket down
			conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			if errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				return
			}
			_ = unix.Close(conn)
		}
	})
	return func() {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
		running.Wait()
		_ = unix.Close(fd)
	}, nil
}
