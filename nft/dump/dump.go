// Package dump reads what the kernel's netfilter holds, over netlink: a listing is a
// stream that is never held as a whole, read with a buffer as large as the kernel
// fills. The kernel begins its walk anew for each datagram, so that small ones make a
// listing quadratic.
package dump

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// buffer is the most bytes that the kernel puts into one datagram of a listing, and some.
const buffer = 64 << 10

// patience is how many seconds an answer may take.
const patience = 30

// A Conn is a netlink socket for one request at a time. It belongs to the network
// namespace that it was opened in.
type Conn struct {
	fd          int
	seq         uint32
	buf         []byte
	interrupted bool
}

// Open opens a socket in the network namespace of the calling thread.
func Open() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	c := &Conn{fd: fd, buf: make([]byte, buffer)}
	timeout := unix.Timeval{Sec: patience}
	if err := errors.Join(
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout)); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("prepare netlink socket: %w", err)
	}
	return c, nil
}

// Close closes the socket. A listing that was not read to its end goes with it.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// Run asks for a listing and calls f with the payload of each message, the header of
// nfnetlink (4 bytes) first. The payload is valid during the call only. A refusal of the
// kernel is a unix.Errno, of which EINTR says that the listing broke off and can be begun
// again. An error of f ends the reading and is given back as it is: the kernel then holds
// the rest ready and refuses another listing (EBUSY), so close the socket.
//
// What changes meanwhile may be missed: see Interrupted.
func (c *Conn) Run(kind uint16, payload []byte, f func(payload []byte) error) error {
	return c.request(kind, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, payload, f)
}

// Ask sends a request that is no listing, and calls f with the payload of each answer,
// until the acknowledgement. A refusal of the kernel is a unix.Errno.
func (c *Conn) Ask(kind uint16, payload []byte, f func(payload []byte) error) error {
	return c.request(kind, unix.NLM_F_REQUEST|unix.NLM_F_ACK, payload, f)
}

// Interrupted says whether the kernel called the last listing inconsistent: something
// was changed while it was read, so that entries may be missing from it. It does not say
// so for every kind of listing; those who must know ask for a generation before and after.
func (c *Conn) Interrupted() bool { return c.interrupted }

func (c *Conn) request(kind, flags uint16, payload []byte, f func([]byte) error) error {
	c.seq++
	c.interrupted = false
	if err := c.send(kind, flags, payload); err != nil {
		return err
	}
	return c.receive(f)
}

// receive reads answers up to the end of a listing, or an acknowledgement.
func (c *Conn) receive(f func([]byte) error) error {
	for {
		n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue // a signal, which says nothing about the listing
		}
		if err != nil {
			return fmt.Errorf("receive from netlink: %w", err)
		}
		if done, err := c.messages(c.buf[:n], f); done || err != nil {
			return err
		}
	}
}

func (c *Conn) send(kind, flags uint16, payload []byte) error {
	msg := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+len(payload))
	ne := binary.NativeEndian
	ne.PutUint32(msg[0:], uint32(unix.SizeofNlMsghdr+len(payload)))
	ne.PutUint16(msg[4:], kind)
	ne.PutUint16(msg[6:], flags)
	ne.PutUint32(msg[8:], c.seq)
	if err := unix.Sendto(c.fd, append(msg, payload...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send netlink request: %w", err)
	}
	return nil
}

// messages handles one datagram: done says that there is nothing more to come.
func (c *Conn) messages(b []byte, f func([]byte) error) (done bool, err error) {
	ne := binary.NativeEndian
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(ne.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return false, errors.New("netlink message of an impossible length")
		}
		kind, flags, body := ne.Uint16(b[4:]), ne.Uint16(b[6:]), b[unix.SizeofNlMsghdr:size]
		ours := ne.Uint32(b[8:]) == c.seq
		b = b[min(Align4(size), len(b)):]
		if !ours {
			continue // left over from a listing that was given up
		}
		c.interrupted = c.interrupted || flags&unix.NLM_F_DUMP_INTR != 0
		switch kind {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR: // both with the reason of a listing that broke off
			return true, refusal(body)
		}
		if err := f(body); err != nil {
			return false, err
		}
	}
	return false, nil
}

// refusal gives the error of an NLMSG_ERROR or NLMSG_DONE, nil for an acknowledgement
// and for a listing that came to its end.
func refusal(body []byte) error {
	if len(body) < 4 {
		return nil
	}
	if errno := -int32(binary.NativeEndian.Uint32(body)); errno != 0 {
		return unix.Errno(errno)
	}
	return nil
}
