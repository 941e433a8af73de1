package hosts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"onerule/daemon/model"
	"onerule/test/oracle"
)

// The first packet of an association is all that a Service proxy sees of one, so a
// raw socket can send it where the kernel has no SCTP sockets.
const (
	sctpSourcePort = 40000
	sctpTag        = 0x0ae0fe11 // by which the packet is known where it arrives
)

// ProbeSCTP sends the first packet of an association and waits for it at an endpoint.
// Of what is seen, Local and the endpoint's port are what the packet says.
func (h *Hosts) ProbeSCTP(p oracle.Packet, endpoint netip.AddrPort, timeout time.Duration) (Seen, error) {
	if p.Protocol != model.SCTP {
		return Seen{}, fmt.Errorf("protocol %s is not SCTP", p.Protocol)
	}
	listener := -1
	err := h.At(endpoint.Addr()).Do(func() (err error) {
		listener, err = rawSCTP(endpoint.Addr(), timeout)
		return err
	})
	if err != nil {
		return Seen{}, fmt.Errorf("listen at %s: %w", endpoint, err)
	}
	defer func() { _ = unix.Close(listener) }()
	client := -1
	err = h.in(p, func() (err error) {
		if client, err = rawSCTP(p.Src, timeout); err != nil {
			return err
		}
		if err := unix.Connect(client, sockaddr(p.Dst)); err != nil {
			return err
		}
		_, err = unix.Write(client, sctpInit(p.Port))
		return heard(err)
	})
	if err != nil {
		return Seen{}, fmt.Errorf("send %+v: %w", p, err)
	}
	defer func() { _ = unix.Close(client) }()
	peer, port, err := arrivingSCTP(listener)
	if errors.Is(err, unix.EAGAIN) {
		// It did not arrive: did the client hear of that?
		_ = unix.SetNonblock(client, true)
		if _, err := unix.Read(client, make([]byte, 64)); errors.Is(err, unix.ECONNREFUSED) {
			return Seen{Verdict: Refused}, nil
		}
		return Seen{Verdict: Silent}, nil
	}
	return Seen{Endpoint: netip.AddrPortFrom(endpoint.Addr(), port), Peer: peer, Local: netip.AddrPortFrom(p.Src, sctpSourcePort)}, err
}

func rawSCTP(bind netip.Addr, timeout time.Duration) (int, error) {
	family := unix.AF_INET
	if bind.Is6() {
		family = unix.AF_INET6
	}
	s, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	tv := unix.NsecToTimeval(timeout.Nanoseconds())
	if err := errors.Join(unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv), unix.Bind(s, sockaddr(bind))); err != nil {
		return -1, errors.Join(err, unix.Close(s))
	}
	return s, nil
}

func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is6() {
		return &unix.SockaddrInet6{Addr: a.As16()}
	}
	return &unix.SockaddrInet4{Addr: as4(a)}
}

// sctpInit gives an INIT chunk in an SCTP packet (RFC 9260, 3.3.2).
func sctpInit(port uint16) []byte {
	b := binary.BigEndian.AppendUint16(nil, sctpSourcePort)
	b = binary.BigEndian.AppendUint16(b, port)
	b = append(b, make([]byte, 8)...) // no tag yet, checksum later
	b = append(b, 1, 0, 0, 20)        // INIT, no flags, length
	b = binary.BigEndian.AppendUint32(b, sctpTag)
	b = binary.BigEndian.AppendUint32(b, 65536) // window
	b = append(b, 0, 1, 0, 1)                   // streams out and in
	b = binary.BigEndian.AppendUint32(b, 1)     // first sequence number
	sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	binary.LittleEndian.PutUint32(b[8:], sum)
	return b
}

// arrivingSCTP reads until our packet comes: who sent it, and to which port.
func arrivingSCTP(s int) (from netip.AddrPort, port uint16, err error) {
	b := make([]byte, 256)
	for {
		n, sa, err := unix.Recvfrom(s, b, 0)
		if err != nil {
			return from, 0, err
		}
		packet, src := b[:n], netip.Addr{}
		switch sa := sa.(type) {
		case *unix.SockaddrInet4:
			src = netip.AddrFrom4(sa.Addr)
			packet = packet[min(n, int(packet[0]&0xf)*4):] // behind the IPv4 header
		case *unix.SockaddrInet6:
			src = netip.AddrFrom16(sa.Addr)
		}
		if len(packet) < 20 || binary.BigEndian.Uint32(packet[16:]) != sctpTag {
			continue
		}
		return netip.AddrPortFrom(src, binary.BigEndian.Uint16(packet)), binary.BigEndian.Uint16(packet[2:]), nil
	}
}
