package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"onerule/nft/dump"
)

const (
	// elementsPerMessage keeps a message's list of elements below the 64 KiB that
	// the length of a netlink attribute can say: an IPv6 endpoint takes 72 bytes.
	elementsPerMessage = 500
	// elementsPerTransaction bounds a transaction: the kernel holds a lock for all of it,
	// the socket must take it in one piece, and it is in memory twice until it is sent:
	// with 20,000 a full load of 100,000 endpoints took 10 MB more at its peak.
	elementsPerTransaction = 8_000
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
	family  Family
	port    uint32 // by which its commits are known
	monitor *Monitor
	closed  func() // tells the monitor that the port is not ours any more
	table   *nftables.Table
	conn    *nftables.Conn
}

func newElementWriter(family Family) (*elementWriter, error) {
	var port uint32
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		// Both try the FORCE variant first, which CAP_NET_ADMIN allows.
		port = c.PID()
		return errors.Join(c.SetWriteBuffer(socketBuffer), c.SetReadBuffer(socketBuffer))
	}))
	if err != nil {
		return nil, fmt.Errorf("open netlink socket for nftables: %w", err)
	}
	return &elementWriter{family: family, port: port, closed: func() {}, table: kernelTable(family), conn: conn}, nil
}

// watchedBy tells a monitor which commits are ours.
func (w *elementWriter) watchedBy(m *Monitor) {
	w.monitor = m
	if m != nil {
		w.closed = m.Own(w.port)
	}
}

