package takeover

import (
	"errors"

	"golang.org/x/sys/unix"

	"onerule/nft/dump"
	"onerule/nft/inspect"
)

// A reader reads tables of iptables-nft, also rules of programs that use expressions which
// nobody but they know.
type reader struct{ *inspect.Reader }

func openReader() (reader, error) {
	r, err := inspect.Open()
	return reader{r}, err
}

// whole calls f, which lists objects of one kind, until the listing is whole. There are
// none of a table or chain that has gone.
func (c reader) whole(f func() error) error {
	if err := c.Whole(f); !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

func (c reader) tables(family Family) (names []string, err error) {
	err = c.whole(func() (err error) {
		names, err = c.Tables(byte(family.number()))
		return err
	})
	return names, err
}

// chains lists the chains of a family by table: the kernel has no shorter list.
func (c reader) chains(family Family) (map[string][]inspect.Chain, error) {
	var chains map[string][]inspect.Chain
	err := c.whole(func() error {
		list, err := c.Chains(byte(family.number()))
		chains = map[string][]inspect.Chain{}
		for _, one := range list {
			chains[one.Table] = append(chains[one.Table], one)
		}
		return err
	})
	return chains, err
}

// table reads the rules of all chains but kube-proxy's own, if there are any of those.
func (c reader) table(family Family, name string, chains []inspect.Chain) (table, error) {
	t := table{chains: map[string]chain{}}
	for _, l := range chains {
		if isProxyChain(name, l.Name) {
			t.chains[l.Name] = chain{}
		}
	}
	if len(t.chains) == 0 {
		return t, nil
	}
	for _, l := range chains {
		if _, ours := t.chains[l.Name]; ours {
			continue
		}
		rules, err := c.rules(family, name, l.Name)
		if err != nil {
			return t, err
		}
		for _, r := range rules {
			r.builtIn = l.Base
			if _, leads := t.chains[r.target]; leads {
				t.jumps = append(t.jumps, r)
			}
		}
	}
	return t, c.count(family, name, t)
}

// count counts the rules of chains that rules of others lead to.
func (c reader) count(family Family, name string, t table) error {
	for _, j := range t.jumps {
		rules, err := c.rules(family, name, j.target)
		if err != nil {
			return err
		}
		t.chains[j.target] = chain{rules: len(rules)}
	}
	return nil
}

func (c reader) rules(family Family, table, of string) (rules []rule, err error) {
	err = c.whole(func() error {
		rules = nil
		return c.EachRuleOf(inspect.Table{Family: byte(family.number()), Name: table}, of, func(k inspect.Rule) error {
			r := rule{chain: of, handle: k.Handle}
			steps, err := k.Steps()
			for _, e := range steps {
				r.step(e)
			}
			r.userData(k.UserData)
			rules = append(rules, r)
			return err
		})
	})
	return rules, err
}

// userData reads what nft, and a later iptables-nft, keep a comment in: a list of
// (type, length, value), the comment being of type 0.
func (r *rule) userData(b []byte) {
	for len(b) >= 2 && int(b[1]) <= len(b)-2 {
		if b[0] == 0 && r.comment == "" {
			r.comment = unix.ByteSliceToString(b[2 : 2+b[1]])
		}
		b = b[2+int(b[1]):]
	}
}

// step takes the chain that a verdict names, jump and goto only, and the comment that
// iptables keeps in a match of that name.
func (r *rule) step(e inspect.Expression) {
	switch e.Name {
	case "immediate":
		verdict := dump.Find(dump.Find(e.Data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT)
		if chain := dump.Find(verdict, unix.NFTA_VERDICT_CHAIN); chain != nil {
			r.target = dump.Text(chain)
		}
	case "match":
		if dump.Text(dump.Find(e.Data, unix.NFTA_MATCH_NAME)) == "comment" {
			r.comment = unix.ByteSliceToString(dump.Find(e.Data, unix.NFTA_MATCH_INFO))
		}
	}
}
