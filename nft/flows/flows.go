// Package flows deletes entries of the kernel's connection tracking that lead packets to
// where they should not go any more. The table is read as a stream and never held.
package flows

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"onerule/nft/dump"
)

// Attributes and messages of nf_conntrack's netlink interface, from the kernel's
// linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_common.h, which
// golang.org/x/sys does not have.
const (
	ctGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	tupleOriginal = 1
	tupleReply    = 2
	ctStatus      = 3
	ctID          = 12
	ctZone        = 18
	ctStatusMask  = 26

	tupleIP       = 1
	tupleProtocol = 2
	sourceIPv4    = 1
	destIPv4      = 2
	sourceIPv6    = 3
	destIPv6      = 4
	protocol      = 1
	sourcePort    = 2
	destPort      = 3

	statusAnswered = 1 << 1 // IPS_SEEN_REPLY
	statusDstNAT   = 1 << 5
)

// maxListings bounds how often a listing that broke off is begun again.
const maxListings = 5

// A Flow is an entry of connection tracking, as much of it as is of use here. The slices
// are as the kernel gave them, and valid during the call that delivers the flow.
type Flow struct {
	Protocol   uint8          // unix.IPPROTO_UDP
	To         netip.AddrPort // its original destination; protocols without ports have 0
	Translated bool           // by DNAT
	Answered   bool           // a packet came back, be it a refusal; an ICMP error is none
	// Original and Reply are the tuples of its two directions.
	Original, Reply []byte
	// ID and Zone tell it from others with the same tuple; nil if the kernel gives none.
	ID, Zone []byte
}

// Answer gives who answers.
func (f Flow) Answer() (netip.AddrPort, error) {
	_, from, _, err := parseTuple(f.Reply)
	return from, err
}

// Swept says what a sweep did.
type Swept struct {
	// Listings counts how often the kernel was asked for its entries: once, and once more
	// each time that a listing broke off. Read are the entries that it gave.
	Listings, Read int
	// Translated and Untranslated count the entries deleted, with and without a DNAT.
	Translated, Untranslated int
	// Busy are the stale entries that the kernel did not let go: before Linux 6.4 it deletes
	// none that somebody's flowtable has, and they are stale as long as that is so.
	Busy int
}

// Which says which entries a sweep is for.
type Which uint8

// All entries, those without DNAT, or those with DNAT that nobody has answered: a kernel
// before 5.17 gives all of them then, too.
const (
	All Which = iota
	WithoutDNAT
	Unanswered
)

func (w Which) String() string {
	return [...]string{"all", "without DNAT", "unanswered"}[w]
}

// status gives which bits of the status matter, and how they are; none: all entries.
func (w Which) status() (mask, want uint32) {
	switch w {
	case WithoutDNAT:
		return statusDstNAT, 0
	case Unanswered:
		return statusDstNAT | statusAnswered, statusDstNAT
	default:
		return 0, 0
	}
}

// Sweep reads the entries of a family (unix.NFPROTO_IPV4) in the network namespace of the
// calling thread, and deletes the stale ones meanwhile. An error of stale ends it, and is
// given back as it is. A listing that broke off is begun again: what an earlier one had
// deleted does not come again.
func Sweep(family uint8, which Which, stale func(Flow) (bool, error)) (Swept, error) {
	remove, err := dump.Open()
	if err != nil {
		return Swept{}, err
	}
	defer func() { _ = remove.Close() }()
	return sweep(stale,
		func(f func(Flow) error) (bool, error) { return list(family, which, f) },
		func(f Flow) error { return deleteFlow(remove, family, f) })
}

// sweep does so with what lists and what deletes one entry.
func sweep(stale func(Flow) (bool, error), list func(func(Flow) error) (whole bool, err error), remove func(Flow) error) (done Swept, err error) {
	err = complete(func() (bool, error) {
		done.Listings, done.Busy = done.Listings+1, 0 // what is busy comes again
		return list(func(f Flow) error {
			done.Read++
			if gone, err := stale(f); !gone || err != nil {
				return err
			}
			return done.deleted(f, remove(f))
		})
	})
	return done, err
}

