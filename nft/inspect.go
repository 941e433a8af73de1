package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// inKernel is what is there of our table but for its elements.
type inKernel struct {
	table   bool
	dormant bool
	chains  map[string]kernelChain
	sets    map[string]kernelSet
	rules   map[string]int // number of rules by chain
	// counters are the named ones, with what they have counted: packets.
	counters map[string]uint64
	// order is how the rules that find a frontend's number of endpoints try them.
	order []count
	// digest is one of all rules.
	digest string
}

// A kernelChain is a chain as it is: the zero value for a regular one.
type kernelChain struct {
	base     bool
	kind     string
	hook     uint32
	priority int32
	policy   uint32
}

// A kernelSet is the shape of a set or map. Length is in bytes.
type kernelSet struct {
	flags      uint32
	key, value uint32
	verdicts   bool
}

// inspect asks for the table, its sets and rules, and for each chain that could be ours
// by its name. A listing of all chains goes over those of all tables and misses some
// while others come and go (14 of 100 with 650 commits a second, 6.18), so it only
// serves to find chains that are not ours.
func inspect(family Family) (inKernel, error) {
	k := inKernel{chains: map[string]kernelChain{}, sets: map[string]kernelSet{}, rules: map[string]int{}, counters: map[string]uint64{}}
	d, err := openDump()
	if err != nil {
		return k, err
	}
	defer func() { _ = d.close() }()
	for _, step := range []struct {
		what string
		do   func(*dump, Family) error
	}{{"table", k.readTable}, {"sets", k.readSets}, {"rules", k.readRules}, {"chains", k.readChains}, {"counters", k.readCounters}} {
		if err := step.do(d, family); err != nil {
			return k, fmt.Errorf("look for the %s of %s %s: %w", step.what, family, TableName, err)
		}
		if !k.table {
			return k, nil
		}
	}
	return k, nil
}

