package hosts

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/oracle"
)

const (
	// Lost is how long what comes at once may take.
	Lost = 400 * time.Millisecond
	// Patience is how long an answer may take on a busy machine. It is below the second
	// after which a SYN is sent again: an answer to a repeated one would hide that the
	// first was dropped.
	Patience = 900 * time.Millisecond
	// Silence is how long nothing must be heard of a packet that must be dropped.
	Silence = 300 * time.Millisecond
)

// Seen is what a client sees of one packet.
type Seen struct {
	Verdict Verdict
	// Of an answer from an endpoint: who answered, whom it saw, and who the client
	// believed to be.
	Endpoint, Peer, Local netip.AddrPort
}

// String says what was seen, and who answered.
func (s Seen) String() string {
	if s.Verdict != Answered || !s.Endpoint.IsValid() {
		return s.Verdict.String()
	}
	return fmt.Sprintf("answered by %s", s.Endpoint)
}

// A Verdict is what became of a packet, as its sender sees it.
type Verdict uint8

// The verdicts.
const (
	Answered Verdict = iota
	Refused          // the sender was told at once
	Silent           // nothing was heard in time
)

// String gives the verdict as a word.
func (v Verdict) String() string { return [...]string{"answered", "refused", "silent"}[v] }

// Probe sends a packet from a socket of its own and waits for what comes of it. A
// packet of the node's without a source lets the kernel choose one.
func (h *Hosts) Probe(p oracle.Packet, timeout time.Duration) (Seen, error) {
	from := h.At(p.Src)
	if p.From == oracle.Node {
		from = h.Node
	}
	var seen Seen
	err := from.Do(func() (err error) {
		switch p.Protocol {
		case oracle.ICMP, oracle.ICMPv6:
			return ping(p, timeout)
		case model.TCP, model.UDP:
			seen, err = ask(p, timeout)
			return err
		}
		return fmt.Errorf("no way to send protocol %d", p.Protocol)
	})
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return Seen{Verdict: Refused}, nil
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, unix.EAGAIN):
		return Seen{Verdict: Silent}, nil
	case err != nil:
		return Seen{}, fmt.Errorf("send %+v: %w", p, err)
	}
	return seen, nil
}

// ask connects and reads one answer.
func ask(p oracle.Packet, timeout time.Duration) (Seen, error) {
	deadline := time.Now().Add(timeout)
	c, err := dial(p, deadline)
	if err != nil {
		return Seen{}, err
	}
	defer closeAtOnce(c)
	return read(c, p.Protocol, deadline)
}

// dial connects from the packet's source to its destination. For UDP it sends a
// question, too.
func dial(p oracle.Packet, deadline time.Time) (net.Conn, error) {
	to := netip.AddrPortFrom(p.Dst, p.Port).String()
	d := net.Dialer{Deadline: deadline}
	network := "tcp"
	if p.Protocol == model.UDP {
		network = "udp"
	}
	switch from := netip.AddrPortFrom(p.Src, 0); {
	case !p.Src.IsValid():
	case p.Protocol == model.UDP:
		d.LocalAddr = net.UDPAddrFromAddrPort(from)
	default:
		d.LocalAddr = net.TCPAddrFromAddrPort(from)
	}
	c, err := d.Dial(network, to)
	if err != nil {
		if timedOut, ok := errors.AsType[net.Error](err); ok && timedOut.Timeout() {
			return nil, os.ErrDeadlineExceeded // a dial's own error does not say so
		}
		return nil, err
	}
	if p.Protocol == model.UDP {
		if _, err := c.Write([]byte("who?")); heard(err) != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// read reads the answer of an endpoint.
func read(c net.Conn, protocol model.Protocol, deadline time.Time) (Seen, error) {
	if err := c.SetDeadline(deadline); err != nil {
		return Seen{}, err
	}
	var text string
	var err error
	if protocol == model.UDP {
		buf := make([]byte, 256)
		var n int
		n, err = c.Read(buf)
		text = string(buf[:n])
	} else {
		text, err = bufio.NewReader(c).ReadString('\n')
	}
	if err != nil {
		return Seen{}, err
	}
	var s Seen
	if s.Endpoint, s.Peer, err = parseAnswer(text); err != nil {
		return Seen{}, err
	}
	s.Local, err = netip.ParseAddrPort(c.LocalAddr().String())
	return s, err
}

// closeAtOnce leaves no port waiting behind.
func closeAtOnce(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close() // all that was to be read is read
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

// Check sends a packet as often as it takes to see everything that is wanted, and
// gives what went wrong: "" if nothing did. An answer or a refusal that takes longer
// than patience is none.
func (h *Hosts) Check(p oracle.Packet, want oracle.Outcome, patience time.Duration) (string, error) {
	expected, timeout := Answered, patience
	switch want.Verdict {
	case oracle.Refused:
		expected = Refused
	case oracle.Dropped:
		expected, timeout = Silent, Silence
	case oracle.Untouched:
		want.Arrivals = []oracle.Arrival{{Endpoint: netip.AddrPortFrom(p.Dst, p.Port)}}
	}
	missing := slices.Clone(want.Arrivals)
	// With n endpoints, each is missed by 20 n draws once in 10^8.
	for range 20*len(want.Arrivals) + 1 {
		got, err := h.Probe(p, timeout)
		if err != nil {
			return "", err
		}
		if got.Verdict != expected {
			return fmt.Sprintf("%s, want %s", got, expected), nil
		}
		if expected != Answered || p.Protocol == oracle.ICMP || p.Protocol == oracle.ICMPv6 {
			return "", nil
		}
		if wrong := h.arrived(got, p, want.Arrivals); wrong != "" {
			return wrong, nil
		}
		missing = slices.DeleteFunc(missing, func(a oracle.Arrival) bool { return a.Endpoint == got.Endpoint })
		if len(missing) == 0 {
			return "", nil
		}
	}
	return fmt.Sprintf("never reached %v", missing), nil
}

// arrived says what is wrong with an answer, "" if nothing is.
func (h *Hosts) arrived(got Seen, p oracle.Packet, want []oracle.Arrival) string {
	i := slices.IndexFunc(want, func(a oracle.Arrival) bool { return a.Endpoint == got.Endpoint })
	if i < 0 {
		return fmt.Sprintf("reached %s, want one of %v", got.Endpoint, want)
	}
	peer := got.Peer.Addr()
	if want[i].Masqueraded && !h.faces(got.Endpoint.Addr(), peer) {
		return fmt.Sprintf("%s saw client %s, want the address of the node on the way", got.Endpoint, peer)
	}
	if !want[i].Masqueraded && peer != p.Src {
		return fmt.Sprintf("%s saw client %s, want %s", got.Endpoint, peer, p.Src)
	}
	return ""
}

// faces says whether an endpoint sees masqueraded clients by this address of the node:
// that of the link to it.
func (h *Hosts) faces(endpoint, peer netip.Addr) bool {
	for _, p := range addr.Both() {
		for i := range h.Pods {
			if endpoint == p.Pod(i) {
				return peer == p.PodGateway(i)
			}
		}
		switch {
		case p.OtherPods.Contains(endpoint), endpoint == p.OtherNode():
			return peer == p.NodeBetween()
		case endpoint == p.Outside():
			return peer == p.Node()
		}
	}
	return slices.Contains(h.NodeAddrs(), peer) // on the node itself
}
