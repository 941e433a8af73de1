package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"onerule/nft/dump"
)

// An event is one message of the kernel about nftables.
type event struct {
	kind    uint8  // NFT_MSG_...
	port    uint32 // of the socket that it was done through, 0 if the kernel did it
	family  uint8  // NFPROTO_...
	payload []byte // attributes
}

// eachEvent splits a datagram. It says whether all of it could be read.
func eachEvent(b []byte, f func(event)) bool {
	ne := binary.NativeEndian
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(ne.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return false
		}
		kind, body := ne.Uint16(b[4:]), b[unix.SizeofNlMsghdr:size]
		if kind>>8 == unix.NFNL_SUBSYS_NFTABLES && len(body) >= dump.HeaderSize {
			f(event{kind: uint8(kind), port: ne.Uint32(b[12:]), family: body[0], payload: body[dump.HeaderSize:]})
		}
		b = b[min(dump.Align4(size), len(b)):]
	}
	return len(b) == 0
}

// A generation is the message that ends a transaction.
type generation struct {
	id      uint32
	process string
}

// parseGeneration reads the attributes of such a message.
func parseGeneration(attrs []byte) (g generation, ok bool) {
	err := dump.EachAttr(attrs, func(kind uint16, v []byte) error {
		switch kind {
		case unix.NFTA_GEN_ID:
			g.id, ok = dump.Number(v), len(v) == 4
		case unix.NFTA_GEN_PROC_NAME:
			g.process = dump.Text(v)
		}
		return nil
	})
	return g, ok && err == nil
}

// kindOf sorts an event, and names the attribute with the name of the chain, set or
// counter.
func kindOf(message uint8) (k Kind, name uint16) {
	switch message {
	case unix.NFT_MSG_DELTABLE:
		return TableDeleted, 0
	case unix.NFT_MSG_NEWTABLE:
		return OtherChange, 0
	case unix.NFT_MSG_DELCHAIN:
		return ChainsDeleted, unix.NFTA_CHAIN_NAME
	case unix.NFT_MSG_NEWCHAIN:
		return OtherChange, unix.NFTA_CHAIN_NAME
	case unix.NFT_MSG_DELRULE:
		return RulesDeleted, unix.NFTA_RULE_CHAIN
	case unix.NFT_MSG_NEWRULE:
		return RulesAdded, unix.NFTA_RULE_CHAIN
	case unix.NFT_MSG_DELSET:
		return SetsDeleted, unix.NFTA_SET_NAME
	case unix.NFT_MSG_DELSETELEM:
		return ElementsDeleted, unix.NFTA_SET_ELEM_LIST_SET
	case unix.NFT_MSG_NEWSETELEM:
		return ElementsAdded, unix.NFTA_SET_ELEM_LIST_SET
	}
	return OtherChange, unix.NFTA_OBJ_NAME // the same number in flow tables and sets
}

// subject gives the table that an event is about, and the object. Both stand in front.
func (e event) subject(name uint16) (table, object []byte) {
	for b := e.payload; len(b) >= unix.SizeofNlAttr; {
		size, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])&^unix.NLA_F_NESTED
		if size < unix.SizeofNlAttr || size > len(b) {
			return table, object
		}
		switch kind {
		case unix.NFTA_TABLE_NAME: // the same number for every kind of object
			table = withoutNUL(b[unix.SizeofNlAttr:size])
		case name:
			return table, withoutNUL(b[unix.SizeofNlAttr:size])
		}
		b = b[min(dump.Align4(size), len(b)):]
	}
	return table, object
}

func withoutNUL(b []byte) []byte {
	if n := len(b); n > 0 && b[n-1] == 0 {
		return b[:n-1]
	}
	return b
}

// familyOf is the inverse of nfFamily, 0 for other families.
func familyOf(nf uint8) Family {
	for _, f := range []Family{IPv4, IPv6} {
		if nf == nfFamily(f) {
			return f
		}
	}
	return 0
}
