package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"onerule/nft"
	"onerule/nft/dump"
)

// Attributes and messages of nf_conntrack's netlink interface, from the kernel's
// linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_common.h, which
// golang.org/x/sys does not have.
const (
	ctGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaID         = 12
	ctaZone       = 18
	ctaStatusMask = 26

	ctaTupleIP    = 1
	ctaTupleProto = 2
	ctaIPv4Src    = 1
	ctaIPv4Dst    = 2
	ctaIPv6Src    = 3
	ctaIPv6Dst    = 4
	ctaProtoNum   = 1
	ctaProtoSrc   = 2
	ctaProtoDst   = 3

	statusDstNAT = 1 << 5
)

// maxListings bounds how often a pass begins a listing again that broke off.
const maxListings = 5

// A flow is a conntrack entry, as much of it as a pass looks at. The slices are as the
// kernel gave them, and valid during the call that delivers the flow.
type flow struct {
	to          nft.Frontend // its original destination, always with an address
	translated  bool         // by DNAT
	orig, reply []byte       // tuples
	zone, id    []byte
}

// endpoint gives who answers.
func (f flow) endpoint() (netip.AddrPort, error) {
	reply, err := parseTuple(f.reply)
	return netip.AddrPortFrom(reply.src, reply.srcPort), err
}

// sweep makes a pass over the table of a family in the network namespace of the calling
// thread: it deletes the entries that are stale. Without translated, the kernel is
// asked only for entries without DNAT. The table is read as a stream and never held.
func sweep(ctx context.Context, family nft.Family, translated bool, stale func(flow) (bool, error)) (Pass, error) {
	var p Pass
	remove, err := dump.Open()
	if err != nil {
		return p, err
	}
	defer func() { _ = remove.Close() }()
	err = complete(ctx, func() (bool, error) {
		p.Listings++
		return list(family, translated, func(f flow) error {
			p.Read++
			if gone, err := stale(f); !gone || err != nil {
				return errors.Join(err, ctx.Err())
			}
			gone, err := deleteFlow(remove, family, f)
			switch {
			case gone && f.translated:
				p.Stale++
			case gone:
				p.Untranslated++
			}
			return errors.Join(err, ctx.Err())
		})
	})
	if err != nil {
		return p, fmt.Errorf("delete stale conntrack entries of family %s: %w", family, err)
	}
	return p, nil
}

// complete repeats a listing until one is whole. What an earlier one had deleted does
// not come again.
func complete(ctx context.Context, list func() (whole bool, err error)) error {
	for range maxListings {
		whole, err := list()
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if whole && err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return fmt.Errorf("the listing broke off %d times: %w", maxListings, unix.EINTR)
}

// list reads the entries, without translated only those without DNAT, and says whether
// the listing was whole. Kernels before 5.17 do not know the mask and list all.
func list(family nft.Family, translated bool, f func(flow) error) (whole bool, err error) {
	conn, err := dump.Open()
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }()
	request := header(family)
	if !translated {
		attrs, err := netlink.MarshalAttributes([]netlink.Attribute{
			{Type: ctaStatus, Data: binary.BigEndian.AppendUint32(nil, 0)},
			{Type: ctaStatusMask, Data: binary.BigEndian.AppendUint32(nil, statusDstNAT)},
		})
		if err != nil {
			return false, fmt.Errorf("encode request: %w", err)
		}
		request = append(request, attrs...)
	}
	err = conn.Run(ctGet, request, func(payload []byte) error {
		if len(payload) < unix.SizeofNlAttr {
			return errors.New("conntrack entry without a header")
		}
		entry, err := parseFlow(payload[4:])
		if err != nil {
			return err
		}
		return f(entry)
	})
	return !conn.Interrupted(), err
}

func header(f nft.Family) []byte {
	if f == nft.IPv6 {
		return []byte{unix.AF_INET6, unix.NFNETLINK_V0, 0, 0}
	}
	return []byte{unix.AF_INET, unix.NFNETLINK_V0, 0, 0}
}

func parseFlow(attrs []byte) (flow, error) {
	var f flow
	err := dump.EachAttr(attrs, func(kind uint16, v []byte) error {
		switch kind {
		case ctaTupleOrig:
			f.orig = v
		case ctaTupleReply:
			f.reply = v
		case ctaStatus:
			f.translated = len(v) == 4 && binary.BigEndian.Uint32(v)&statusDstNAT != 0
		case ctaZone:
			f.zone = v
		case ctaID:
			f.id = v
		}
		return nil
	})
	if err != nil {
		return f, err
	}
	orig, err := parseTuple(f.orig)
	f.to = nft.Frontend{Addr: orig.dst, Protocol: orig.protocol, Port: orig.dstPort}
	return f, err
}

// A tuple is one direction of a flow. Protocols without ports leave them 0.
type tuple struct {
	src, dst         netip.Addr
	protocol         uint8
	srcPort, dstPort uint16
}

func parseTuple(b []byte) (tuple, error) {
	var t tuple
	err := dump.EachAttr(b, func(part uint16, v []byte) error {
		return dump.EachAttr(v, func(kind uint16, field []byte) error {
			switch part {
			case ctaTupleIP:
				t.address(kind, field)
			case ctaTupleProto:
				t.proto(kind, field)
			}
			return nil
		})
	})
	return t, err
}

func (t *tuple) address(kind uint16, field []byte) {
	switch kind {
	case ctaIPv4Src, ctaIPv6Src:
		t.src, _ = netip.AddrFromSlice(field)
	case ctaIPv4Dst, ctaIPv6Dst:
		t.dst, _ = netip.AddrFromSlice(field)
	}
}

func (t *tuple) proto(kind uint16, field []byte) {
	switch {
	case kind == ctaProtoNum && len(field) == 1:
		t.protocol = field[0]
	case kind == ctaProtoSrc && len(field) == 2:
		t.srcPort = binary.BigEndian.Uint16(field)
	case kind == ctaProtoDst && len(field) == 2:
		t.dstPort = binary.BigEndian.Uint16(field)
	}
}

// deleteFlow deletes just this entry, and says whether it was still there.
func deleteFlow(conn *dump.Conn, family nft.Family, f flow) (bool, error) {
	attrs := []netlink.Attribute{{Type: ctaTupleOrig | unix.NLA_F_NESTED, Data: f.orig}}
	if f.zone != nil {
		attrs = append(attrs, netlink.Attribute{Type: ctaZone, Data: f.zone})
	}
	if f.id != nil { // a flow of the same client that began since has another one, as a rule
		attrs = append(attrs, netlink.Attribute{Type: ctaID, Data: f.id})
	}
	b, err := netlink.MarshalAttributes(attrs)
	if err != nil {
		return false, fmt.Errorf("encode conntrack entry: %w", err)
	}
	err = conn.Ask(ctDelete, append(header(family), b...), func([]byte) error { return nil })
	if errors.Is(err, unix.ENOENT) {
		return false, nil // it ended by itself
	}
	return err == nil, err
}
