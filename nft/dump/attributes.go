package dump

import (
	"encoding/binary"
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// HeaderSize is that of nfnetlink, in front of the attributes of each message: family,
// version, and a number of the subsystem's.
const HeaderSize = 4

// Request gives the payload of a request for objects of a family (unix.NFPROTO_IPV4).
func Request(family uint8, attrs ...[]byte) []byte {
	b := []byte{family, unix.NFNETLINK_V0, 0, 0}
	for _, a := range attrs {
		b = append(b, a...)
	}
	return b
}

// Attr gives an attribute with its padding. kind carries the flags for nesting.
func Attr(kind uint16, value []byte) []byte {
	size := unix.SizeofNlAttr + len(value)
	b := make([]byte, 0, Align4(size))
	b = binary.NativeEndian.AppendUint16(b, uint16(size))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return b[:Align4(size)]
}

// Name gives an attribute that is a name.
func Name(kind uint16, name string) []byte { return Attr(kind, append([]byte(name), 0)) }

// Nest gives an attribute that holds others.
func Nest(kind uint16, attrs []byte) []byte { return Attr(kind|unix.NLA_F_NESTED, attrs) }

// Attributes gives what stands behind the header of a message.
func Attributes(payload []byte) ([]byte, error) {
	if len(payload) < HeaderSize {
		return nil, errors.New("message of netfilter without a header")
	}
	return payload[HeaderSize:], nil
}

// EachAttr walks netlink attributes, without their flags for nesting and byte order. An
// error of f ends the walk and is given back as it is.
func EachAttr(b []byte, f func(kind uint16, value []byte) error) error {
	for len(b) >= unix.SizeofNlAttr {
		size, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if size < unix.SizeofNlAttr || size > len(b) {
			return errors.New("netlink attribute of an impossible length")
		}
		if err := f(kind&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[unix.SizeofNlAttr:size]); err != nil {
			return err
		}
		b = b[min(Align4(size), len(b)):]
	}
	return nil
}

// Find gives the value of the first attribute of a kind, nil if there is none or if what
// stands before it is broken.
func Find(attrs []byte, kind uint16) (value []byte) {
	_ = EachAttr(attrs, func(k uint16, v []byte) error {
		if k == kind && value == nil {
			value = v
		}
		return nil
	})
	return value
}

// Text gives the value of an attribute that is a name.
func Text(value []byte) string { return strings.TrimRight(string(value), "\x00") }

// Number gives the value of an attribute that is a number of 4 bytes, 0 for any other.
func Number(value []byte) uint32 {
	if len(value) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(value)
}

// Align4 rounds a length in bytes up to where the next message or attribute begins.
func Align4(n int) int { return (n + 3) &^ 3 }
