package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
)

const (
	// elementsPerMessage keeps a message's list of elements below the 64 KiB that
	// the length of a netlink attribute can say: an IPv6 endpoint takes 72 bytes.
	elementsPerMessage = 500
	// elementsPerTransaction bounds a transaction: the kernel holds a lock for all
	// of it, and the socket must take it in one piece.
	elementsPerTransaction = 20_000
	// socketBuffer is what a transaction of elements and its acknowledgements need.
	// A step is never torn, so one can be larger than elementsPerTransaction.
	socketBuffer = 64 << 20
)

// Operations says what was done in the kernel. Tests compare them: cost is a property
// of the change, not of the clock.
type Operations struct {
	Transactions int // through either writer
	Added        int // elements
	Deleted      int // elements
	Rulesets     int // runs of nft: the skeleton, and rules for a new number of endpoints
	Listings     int // sets and maps read from the kernel
	Afresh       int // tables deleted and begun afresh, since others had changed them
}

func (c *Operations) add(o Operations) {
	c.Transactions += o.Transactions
	c.Added += o.Added
	c.Deleted += o.Deleted
	c.Rulesets += o.Rulesets
	c.Listings += o.Listings
	c.Afresh += o.Afresh
}

// elementWriter writes elements by netlink.
type elementWriter struct {
	family Family
	table  *nftables.Table
	conn   *nftables.Conn
}

func newElementWriter(family Family) (*elementWriter, error) {
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		// Both try the FORCE variant first, which CAP_NET_ADMIN allows.
		return errors.Join(c.SetWriteBuffer(socketBuffer), c.SetReadBuffer(socketBuffer))
	}))
	if err != nil {
		return nil, fmt.Errorf("open netlink socket for nftables: %w", err)
	}
	return &elementWriter{family: family, table: kernelTable(family), conn: conn}, nil
}

// firstOf gives the first of the errors that one transaction gave, one for each
// message: they say the same.
func firstOf(err error) error {
	for {
		var list interface{ Unwrap() []error }
		if !errors.As(err, &list) || len(list.Unwrap()) == 0 {
			return err
		}
		err = list.Unwrap()[0]
	}
}

func (w *elementWriter) reopen() error {
	_ = w.conn.CloseLasting() // of no use any more
	fresh, err := newElementWriter(w.family)
	if err == nil {
		w.conn = fresh.conn
	}
	return err
}

func kernelTable(f Family) *nftables.Table {
	t := &nftables.Table{Name: TableName, Family: nftables.TableFamilyIPv4}
	if f == IPv6 {
		t.Family = nftables.TableFamilyIPv6
	}
	return t
}

func (w *elementWriter) close() error { return w.conn.CloseLasting() }

// write applies changes in as few transactions as the bound allows. On an error
// what the kernel holds is unknown.
func (w *elementWriter) write(c Changes) (Operations, error) {
	var done Operations
	if err := w.writeRanges(c.Ranges, &done); err != nil {
		return done, err
	}
	for steps := c.Steps; len(steps) > 0; {
		n, size := 1, steps[0].Size()
		for n < len(steps) && size+steps[n].Size() <= elementsPerTransaction {
			size += steps[n].Size()
			n++
		}
		if err := w.writeSteps(steps[:n], &done); err != nil {
			return done, err
		}
		steps = steps[n:]
	}
	return done, w.writeRanges(c.RangesLast, &done)
}

func (w *elementWriter) writeSteps(steps []Step, done *Operations) error {
	deletes, adds := map[string][]nftables.SetElement{}, map[string][]nftables.SetElement{}
	for _, s := range steps {
		for _, e := range s.Delete {
			deletes[e.Set] = append(deletes[e.Set], nftables.SetElement{Key: keyOf(e)})
		}
		for _, e := range s.Add {
			adds[e.Set] = append(adds[e.Set], w.element(e))
		}
		done.Deleted += len(s.Delete)
		done.Added += len(s.Add)
	}
	if err := w.each(deletes, w.conn.SetDeleteElements); err != nil {
		return fmt.Errorf("encode elements to delete: %w", err)
	}
	if err := w.each(adds, w.conn.SetAddElements); err != nil {
		return fmt.Errorf("encode elements to add: %w", err)
	}
	return w.flush(done)
}

