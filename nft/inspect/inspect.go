// Package inspect reads nftables over netlink, without a process: the chains and rules of
// any table, and whether a table whose rules are constant still is what was written.
package inspect

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"onerule/nft/dump"
)

// tries bounds how often a listing that a commit fell into is begun again.
const tries = 8

// headerSize is that of nfnetlink, in front of the attributes of each message.
const headerSize = 4

// A Reader is a netlink socket for listings. It belongs to the network namespace that it
// was opened in.
type Reader struct{ conn *dump.Conn }

// Open opens a socket in the network namespace of the calling thread.
func Open() (*Reader, error) {
	conn, err := dump.Open()
	if err != nil {
		return nil, err
	}
	return &Reader{conn}, nil
}

// Close closes the socket.
func (r *Reader) Close() error { return r.conn.Close() }

// Whole calls f, which lists something, until no commit fell into the listing: the kernel
// leaves chains out of a listing while others come and go, and does not always say so.
func (r *Reader) Whole(f func() error) error {
	for range tries {
		before, err := r.Generation()
		if err != nil {
			return err
		}
		err = f()
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		after, gerr := r.Generation()
		if gerr != nil {
			return gerr
		}
		if err == nil && before == after {
			return nil
		}
	}
	return fmt.Errorf("list nftables: others wrote during each of %d listings", tries)
}

// Generation gives the number of the last commit to any table.
func (r *Reader) Generation() (gen uint32, err error) {
	err = r.ask(unix.NFT_MSG_GETGEN, unix.AF_UNSPEC, func(kind uint16, v []byte) {
		if kind == unix.NFTA_GEN_ID {
			gen = number(v)
		}
	})
	if err != nil {
		return 0, fmt.Errorf("ask for the generation of nftables: %w", err)
	}
	return gen, nil
}

// ask sends a request that is no listing, and calls f with each attribute of the answer.
func (r *Reader) ask(message uint16, family uint8, f func(kind uint16, value []byte), names ...attribute) error {
	return r.conn.Ask(unix.NFNL_SUBSYS_NFTABLES<<8|message, request(family, names...), func(body []byte) error {
		return attributes(body, f)
	})
}

// list asks for a listing, and calls f with the attributes of each object.
func (r *Reader) list(message uint16, family uint8, f func(body []byte) error, names ...attribute) error {
	return r.conn.Run(unix.NFNL_SUBSYS_NFTABLES<<8|message, request(family, names...), f)
}

func attributes(body []byte, f func(kind uint16, value []byte)) error {
	if len(body) < headerSize {
		return errors.New("message of nftables without a header")
	}
	return nested(body[headerSize:], f)
}

func nested(b []byte, f func(kind uint16, value []byte)) error {
	return dump.EachAttr(b, func(kind uint16, value []byte) error {
		f(kind, value)
		return nil
	})
}

// An attribute names a table, a chain or a set in a request.
type attribute struct {
	kind uint16
	name string
}

func request(family uint8, names ...attribute) []byte {
	b := []byte{family, unix.NFNETLINK_V0, 0, 0}
	for _, n := range names {
		b = append(b, plain(n.kind, append([]byte(n.name), 0))...)
	}
	return b
}

func text(v []byte) string { return strings.TrimRight(string(v), "\x00") }

func number(v []byte) uint32 {
	if len(v) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(v)
}

// A Chain is a chain of any table. Hook, Priority, Type and Policy are those of a base
// chain.
type Chain struct {
	Family      uint8 // as in messages of netfilter: unix.NFPROTO_IPV4
	Table, Name string
	Base        bool
	Type        string
	Hook        uint32
	Priority    int32
	Policy      uint32 // unix.NF_ACCEPT or NF_DROP
}

