package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"onerule/test/netns"
)

// serveAnswers gives each client what it asks for.
func serveAnswers(on *netns.NS, at netip.AddrPort) (stop func(), err error) {
	full := make([]byte, payload)
	return serveConns(on, at, func(conn net.Conn) {
		var what [1]byte
		for {
			if _, err := io.ReadFull(conn, what[:]); err != nil {
				return // the client has closed
			}
			answer := full
			if what[0] == askByte {
				answer = full[:1]
			}
			_, _ = conn.Write(answer) // the client says what is missing
		}
	})
}

// serveSink reads all that clients send, and says with one byte that they have ended.
func serveSink(on *netns.NS, at netip.AddrPort) (stop func(), err error) {
	return serveConns(on, at, func(conn net.Conn) {
		buf := make([]byte, 256<<10)
		for {
			if _, err := conn.Read(buf); err != nil {
				_, _ = conn.Write([]byte{0})
				return
			}
		}
	})
}

// serveConns gives each connection to f and closes it then.
func serveConns(on *netns.NS, at netip.AddrPort, f func(net.Conn)) (stop func(), err error) {
	var l net.Listener
	err = on.Do(func() (err error) {
		l, err = net.Listen("tcp", at.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s in %s: %w", at, on.Name(), err)
	}
	go func() { // ends with the listener
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the client
				defer conn.Close()
				f(conn)
			}()
		}
	}()
	return func() { _ = l.Close() }, nil
}

// transfer sends so much over one connection, until the other end says that it has it.
func transfer(to netip.AddrPort, size int) (time.Duration, error) {
	conn, err := net.Dial("tcp", to.String())
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	buf := make([]byte, 256<<10)
	start := monotonic()
	for sent := 0; sent < size; sent += len(buf) {
		if _, err := conn.Write(buf); err != nil {
			return 0, fmt.Errorf("send to %s: %w", to, err)
		}
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return 0, fmt.Errorf("end what is sent to %s: %w", to, err)
	}
	if _, err := conn.Read(buf[:1]); err != nil {
		return 0, fmt.Errorf("wait for %s to have it all: %w", to, err)
	}
	return monotonic() - start, nil
}
