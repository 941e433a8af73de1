package inspect

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"maps"
	"slices"
)

// SealPrefix begins the name of an empty chain that says what the rules of a table were
// when they were last written: whoever exchanges one of them breaks the seal. It is written
// by a transaction of its own, since only the kernel tells how it has the rules: one that
// is missing costs that they are written again.
const SealPrefix = "rules-"

// digestSize is in bytes.
const digestSize = 8

// seal gives the name of the chain for a digest, short enough for a name.
func seal(h hash.Hash) string { return SealPrefix + hex.EncodeToString(h.Sum(nil)[:digestSize]) }

// Digests are of the rules of each chain of a table that has any, as the kernel has them:
// their expressions and their order, not their handles and not what they have counted. The
// same text gives the same digests only with the same nft, which may spell a rule in other
// expressions than another one.
type Digests map[string]hash.Hash

// Digests reads the rules of a table.
func (r *Reader) Digests(t Table) (Digests, error) {
	d := Digests{}
	return d, r.EachRule(t, d.Add)
}

// Add adds a rule to the digest of its chain. Those of one chain come in their order.
func (d Digests) Add(rule Rule) error {
	h, ok := d[rule.Chain]
	if !ok {
		h = sha256.New()
		d[rule.Chain] = h
	}
	part(h, "rule")
	steps, err := rule.Steps()
	for _, e := range steps {
		part(h, e.Name)
		if e.Name != "counter" { // what it has counted; named counters, maps and sets stand by name
			part(h, e.Data)
		}
	}
	return err
}

// Seal gives the name of the chain that seals all the rules.
func (d Digests) Seal() string { return seal(d.all()) }

func (d Digests) all() hash.Hash {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(d)) {
		_, _ = fmt.Fprintf(h, "%q %x\n", name, d[name].Sum(nil)) // a hash takes everything
	}
	return h
}

// part writes a part with its length before it, so that no two lists of parts look the
// same.
func part[T string | []byte](h hash.Hash, s T) {
	_, _ = h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(s)))) // a hash takes everything
	_, _ = h.Write([]byte(s))
}
