package inspect

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// sealPrefix begins the name of an empty chain that says what a table was when it was
// last written. It is written by a transaction of its own, since only the kernel tells
// how it has the rules: a missing one costs that they are written again.
const sealPrefix = "rules-"

// digestSize is in bytes.
const digestSize = 8

// A Table names a table.
type Table struct {
	Family uint8 // as in messages of netfilter: unix.NFPROTO_IPV4
	Name   string
}

// Contents is what the kernel has of a table.
type Contents struct {
	There bool
	// Seal is the name of the chain that seals what is there now, and SealedBy of those
	// that are in the table.
	Seal     string
	SealedBy []string
	// Counters are the named ones: packets.
	Counters map[string]uint64
}

// Sealed says whether the table is what was written last, from the same text.
func (c Contents) Sealed() bool {
	return c.There && len(c.SealedBy) == 1 && c.SealedBy[0] == c.Seal
}

// Read reads a table but for the elements of its sets. source is what the table is made
// from: the seal of another text is another one.
func (r *Reader) Read(t Table, source string) (c Contents, err error) {
	err = r.Whole(func() (err error) {
		c, err = r.read(t, source)
		return err
	})
	if err != nil {
		err = fmt.Errorf("read table %s: %w", t.Name, err)
	}
	return c, err
}

func (r *Reader) read(t Table, source string) (Contents, error) {
	c := Contents{Counters: map[string]uint64{}}
	h := sha256.New()
	part(h, []byte(source))
	err := r.ask(unix.NFT_MSG_GETTABLE, t.Family, func(kind uint16, v []byte) {
		if kind == unix.NFTA_TABLE_FLAGS {
			part(h, v)
		}
	}, attribute{unix.NFTA_TABLE_NAME, t.Name})
	if errors.Is(err, unix.ENOENT) {
		return c, nil
	}
	for _, step := range []func(Table, hash.Hash, *Contents) error{r.digestChains, r.digestSets, r.digestRules, r.digestCounters} {
		if err == nil {
			err = step(t, h, &c)
		}
	}
	c.There, c.Seal = true, sealPrefix+hex.EncodeToString(h.Sum(nil)[:digestSize])
	return c, err
}

func (r *Reader) digestChains(t Table, h hash.Hash, c *Contents) error {
	chains, err := r.Chains(t.Family)
	if err != nil {
		return err
	}
	var said []string
	for _, chain := range chains {
		switch {
		case chain.Table != t.Name:
		case strings.HasPrefix(chain.Name, sealPrefix):
			c.SealedBy = append(c.SealedBy, chain.Name)
		default:
			said = append(said, fmt.Sprintf("chain %q %+v", chain.Name, chain))
		}
	}
	parts(h, said)
	return nil
}

// digestSets takes the shape of the sets that have names of their own, not what is in
// them.
func (r *Reader) digestSets(t Table, h hash.Hash, _ *Contents) error {
	var said []string
	err := r.list(unix.NFT_MSG_GETSET, t.Family, func(body []byte) error {
		var table string
		var flags uint32
		shape := map[uint16]string{}
		err := attributes(body, func(kind uint16, v []byte) {
			switch kind {
			case unix.NFTA_SET_TABLE:
				table = text(v)
			case unix.NFTA_SET_FLAGS:
				flags = number(v)
				fallthrough
			case unix.NFTA_SET_NAME, unix.NFTA_SET_KEY_TYPE, unix.NFTA_SET_KEY_LEN, unix.NFTA_SET_DATA_TYPE, unix.NFTA_SET_DATA_LEN:
				shape[kind] = string(v)
			}
		})
		if table == t.Name && flags&unix.NFT_SET_ANONYMOUS == 0 {
			said = append(said, fmt.Sprint("set ", shape))
		}
		return err
	}, attribute{unix.NFTA_SET_TABLE, t.Name})
	if err != nil {
		return fmt.Errorf("list sets: %w", err)
	}
	parts(h, said)
	return nil
}

// digestRules takes the rules of each chain in their order.
func (r *Reader) digestRules(t Table, h hash.Hash, _ *Contents) error {
	rules, err := r.Rules(t.Family, t.Name)
	if err != nil {
		return err
	}
	slices.SortStableFunc(rules, func(a, b Rule) int { return strings.Compare(a.Chain, b.Chain) })
	for _, rule := range rules {
		part(h, []byte("rule of "+rule.Chain))
		steps, err := rule.Steps()
		if err != nil {
			return err
		}
		for _, e := range steps {
			part(h, []byte(e.Name))
			if e.Name != "counter" { // what it has counted
				part(h, e.Data)
			}
		}
	}
	return nil
}

func (r *Reader) digestCounters(t Table, h hash.Hash, c *Contents) error {
	var said []string
	err := r.list(unix.NFT_MSG_GETOBJ, t.Family, func(body []byte) error {
		var table, name string
		var packets uint64
		var nestedErr error
		err := attributes(body, func(kind uint16, v []byte) {
			switch kind {
			case unix.NFTA_OBJ_TABLE:
				table = text(v)
			case unix.NFTA_OBJ_NAME:
				name = text(v)
			case unix.NFTA_OBJ_DATA:
				nestedErr = nested(v, func(kind uint16, v []byte) {
					if kind == unix.NFTA_COUNTER_PACKETS && len(v) == 8 {
						packets = binary.BigEndian.Uint64(v)
					}
				})
			}
		})
		if table == t.Name {
			c.Counters[name] = packets
			said = append(said, fmt.Sprintf("object %q", name))
		}
		return errors.Join(err, nestedErr)
	}, attribute{unix.NFTA_OBJ_TABLE, t.Name})
	if err != nil {
		return fmt.Errorf("list counters: %w", err)
	}
	parts(h, said)
	return nil
}

// parts adds what was said in any order.
func parts(h hash.Hash, said []string) {
	slices.Sort(said)
	for _, s := range said {
		part(h, []byte(s))
	}
}

// part writes a part with its length before it, so that no two lists of parts look the
// same.
func part(h hash.Hash, b []byte) {
	var size [4]byte
	binary.BigEndian.PutUint32(size[:], uint32(len(b)))
	_, _ = h.Write(size[:]) // a hash takes everything
	_, _ = h.Write(b)
}

// Counters gives what the named counters of a table have counted: packets. A table that is
// not there has none.
func (r *Reader) Counters(t Table) (map[string]uint64, error) {
	c := Contents{Counters: map[string]uint64{}}
	err := r.digestCounters(t, sha256.New(), &c)
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return c.Counters, err
}