func (k *inKernel) readTable(d *dump, family Family) error {
	request, err := tableRequest(family)
	if err != nil {
		return err
	}
	err = d.ask(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETTABLE, request, func(body []byte) error {
		k.table = true
		return eachAttr(body[4:], func(kind uint16, v []byte) error {
			if kind == unix.NFTA_TABLE_FLAGS {
				k.dormant = be32(v)&unix.NFT_TABLE_F_DORMANT != 0
			}
			return nil
		})
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func (k *inKernel) readSets(d *dump, family Family) error {
	request, err := tableRequest(family)
	if err != nil {
		return err
	}
	return d.run(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETSET, request, func(body []byte) error {
		var name, table string
		var s kernelSet
		err := eachAttr(body[4:], func(kind uint16, v []byte) error {
			switch kind {
			case unix.NFTA_SET_TABLE:
				table = goString(v)
			case unix.NFTA_SET_NAME:
				name = goString(v)
			case unix.NFTA_SET_FLAGS:
				s.flags = be32(v)
			case unix.NFTA_SET_KEY_LEN:
				s.key = be32(v)
			case unix.NFTA_SET_DATA_LEN:
				s.value = be32(v)
			case unix.NFTA_SET_DATA_TYPE:
				s.verdicts = be32(v) == unix.NFT_DATA_VERDICT
			}
			return nil
		})
		if table == TableName {
			k.sets[name] = s
		}
		return err
	})
}

func (k *inKernel) readRules(d *dump, family Family) error {
	request, err := tableRequest(family)
	if err != nil {
		return err
	}
	rules := digests{}
	err = d.run(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETRULE, request, func(body []byte) error {
		r, err := parseRule(body[nfgenSize:])
		if err != nil || r.table != TableName {
			return err
		}
		var set string
		if err := lookedUp(r.expressions, &set); err != nil {
			return err
		}
		k.rules[r.chain]++
		if c, ok := countOf(set); ok && r.chain == c.slots.findChain(protocolWord(c.protocol)) {
			k.order = append(k.order, c)
		}
		return rules.add(r)
	})
	k.digest = rules.all()
	return err
}

// A kernelRule is a rule as it is. Its expressions are valid as long as the message.
type kernelRule struct {
	table, chain string
	expressions  []byte
}

func parseRule(attrs []byte) (r kernelRule, err error) {
	err = eachAttr(attrs, func(kind uint16, v []byte) error {
		switch kind {
		case unix.NFTA_RULE_TABLE:
			r.table = goString(v)
		case unix.NFTA_RULE_CHAIN:
			r.chain = goString(v)
		case unix.NFTA_RULE_EXPRESSIONS:
			r.expressions = v
		}
		return nil
	})
	return r, err
}

// lookedUp gives the set that a rule looks into, the last one if several.
func lookedUp(expressions []byte, set *string) error {
	return eachAttr(expressions, func(_ uint16, expression []byte) error {
		return eachAttr(expression, func(kind uint16, v []byte) error {
			if kind != unix.NFTA_EXPR_DATA {
				return nil
			}
			return eachAttr(v, func(kind uint16, field []byte) error {
				if kind != unix.NFTA_LOOKUP_SET {
					return nil
				}
				if _, ok := countOf(goString(field)); ok {
					*set = goString(field)
				}
				return nil
			})
		})
	})
}

// counts gives the numbers of endpoints that there are sets or chains for.
func (k inKernel) counts() []count {
	names := map[string]bool{}
	add(names, maps.Keys(k.sets))
	add(names, maps.Keys(k.chains))
	var list []count
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if c, ok := countOf(name); ok {
			list = append(list, c)
		}
	}
	return list
}

// affinities gives the session affinities that there are chains for.
func (k inKernel) affinities() []Affinity {
	var list []Affinity
	for _, name := range slices.Sorted(maps.Keys(k.chains)) {
		if a, ok := affinityOf(name); ok {
			list = append(list, a)
		}
	}
	return list
}

// sealed says whether the rules are those that were here when they were last written.
func (k inKernel) sealed() bool {
	_, ok := k.chains[sealOf(k.digest)]
	return ok
}

// variable gives the variable part of the rules as the kernel has it.
func (k inKernel) variable() variable { return variable{k.counts(), k.affinities()} }

// misfit says what keeps our rules from being written over what is there: "" if
// nothing does.
func (k inKernel) misfit(o objects) string {
	if k.dormant {
		return "it is dormant"
	}
	for _, s := range o.sets {
		if have, ok := k.sets[s.Name]; ok && have != s.shape() {
			return "set " + s.Name + " is of another type"
		}
	}
	for _, c := range o.chains {
		if have, ok := k.chains[c.Name]; ok && c.Base == nil && have.base {
			return "chain " + c.Name + " is hooked in"
		}
	}
	return ""
}

// fits says whether the chain is there as it should be: regular, or hooked in where it
// should be.
func (c kernelChain) fits(want Chain) bool {
	if want.Base == nil {
		return !c.base
	}
	return c == want.Base.inKernel()
}

// inKernel gives a hook as the kernel tells it.
func (h Hook) inKernel() kernelChain {
	numbers := map[string]uint32{
		"prerouting": unix.NF_INET_PRE_ROUTING, "input": unix.NF_INET_LOCAL_IN, "forward": unix.NF_INET_FORWARD,
		"output": unix.NF_INET_LOCAL_OUT, "postrouting": unix.NF_INET_POST_ROUTING,
	}
	const accept = 1
	return kernelChain{base: true, kind: "nat", hook: numbers[h.Hook], priority: int32(h.Priority), policy: accept}
}

// shape gives the set as the kernel tells it. Parts of a concatenation are padded to 4
// bytes.
func (s Set) shape() kernelSet {
	key, value, _ := strings.Cut(s.Type, " : ")
	shape := kernelSet{key: sizeOf(key), value: sizeOf(value)}
	if s.Map {
		shape.flags |= unix.NFT_SET_MAP
	}
	for flag := range strings.SplitSeq(s.Flags, ",") {
		shape.flags |= map[string]uint32{
			"interval": unix.NFT_SET_INTERVAL, "timeout": unix.NFT_SET_TIMEOUT, "dynamic": unix.NFT_SET_EVAL,
		}[flag]
	}
	if s.Flags == "interval" && strings.Contains(key, " . ") {
		shape.flags |= setConcat
	}
	if value == "verdict" {
		shape.verdicts, shape.value = true, verdictSize
	}
	return shape
}

// setConcat is NFT_SET_CONCAT, since kernel 5.6: a set of ranges of concatenations.
const setConcat = 0x80

// verdictSize is sizeof(struct nft_verdict), as the kernel gives it for values.
const verdictSize = 16

func sizeOf(typ string) uint32 {
	if typ == "" {
		return 0
	}
	parts := strings.Split(typ, " . ")
	var sum uint32
	for _, p := range parts {
		size := partSize(p)
		if len(parts) > 1 {
			size = uint32(align4(int(size)))
		}
		sum += size
	}
	return sum
}

func partSize(part string) uint32 {
	switch {
	case part == "ipv6_addr" || part == "ip6 daddr":
		return 16
	case part == "inet_service" || strings.HasSuffix(part, "dport"):
		return 2
	case part == "inet_proto":
		return 1
	}
	return 4 // an IPv4 address, and what numgen gives
}

// tableRequest begins a request about our table. The attribute with its name has the
// same number in requests for tables, sets, chains and rules.
func tableRequest(family Family) ([]byte, error) {
	attrs, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_SET_TABLE, Data: cString(TableName)}})
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	return append([]byte{nfFamily(family), unix.NFNETLINK_V0, 0, 0}, attrs...), nil
}

func cString(s string) []byte { return append([]byte(s), 0) }

func goString(b []byte) string { return strings.TrimRight(string(b), "\x00") }

func be32(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}