// Chains lists the chains of all tables of a family, or of all families with
// unix.NFPROTO_UNSPEC.
func (r *Reader) Chains(family uint8) ([]Chain, error) {
	var list []Chain
	err := r.list(unix.NFT_MSG_GETCHAIN, family, func(body []byte) error {
		c, err := parseChain(body)
		list = append(list, c)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	return list, nil
}

func parseChain(body []byte) (c Chain, err error) {
	var hook []byte
	err = attributes(body, func(kind uint16, v []byte) {
		switch kind {
		case unix.NFTA_CHAIN_TABLE:
			c.Table = text(v)
		case unix.NFTA_CHAIN_NAME:
			c.Name = text(v)
		case unix.NFTA_CHAIN_TYPE:
			c.Type = text(v)
		case unix.NFTA_CHAIN_POLICY:
			c.Policy = number(v)
		case unix.NFTA_CHAIN_HOOK:
			c.Base, hook = true, v
		}
	})
	if err != nil {
		return c, err
	}
	c.Family = body[0]
	return c, nested(hook, func(kind uint16, v []byte) {
		switch kind {
		case unix.NFTA_HOOK_HOOKNUM:
			c.Hook = number(v)
		case unix.NFTA_HOOK_PRIORITY:
			c.Priority = int32(number(v))
		}
	})
}

// A Rule is a rule of any table. Expressions are a copy, in the kernel's form.
type Rule struct {
	Table, Chain string
	Expressions  []byte
}

// Rules lists the rules of a table in the order of each chain.
func (r *Reader) Rules(family uint8, table string) ([]Rule, error) {
	var list []Rule
	err := r.list(unix.NFT_MSG_GETRULE, family, func(body []byte) error {
		var rule Rule
		err := attributes(body, func(kind uint16, v []byte) {
			switch kind {
			case unix.NFTA_RULE_TABLE:
				rule.Table = text(v)
			case unix.NFTA_RULE_CHAIN:
				rule.Chain = text(v)
			case unix.NFTA_RULE_EXPRESSIONS:
				rule.Expressions = slices.Clone(v)
			}
		})
		// Older kernels do not narrow the listing to a table.
		if rule.Table == table {
			list = append(list, rule)
		}
		return err
	}, attribute{unix.NFTA_RULE_TABLE, table})
	if err != nil {
		return nil, fmt.Errorf("list rules of table %s: %w", table, err)
	}
	return list, nil
}

// An Expression is one step of a rule. Data is in the kernel's form.
type Expression struct {
	Name string
	Data []byte
}

// Steps gives the expressions of the rule.
func (r Rule) Steps() ([]Expression, error) {
	var list []Expression
	err := dump.EachAttr(r.Expressions, func(_ uint16, expression []byte) error {
		var e Expression
		err := nested(expression, func(kind uint16, v []byte) {
			switch kind {
			case unix.NFTA_EXPR_NAME:
				e.Name = text(v)
			case unix.NFTA_EXPR_DATA:
				e.Data = v
			}
		})
		list = append(list, e)
		return err
	})
	return list, err
}

// HasChain asks for one chain by its name.
func (r *Reader) HasChain(family uint8, table, chain string) (bool, error) {
	err := r.ask(unix.NFT_MSG_GETCHAIN, family, func(uint16, []byte) {},
		attribute{unix.NFTA_CHAIN_TABLE, table}, attribute{unix.NFTA_CHAIN_NAME, chain})
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for chain %s of table %s: %w", chain, table, err)
	}
	return true, nil
}

// HasElement asks whether a set or map has an element with this key, in the kernel's form.
// Where the table or the set is not there, it has none.
func (r *Reader) HasElement(family uint8, table, set string, key []byte) (bool, error) {
	list := nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, nest(unix.NFTA_LIST_ELEM, nest(unix.NFTA_SET_ELEM_KEY, plain(unix.NFTA_DATA_VALUE, key))))
	body := append(request(family, attribute{unix.NFTA_SET_ELEM_LIST_TABLE, table}, attribute{unix.NFTA_SET_ELEM_LIST_SET, set}), list...)
	err := r.conn.Ask(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETSETELEM, body, func([]byte) error { return nil })
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up in set %s of table %s: %w", set, table, err)
	}
	return true, nil
}

func nest(kind uint16, value []byte) []byte { return plain(kind|unix.NLA_F_NESTED, value) }

// plain gives an attribute with its padding.
func plain(kind uint16, value []byte) []byte {
	size := unix.SizeofNlAttr + len(value)
	b := binary.NativeEndian.AppendUint16(nil, uint16(size))
	b = binary.NativeEndian.AppendUint16(b, kind)
	return append(append(b, value...), make([]byte, dump.Align4(size)-size)...)
}
