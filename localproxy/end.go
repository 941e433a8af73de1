package localproxy

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// Package syscall lacks them: of linux/tcp.h.
const (
	tcpKeepIdle, tcpKeepInterval, tcpKeepCount = 4, 5, 6

	// A connection on which nothing comes is asked for its other end as Go does.
	keepAfter, keepAgain, keepTimes = 15, 15, 9

	// backlog is how many clients may wait to be taken; the kernel allows fewer perhaps.
	backlog = 4096
)

// An end is the socket of one side of a connection. It is what net.TCPConn is, without the
// system calls that tell addresses which nobody asks for.
type end struct {
	*os.File
	raw syscall.RawConn
}

// newEnd takes a socket that does not block over.
func newEnd(fd int) (end, error) {
	f := os.NewFile(uintptr(fd), "tcp")
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return end{}, err
	}
	return end{f, raw}, nil
}

// closeWrite tells the other side that nothing more comes.
func (e end) closeWrite() (err error) {
	controlled := e.raw.Control(func(fd uintptr) { err = syscall.Shutdown(int(fd), syscall.SHUT_WR) })
	return errors.Join(controlled, err)
}

// reset makes the other side see that the connection failed, not that it ended.
func (e end) reset() {
	_ = e.raw.Control(func(fd uintptr) { // who closes it is not kept from that
		_ = syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
	})
	_ = e.Close()
}

// awaitAnswer waits until an endpoint has taken a connection, or has not. Most have before
// somebody asks.
func (e end) awaitAnswer(to netip.AddrPort, patience time.Duration) error {
	if err := e.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, addr := sockaddr(to)
	var err error
	waited := e.raw.Write(func(fd uintptr) bool {
		err = syscall.Connect(int(fd), addr) // again: the kernel tells how it went
		if errors.Is(err, syscall.EISCONN) {
			err = nil
		}
		return !errors.Is(err, syscall.EALREADY) && !errors.Is(err, syscall.EINPROGRESS) && !errors.Is(err, syscall.EINTR)
	})
	if err = errors.Join(waited, os.NewSyscallError("connect", err)); err != nil {
		return err
	}
	return e.SetWriteDeadline(time.Time{})
}

// An option of a socket is its level, its name and its value.
type option [3]int

// begin makes a socket with these options, has f use it, and takes it over.
func begin(socket func(family int) (int, error), at netip.AddrPort, options []option, f func(fd int, at syscall.Sockaddr) error) (end, error) {
	family, addr := sockaddr(at)
	fd, err := socket(family)
	if err != nil {
		return end{}, err
	}
	for _, o := range options {
		if err = os.NewSyscallError("setsockopt", syscall.SetsockoptInt(fd, o[0], o[1], o[2])); err != nil {
			break
		}
	}
	if err == nil {
		err = f(fd, addr)
	}
	if err != nil {
		_ = syscall.Close(fd)
		return end{}, err
	}
	return newEnd(fd)
}

func sockaddr(at netip.AddrPort) (family int, addr syscall.Sockaddr) {
	if at.Addr().Is4() {
		return syscall.AF_INET, &syscall.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	return syscall.AF_INET6, &syscall.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
}

// listen gives a listener for clients of this host: none of them vanishes without a word, so
// nobody has to be asked whether he is there. They have the options of the listener.
func listen(at netip.AddrPort) (end, error) {
	options := []option{{syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1}, {syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1}}
	return begin(socket, at, options, func(fd int, at syscall.Sockaddr) error {
		if err := syscall.Bind(fd, at); err != nil {
			return os.NewSyscallError("bind", err)
		}
		return os.NewSyscallError("listen", syscall.Listen(fd, backlog))
	})
}

// connect begins a connection to an endpoint: see awaitAnswer.
func (c Config) connect(to netip.AddrPort) (end, error) {
	options := []option{
		{syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1}, {syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1},
		{syscall.IPPROTO_TCP, tcpKeepIdle, keepAfter}, {syscall.IPPROTO_TCP, tcpKeepInterval, keepAgain}, {syscall.IPPROTO_TCP, tcpKeepCount, keepTimes},
	}
	return begin(c.Socket, to, options, func(fd int, to syscall.Sockaddr) error {
		err := syscall.Connect(fd, to)
		if errors.Is(err, syscall.EINPROGRESS) || errors.Is(err, syscall.EINTR) {
			return nil
		}
		return os.NewSyscallError("connect", err)
	})
}

// socket makes a socket of TCP in the network of this process.
func socket(family int) (int, error) {
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, syscall.IPPROTO_TCP)
	if err != nil {
		return -1, fmt.Errorf("make socket: %w", os.NewSyscallError("socket", err))
	}
	return fd, nil
}
