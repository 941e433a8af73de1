package nft

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"onerule/nft/dump"
	"onerule/nft/inspect"
)

// A stray is an element that somebody else put into a set of ours. Its key is as the
// kernel gave it.
type stray struct {
	set         string
	key, keyEnd []byte
	catchAll    bool // has no key
}

// remove deletes elements that are not ours, in one transaction, and in one more those that
// have no key.
func (w *elementWriter) remove(strays []stray) (Operations, error) {
	var done Operations
	var keyless []string
	deletes := map[string][]nftables.SetElement{}
	for _, e := range strays {
		if e.catchAll {
			keyless = append(keyless, e.set)
			continue
		}
		deletes[e.set] = append(deletes[e.set], nftables.SetElement{Key: e.key, KeyEnd: e.keyEnd})
	}
	if err := w.removeCatchAll(keyless, &done); err != nil || len(deletes) == 0 {
		return done, err
	}
	if err := w.each(deletes, w.conn.SetDeleteElements); err != nil {
		return done, fmt.Errorf("encode elements of others: %w", err)
	}
	done.Deleted += len(strays) - len(keyless)
	return done, w.flush(&done)
}

// removeCatchAll deletes from these sets the element that stands for all keys, which the
// library has no word for.
func (w *elementWriter) removeCatchAll(sets []string, done *Operations) error {
	if len(sets) == 0 {
		return nil
	}
	b := &batch{family: w.family}
	for _, set := range sets {
		element := dump.Attr(unix.NFTA_SET_ELEM_FLAGS, []byte{0, 0, 0, inspect.CatchAll})
		b.add(unix.NFT_MSG_DELSETELEM, 0, slices.Concat(
			dump.Name(unix.NFTA_SET_ELEM_LIST_TABLE, w.table.Name), dump.Name(unix.NFTA_SET_ELEM_LIST_SET, set),
			dump.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, dump.Nest(unix.NFTA_LIST_ELEM, element))))
	}
	ended := func(bool) {}
	if w.monitor != nil {
		ended = w.monitor.Expect(w.family)
	}
	err := b.send()
	ended(err == nil)
	if err != nil {
		return fmt.Errorf("delete elements for all keys from table %s %s: %w", w.family, TableName, err)
	}
	done.Transactions++
	done.Deleted += len(sets)
	return nil
}

// removeObjects deletes objects that are no counters, in one transaction: knftables has no
// word for them.
func (w *elementWriter) removeObjects(list []inspect.Object) (Operations, error) {
	var done Operations
	for _, o := range list {
		w.conn.DeleteObject(&nftables.NamedObj{Table: w.table, Name: o.Name, Type: nftables.ObjType(o.Type)})
	}
	if err := w.flush(&done); err != nil {
		return done, fmt.Errorf("delete objects of others: %w", err)
	}
	return done, nil
}
