package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// rawElement is an element as the kernel gives it, valid until the next one.
type rawElement struct {
	key, value []byte
	keyEnd     []byte // of an element that is a range
	chain      string
	end        bool
}

// elements lists a set. The kernel walks it anew for each buffer that it fills, so
// large buffers make it about 60 times as fast as the 4 KiB of common libraries
// (9 s against 0.16 s for 100,000 elements).
func (d *dump) elements(family Family, set string, f func(rawElement) error) error {
	attrs, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_SET_ELEM_LIST_TABLE, Data: cString(TableName)},
		{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: cString(set)},
	})
	if err != nil {
		return fmt.Errorf("encode request: %w", err)
	}
	header := []byte{nfFamily(family), unix.NFNETLINK_V0, 0, 0}
	const kind = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETSETELEM
	return d.run(kind, append(header, attrs...), func(payload []byte) error {
		return eachElement(payload[4:], f)
	})
}

func nfFamily(f Family) uint8 {
	if f == IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

func eachElement(attrs []byte, f func(rawElement) error) error {
	return eachAttr(attrs, func(kind uint16, list []byte) error {
		if kind != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return nil
		}
		return eachAttr(list, func(_ uint16, body []byte) error {
			e, err := parseElement(body)
			if err != nil {
				return err
			}
			return f(e)
		})
	})
}

// setElemKeyEnd is NFTA_SET_ELEM_KEY_END, since kernel 5.6.
const setElemKeyEnd = 10

func parseElement(body []byte) (rawElement, error) {
	var e rawElement
	err := eachAttr(body, func(kind uint16, v []byte) error {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			return eachAttr(v, func(_ uint16, key []byte) error {
				e.key = key
				return nil
			})
		case setElemKeyEnd:
			return eachAttr(v, func(_ uint16, key []byte) error {
				e.keyEnd = key
				return nil
			})
		case unix.NFTA_SET_ELEM_DATA:
			return parseData(v, &e)
		case unix.NFTA_SET_ELEM_FLAGS:
			e.end = len(v) == 4 && binary.BigEndian.Uint32(v)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		}
		return nil
	})
	return e, err
}

func parseData(v []byte, e *rawElement) error {
	return eachAttr(v, func(kind uint16, data []byte) error {
		if kind == unix.NFTA_DATA_VALUE {
			e.value = data
			return nil
		}
		return eachAttr(data, func(kind uint16, part []byte) error {
			if kind == unix.NFTA_VERDICT_CHAIN && len(part) > 0 {
				e.chain = string(part[:len(part)-1])
			}
			return nil
		})
	})
}
