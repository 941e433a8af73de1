package takeover

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A reader reads tables of nftables by netlink, also rules of programs that use
// expressions which nobody but they know.
type reader struct{ *netlink.Conn }

func openReader() (*reader, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket for nftables: %w", err)
	}
	return &reader{c}, nil
}

// dump lists objects of a kind. A listing that a commit fell into is begun again.
func (c *reader) dump(kind uint16, family Family, attrs ...netlink.Attribute) ([]netlink.Message, error) {
	data, err := netlink.MarshalAttributes(attrs)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	for range tries {
		messages, err := c.Execute(netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | netlink.Dump},
			Data:   append([]byte{byte(family.number()), unix.NFNETLINK_V0, 0, 0}, data...),
		})
		switch {
		case errors.Is(err, unix.EINTR), err == nil && interrupted(messages):
		case errors.Is(err, unix.ENOENT): // the table or the chain has gone
			return nil, nil
		case err != nil:
			return nil, err
		default:
			return messages, nil
		}
	}
	return nil, errors.New("tables change too fast to be read")
}

func interrupted(messages []netlink.Message) bool {
	for _, m := range messages {
		if m.Header.Flags&netlink.DumpInterrupted != 0 {
			return true
		}
	}
	return false
}

// attributes walks the attributes of a message.
func attributes(m netlink.Message, f func(*netlink.AttributeDecoder)) error {
	if len(m.Data) < 4 {
		return errors.New("netlink message of an impossible length")
	}
	return decode(m.Data[4:], f)
}

func decode(b []byte, f func(*netlink.AttributeDecoder)) error {
	d, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return fmt.Errorf("decode netlink message: %w", err)
	}
	d.ByteOrder = binary.BigEndian
	for d.Next() {
		f(d)
	}
	if err := d.Err(); err != nil {
		return fmt.Errorf("decode netlink message: %w", err)
	}
	return nil
}

func (c *reader) tables(family Family) (names []string, err error) {
	messages, err := c.dump(unix.NFT_MSG_GETTABLE, family)
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	for _, m := range messages {
		if err := attributes(m, func(d *netlink.AttributeDecoder) {
			if d.Type() == unix.NFTA_TABLE_NAME {
				names = append(names, d.String())
			}
		}); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// A listed chain is one of any table.
type listed struct {
	name   string
	hooked bool
}

// chains lists the chains of a family by table: the kernel has no shorter list.
func (c *reader) chains(family Family) (map[string][]listed, error) {
	messages, err := c.dump(unix.NFT_MSG_GETCHAIN, family)
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	chains := map[string][]listed{}
	for _, m := range messages {
		var table string
		var l listed
		if err := attributes(m, func(d *netlink.AttributeDecoder) {
			switch d.Type() {
			case unix.NFTA_CHAIN_TABLE:
				table = d.String()
			case unix.NFTA_CHAIN_NAME:
				l.name = d.String()
			case unix.NFTA_CHAIN_HOOK:
				l.hooked = true
			}
		}); err != nil {
			return nil, err
		}
		chains[table] = append(chains[table], l)
	}
	return chains, nil
}

// table reads the rules of all chains but kube-proxy's own, if there are any of those.
func (c *reader) table(family Family, name string, chains []listed) (table, error) {
	t := table{chains: map[string]chain{}}
	for _, l := range chains {
		if isProxyChain(name, l.name) {
			t.chains[l.name] = chain{}
		}
	}
	if len(t.chains) == 0 {
		return t, nil
	}
	for _, l := range chains {
		if _, ours := t.chains[l.name]; ours {
			continue
		}
		rules, err := c.rules(family, name, l)
		if err != nil {
			return t, err
		}
		for _, r := range rules {
			if _, leads := t.chains[r.target]; leads {
				t.jumps = append(t.jumps, r)
			}
		}
	}
	return t, c.count(family, name, t)
}

// count counts the rules of chains that rules of others lead to.
func (c *reader) count(family Family, name string, t table) error {
	for _, j := range t.jumps {
		rules, err := c.rules(family, name, listed{name: j.target})
		if err != nil {
			return err
		}
		t.chains[j.target] = chain{rules: len(rules)}
	}
	return nil
}

func (c *reader) rules(family Family, table string, of listed) ([]rule, error) {
	messages, err := c.dump(unix.NFT_MSG_GETRULE, family,
		netlink.Attribute{Type: unix.NFTA_RULE_TABLE, Data: append([]byte(table), 0)},
		netlink.Attribute{Type: unix.NFTA_RULE_CHAIN, Data: append([]byte(of.name), 0)})
	if err != nil {
		return nil, fmt.Errorf("list rules of chain %s of table %s %s: %w", of.name, family, table, err)
	}
	rules := make([]rule, 0, len(messages))
	for _, m := range messages {
		r := rule{chain: of.name, builtIn: of.hooked}
		if err := attributes(m, func(d *netlink.AttributeDecoder) {
			switch d.Type() {
			case unix.NFTA_RULE_HANDLE:
				r.handle = d.Uint64()
			case unix.NFTA_RULE_EXPRESSIONS:
				d.Nested(r.expressions)
			case unix.NFTA_RULE_USERDATA:
				r.userData(d.Bytes())
			}
		}); err != nil {
			return nil, fmt.Errorf("rules of chain %s of table %s %s: %w", of.name, family, table, err)
		}
		rules = append(rules, r)
	}
	return rules, nil
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

func (r *rule) expressions(list *netlink.AttributeDecoder) error {
	for list.Next() {
		var name string
		list.Nested(func(e *netlink.AttributeDecoder) error {
			for e.Next() {
				switch {
				case e.Type() == unix.NFTA_EXPR_NAME:
					name = e.String()
				case e.Type() == unix.NFTA_EXPR_DATA && name == "immediate":
					e.Nested(r.immediate)
				case e.Type() == unix.NFTA_EXPR_DATA && name == "match":
					e.Nested(r.match)
				}
			}
			return nil
		})
	}
	return nil
}

// immediate reads a verdict: jump and goto name a chain, of the verdicts only they.
func (r *rule) immediate(e *netlink.AttributeDecoder) error {
	for e.Next() {
		if e.Type() != unix.NFTA_IMMEDIATE_DATA {
			continue
		}
		e.Nested(func(data *netlink.AttributeDecoder) error {
			for data.Next() {
				if data.Type() != unix.NFTA_DATA_VERDICT {
					continue
				}
				data.Nested(func(v *netlink.AttributeDecoder) error {
					for v.Next() {
						if v.Type() == unix.NFTA_VERDICT_CHAIN {
							r.target = v.String()
						}
					}
					return nil
				})
			}
			return nil
		})
	}
	return nil
}

// match reads the comment that iptables keeps in a match of that name.
func (r *rule) match(e *netlink.AttributeDecoder) error {
	var name string
	for e.Next() {
		switch e.Type() {
		case unix.NFTA_MATCH_NAME:
			name = e.String()
		case unix.NFTA_MATCH_INFO:
			if name == "comment" {
				r.comment = unix.ByteSliceToString(e.Bytes())
			}
		}
	}
	return nil
}
