package nft

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// sealPrefix begins the name of an empty chain that says what the rules were when they
// were last written: whoever exchanges one of them breaks the seal. It is written by a
// transaction of its own, since only the kernel tells how it has them: one that is
// missing costs that they are written again.
const sealPrefix = "rules-"

// sealOf gives the name of the chain for a digest of all rules.
func sealOf(digest string) string { return sealPrefix + digest }

// digests are of the rules of each chain of our table that has any, as the kernel has
// them: their expressions and their order, not their handles and not what they have
// counted. The same text gives the same digests only with the same nft, which may spell
// a rule in other expressions than another one.
type digests map[string]hash.Hash

func readDigests(d *dump, family Family) (digests, error) {
	request, err := tableRequest(family)
	if err != nil {
		return nil, err
	}
	chains := digests{}
	err = d.run(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETRULE, request, func(body []byte) error {
		r, err := parseRule(body[nfgenSize:])
		if err != nil || r.table != TableName {
			return err
		}
		return chains.add(r)
	})
	if err != nil {
		return nil, fmt.Errorf("read the rules of table %s %s: %w", family, TableName, err)
	}
	return chains, nil
}

// digestSize is in bytes.
const digestSize = 8

// all gives a digest of all chains, in hex: short enough for a name.
func (d digests) all() string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(d)) {
		_, _ = fmt.Fprintf(h, "%q %x\n", name, d[name].Sum(nil)) // a hash takes everything
	}
	return hex.EncodeToString(h.Sum(nil)[:digestSize])
}

// add adds a rule to the digest of its chain. The kernel gives the rules of a chain in
// order.
func (d digests) add(r kernelRule) error {
	h, ok := d[r.chain]
	if !ok {
		h = sha256.New()
		d[r.chain] = h
	}
	part(h, []byte("rule"))
	return eachAttr(r.expressions, func(_ uint16, v []byte) error { return digestExpression(h, v) })
}

// digestExpression leaves out what a counter has counted. Named counters, and the maps
// and sets that a rule uses, stand in it by name.
func digestExpression(h hash.Hash, expression []byte) error {
	var name, data []byte
	err := eachAttr(expression, func(kind uint16, v []byte) error {
		switch kind {
		case unix.NFTA_EXPR_NAME:
			name = withoutNUL(v)
		case unix.NFTA_EXPR_DATA:
			data = v
		}
		return nil
	})
	part(h, name)
	if string(name) != "counter" {
		part(h, data)
	}
	return err
}

// part writes a part with its length before it, so that no two lists of parts look the
// same.
func part(h hash.Hash, b []byte) {
	var size [4]byte
	binary.BigEndian.PutUint32(size[:], uint32(len(b)))
	_, _ = h.Write(size[:]) // a hash takes everything
	_, _ = h.Write(b)
}
