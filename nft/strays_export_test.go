package nft

import (
	"slices"

	"golang.org/x/sys/unix"

	"onerule/nft/dump"
	"onerule/nft/inspect"
)

// AddForAllKeys adds to a set what nft calls *: nft 1.0.6 dies of it in a set of ranges.
func AddForAllKeys(family Family, set string) error {
	b := &batch{family: family}
	element := dump.Attr(unix.NFTA_SET_ELEM_FLAGS, []byte{0, 0, 0, inspect.CatchAll})
	b.add(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, slices.Concat(
		dump.Name(unix.NFTA_SET_ELEM_LIST_TABLE, TableName), dump.Name(unix.NFTA_SET_ELEM_LIST_SET, set),
		dump.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, dump.Nest(unix.NFTA_LIST_ELEM, element))))
	return b.send()
}

// Misdirect has the kernel refuse each write of elements, until the returned function is
// called: they go to a table that is not there.
func (p *Program) Misdirect() (restore func()) {
	name := p.elements.table.Name
	p.elements.table.Name = "nowhere"
	return func() { p.elements.table.Name = name }
}

// Passes says whether an error is one that never has a table begun afresh.
func Passes(err error) bool { return passes(err) }
