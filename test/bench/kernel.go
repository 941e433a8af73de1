package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"onerule/nft"
	"onerule/test/netns"
)

// A kernel looks single elements up in a namespace's tables, which costs nothing
// that a measurement would notice.
type kernel struct{ conn *netlink.Conn }

func openKernel(ns *netns.NS) (*kernel, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.Fd()})
	if err != nil {
		return nil, fmt.Errorf("open netlink socket in %s: %w", ns.Name(), err)
	}
	return &kernel{conn}, nil
}

func (k *kernel) close() { _ = k.conn.Close() }

// element asks for one element of an IPv4 table and gives its value, which is empty
// in a set. false: there is none.
func (k *kernel) element(table, set string, key []byte) (value []byte, ok bool, err error) {
	e := netlink.NewAttributeEncoder()
	e.String(unix.NFTA_SET_ELEM_LIST_TABLE, table)
	e.String(unix.NFTA_SET_ELEM_LIST_SET, set)
	e.Nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(e *netlink.AttributeEncoder) error {
		e.Nested(unix.NFTA_LIST_ELEM, func(e *netlink.AttributeEncoder) error {
			e.Nested(unix.NFTA_SET_ELEM_KEY, func(e *netlink.AttributeEncoder) error {
				e.Bytes(unix.NFTA_DATA_VALUE, key)
				return nil
			})
			return nil
		})
		return nil
	})
	attrs, err := e.Encode()
	if err != nil {
		return nil, false, fmt.Errorf("encode look-up in %s: %w", set, err)
	}
	answers, err := k.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETSETELEM, Flags: netlink.Request},
		Data:   append([]byte{unix.NFPROTO_IPV4, unix.NFNETLINK_V0, 0, 0}, attrs...),
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("look up in set %s of table %s: %w", set, table, err)
	}
	for _, a := range answers {
		if value, err = valueOf(a.Data[4:]); err != nil {
			return nil, false, fmt.Errorf("read element of set %s: %w", set, err)
		}
	}
	return value, true, nil
}

// valueOf finds the data of the one element in an answer.
func valueOf(attrs []byte) (value []byte, err error) {
	path := []uint16{unix.NFTA_SET_ELEM_LIST_ELEMENTS, unix.NFTA_LIST_ELEM, unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VALUE}
	for _, want := range path {
		d, err := netlink.NewAttributeDecoder(attrs)
		if err != nil {
			return nil, err
		}
		attrs = nil
		for d.Next() {
			if d.Type() == want {
				attrs = d.Bytes()
			}
		}
		if err := d.Err(); err != nil {
			return nil, err
		}
	}
	return attrs, nil
}

// Every part of a concatenated key takes whole words of 4 bytes. A NodePort has no
// address in its key, and where its port is alone in it, that is not padded.

func (f frontend) routeKey() []byte {
	return appendPort(append(f.addr.AsSlice(), unix.IPPROTO_TCP, 0, 0, 0), f.port)
}

func (f frontend) countKey() []byte {
	if !f.addr.IsValid() {
		return binary.BigEndian.AppendUint16(nil, f.port)
	}
	return appendPort(f.addr.AsSlice(), f.port)
}

func (f frontend) slotKey(slot int) []byte {
	return binary.NativeEndian.AppendUint32(appendPort(f.addr.AsSlice(), f.port), uint32(slot))
}

func endpointValue(e netip.AddrPort) []byte {
	a := e.Addr().As4()
	return appendPort(a[:], e.Port())
}

func appendPort(b []byte, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(b, port), 0, 0)
}

func countSet(m nft.SlotMap, n int) string {
	return nft.CountSet(nft.IPv4, m, unix.IPPROTO_TCP, n).Name
}

// has checks that our table answers for these frontends with exactly their endpoints.
func (k *kernel) has(list []frontend) error {
	for _, f := range list {
		if err := k.hasFrontend(f); err != nil {
			return fmt.Errorf("%s port %d: %w", f.addr, f.port, err)
		}
	}
	return nil
}

func (k *kernel) hasFrontend(f frontend) error {
	routes := nft.ServiceIPs
	if !f.addr.IsValid() {
		routes = nft.ServiceNodePorts
	}
	type entry struct {
		name string
		key  []byte
	}
	sets := []entry{{string(routes), f.routeKey()}, {countSet(f.slots, len(f.endpoints)), f.countKey()}}
	if f.sticky {
		sets = append(sets, entry{string(nft.Sticky), f.routeKey()})
	}
	for _, set := range sets {
		if _, ok, err := k.element(nft.TableName, set.name, set.key); err != nil || !ok {
			return errors.Join(err, fmt.Errorf("it is not in %s", set.name))
		}
	}
	var got []netip.AddrPort
	for slot := range len(f.endpoints) + 1 {
		v, ok, err := k.element(nft.TableName, f.slots.Of(unix.IPPROTO_TCP), f.slotKey(slot))
		if err != nil {
			return err
		}
		if ok && len(v) >= 6 {
			got = append(got, netip.AddrPortFrom(netip.AddrFrom4([4]byte(v)), binary.BigEndian.Uint16(v[4:])))
		}
	}
	slices.SortFunc(got, netip.AddrPort.Compare)
	if !slices.Equal(got, f.endpoints) {
		return fmt.Errorf("got endpoints %v in the kernel, want %v", got, f.endpoints)
	}
	return nil
}

// rules counts the rules of our table.
func (k *kernel) rules() (int, error) {
	e := netlink.NewAttributeEncoder()
	e.String(unix.NFTA_RULE_TABLE, nft.TableName)
	attrs, err := e.Encode()
	if err != nil {
		return 0, fmt.Errorf("encode request for rules: %w", err)
	}
	answers, err := k.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{unix.NFPROTO_IPV4, unix.NFNETLINK_V0, 0, 0}, attrs...),
	})
	if err != nil {
		return 0, fmt.Errorf("read the rules of table %s: %w", nft.TableName, err)
	}
	return len(answers), nil
}
