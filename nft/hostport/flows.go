package hostport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"onerule/nft/dump"
)

// Messages and attributes of connection tracking, from the kernel's
// linux/netfilter/nfnetlink_conntrack.h, which golang.org/x/sys does not have.
const (
	ctGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	tupleOriginal = 1
	tupleReply    = 2
	ctID          = 12
	ctZone        = 18

	tupleIP    = 1
	tuplePorts = 2
	sourceIPv4 = 1
	destIPv4   = 2
	sourceIPv6 = 3
	destIPv6   = 4
	number     = 1
	sourcePort = 2
	destPort   = 3
)

// maxListings bounds how often a listing that broke off is begun again.
const maxListings = 5

// A flow is an entry of connection tracking: which way it was sent, and who answers.
type flow struct {
	protocol   Protocol
	to, answer netip.AddrPort
	original   []byte // the tuple as the kernel has it
	id, zone   []byte
}

// deleteElsewhere deletes the UDP flows to claimed ports that somebody else answers, or
// nobody: they began before, and would not be translated as long as their clients send.
func deleteElsewhere(claims []Claim) error {
	claims = ofUDP(claims)
	if len(claims) == 0 {
		return nil
	}
	local, err := addresses()
	if err != nil {
		return err
	}
	return deleteFlows(claims, func(c Claim, f flow) bool {
		here := f.to.Addr() == c.HostIP || !c.HostIP.IsValid() && slices.Contains(local, f.to.Addr())
		return here && f.answer != c.Pod
	})
}

// deleteLeading deletes the UDP flows by these ports to the pod: another pod may have its
// address or take the port.
func deleteLeading(claims []Claim) error {
	return deleteFlows(ofUDP(claims), func(c Claim, f flow) bool { return f.answer == c.Pod })
}

func ofUDP(claims []Claim) []Claim {
	return slices.DeleteFunc(slices.Clone(claims), func(c Claim) bool { return c.Protocol != UDP })
}

// addresses gives those of the node.
func addresses() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses of the node: %w", err)
	}
	var list []netip.Addr
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			addr, _ := netip.AddrFromSlice(n.IP)
			list = append(list, addr.Unmap())
		}
	}
	return list, nil
}

// deleteFlows deletes those flows to the port of one of the claims that are stale for it.
func deleteFlows(claims []Claim, stale func(Claim, flow) bool) error {
	for _, f := range families() {
		mine := slices.DeleteFunc(slices.Clone(claims), func(c Claim) bool { return familyOf(c).number != f.number })
		if len(mine) == 0 {
			continue
		}
		if err := sweep(byte(f.number), func(fl flow) bool {
			return slices.ContainsFunc(mine, func(c Claim) bool {
				return fl.protocol == c.Protocol && fl.to.Port() == c.HostPort && stale(c, fl)
			})
		}); err != nil {
			return fmt.Errorf("delete flows to host ports: %w", err)
		}
	}
	return nil
}

// sweep reads the flows of a family, and deletes the stale ones meanwhile. A listing that
// broke off is begun again.
func sweep(family byte, stale func(flow) bool) error {
	remove, err := dump.Open()
	if err != nil {
		return err
	}
	defer func() { _ = remove.Close() }()
	for range maxListings {
		if err = sweepOnce(remove, family, stale); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return err
}

func sweepOnce(remove *dump.Conn, family byte, stale func(flow) bool) error {
	list, err := dump.Open()
	if err != nil {
		return err
	}
	defer func() { _ = list.Close() }()
	header := []byte{family, unix.NFNETLINK_V0, 0, 0}
	err = list.Run(ctGet, header, func(body []byte) error {
		f, err := parseFlow(body)
		if err != nil || !stale(f) {
			return err
		}
		err = remove.Ask(ctDelete, append(slices.Clone(header), f.name()...), func([]byte) error { return nil })
		if errors.Is(err, unix.ENOENT) {
			return nil // it ended by itself
		}
		return err
	})
	if err == nil && list.Interrupted() {
		return unix.EINTR
	}
	return err
}

// name gives the attributes that say which entry it is.
func (f flow) name() []byte {
	var b []byte
	for _, a := range []struct {
		kind  uint16
		value []byte
	}{{tupleOriginal | unix.NLA_F_NESTED, f.original}, {ctZone, f.zone}, {ctID, f.id}} {
		if a.value == nil {
			continue
		}
		size := unix.SizeofNlAttr + len(a.value)
		b = binary.NativeEndian.AppendUint16(b, uint16(size))
		b = binary.NativeEndian.AppendUint16(b, a.kind)
		b = append(append(b, a.value...), make([]byte, dump.Align4(size)-size)...)
	}
	return b
}

func parseFlow(body []byte) (f flow, err error) {
	const header = 4
	if len(body) < header {
		return f, errors.New("conntrack entry without a header")
	}
	var reply []byte
	err = dump.EachAttr(body[header:], func(kind uint16, v []byte) error {
		switch kind {
		case tupleOriginal:
			f.original = v
		case tupleReply:
			reply = v
		case ctID:
			f.id = v
		case ctZone:
			f.zone = v
		}
		return nil
	})
	if err != nil {
		return f, err
	}
	if f.protocol, _, f.to, err = parseTuple(f.original); err != nil {
		return f, err
	}
	_, f.answer, _, err = parseTuple(reply)
	return f, err
}

// parseTuple gives one direction of a flow. Protocols without ports leave them 0.
func parseTuple(b []byte) (p Protocol, from, to netip.AddrPort, err error) {
	var addrs [2]netip.Addr
	var ports [2]uint16
	err = dump.EachAttr(b, func(part uint16, v []byte) error {
		return dump.EachAttr(v, func(kind uint16, field []byte) error {
			switch {
			case part == tupleIP && (kind == sourceIPv4 || kind == sourceIPv6):
				addrs[0], _ = netip.AddrFromSlice(field)
			case part == tupleIP && (kind == destIPv4 || kind == destIPv6):
				addrs[1], _ = netip.AddrFromSlice(field)
			case part == tuplePorts && kind == number && len(field) == 1:
				p = Protocol(field[0])
			case part == tuplePorts && (kind == sourcePort || kind == destPort) && len(field) == 2:
				ports[kind-sourcePort] = binary.BigEndian.Uint16(field)
			}
			return nil
		})
	})
	return p, netip.AddrPortFrom(addrs[0], ports[0]), netip.AddrPortFrom(addrs[1], ports[1]), err
}
