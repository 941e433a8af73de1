package plugin

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// A namespace is a pod's network namespace, which stays as long as it is open.
type namespace struct{ fd int }

// ownNamespace leads to that of the calling thread.
const ownNamespace = "/proc/thread-self/ns/net"

// openNamespace refuses what is no namespace at all; of which kind it is, entering it shows.
func openNamespace(path string) (*namespace, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Statfs_t
	err = unix.Fstatfs(fd, &st)
	if err == nil && st.Type != unix.NSFS_MAGIC {
		err = errors.New("it is no namespace")
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &namespace{fd}, nil
}

func (n *namespace) close() { _ = unix.Close(n.fd) }

// do does something in the namespace, in a goroutine that has its thread for itself. A
// thread that can't come back ends with it.
func (n *namespace) do(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		back, err := n.enter()
		if err == nil {
			err = errors.Join(f(), back())
		}
		done <- err
	}()
	return <-done
}

// enter gives what brings the thread back, and lets it go on with others then.
func (n *namespace) enter() (back func() error, err error) {
	own, err := unix.Open(ownNamespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the plugin's namespace: %w", err)
	}
	if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
		_ = unix.Close(own)
		return nil, fmt.Errorf("enter: %w", err)
	}
	return func() error {
		defer func() { _ = unix.Close(own) }()
		if err := unix.Setns(own, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("come back: %w", err)
		}
		runtime.UnlockOSThread()
		return nil
	}, nil
}
