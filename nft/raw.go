package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"onerule/nft/dump"
	"onerule/nft/inspect"
)

// A rawTable is a table of ours but for its elements, as attributes that make it again.
type rawTable struct {
	name                   string
	attrs                  []byte
	sets, chains, counters []rawObject
	rules                  map[string][][]byte // by chain, in their order
}

// A rawObject is a set, a chain or a counter.
type rawObject struct {
	name  string
	attrs []byte
}

// A rawKind says how objects of a kind are asked for, and which of the attributes that the
// kernel tells of one make it again. The first two are those of its table and its name.
type rawKind struct {
	get   uint16
	attrs []uint16
}

func rawTables() rawKind {
	const userdata = 6 // NFTA_TABLE_USERDATA
	return rawKind{unix.NFT_MSG_GETTABLE, []uint16{unix.NFTA_TABLE_NAME, unix.NFTA_TABLE_NAME, userdata}}
}

func rawSets() rawKind {
	return rawKind{unix.NFT_MSG_GETSET, []uint16{
		unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME, unix.NFTA_SET_FLAGS, unix.NFTA_SET_KEY_TYPE, unix.NFTA_SET_KEY_LEN,
		unix.NFTA_SET_DATA_TYPE, unix.NFTA_SET_DATA_LEN, unix.NFTA_SET_POLICY, unix.NFTA_SET_DESC, unix.NFTA_SET_TIMEOUT,
		unix.NFTA_SET_GC_INTERVAL, unix.NFTA_SET_USERDATA,
	}}
}

func rawChains() rawKind {
	const flags, userdata = 10, 12 // NFTA_CHAIN_FLAGS, NFTA_CHAIN_USERDATA
	return rawKind{unix.NFT_MSG_GETCHAIN, []uint16{
		unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME, unix.NFTA_CHAIN_HOOK, unix.NFTA_CHAIN_POLICY, unix.NFTA_CHAIN_TYPE, flags, userdata,
	}}
}

func rawCounters() rawKind {
	const userdata = 8 // NFTA_OBJ_USERDATA
	return rawKind{unix.NFT_MSG_GETOBJ, []uint16{unix.NFTA_OBJ_TABLE, unix.NFTA_OBJ_NAME, unix.NFTA_OBJ_TYPE, unix.NFTA_OBJ_DATA, userdata}}
}

func rawRules() rawKind {
	return rawKind{unix.NFT_MSG_GETRULE, []uint16{unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN, unix.NFTA_RULE_EXPRESSIONS, unix.NFTA_RULE_USERDATA}}
}

// readRaw reads a table in the network namespace of the calling thread.
func readRaw(family Family, table string) (rawTable, error) {
	t := rawTable{name: table, rules: map[string][][]byte{}}
	r, err := inspect.Open()
	if err != nil {
		return t, err
	}
	defer func() { _ = r.Close() }()
	for _, step := range []struct {
		kind rawKind
		into func(rawObject)
	}{
		{rawTables(), func(o rawObject) { t.attrs = o.attrs }},
		{rawSets(), func(o rawObject) { t.sets = append(t.sets, o) }},
		{rawChains(), func(o rawObject) { t.chains = append(t.chains, o) }},
		{rawCounters(), func(o rawObject) { t.counters = append(t.counters, o) }},
		{rawRules(), func(o rawObject) { t.rules[o.name] = append(t.rules[o.name], taken(o.attrs)) }},
	} {
		if err := step.kind.read(r, family, table, step.into); err != nil {
			return t, fmt.Errorf("read table %s %s: %w", family, table, err)
		}
	}
	return t, nil
}

func (k rawKind) read(r *inspect.Reader, family Family, table string, into func(rawObject)) error {
	return r.List(k.get, dump.Request(nfFamily(family)), func(body []byte) error {
		attrs, err := dump.Attributes(body)
		if err != nil {
			return err
		}
		var of string
		var o rawObject
		err = dump.EachAttr(attrs, func(kind uint16, v []byte) error {
			switch kind {
			case k.attrs[0]:
				of = dump.Text(v)
			case k.attrs[1]:
				o.name = dump.Text(v)
			}
			if slices.Contains(k.attrs, kind) {
				o.attrs = append(o.attrs, dump.Attr(kind, v)...)
			}
			return nil
		})
		if of == table {
			into(o)
		}
		return err
	})
}

// drop forgets the object that a command names.
func (t *rawTable) drop(c command) {
	list := t.of(c.noun)
	*list = slices.DeleteFunc(*list, func(o rawObject) bool { return o.name == c.name })
}

// of gives the objects that a noun of nft is for.
func (t *rawTable) of(noun string) *[]rawObject {
	switch noun {
	case "chain":
		return &t.chains
	case "counter":
		return &t.counters
	}
	return &t.sets
}