// deleted takes note of how a deletion ended. One entry that stays keeps no other.
func (s *Swept) deleted(f Flow, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT): // it ended by itself
		return nil
	case errors.Is(err, unix.EBUSY):
		s.Busy++
		return nil
	case err != nil:
		return err
	case f.Translated:
		s.Translated++
	default:
		s.Untranslated++
	}
	return nil
}

// complete repeats a listing until one is whole.
func complete(list func() (whole bool, err error)) error {
	for range maxListings {
		whole, err := list()
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if whole && err == nil {
			return nil
		}
	}
	return fmt.Errorf("the listing broke off %d times: %w", maxListings, unix.EINTR)
}

// list says whether the listing was whole.
func list(family uint8, which Which, f func(Flow) error) (whole bool, err error) {
	conn, err := dump.Open()
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }()
	request := dump.Request(family)
	if mask, want := which.status(); mask != 0 {
		be := binary.BigEndian
		request = dump.Request(family,
			dump.Attr(ctStatus, be.AppendUint32(nil, want)), dump.Attr(ctStatusMask, be.AppendUint32(nil, mask)))
	}
	err = conn.Run(ctGet, request, func(payload []byte) error {
		flow, err := parseFlow(payload)
		if err != nil {
			return err
		}
		return f(flow)
	})
	return !conn.Interrupted(), err
}

// deleteFlow deletes just this entry.
func deleteFlow(conn *dump.Conn, family uint8, f Flow) error {
	request := dump.Request(family, dump.Nest(tupleOriginal, f.Original))
	if f.Zone != nil {
		request = append(request, dump.Attr(ctZone, f.Zone)...)
	}
	if f.ID != nil { // a flow of the same client that began since has another one, as a rule
		request = append(request, dump.Attr(ctID, f.ID)...)
	}
	return conn.Ask(ctDelete, request, func([]byte) error { return nil })
}

func parseFlow(payload []byte) (f Flow, err error) {
	attrs, err := dump.Attributes(payload)
	if err != nil {
		return f, err
	}
	err = dump.EachAttr(attrs, func(kind uint16, v []byte) error {
		switch kind {
		case tupleOriginal:
			f.Original = v
		case tupleReply:
			f.Reply = v
		case ctStatus:
			f.Translated, f.Answered = dump.Number(v)&statusDstNAT != 0, dump.Number(v)&statusAnswered != 0
		case ctZone:
			f.Zone = v
		case ctID:
			f.ID = v
		}
		return nil
	})
	if err != nil {
		return f, err
	}
	f.Protocol, _, f.To, err = parseTuple(f.Original)
	return f, err
}

// parseTuple gives one direction of a flow.
func parseTuple(b []byte) (number uint8, from, to netip.AddrPort, err error) {
	var addrs [2]netip.Addr
	var ports [2]uint16
	err = dump.EachAttr(b, func(part uint16, v []byte) error {
		return dump.EachAttr(v, func(kind uint16, field []byte) error {
			switch {
			case part == tupleIP && (kind == sourceIPv4 || kind == sourceIPv6):
				addrs[0], _ = netip.AddrFromSlice(field)
			case part == tupleIP && (kind == destIPv4 || kind == destIPv6):
				addrs[1], _ = netip.AddrFromSlice(field)
			case part == tupleProtocol && kind == protocol && len(field) == 1:
				number = field[0]
			case part == tupleProtocol && (kind == sourcePort || kind == destPort) && len(field) == 2:
				ports[kind-sourcePort] = binary.BigEndian.Uint16(field)
			}
			return nil
		})
	})
	return number, netip.AddrPortFrom(addrs[0], ports[0]), netip.AddrPortFrom(addrs[1], ports[1]), err
}
