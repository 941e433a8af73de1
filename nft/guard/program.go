package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"onerule/nft"
	"onerule/nft/inspect"
)

// patience is how long nft may take. It waits for the kernel's lock behind the
// transactions of others.
const patience = 30 * time.Second

const (
	// socketBuffer holds a transaction with the ranges of more nodes than a cluster has.
	socketBuffer = 4 << 20
	// elementsPerMessage keeps them below the 64 KiB that an attribute takes.
	elementsPerMessage = 1000
)

// A Watcher tells commits of ours from those of others; nft.Monitor is one.
type Watcher interface {
	// Own says that what is committed through the socket with this port ID is ours, until
	// the returned function is called.
	Own(port uint32) (closed func())
	// Expect says that nft is about to be run by us for a family, and the returned function
	// that it has ended and whether it has committed something.
	Expect(family nft.Family) (ended func(committed bool))
}

// nobody is the watcher of a program that none watches.
type nobody struct{}

func (nobody) Own(uint32) func()            { return func() {} }
func (nobody) Expect(nft.Family) func(bool) { return func(bool) {} }

// A Program is one family's table in the kernel. It is used by one goroutine.
type Program struct {
	family  nft.Family
	variant variant
	conn    *nftables.Conn
	port    uint32 // by which its commits are known
	closed  func() // tells the watcher that the port is not ours any more
	watcher Watcher
	have    contents
	known   bool
}

// A Repair says what a load found that was not as it should be.
type Repair struct {
	// Table was not there at all, Rules were not ours or not whole, Ranges held something
	// else.
	Table, Rules, Ranges bool
}

// Nothing says that all was as it should be, and that nothing was written.
func (r Repair) Nothing() bool { return r == Repair{} }

// String says it in words, "" for nothing.
func (r Repair) String() string {
	switch {
	case r.Table:
		return "table " + TableName + " was missing"
	case r.Rules:
		return "rules of table " + TableName + " were not as written"
	case r.Ranges:
		return "ranges in table " + TableName + " were others"
	}
	return ""
}

// Names gives the tables that a monitor should watch for the programs.
func Names() []string { return []string{TableName} }

// Open prepares to write a table in the network namespace of the calling thread. It writes
// nothing.
func Open(f nft.Family) (*Program, error) {
	p := &Program{family: f, variant: variant{family: f}, closed: func() {}, watcher: nobody{}}
	return p, p.open()
}

func (p *Program) open() error {
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		p.port = c.PID()
		return c.SetWriteBuffer(socketBuffer) // tries the FORCE variant first, which CAP_NET_ADMIN allows
	}))
	if err != nil {
		return fmt.Errorf("open netlink socket for table %s %s: %w", p.family, TableName, err)
	}
	p.conn = conn
	p.WatchedBy(p.watcher)
	return nil
}

// WatchedBy tells a watcher which commits are the program's.
func (p *Program) WatchedBy(w Watcher) {
	p.closed()
	p.watcher, p.closed = w, w.Own(p.port)
}

// WithoutFib makes it the table of a kernel that lacks the expression fib, from the next Load
// on: see TextWithoutFib.
func (p *Program) WithoutFib() { p.variant.withoutFib, p.known = true, false }

// VXLAN says at which UDP port the nodes take VXLAN, from the next Load on; 0, as before: at
// none.
func (p *Program) VXLAN(port int) { p.variant.vxlan, p.known = port, false }

// Close ends the connection to the kernel, and changes nothing in it.
func (p *Program) Close() error {
	p.closed()
	p.closed = func() {}
	return p.conn.CloseLasting()
}

// Known says whether the kernel's state is known, so that Set can be called.
func (p *Program) Known() bool { return p.known }

// Doubt says that somebody else may have changed the table: a Load is due.
func (p *Program) Doubt() { p.known = false }

// Load makes the table what it should be, whatever it is now. If it is right already,
// nothing is written. Otherwise the rules come in one transaction together with what is in
// the sets, in place of what was there; the counters begin at 0 then.
func (p *Program) Load(ctx context.Context, want Ranges) (Repair, error) {
	p.known = false
	found, err := p.load(ctx, want.of(p.family))
	if err != nil {
		return found, p.failed("load", errors.Join(err, p.reopen()))
	}
	p.have, p.known = want.of(p.family), true
	return found, nil
}