// flush sends what was collected. After an error answers may still be on their way,
// which the next transaction would take for its own: it gets a new socket.
func (w *elementWriter) flush(done *Operations) error {
	if err := w.conn.Flush(); err != nil {
		err = fmt.Errorf("write elements of table %s %s: %w", w.family, TableName, firstOf(err))
		return errors.Join(err, w.reopen())
	}
	done.Transactions++
	return nil
}

func (w *elementWriter) each(sets map[string][]nftables.SetElement, do func(*nftables.Set, []nftables.SetElement) error) error {
	for name, elements := range sets {
		for len(elements) > 0 {
			n := min(len(elements), elementsPerMessage)
			if err := do(w.set(name), elements[:n]); err != nil {
				return fmt.Errorf("set %s: %w", name, err)
			}
			elements = elements[n:]
		}
	}
	return nil
}

func (w *elementWriter) set(name string) *nftables.Set {
	return &nftables.Set{Table: w.table, Name: name}
}

// writeRanges replaces the content of range sets, each in one transaction. They are
// few and change rarely; the kernel's checks for overlap make anything finer
// fragile.
func (w *elementWriter) writeRanges(sets map[RangeSet][]netip.Prefix, done *Operations) error {
	for name, prefixes := range sets {
		w.conn.FlushSet(w.set(string(name)))
		elements := intervals(prefixes)
		if err := w.each(map[string][]nftables.SetElement{string(name): elements}, w.conn.SetAddElements); err != nil {
			return fmt.Errorf("encode ranges: %w", err)
		}
		done.Added += len(elements)
		if err := w.flush(done); err != nil {
			return err
		}
	}
	return nil
}

// remove deletes elements that are not ours, in one transaction.
func (w *elementWriter) remove(strays []stray) (Operations, error) {
	var done Operations
	deletes := map[string][]nftables.SetElement{}
	for _, e := range strays {
		deletes[e.set] = append(deletes[e.set], nftables.SetElement{Key: e.key})
	}
	if err := w.each(deletes, w.conn.SetDeleteElements); err != nil {
		return done, fmt.Errorf("encode elements of others: %w", err)
	}
	done.Deleted = len(strays)
	return done, w.flush(&done)
}

// intervals spells disjoint sorted prefixes as the kernel wants them: an element
// where a range begins and one where it has ended. Adjacent prefixes become one
// range; a range that reaches the last address has no end.
func intervals(prefixes []netip.Prefix) []nftables.SetElement {
	var list []nftables.SetElement
	for i, p := range prefixes {
		start, end := p.Masked().Addr(), lastOf(p).Next()
		if n := len(list); n > 0 && i > 0 && lastOf(prefixes[i-1]).Next() == start {
			list = list[:n-1]
		} else {
			list = append(list, nftables.SetElement{Key: start.AsSlice()})
		}
		if end.IsValid() {
			list = append(list, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return list
}

// lastOf gives the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

// element spells an element with its value.
func (w *elementWriter) element(e Element) nftables.SetElement {
	el := nftables.SetElement{Key: keyOf(e)}
	switch {
	case e.Chain != "":
		el.VerdictData = &expr.Verdict{Kind: expr.VerdictGoto, Chain: e.Chain}
	case e.Endpoint.IsValid():
		el.Val = appendPort(appendAddr(nil, e.Endpoint.Addr()), e.Endpoint.Port())
	}
	return el
}

// keyOf spells the key. Every part of a concatenation is padded to 4 bytes, as in the
// kernel's registers. The slot is compared with what numgen gives: a number in the
// machine's byte order.
func keyOf(e Element) []byte {
	b := make([]byte, 0, 32)
	b = appendAddr(b, e.Frontend.Addr)
	switch {
	case e.Set == string(Hairpins):
		b = appendAddr(b, e.Frontend.Addr)
	case e.Endpoint.IsValid():
		b = appendPort(b, e.Frontend.Port)
		b = binary.NativeEndian.AppendUint32(b, uint32(e.Slot))
	case e.Chain != "" || e.Set == NoEndpoints:
		b = append(b, e.Frontend.Protocol, 0, 0, 0)
		b = appendPort(b, e.Frontend.Port)
	case e.Frontend.Protocol != 0:
		b = appendPort(b, e.Frontend.Port)
	}
	return b
}

func appendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		v := a.As4()
		return append(b, v[:]...)
	}
	v := a.As16()
	return append(b, v[:]...)
}

func appendPort(b []byte, port uint16) []byte {
	b = binary.BigEndian.AppendUint16(b, port)
	return append(b, 0, 0)
}