func (w *elementWriter) reopen() error {
	_ = w.close() // of no use any more
	fresh, err := newElementWriter(w.family)
	if err == nil {
		w.conn, w.port = fresh.conn, fresh.port
		w.watchedBy(w.monitor)
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

func (w *elementWriter) close() error {
	w.closed()
	w.closed = func() {}
	return w.conn.CloseLasting()
}

// write applies changes in as few transactions as the bound allows. On an error
// what the kernel holds is unknown.
func (w *elementWriter) write(c Changes) (Operations, error) {
	var done Operations
	if err := w.writeRanges(c.Ranges, &done); err != nil {
		return done, err
	}
	for _, steps := range [][]Step{c.First, c.Steps, c.Last} {
		if err := w.writeInParts(steps, &done); err != nil {
			return done, err
		}
	}
	return done, w.writeRanges(c.RangesLast, &done)
}

func (w *elementWriter) writeInParts(steps []Step, done *Operations) error {
	for len(steps) > 0 {
		n, size := 1, steps[0].Size()
		for n < len(steps) && size+steps[n].Size() <= elementsPerTransaction {
			size += steps[n].Size()
			n++
		}
		if err := w.writeSteps(steps[:n], done); err != nil {
			return err
		}
		steps = steps[n:]
	}
	return nil
}

func (w *elementWriter) writeSteps(steps []Step, done *Operations) error {
	deletes, adds := map[string][]nftables.SetElement{}, map[string][]nftables.SetElement{}
	for _, s := range steps {
		for _, e := range s.Delete {
			deletes[e.Set] = append(deletes[e.Set], nftables.SetElement{Key: keyOf(e), KeyEnd: keyEndOf(e)})
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
		err = fmt.Errorf("write elements of table %s %s: %w", w.family, TableName, dump.First(err))
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

// seal exchanges an empty chain for another one; was is "" if there is none.
func (w *elementWriter) seal(was, now string) (Operations, error) {
	var done Operations
	if was == now {
		return done, nil
	}
	if was != "" {
		w.conn.DelChain(&nftables.Chain{Table: w.table, Name: was})
	}
	w.conn.AddChain(&nftables.Chain{Table: w.table, Name: now})
	return done, w.flush(&done)
}

// deleteSome deletes those of these elements that are there, from all the sets: others
// may be gone by the time, or were never there. A transaction with one of them fails as
// a whole, so it is halved until it is found.
func (w *elementWriter) deleteSome(sets []string, addrs []netip.Addr) (Operations, error) {
	var done Operations
	var keys []nftables.SetElement
	for _, a := range addrs {
		keys = append(keys, nftables.SetElement{Key: a.AsSlice()})
	}
	for len(keys) > 0 {
		n := min(len(keys), elementsPerMessage)
		if err := w.deleteHalves(sets, keys[:n], &done); err != nil {
			return done, err
		}
		keys = keys[n:]
	}
	return done, nil
}

func (w *elementWriter) deleteHalves(sets []string, keys []nftables.SetElement, done *Operations) error {
	for _, set := range sets {
		if err := w.conn.SetDeleteElements(w.set(set), keys); err != nil {
			return fmt.Errorf("encode elements to delete: %w", err)
		}
	}
	err := w.flush(done)
	switch {
	case err == nil:
		done.Deleted += len(keys) * len(sets)
		return nil
	case !errors.Is(err, unix.ENOENT):
		return err
	case len(keys) > 1:
		half := len(keys) / 2
		return errors.Join(w.deleteHalves(sets, keys[:half], done), w.deleteHalves(sets, keys[half:], done))
	case len(sets) > 1:
		return errors.Join(w.deleteHalves(sets[:1], keys, done), w.deleteHalves(sets[1:], keys, done))
	}
	return nil
}

// intervals spells disjoint sorted prefixes as the kernel wants them: an element
// where a range begins and one where it has ended. Adjacent prefixes become one
// range; a range that reaches the last address has no end.
func intervals(prefixes []netip.Prefix) []nftables.SetElement {
	var list []nftables.SetElement
	for i, p := range prefixes {
		start, end := p.Masked().Addr(), LastOf(p).Next()
		if n := len(list); n > 0 && i > 0 && LastOf(prefixes[i-1]).Next() == start {
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

// LastOf gives the last address of a prefix.
func LastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

// element spells an element with its value.
func (w *elementWriter) element(e Element) nftables.SetElement {
	el := nftables.SetElement{Key: keyOf(e), KeyEnd: keyEndOf(e)}
	switch {
	case e.Chain != "":
		el.VerdictData = &expr.Verdict{Kind: expr.VerdictKind(verdictOf(e.Set)), Chain: e.Chain}
	case e.Endpoint.IsValid() && !isMemberSet(e.Set):
		el.Val = appendPort(appendAddr(nil, e.Endpoint.Addr()), e.Endpoint.Port())
	}
	return el
}

// keyOf spells the key. Every part of a concatenation is padded to 4 bytes, as in the
// kernel's registers. The slot is compared with what numgen gives: a number in the
// machine's byte order. A NodePort has no address in its key.
func keyOf(e Element) []byte {
	b := make([]byte, 0, 40)
	_, empty := emptySetOf(e.Set)
	switch {
	case isMemberSet(e.Set):
		return appendPort(appendAddr(b, e.Endpoint.Addr()), e.Endpoint.Port())
	case e.Set == string(Hairpins):
		return appendAddr(appendAddr(b, e.Frontend.Addr), e.Frontend.Addr)
	case e.Set == AllowedSources:
		return appendAddr(appendFrontend(b, e.Frontend), e.Source.Masked().Addr())
	case e.Endpoint.IsValid():
		b = appendPort(appendAddr(b, e.Frontend.Addr), e.Frontend.Port)
		return binary.NativeEndian.AppendUint32(b, uint32(e.Slot))
	case e.Chain != "" || empty:
		return appendFrontend(b, e.Frontend)
	case e.Frontend.Protocol == 0:
		return appendAddr(b, e.Frontend.Addr)
	case !e.Frontend.Addr.IsValid():
		return binary.BigEndian.AppendUint16(b, e.Frontend.Port) // no concatenation, no padding
	}
	return appendPort(appendAddr(b, e.Frontend.Addr), e.Frontend.Port)
}

// keyEndOf spells the end of a range of keys, for elements that are ranges.
func keyEndOf(e Element) []byte {
	if e.Set != AllowedSources {
		return nil
	}
	return appendAddr(appendFrontend(nil, e.Frontend), LastOf(e.Source))
}

func appendFrontend(b []byte, f Frontend) []byte {
	b = append(appendAddr(b, f.Addr), f.Protocol, 0, 0, 0)
	return appendPort(b, f.Port)
}

func appendAddr(b []byte, a netip.Addr) []byte { return append(b, a.AsSlice()...) }

func appendPort(b []byte, port uint16) []byte {
	b = binary.BigEndian.AppendUint16(b, port)
	return append(b, 0, 0)
}
