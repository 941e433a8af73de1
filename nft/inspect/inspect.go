// Package inspect reads nftables over netlink, without a process: the chains and rules of
// any table, its sets with their elements, and whether a table whose rules are constant
// still is what was written.
package inspect

import (
	"cmp"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"onerule/nft/dump"
)

// tries bounds how often a listing that a commit fell into is begun again.
const tries = 8

// ErrBusy says that others wrote during each listing.
var ErrBusy = errors.New("others wrote during each listing of nftables")

// A Table names a table.
type Table struct {
	Family uint8 // as in messages of netfilter: unix.NFPROTO_IPV4
	Name   string
}

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
// leaves objects out of a listing while others come and go, and does not always say so.
// After a few tries the error is ErrBusy, and the last listing may lack some objects, or
// unix.EINTR if it broke off.
func (r *Reader) Whole(f func() error) error {
	var last error
	for range tries {
		before, err := r.Generation()
		if err != nil {
			return err
		}
		last = f()
		if last != nil && !errors.Is(last, unix.EINTR) {
			return last
		}
		after, err := r.Generation()
		if err != nil {
			return err
		}
		if last == nil && before == after {
			return nil
		}
	}
	return cmp.Or(last, ErrBusy)
}

// Generation gives the number of the last commit to any table.
func (r *Reader) Generation() (gen uint32, err error) {
	err = r.ask(unix.NFT_MSG_GETGEN, dump.Request(unix.AF_UNSPEC), func(body []byte) error {
		return attributes(body, func(kind uint16, v []byte) {
			if kind == unix.NFTA_GEN_ID {
				gen = dump.Number(v)
			}
		})
	})
	if err != nil {
		return 0, fmt.Errorf("ask for the generation of nftables: %w", err)
	}
	return gen, nil
}

// ask sends a request that is no listing, and calls f with the payload of each answer.
func (r *Reader) ask(message uint16, request []byte, f func(body []byte) error) error {
	return r.conn.Ask(unix.NFNL_SUBSYS_NFTABLES<<8|message, request, f)
}

// List asks for a listing of a kind (unix.NFT_MSG_GETRULE), and calls f with the payload
// of each message: see dump.Conn. The request is of dump.Request.
func (r *Reader) List(message uint16, request []byte, f func(body []byte) error) error {
	return r.conn.Run(unix.NFNL_SUBSYS_NFTABLES<<8|message, request, f)
}

// tableAttribute is the one that names a table, the same number in requests for tables,
// sets, chains, rules and counters.
const tableAttribute = unix.NFTA_TABLE_NAME

// request begins a request about the table.
func (t Table) request(attrs ...[]byte) []byte {
	return dump.Request(t.Family, append([][]byte{dump.Name(tableAttribute, t.Name)}, attrs...)...)
}

func attributes(body []byte, f func(kind uint16, value []byte)) error {
	attrs, err := dump.Attributes(body)
	if err != nil {
		return err
	}
	return nested(attrs, f)
}

func nested(b []byte, f func(kind uint16, value []byte)) error {
	return dump.EachAttr(b, func(kind uint16, value []byte) error {
		f(kind, value)
		return nil
	})
}
