package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
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

// flow is a conntrack entry, as much of it as we look at. The slices are valid
// during the call that delivers it.
type flow struct {
	Flow
	tuple    []byte // of the original direction, as the kernel gave it
	zone, id []byte
}

// A Flow is a conntrack entry.
type Flow struct {
	To         Frontend       // its original destination, always with an address
	Endpoint   netip.AddrPort // who answers
	Translated bool           // To is not the Endpoint, by DNAT
}

// DeleteUntranslated deletes the conntrack entries of a family whose original
// destination matches and that carry no DNAT: they began before the destination was
// a frontend, and their packets would go past it for as long as they last. It gives the
// number of entries deleted.
func DeleteUntranslated(ctx context.Context, family Family, match func(Frontend) bool) (int, error) {
	return DeleteFlows(ctx, family, false, func(f Flow) bool { return !f.Translated && match(f.To) })
}

// DeleteFlows deletes the conntrack entries of a family that are stale. Without translated
// it need not be asked about those that carry a DNAT. The table is read as a stream and
// never held. It gives the number of entries deleted.
func DeleteFlows(ctx context.Context, family Family, translated bool, stale func(Flow) bool) (int, error) {
	list, err := openDump()
	if err != nil {
		return 0, err
	}
	defer func() { _ = list.close() }()
	remove, err := openDump()
	if err != nil {
		return 0, err
	}
	defer func() { _ = remove.close() }()

	deleted := 0
	err = list.flows(family, translated, func(f flow) error {
		if !stale(f.Flow) {
			return ctx.Err()
		}
		gone, err := remove.deleteFlow(family, f)
		if gone {
			deleted++
		}
		return err
	})
	if err != nil {
		return deleted, fmt.Errorf("delete stale conntrack entries of family %s: %w", family, err)
	}
	return deleted, nil
}

// flows lists the entries, without translated those without DNAT only. Kernels before
// 5.17 do not know the mask and list all.
func (d *dump) flows(family Family, translated bool, f func(flow) error) error {
	request := ctHeader(family)
	if !translated {
		attrs, err := netlink.MarshalAttributes([]netlink.Attribute{
			{Type: ctaStatus, Data: binary.BigEndian.AppendUint32(nil, 0)},
			{Type: ctaStatusMask, Data: binary.BigEndian.AppendUint32(nil, statusDstNAT)},
		})
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		request = append(request, attrs...)
	}
	return d.run(ctGet, request, func(payload []byte) error {
		entry, err := parseFlow(payload[4:])
		if err != nil {
			return err
		}
		return f(entry)
	})
}

func ctHeader(f Family) []byte {
	if f == IPv6 {
		return []byte{unix.AF_INET6, unix.NFNETLINK_V0, 0, 0}
	}
	return []byte{unix.AF_INET, unix.NFNETLINK_V0, 0, 0}
}

func parseFlow(attrs []byte) (flow, error) {
	var f flow
	err := eachAttr(attrs, func(kind uint16, v []byte) error {
		switch kind {
		case ctaTupleOrig:
			f.tuple = v
			return parseTuple(v, &f.To)
		case ctaTupleReply:
			var err error
			f.Endpoint, err = sourceOf(v)
			return err
		case ctaStatus:
			f.Translated = len(v) == 4 && binary.BigEndian.Uint32(v)&statusDstNAT != 0
		case ctaZone:
			f.zone = v
		case ctaID:
			f.id = v
		}
		return nil
	})
	return f, err
}

func parseTuple(tuple []byte, to *Frontend) error {
	return eachAttr(tuple, func(part uint16, v []byte) error {
		return eachAttr(v, func(kind uint16, field []byte) error {
			switch {
			case part == ctaTupleIP && (kind == ctaIPv4Dst || kind == ctaIPv6Dst):
				to.Addr, _ = netip.AddrFromSlice(field)
			case part == ctaTupleProto && kind == ctaProtoNum && len(field) == 1:
				to.Protocol = field[0]
			case part == ctaTupleProto && kind == ctaProtoDst && len(field) == 2:
				to.Port = binary.BigEndian.Uint16(field)
			}
			return nil
		})
	})
}

// sourceOf gives the source of a tuple.
func sourceOf(tuple []byte) (netip.AddrPort, error) {
	var addr netip.Addr
	var port uint16
	err := eachAttr(tuple, func(part uint16, v []byte) error {
		return eachAttr(v, func(kind uint16, field []byte) error {
			switch {
			case part == ctaTupleIP && (kind == ctaIPv4Src || kind == ctaIPv6Src):
				addr, _ = netip.AddrFromSlice(field)
			case part == ctaTupleProto && kind == ctaProtoSrc && len(field) == 2:
				port = binary.BigEndian.Uint16(field)
			}
			return nil
		})
	})
	return netip.AddrPortFrom(addr, port), err
}

// deleteFlow deletes just this entry, and says whether it was still there.
func (d *dump) deleteFlow(family Family, f flow) (bool, error) {
	attrs := []netlink.Attribute{{Type: ctaTupleOrig | unix.NLA_F_NESTED, Data: f.tuple}}
	if f.zone != nil {
		attrs = append(attrs, netlink.Attribute{Type: ctaZone, Data: f.zone})
	}
	if f.id != nil {
		attrs = append(attrs, netlink.Attribute{Type: ctaID, Data: f.id})
	}
	b, err := netlink.MarshalAttributes(attrs)
	if err != nil {
		return false, fmt.Errorf("encode conntrack entry: %w", err)
	}
	err = d.ask(ctDelete, append(ctHeader(family), b...), func([]byte) error { return nil })
	if errors.Is(err, unix.ENOENT) {
		return false, nil // it ended by itself
	}
	return err == nil, err
}
