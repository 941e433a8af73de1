package inspect

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"onerule/nft/dump"
)

// Flags gives the flags of a table (unix.NFT_TABLE_F_DORMANT), and whether it is there.
func (r *Reader) Flags(t Table) (flags uint32, there bool, err error) {
	err = r.ask(unix.NFT_MSG_GETTABLE, t.request(), func(body []byte) error {
		there = true
		return attributes(body, func(kind uint16, v []byte) {
			if kind == unix.NFTA_TABLE_FLAGS {
				flags = dump.Number(v)
			}
		})
	})
	if errors.Is(err, unix.ENOENT) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("look for table %s: %w", t.Name, err)
	}
	return flags, there, nil
}

// Tables names the tables of a family.
func (r *Reader) Tables(family uint8) ([]string, error) {
	var names []string
	err := r.List(unix.NFT_MSG_GETTABLE, dump.Request(family), func(body []byte) error {
		return attributes(body, func(kind uint16, v []byte) {
			if kind == unix.NFTA_TABLE_NAME {
				names = append(names, dump.Text(v))
			}
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	return names, nil
}

// A Chain is a chain of any table. Hook, Priority, Type and Policy are those of a base
// chain.
type Chain struct {
	Family      uint8 // as in messages of netfilter: unix.NFPROTO_IPV4
	Table, Name string
	Base        bool
	Bound       bool // stands in a rule, as in jump { … }, and goes with it
	Type        string
	Hook        uint32
	Priority    int32
	Policy      uint32 // unix.NF_ACCEPT or NF_DROP
}

// Chains lists the chains of all tables of a family, or of all families with
// unix.NFPROTO_UNSPEC. It misses some while others come and go (14 of 100 with 650 commits
// a second, 6.18): see Whole, and Chain.
func (r *Reader) Chains(family uint8) ([]Chain, error) {
	var list []Chain
	err := r.List(unix.NFT_MSG_GETCHAIN, dump.Request(family), func(body []byte) error {
		c, err := parseChain(body)
		list = append(list, c)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	return list, nil
}

// Chain asks for one chain by its name.
func (r *Reader) Chain(t Table, name string) (c Chain, there bool, err error) {
	err = r.ask(unix.NFT_MSG_GETCHAIN, t.request(dump.Name(unix.NFTA_CHAIN_NAME, name)), func(body []byte) (err error) {
		c, err = parseChain(body)
		there = err == nil
		return err
	})
	if errors.Is(err, unix.ENOENT) {
		return c, false, nil
	}
	if err != nil {
		return c, false, fmt.Errorf("look for chain %s of table %s: %w", name, t.Name, err)
	}
	return c, there, nil
}

// Of linux/netfilter/nf_tables.h: NFTA_CHAIN_FLAGS, and NFT_CHAIN_BINDING (5.9).
const (
	chainFlags   = 10
	chainBinding = 1 << 2
)

func parseChain(body []byte) (c Chain, err error) {
	var hook []byte
	err = attributes(body, func(kind uint16, v []byte) {
		switch kind {
		case unix.NFTA_CHAIN_TABLE:
			c.Table = dump.Text(v)
		case unix.NFTA_CHAIN_NAME:
			c.Name = dump.Text(v)
		case unix.NFTA_CHAIN_TYPE:
			c.Type = dump.Text(v)
		case unix.NFTA_CHAIN_POLICY:
			c.Policy = dump.Number(v)
		case unix.NFTA_CHAIN_HOOK:
			c.Base, hook = true, v
		case chainFlags:
			c.Bound = dump.Number(v)&chainBinding != 0
		}
	})
	if err != nil {
		return c, err
	}
	c.Family = body[0]
	err = nested(hook, func(kind uint16, v []byte) {
		switch kind {
		case unix.NFTA_HOOK_HOOKNUM:
			c.Hook = dump.Number(v)
		case unix.NFTA_HOOK_PRIORITY:
			c.Priority = int32(dump.Number(v))
		}
	})
	return c, err
}

// A Set is a set or map, but for its elements. Types are numbers that nft gives them, but
// for that of verdicts: unix.NFT_DATA_VERDICT. Sizes are in bytes. DataType and DataSize
// are those of a map.
type Set struct {
	Name               string
	Flags              uint32 // unix.NFT_SET_MAP
	KeyType, KeySize   uint32
	DataType, DataSize uint32
}

// Sets lists the sets and maps of a table, also those without names of their own.
func (r *Reader) Sets(t Table) ([]Set, error) {
	var list []Set
	err := r.List(unix.NFT_MSG_GETSET, t.request(), func(body []byte) error {
		table, s, err := parseSet(body)
		if table == t.Name {
			list = append(list, s)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list sets of table %s: %w", t.Name, err)
	}
	return list, nil
}

func parseSet(body []byte) (table string, s Set, err error) {
	err = attributes(body, func(kind uint16, v []byte) {
		switch kind {
		case unix.NFTA_SET_TABLE:
			table = dump.Text(v)
		case unix.NFTA_SET_NAME:
			s.Name = dump.Text(v)
		case unix.NFTA_SET_FLAGS:
			s.Flags = dump.Number(v)
		case unix.NFTA_SET_KEY_TYPE:
			s.KeyType = dump.Number(v)
		case unix.NFTA_SET_KEY_LEN:
			s.KeySize = dump.Number(v)
		case unix.NFTA_SET_DATA_TYPE:
			s.DataType = dump.Number(v)
		case unix.NFTA_SET_DATA_LEN:
			s.DataSize = dump.Number(v)
		}
	})
	return table, s, err
}

// An Object is a named one of a table that is no chain, set or rule: a counter, a quota. A
// name is one for each type.
type Object struct {
	Name    string
	Type    uint32 // unix.NFT_OBJECT_COUNTER
	Packets uint64 // that a counter has counted
}

// Objects lists those of a table. A table that is not there has none.
func (r *Reader) Objects(t Table) ([]Object, error) {
	var list []Object
	err := r.List(unix.NFT_MSG_GETOBJ, t.request(), func(body []byte) error {
		table, o, err := parseObject(body)
		if table == t.Name {
			list = append(list, o)
		}
		return err
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("list counters and other objects of table %s: %w", t.Name, err)
	}
	return list, nil
}

// Counters gives what the named counters of a table have counted: packets. A table that is
// not there has none.
func (r *Reader) Counters(t Table) (map[string]uint64, error) {
	list, err := r.Objects(t)
	if err != nil {
		return nil, err
	}
	counted := map[string]uint64{}
	for _, o := range list {
		if o.Type == unix.NFT_OBJECT_COUNTER {
			counted[o.Name] = o.Packets
		}
	}
	return counted, nil
}

func parseObject(body []byte) (table string, o Object, err error) {
	var data []byte
	err = attributes(body, func(kind uint16, v []byte) {
		switch kind {
		case unix.NFTA_OBJ_TABLE:
			table = dump.Text(v)
		case unix.NFTA_OBJ_NAME:
			o.Name = dump.Text(v)
		case unix.NFTA_OBJ_TYPE:
			o.Type = dump.Number(v)
		case unix.NFTA_OBJ_DATA:
			data = v
		}
	})
	if o.Type != unix.NFT_OBJECT_COUNTER {
		return table, o, err
	}
	err = errors.Join(err, nested(data, func(kind uint16, v []byte) {
		if kind == unix.NFTA_COUNTER_PACKETS && len(v) == 8 {
			o.Packets = binary.BigEndian.Uint64(v)
		}
	}))
	return table, o, err
}
