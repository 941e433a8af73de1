package localproxy

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
)

// Package syscall lacks them: of linux/tcp.h.
const (
	tcpKeepIdle, tcpKeepInterval, tcpKeepCount = 4, 5, 6

	// A connection on which nothing comes is asked for its other end as Go does.
	keepAfter, keepAgain, keepTimes = 15, 15, 9

	// backlog is how many clients may wait to be taken; the kernel allows fewer perhaps.
	backlog = 4096
)

// An option of a socket is its level, its name and its value.
type option [3]int

// begin makes a socket with these options, and has f use it.
func begin(socket func(family int) (int, error), at netip.AddrPort, options []option, f func(fd int, at syscall.Sockaddr) error) (int, error) {
	family, addr := sockaddr(at)
	fd, err := socket(family)
	if err != nil {
		return -1, err
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
		return -1, err
	}
	return fd, nil
}

func sockaddr(at netip.AddrPort) (family int, addr syscall.Sockaddr) {
	if at.Addr().Is4() {
		return syscall.AF_INET, &syscall.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	return syscall.AF_INET6, &syscall.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
}

// listen gives a listener for clients of this host: none of them vanishes without a word, so
// nobody has to be asked whether he is there. They have the options of the listener.
func listen(at netip.AddrPort) (int, error) {
	options := []option{{syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1}, {syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1}}
	return begin(socket, at, options, func(fd int, at syscall.Sockaddr) error {
		if err := syscall.Bind(fd, at); err != nil {
			return os.NewSyscallError("bind", err)
		}
		return os.NewSyscallError("listen", syscall.Listen(fd, backlog))
	})
}

// accept takes a client that waits; EAGAIN: there is none.
func accept(listener int) (fd int, err error) {
	for {
		fd, _, err = syscall.Accept4(listener, syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK)
		if !errors.Is(err, syscall.EINTR) && !errors.Is(err, syscall.ECONNABORTED) {
			return fd, os.NewSyscallError("accept4", err)
		}
	}
}

// connect begins a connection to an endpoint: see hasAnswered.
func (c Config) connect(to netip.AddrPort) (int, error) {
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

// hasAnswered says whether an endpoint has taken a connection, or that it does not. Most
// have when somebody asks first.
func hasAnswered(fd int, to netip.AddrPort) (bool, error) {
	_, addr := sockaddr(to)
	err := syscall.Connect(fd, addr) // again: the kernel tells how it went
	switch {
	case err == nil, errors.Is(err, syscall.EISCONN):
		return true, nil
	case errors.Is(err, syscall.EALREADY), errors.Is(err, syscall.EINPROGRESS), errors.Is(err, syscall.EINTR):
		return false, nil
	}
	return false, os.NewSyscallError("connect", err)
}

// reset closes a socket so that the other side sees that the connection failed, not that it
// ended.
func reset(fd int) {
	_ = syscall.SetsockoptLinger(fd, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1}) // who closes it is not kept from that
	_ = syscall.Close(fd)
}

// socket makes a socket of TCP in the network of this process.
func socket(family int) (int, error) {
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, syscall.IPPROTO_TCP)
	if err != nil {
		return -1, fmt.Errorf("make socket: %w", os.NewSyscallError("socket", err))
	}
	return fd, nil
}