// A batch is messages that are one transaction.
type batch struct {
	family   Family
	messages []netlink.Message
	ids      uint32 // of sets
}

// copied makes the table again, with its objects and without its rules.
func (t rawTable) copied(family Family) *batch {
	b := &batch{family: family}
	if t.attrs == nil {
		return b
	}
	b.add(unix.NFT_MSG_NEWTABLE, netlink.Create, t.attrs)
	for _, noun := range []string{"set", "chain", "counter"} {
		for _, o := range *t.of(noun) {
			b.make(noun, o)
		}
	}
	return b
}

// batch says what the commands say, with what nft made of those that add something.
func (t rawTable) batch(family Family, list []command) (*batch, error) {
	b := &batch{family: family}
	next := map[string]int{} // rule of each chain
	for _, c := range list {
		table := dump.Name(unix.NFTA_TABLE_NAME, t.name) // and of chains, sets and counters
		named := slices.Concat(table, dump.Name(unix.NFTA_SET_NAME, c.name))
		switch c.verb + " " + c.noun {
		case "add table":
			b.add(unix.NFT_MSG_NEWTABLE, netlink.Create, t.attrs)
		case "delete table":
			b.add(unix.NFT_MSG_DELTABLE, 0, table)
		case "add rule":
			if next[c.name] >= len(t.rules[c.name]) {
				return nil, fmt.Errorf("nft made no rule of %q", c.line)
			}
			b.add(unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, t.rules[c.name][next[c.name]])
			next[c.name]++
		case "add chain", "add set", "add map", "add counter":
			i := slices.IndexFunc(*t.of(c.noun), func(o rawObject) bool { return o.name == c.name })
			if i < 0 {
				return nil, fmt.Errorf("nft made nothing of %q", c.line)
			}
			b.make(c.noun, (*t.of(c.noun))[i])
		case "flush chain":
			b.add(unix.NFT_MSG_DELRULE, 0, slices.Concat(table, dump.Name(unix.NFTA_RULE_CHAIN, c.name)))
		case "delete chain":
			b.add(unix.NFT_MSG_DELCHAIN, 0, slices.Concat(table, dump.Name(unix.NFTA_CHAIN_NAME, c.name)))
		case "delete set", "delete map":
			b.add(unix.NFT_MSG_DELSET, 0, named)
		case "delete counter":
			b.add(unix.NFT_MSG_DELOBJ, 0, slices.Concat(named, dump.Attr(unix.NFTA_OBJ_TYPE, []byte{0, 0, 0, unix.NFT_OBJECT_COUNTER})))
		default:
			return nil, fmt.Errorf("no way to do without nft: %q", c.line)
		}
	}
	return b, nil
}

// make adds an object.
func (b *batch) make(noun string, o rawObject) {
	switch noun {
	case "chain":
		b.add(unix.NFT_MSG_NEWCHAIN, netlink.Create, o.attrs)
	case "counter":
		b.add(unix.NFT_MSG_NEWOBJ, netlink.Create, o.attrs)
	default:
		b.ids++ // by which one transaction tells sets apart
		b.add(unix.NFT_MSG_NEWSET, netlink.Create, slices.Concat(o.attrs, dump.Attr(unix.NFTA_SET_ID, binary.BigEndian.AppendUint32(nil, b.ids))))
	}
}

func (b *batch) add(kind uint16, flags netlink.HeaderFlags, attrs []byte) {
	b.messages = append(b.messages, netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | flags},
		Data:   dump.Request(nfFamily(b.family), attrs),
	})
}

// send commits the batch in the network namespace of the calling thread.
func (b *batch) send() error {
	if len(b.messages) == 0 {
		return nil
	}
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open netlink socket for nftables: %w", err)
	}
	defer func() { _ = c.Close() }()
	if err := errors.Join(c.SetWriteBuffer(socketBuffer), c.SetReadBuffer(socketBuffer)); err != nil {
		return fmt.Errorf("raise the buffers of a netlink socket: %w", err)
	}
	frame := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request}, Data: []byte{0, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}}
	}
	b.messages[len(b.messages)-1].Header.Flags |= netlink.Acknowledge
	if _, err := c.SendMessages(slices.Concat([]netlink.Message{frame(unix.NFNL_MSG_BATCH_BEGIN)}, b.messages, []netlink.Message{frame(unix.NFNL_MSG_BATCH_END)})); err != nil {
		return fmt.Errorf("send a transaction to nftables: %w", err)
	}
	if _, err := c.Receive(); err != nil {
		return fmt.Errorf("commit a transaction to nftables: %w", err)
	}
	return nil
}
