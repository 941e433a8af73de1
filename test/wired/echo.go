package wired

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"onerule/test/netns"
)

// Patience is how long a transfer may take.
const Patience = 10 * time.Second

// Echo sends back what comes, by TCP and by UDP.
func Echo(t testing.TB, on *netns.NS, at netip.AddrPort) {
	t.Helper()
	var l net.Listener
	var c net.PacketConn
	err := on.Do(func() (err error) {
		if l, err = net.Listen("tcp", at.String()); err != nil {
			return err
		}
		c, err = net.ListenPacket("udp", at.String())
		return err
	})
	if err != nil {
		t.Fatalf("echo at %s: %v", at, err)
	}
	t.Cleanup(func() { _ = errors.Join(l.Close(), c.Close()) }) // which ends both goroutines
	go echoTCP(l)
	go echoUDP(c)
}

func echoTCP(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() { // ends with the connection
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}()
	}
}

func echoUDP(c net.PacketConn) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(buf[:n], from)
	}
}

// headers gives how many bytes of a UDP packet are not payload.
func headers(a netip.Addr) int {
	if a.Is4() {
		return 28
	}
	return 48
}

// Whole sends a UDP packet of so many bytes, which may not be fragmented, and waits for its
// echo. It gives the MTU of the way as the sender knows it afterwards.
func Whole(from *netns.NS, to netip.AddrPort, size int, limit time.Duration) (mtu int, err error) {
	err = from.Do(func() error {
		conn, err := net.Dial("udp", to.String())
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		udp := conn.(*net.UDPConn)
		if err := errors.Join(conn.SetDeadline(time.Now().Add(limit)), forbidFragments(udp, to.Addr())); err != nil {
			return err
		}
		err = exchange(conn, size-headers(to.Addr()))
		mtu = pathMTU(udp, to.Addr())
		return err
	})
	if err != nil {
		err = fmt.Errorf("%d bytes from %s to %s: %w", size, from.Name(), to.Addr(), err)
	}
	return mtu, err
}

func exchange(conn net.Conn, size int) error {
	sent, got := bytes.Repeat([]byte{0xa5}, size), make([]byte, size+1)
	if _, err := conn.Write(sent); err != nil {
		return err
	}
	n, err := conn.Read(got)
	if err == nil && !bytes.Equal(got[:n], sent) {
		err = fmt.Errorf("%d bytes came back of %d", n, len(sent))
	}
	return err
}

func forbidFragments(conn *net.UDPConn, to netip.Addr) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	ctlErr := raw.Control(func(fd uintptr) {
		if to.Is4() {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		} else {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
		}
	})
	return errors.Join(ctlErr, err)
}

func pathMTU(conn *net.UDPConn, to netip.Addr) (mtu int) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if to.Is4() {
			mtu, _ = unix.GetsockoptInt(int(fd), unix.SOL_IP, unix.IP_MTU)
		} else {
			mtu, _ = unix.GetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_MTU)
		}
	})
	return mtu
}

// Transfer sends much by TCP, and wants all of it back.
func Transfer(from *netns.NS, to netip.AddrPort) error {
	const amount = 300_000
	err := from.Do(func() error {
		conn, err := net.DialTimeout("tcp", to.String(), Patience)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(Patience))
		wrote := make(chan error, 1)
		go func() { // ends with the connection
			_, err := conn.Write(make([]byte, amount))
			wrote <- errors.Join(err, conn.(*net.TCPConn).CloseWrite())
		}()
		n, err := io.Copy(io.Discard, conn)
		if err := errors.Join(err, <-wrote); err != nil || n != amount {
			return fmt.Errorf("%d bytes came back of %d: %w", n, amount, err)
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("tcp from %s to %s: %w", from.Name(), to.Addr(), err)
	}
	return err
}
