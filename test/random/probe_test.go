package random_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"onerule/daemon/model"
	"onerule/test/oracle"
)

const (
	// probeTimeout is below the second after which a SYN is sent again: an answer
	// to a repeated one would hide that the first was dropped.
	probeTimeout = 900 * time.Millisecond
	// silence is how long nothing must be heard of a packet that must be dropped.
	silence = 300 * time.Millisecond
)

// What a client sees of one packet.
type seen struct {
	verdict verdict
	arrival arrival // if answered by an endpoint
}

type verdict uint8

const (
	answered verdict = iota
	refused
	silent
)

func (v verdict) String() string { return [...]string{"answered", "refused", "silent"}[v] }

// probe sends a packet from a socket of its own and waits for what comes of it.
func (h *hosts) probe(p oracle.Packet, timeout time.Duration) (seen, error) {
	from := h.at(p.Src)
	if p.From == oracle.Node {
		from = h.node
	}
	var text string
	err := from.Do(func() (err error) {
		switch p.Protocol {
		case oracle.ICMP, oracle.ICMPv6:
			return ping(p, timeout)
		case model.TCP, model.UDP:
			text, err = ask(p, timeout)
			return err
		}
		return fmt.Errorf("no way to send protocol %d", p.Protocol)
	})
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return seen{verdict: refused}, nil
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, unix.EAGAIN):
		return seen{verdict: silent}, nil
	case err != nil:
		return seen{}, fmt.Errorf("send %+v: %w", p, err)
	case text == "":
		return seen{verdict: answered}, nil
	}
	a, err := parseAnswer(text)
	return seen{answered, a}, err
}

// ask connects and reads the whole answer.
func ask(p oracle.Packet, timeout time.Duration) (string, error) {
	deadline := time.Now().Add(timeout)
	to := netip.AddrPortFrom(p.Dst, p.Port).String()
	d := net.Dialer{Deadline: deadline}
	if p.Protocol == model.UDP {
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.Src, 0))
		c, err := d.Dial("udp", to)
		if err != nil {
			return "", err
		}
		defer c.Close()
		_, err = c.Write([]byte("who?"))
		if err := errors.Join(c.SetDeadline(deadline), heard(err)); err != nil {
			return "", err
		}
		buf := make([]byte, 256)
		n, err := c.Read(buf)
		return string(buf[:n]), err
	}
	d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.Src, 0))
	c, err := d.Dial("tcp", to)
	if err != nil {
		if timedOut, ok := errors.AsType[net.Error](err); ok && timedOut.Timeout() {
			return "", os.ErrDeadlineExceeded // a dial's own error does not say so
		}
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(deadline); err != nil {
		return "", err
	}
	text, err := io.ReadAll(c)
	return string(text), err
}

// heard lets EPERM pass: the node's own packet ended in the output hook. Whether it
// was refused or dropped is heard by reading.
func heard(err error) error {
	if errors.Is(err, unix.EPERM) {
		return nil
	}
	return err
}

// ping sends an echo request from a ping socket, which hears of errors once it is
// connected.
func ping(p oracle.Packet, timeout time.Duration) error {
	family, proto, request := unix.AF_INET, unix.IPPROTO_ICMP, byte(8)
	var from, to unix.Sockaddr = &unix.SockaddrInet4{Addr: as4(p.Src)}, &unix.SockaddrInet4{Addr: as4(p.Dst)}
	if p.Dst.Is6() {
		family, proto, request = unix.AF_INET6, unix.IPPROTO_ICMPV6, 128
		from, to = &unix.SockaddrInet6{Addr: p.Src.As16()}, &unix.SockaddrInet6{Addr: p.Dst.As16()}
	}
	s, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return fmt.Errorf("open ping socket: %w", err)
	}
	defer func() { _ = unix.Close(s) }()
	tv := unix.NsecToTimeval(timeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return fmt.Errorf("set receive timeout: %w", err)
	}
	if err := unix.Bind(s, from); err != nil {
		return fmt.Errorf("bind ping socket: %w", err)
	}
	if err := unix.Connect(s, to); err != nil {
		return fmt.Errorf("connect ping socket: %w", err)
	}
	_, err = unix.Write(s, []byte{request, 0, 0, 0, 0, 0, 0, 1})
	if heard(err) != nil {
		return fmt.Errorf("send echo: %w", err)
	}
	_, err = unix.Read(s, make([]byte, 64))
	return err
}

// as4 is As4 for addresses of any family.
func as4(a netip.Addr) [4]byte {
	if a.Is4() {
		return a.As4()
	}
	return [4]byte{}
}

// check sends a packet as often as it takes to see everything that the oracle
// wants, and gives what went wrong: "" if nothing did.
func (h *hosts) check(p oracle.Packet, want oracle.Outcome, nodeAddrs []netip.Addr) (string, error) {
	expected, timeout := answered, probeTimeout
	switch want.Verdict {
	case oracle.Refused:
		expected = refused
	case oracle.Dropped:
		expected, timeout = silent, silence
	case oracle.Untouched:
		want.Arrivals = []oracle.Arrival{{Endpoint: netip.AddrPortFrom(p.Dst, p.Port)}}
	}
	missing := slices.Clone(want.Arrivals)
	// With n endpoints, each is missed by 20 n draws once in 10^8.
	for range 20*len(want.Arrivals) + 1 {
		got, err := h.probe(p, timeout)
		if err != nil {
			return "", err
		}
		if got.verdict != expected {
			return fmt.Sprintf("%s %s, want %s", got.verdict, got.arrival.endpoint, expected), nil
		}
		if expected != answered || p.Protocol == oracle.ICMP || p.Protocol == oracle.ICMPv6 {
			return "", nil
		}
		i := slices.IndexFunc(want.Arrivals, func(a oracle.Arrival) bool { return a.Endpoint == got.arrival.endpoint })
		if i < 0 {
			return fmt.Sprintf("reached %s, want one of %v", got.arrival.endpoint, want.Arrivals), nil
		}
		if want.Arrivals[i].Masqueraded && !slices.Contains(nodeAddrs, got.arrival.peer) {
			return fmt.Sprintf("%s saw client %s, want an address of the node", got.arrival.endpoint, got.arrival.peer), nil
		}
		if !want.Arrivals[i].Masqueraded && got.arrival.peer != p.Src {
			return fmt.Sprintf("%s saw client %s, want %s", got.arrival.endpoint, got.arrival.peer, p.Src), nil
		}
		missing = slices.DeleteFunc(missing, func(a oracle.Arrival) bool { return a.Endpoint == got.arrival.endpoint })
		if len(missing) == 0 {
			return "", nil
		}
	}
	return fmt.Sprintf("never reached %v", missing), nil
}
