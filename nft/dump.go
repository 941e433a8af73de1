package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// dumpBuffer is the most that the kernel puts into one datagram of a dump, and some.
const dumpBuffer = 64 << 10

// maxDumpTries bounds how often a listing that a commit fell into is begun again.
const maxDumpTries = 5

// dump is a netlink socket for listings, read as a stream with a large buffer: no
// answer is held as a whole.
type dump struct {
	fd  int
	seq uint32
	buf []byte
}

func openDump() (*dump, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	d := &dump{fd: fd, buf: make([]byte, dumpBuffer)}
	timeout := unix.Timeval{Sec: 30}
	if err := errors.Join(
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout)); err != nil {
		_ = d.close()
		return nil, fmt.Errorf("prepare netlink socket: %w", err)
	}
	return d, nil
}

func (d *dump) close() error { return unix.Close(d.fd) }

// run asks for a dump and calls f with the payload of each message. The payload is
// valid during the call only. What changes meanwhile may be missed: the flag that says
// so is not set for every kind of listing, so those who must know ask for generation.
func (d *dump) run(kind uint16, payload []byte, f func(payload []byte) error) error {
	d.seq++
	if err := d.send(kind, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, payload); err != nil {
		return err
	}
	return d.receive(f)
}

// receive reads answers up to the end of a dump, or an acknowledgement.
func (d *dump) receive(f func(payload []byte) error) error {
	for {
		n, _, err := unix.Recvfrom(d.fd, d.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("receive from netlink: %w", err)
		}
		if done, err := d.messages(d.buf[:n], f); done || err != nil {
			return err
		}
	}
}

func (d *dump) send(kind uint16, flags uint16, payload []byte) error {
	msg := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+len(payload))
	ne := binary.NativeEndian
	ne.PutUint32(msg[0:], uint32(unix.SizeofNlMsghdr+len(payload)))
	ne.PutUint16(msg[4:], kind)
	ne.PutUint16(msg[6:], flags)
	ne.PutUint32(msg[8:], d.seq)
	if err := unix.Sendto(d.fd, append(msg, payload...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send netlink request: %w", err)
	}
	return nil
}

// messages handles one datagram: done says that there is nothing more to come.
func (d *dump) messages(b []byte, f func([]byte) error) (done bool, err error) {
	ne := binary.NativeEndian
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(ne.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return false, errors.New("netlink message of an impossible length")
		}
		kind, body := ne.Uint16(b[4:]), b[unix.SizeofNlMsghdr:size]
		ours := ne.Uint32(b[8:]) == d.seq
		b = b[min(align4(size), len(b)):]
		if !ours {
			continue // left over from a dump that was given up
		}
		switch kind {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR: // both with the reason of a dump that broke off
			return true, netlinkError(body)
		}
		if err := f(body); err != nil {
			return false, err
		}
	}
	return false, nil
}

// netlinkError gives the error of an NLMSG_ERROR or NLMSG_DONE, nil for an
// acknowledgement and for a dump that came to its end.
func netlinkError(body []byte) error {
	if len(body) < 4 {
		return nil
	}
	if errno := -int32(binary.NativeEndian.Uint32(body)); errno != 0 {
		return unix.Errno(errno)
	}
	return nil
}

// eachAttr walks netlink attributes, without their flags for nesting and byte order.
func eachAttr(b []byte, f func(kind uint16, value []byte) error) error {
	for len(b) >= unix.SizeofNlAttr {
		size, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if size < unix.SizeofNlAttr || size > len(b) {
			return errors.New("netlink attribute of an impossible length")
		}
		if err := f(kind&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[unix.SizeofNlAttr:size]); err != nil {
			return err
		}
		b = b[min(align4(size), len(b)):]
	}
	return nil
}

func align4(n int) int { return (n + 3) &^ 3 }

// ask sends a request that is no dump, and calls f with the payload of each answer,
// until the acknowledgement.
func (d *dump) ask(kind uint16, payload []byte, f func(payload []byte) error) error {
	d.seq++
	if err := d.send(kind, unix.NLM_F_REQUEST|unix.NLM_F_ACK, payload); err != nil {
		return err
	}
	return d.receive(f)
}

// generation gives the number of the last commit to any table.
func (d *dump) generation() (gen uint32, err error) {
	header := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}
	err = d.ask(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, header, func(body []byte) error {
		return eachAttr(body[4:], func(kind uint16, v []byte) error {
			if kind == unix.NFTA_GEN_ID {
				gen = be32(v)
			}
			return nil
		})
	})
	return gen, err
}
