package hostport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"

	"onerule/nft/dump"
	"onerule/nft/inspect"
)

// An element is one of a set or map of ours: key and value in the kernel's form. The owner
// stands in its comment, for people.
type element struct{ set, key, value, owner string }

// longestComment is what nft takes for one, in bytes.
const longestComment = 127

// elements gives what claims are in the kernel, each element once.
func elements(f family, owner string, claims []Claim) []element {
	if len(owner) > longestComment {
		owner = owner[:longestComment]
	}
	var list []element
	for _, c := range claims {
		if familyOf(c).number != f.number {
			continue
		}
		pod := c.Pod.Addr()
		e := element{set: atAny, value: string(appendPort(appendAddr(nil, pod), c.Pod.Port())), owner: owner}
		var key []byte
		if c.HostIP.IsValid() {
			e.set, key = atAddress, appendAddr(nil, c.HostIP)
		}
		e.key = string(appendPort(append(key, byte(c.Protocol), 0, 0, 0), c.HostPort))
		hairpin := element{set: hairpins, key: string(appendAddr(appendAddr(nil, pod), pod)), owner: owner}
		list = append(list, e)
		if !slices.Contains(list, hairpin) {
			list = append(list, hairpin)
		}
	}
	return list
}

func appendAddr(b []byte, a netip.Addr) []byte { return append(b, a.AsSlice()...) }

// appendPort adds a port, padded as every part of a concatenation.
func appendPort(b []byte, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(b, port), 0, 0)
}

func (e element) kernel() nftables.SetElement {
	k := nftables.SetElement{Key: []byte(e.key), Comment: e.owner}
	if e.value != "" {
		k.Val = []byte(e.value)
	}
	return k
}

// A transaction is written as a whole or not at all.
type transaction struct {
	family  family
	conn    *nftables.Conn
	closing func() error
}

// begin opens a transaction. watcher learns of its socket.
func begin(f family, watcher Watcher) (*transaction, error) {
	closed := func() {}
	conn, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		if watcher != nil {
			closed = watcher.Own(c.PID())
		}
		return nil
	}))
	if err != nil {
		return nil, fmt.Errorf("open netlink socket for table %s: %w", TableName, err)
	}
	return &transaction{f, conn, func() error {
		closed()
		return conn.CloseLasting()
	}}, nil
}

func (t *transaction) close() { _ = t.closing() } // nothing is lost with it

// each adds elements to the transaction, or their deletion.
func (t *transaction) each(list []element, do func(*nftables.Set, []nftables.SetElement) error) error {
	bySet := map[string][]nftables.SetElement{}
	for _, e := range list {
		bySet[e.set] = append(bySet[e.set], e.kernel())
	}
	const perMessage = 500 // an attribute takes 64 KiB
	for _, set := range slices.Sorted(maps.Keys(bySet)) {
		for part := range slices.Chunk(bySet[set], perMessage) {
			if err := do(&nftables.Set{Table: t.family.table(), Name: set}, part); err != nil {
				return fmt.Errorf("encode elements of %s: %w", set, err)
			}
		}
	}
	return nil
}

func (t *transaction) add(list []element) error    { return t.each(list, t.conn.SetAddElements) }
func (t *transaction) delete(list []element) error { return t.each(list, t.conn.SetDeleteElements) }

// commit writes it.
func (t *transaction) commit() error {
	if err := t.conn.Flush(); err != nil {
		return fmt.Errorf("write table %s: %w", TableName, dump.First(err))
	}
	return nil
}

// read gives the elements that the table has.
func (t *transaction) read() ([]element, error) {
	var list []element
	for _, s := range t.family.sets() {
		all, err := t.conn.GetSetElements(&nftables.Set{Table: t.family.table(), Name: s.Name, IsMap: s.IsMap})
		if err != nil {
			return nil, fmt.Errorf("read %s of table %s: %w", s.Name, TableName, err)
		}
		for _, e := range all {
			list = append(list, element{s.Name, string(e.Key), string(e.Val), e.Comment})
		}
	}
	return list, nil
}

// A repair says what a family's table lacked.
type repair struct {
	table, rules   bool
	added, deleted int
}

// reconcile makes the table of a family hold just these elements, whatever it is. Where
// nothing is wanted and there is no table, none is made.
func reconcile(f family, watcher Watcher, want []element) (done repair, err error) {
	r, err := inspect.Open()
	if err != nil {
		return done, err
	}
	defer func() { _ = r.Close() }()
	there, err := r.Read(f.inspected(), f.version())
	if err != nil || !there.There && len(want) == 0 {
		return done, err
	}
	t, err := begin(f, watcher)
	if err != nil {
		return done, err
	}
	defer t.close()
	if !there.Sealed() {
		done = repair{table: !there.There, rules: there.There, added: len(want)}
		return done, t.replace(r, want)
	}
	have, err := t.read()
	if err != nil {
		return done, err
	}
	gone, missing := subtract(have, want), subtract(want, have)
	done.added, done.deleted = len(missing), len(gone)
	if len(gone)+len(missing) == 0 {
		return done, nil
	}
	if err := errors.Join(t.delete(gone), t.add(missing)); err != nil {
		return done, err
	}
	return done, t.commit()
}

// replace makes the table new, with these elements, and then says what it is.
func (t *transaction) replace(r *inspect.Reader, want []element) error {
	if err := errors.Join(t.family.begin(t.conn), t.add(want)); err != nil {
		return err
	}
	if err := t.commit(); err != nil {
		return err
	}
	now, err := r.Read(t.family.inspected(), t.family.version())
	if err != nil {
		return err
	}
	t.conn.AddChain(&nftables.Chain{Table: t.family.table(), Name: now.Seal})
	return t.commit()
}

func (f family) inspected() inspect.Table {
	return inspect.Table{Family: byte(f.number), Name: TableName}
}

// ready says whether the table is there and has our rules, as far as its own word goes.
func ready(f family) (bool, error) {
	r, err := inspect.Open()
	if err != nil {
		return false, err
	}
	defer func() { _ = r.Close() }()
	_, there, err := r.Chain(f.inspected(), f.version())
	return there, err
}

func subtract(list, without []element) []element {
	there := map[element]bool{}
	for _, e := range without {
		there[e] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(e element) bool { return there[e] })
}
