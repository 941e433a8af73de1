package hosts

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"onerule/daemon/model"
	"onerule/test/oracle"
)

// A Session is a connection that stays open, or a UDP socket that keeps its port.
type Session struct {
	// Seen is what a TCP client saw at the beginning. It is empty for UDP.
	Seen
	packet oracle.Packet
	conn   net.Conn
}

// Open opens a TCP connection and leaves it open.
func (h *Hosts) Open(p oracle.Packet) (*Session, error) {
	s := &Session{packet: p}
	err := h.in(p, func() (err error) {
		deadline := time.Now().Add(Patience)
		if s.conn, err = dial(p, deadline); err != nil {
			return err
		}
		s.Seen, err = read(s.conn, model.TCP, deadline)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open a connection for %+v: %w", p, err)
	}
	return s, nil
}

// Send opens a UDP socket and sends a first datagram, whatever comes of it.
func (h *Hosts) Send(p oracle.Packet) (*Session, error) {
	s := &Session{packet: p}
	err := h.in(p, func() (err error) {
		s.conn, err = dial(p, time.Now().Add(Patience))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("begin to send for %+v: %w", p, err)
	}
	return s, nil
}

func (h *Hosts) in(p oracle.Packet, f func() error) error {
	if p.From == oracle.Node {
		return h.Node.Do(f)
	}
	return h.At(p.Src).Do(f)
}

// Alive says whether a TCP connection still carries bytes, both ways.
func (s *Session) Alive() error {
	if err := s.conn.SetDeadline(time.Now().Add(Patience)); err != nil {
		return err
	}
	if _, err := s.conn.Write([]byte("x")); err != nil {
		return fmt.Errorf("write on the connection to %s: %w", s.Endpoint, err)
	}
	if _, err := s.conn.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("read on the connection to %s: %w", s.Endpoint, err)
	}
	return nil
}

// Ask sends another datagram from the same port and reads who answers. What came for
// earlier ones is forgotten.
func (s *Session) Ask() (Seen, error) {
	if err := s.drain(); err != nil {
		return Seen{}, err
	}
	deadline := time.Now().Add(Patience)
	if err := s.conn.SetDeadline(deadline); err != nil {
		return Seen{}, err
	}
	if _, err := s.conn.Write([]byte("who?")); heard(err) != nil {
		return Seen{}, err
	}
	return read(s.conn, model.UDP, deadline)
}

// drain reads answers and refusals until there is none.
func (s *Session) drain() error {
	udp, ok := s.conn.(*net.UDPConn)
	if !ok {
		return fmt.Errorf("the session with %s has no datagrams", s.Endpoint)
	}
	raw, err := udp.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) {
		var err error
		for buf := make([]byte, 256); !errors.Is(err, unix.EAGAIN); {
			_, err = unix.Read(int(fd), buf) // it does not block
		}
	})
}

// Close ends the session.
func (s *Session) Close() { closeAtOnce(s.conn) }

// Tracked says whether conntrack of the node holds a flow with a packet's protocol and
// original destination.
func (h *Hosts) Tracked(p oracle.Packet) (found bool, err error) {
	family := netlink.InetFamily(unix.AF_INET)
	if p.Dst.Is6() {
		family = unix.AF_INET6
	}
	err = h.Node.Do(func() error {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		for _, f := range flows {
			to, _ := netip.AddrFromSlice(f.Forward.DstIP)
			found = found || f.Forward.Protocol == uint8(p.Protocol) && f.Forward.DstPort == p.Port && to.Unmap() == p.Dst
		}
		return err
	})
	return found, err
}