func (p *Program) load(ctx context.Context, want contents) (found Repair, err error) {
	r, err := inspect.Open()
	if err != nil {
		return found, err
	}
	defer func() { _ = r.Close() }()
	there, err := r.Read(p.table(), p.variant.text())
	if err != nil {
		return found, err
	}
	if !there.Sealed() {
		found = Repair{Table: !there.There, Rules: there.There}
		return found, p.install(ctx, r, want)
	}
	have, err := p.contents()
	if err != nil {
		return found, err
	}
	found.Ranges = !have.equal(want)
	return found, p.write(have, want)
}

// Set makes the sets hold other ranges. It reads nothing from the kernel, and writes only
// sets that change, in one transaction. After an error the state is unknown.
func (p *Program) Set(want Ranges) error {
	if !p.known {
		return nft.ErrUnknown
	}
	next := want.of(p.family)
	p.known = false
	if err := p.write(p.have, next); err != nil {
		return p.failed("set ranges", errors.Join(err, p.reopen()))
	}
	p.have, p.known = next, true
	return nil
}

// Remove takes the table out, at the end of an installation.
func (p *Program) Remove() error {
	p.known = false
	p.conn.DelTable(p.kernelTable())
	if err := p.conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return p.failed("removal", errors.Join(err, p.reopen()))
	}
	return nil
}

// Dropped gives what the named counters have counted: packets.
func (p *Program) Dropped() (map[Counter]uint64, error) {
	r, err := inspect.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	there, err := r.Counters(p.table())
	if err != nil {
		return nil, p.failed("read counters", err)
	}
	counted := map[Counter]uint64{}
	for _, c := range Counters(p.family) {
		if n, ok := there[string(c)]; ok {
			counted[c] = n
		}
	}
	return counted, nil
}

// reopen takes another socket after an error: answers may be left in the old one.
func (p *Program) reopen() error {
	_ = p.Close() // of no use any more
	return p.open()
}

func (p *Program) failed(step string, err error) error {
	return fmt.Errorf("%s of table %s %s: %w", step, p.family, TableName, err)
}

func (p *Program) table() inspect.Table {
	if p.family == nft.IPv6 {
		return inspect.Table{Family: unix.NFPROTO_IPV6, Name: TableName}
	}
	return inspect.Table{Family: unix.NFPROTO_IPV4, Name: TableName}
}

// install writes all of the table in one transaction, and then says what it is.
func (p *Program) install(ctx context.Context, r *inspect.Reader, want contents) error {
	if err := p.run(ctx, p.variant.text()+want.text(p.family)); err != nil {
		return err
	}
	now, err := r.Read(p.table(), p.variant.text())
	if err != nil {
		return err
	}
	p.conn.AddChain(&nftables.Chain{Table: p.kernelTable(), Name: now.Seal})
	if err := p.conn.Flush(); err != nil {
		return fmt.Errorf("say what the rules are: %w", err)
	}
	return nil
}

// run lets nft make the table of a script, in place of what it is.
func (p *Program) run(ctx context.Context, script string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ended := p.watcher.Expect(p.family)
	err := nft.Replace(ctx, p.family, TableName, script)
	ended(err == nil)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("nft did not end within %s", patience)
	}
	return err
}

func (p *Program) kernelTable() *nftables.Table {
	t := &nftables.Table{Name: TableName, Family: nftables.TableFamilyIPv4}
	if p.family == nft.IPv6 {
		t.Family = nftables.TableFamilyIPv6
	}
	return t
}

// contents reads the sets. What nobody of ours would write is read as nothing, and written
// anew.
func (p *Program) contents() (contents, error) {
	have := contents{}
	for _, s := range sets() {
		all, err := p.conn.GetSetElements(&nftables.Set{Table: p.kernelTable(), Name: s.name})
		if err != nil {
			return nil, fmt.Errorf("read set %s: %w", s.name, err)
		}
		list, ok := intervals(all)
		if !ok {
			list = []interval{{}}
		}
		have[s.name] = list
	}
	return have, nil
}

// write replaces the sets that differ, in one transaction.
func (p *Program) write(have, want contents) error {
	if have.equal(want) {
		return nil
	}
	for _, s := range sets() {
		set := &nftables.Set{Table: p.kernelTable(), Name: s.name}
		if (contents{s.name: have[s.name]}).equal(contents{s.name: want[s.name]}) {
			continue
		}
		p.conn.FlushSet(set)
		for part := range slices.Chunk(elements(want[s.name]), elementsPerMessage) {
			if err := p.conn.SetAddElements(set, part); err != nil {
				return fmt.Errorf("encode ranges: %w", err)
			}
		}
	}
	if err := p.conn.Flush(); err != nil {
		return fmt.Errorf("write ranges: %w", err)
	}
	return nil
}
