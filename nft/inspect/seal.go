package inspect

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Contents is what the kernel has of a table.
type Contents struct {
	There bool
	// Seal is the name of the chain that seals what is there now, and SealedBy of those
	// that are in the table.
	Seal     string
	SealedBy []string
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

func (r *Reader) read(t Table, source string) (c Contents, err error) {
	flags, there, err := r.Flags(t)
	if err != nil || !there {
		return c, err
	}
	h := sha256.New()
	part(h, source)
	part(h, fmt.Sprint(flags))
	for _, step := range []func(Table, hash.Hash, *Contents) error{r.sealChains, r.sealSets, r.sealRules, r.sealObjects} {
		if err := step(t, h, &c); err != nil {
			return c, err
		}
	}
	c.There, c.Seal = true, seal(h)
	return c, nil
}

func (r *Reader) sealChains(t Table, h hash.Hash, c *Contents) error {
	chains, err := r.Chains(t.Family)
	var said []string
	for _, chain := range chains {
		switch {
		case chain.Table != t.Name:
		case strings.HasPrefix(chain.Name, SealPrefix):
			c.SealedBy = append(c.SealedBy, chain.Name)
		default:
			said = append(said, fmt.Sprintf("chain %+v", chain))
		}
	}
	parts(h, said)
	return err
}

// sealSets takes the shape of the sets that have names of their own, not what is in them.
func (r *Reader) sealSets(t Table, h hash.Hash, _ *Contents) error {
	sets, err := r.Sets(t)
	var said []string
	for _, s := range sets {
		if s.Flags&unix.NFT_SET_ANONYMOUS == 0 {
			said = append(said, fmt.Sprintf("set %+v", s))
		}
	}
	parts(h, said)
	return err
}

func (r *Reader) sealRules(t Table, h hash.Hash, _ *Contents) error {
	d, err := r.Digests(t)
	part(h, d.all().Sum(nil))
	return err
}

// sealObjects takes counters by their names, objects of other types with their type, too:
// so the seal of a table that has counters only is that of earlier versions.
func (r *Reader) sealObjects(t Table, h hash.Hash, _ *Contents) error {
	objects, err := r.Objects(t)
	var said []string
	for _, o := range objects {
		if o.Type != unix.NFT_OBJECT_COUNTER {
			o.Name = fmt.Sprintf("%s of type %d", o.Name, o.Type)
		}
		said = append(said, o.Name)
	}
	parts(h, said)
	return err
}

// parts adds what was said in any order. How much it was says which kind it is.
func parts(h hash.Hash, said []string) {
	slices.Sort(said)
	part(h, fmt.Sprint(len(said)))
	for _, s := range said {
		part(h, s)
	}
}
