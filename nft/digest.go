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

// ruleDigests gives a digest of the rules of each chain of our table that has any, in
// hex, as the kernel has them: their expressions and their order, not their handles and
// not what they have counted. The same text gives the same digests only with the same
// nft, which may spell a rule in other expressions than another one.
func ruleDigests(d *dump, family Family) (map[string]string, error) {
	request, err := tableRequest(family)
	if err != nil {
		return nil, err
	}
	chains := map[string]hash.Hash{}
	err = d.run(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETRULE, request, func(body []byte) error {
		return digestRule(chains, body[nfgenSize:])
	})
	if err != nil {
		return nil, fmt.Errorf("read the rules of table %s %s: %w", family, TableName, err)
	}
	digests := map[string]string{}
	for name, h := range chains {
		digests[name] = hex.EncodeToString(h.Sum(nil)[:digestSize])
	}
	return digests, nil
}

// digestSize is in bytes.
const digestSize = 8

// rulesDigest is a digest of all chains: short enough for a name.
func rulesDigest(chains map[string]string) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		_, _ = fmt.Fprintf(h, "%q %s\n", name, chains[name]) // a hash takes everything
	}
	return hex.EncodeToString(h.Sum(nil)[:digestSize])
}

// digestRule adds a rule to the digest of its chain. The kernel gives the rules of a
// chain in order.
func digestRule(chains map[string]hash.Hash, attrs []byte) error {
	var table, chain string
	var expressions []byte
	err := eachAttr(attrs, func(kind uint16, v []byte) error {
		switch kind {
		case unix.NFTA_RULE_TABLE:
			table = goString(v)
		case unix.NFTA_RULE_CHAIN:
			chain = goString(v)
		case unix.NFTA_RULE_EXPRESSIONS:
			expressions = v
		}
		return nil
	})
	if err != nil || table != TableName {
		return err
	}
	h, ok := chains[chain]
	if !ok {
		h = sha256.New()
		chains[chain] = h
	}
	part(h, []byte("rule"))
	return eachAttr(expressions, func(_ uint16, v []byte) error { return digestExpression(h, v) })
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
