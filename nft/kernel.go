package nft

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"onerule/nft/dump"
	"onerule/nft/inspect"
)

// inKernel is what is there of our table but for its elements.
type inKernel struct {
	table   bool
	dormant bool
	chains  map[string]inspect.Chain
	sets    map[string]kernelSet
	rules   map[string]int // number of rules by chain
	// counters are the named ones, with what they have counted: packets.
	counters map[string]uint64
	// others are named objects that are no counters: we write none.
	others []inspect.Object
	// order is how the rules that find a frontend's number of endpoints try them.
	order []count
	// seal is the name of the chain that seals these rules.
	seal string
}

// A kernelSet is the shape of a set or map. Sizes are in bytes.
type kernelSet struct {
	flags      uint32
	key, value uint32
	verdicts   bool
}

// readTable asks for the table, its sets and rules, and for each chain that could be ours
// by its name. A listing of all chains goes over those of all tables and misses some
// while others come and go, so it only serves to find chains that are not ours.
func readTable(family Family) (k inKernel, err error) {
	r, err := inspect.Open()
	if err != nil {
		return k, err
	}
	defer func() { _ = r.Close() }()
	for _, step := range []func(*inspect.Reader, Family) error{k.readFlags, k.readSets, k.readRules, k.readChains, k.readObjects} {
		if err := step(r, family); err != nil {
			return k, fmt.Errorf("read table %s %s: %w", family, TableName, err)
		}
		if !k.table {
			return k, nil
		}
	}
	return k, nil
}

// table names our table.
func (f Family) table() inspect.Table { return inspect.Table{Family: nfFamily(f), Name: TableName} }

func nfFamily(f Family) uint8 {
	if f == IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

func (k *inKernel) readFlags(r *inspect.Reader, family Family) error {
	flags, there, err := r.Flags(family.table())
	k.table, k.dormant = there, flags&unix.NFT_TABLE_F_DORMANT != 0
	return err
}

func (k *inKernel) readSets(r *inspect.Reader, family Family) error {
	sets, err := r.Sets(family.table())
	k.sets = map[string]kernelSet{}
	for _, s := range sets {
		if s.Flags&unix.NFT_SET_ANONYMOUS != 0 {
			continue // goes with the rule that it stands in, and by nothing else
		}
		k.sets[s.Name] = kernelSet{s.Flags, s.KeySize, s.DataSize, s.DataType == unix.NFT_DATA_VERDICT}
	}
	return err
}

func (k *inKernel) readRules(r *inspect.Reader, family Family) error {
	digests := inspect.Digests{}
	k.rules = map[string]int{}
	err := r.EachRule(family.table(), func(rule inspect.Rule) error {
		k.rules[rule.Chain]++
		c, ok, err := countLookedUp(rule)
		if err != nil {
			return err
		}
		if ok && rule.Chain == c.slots.findChain(protocolWord(c.protocol)) {
			k.order = append(k.order, c)
		}
		return digests.Add(rule)
	})
	k.seal = digests.Seal()
	return err
}

// countLookedUp gives the number of endpoints whose set a rule looks into.
func countLookedUp(rule inspect.Rule) (c count, ok bool, err error) {
	steps, err := rule.Steps()
	for _, e := range steps {
		if e.Name != "lookup" {
			continue
		}
		if c, ok = countOf(dump.Text(dump.Find(e.Data, unix.NFTA_LOOKUP_SET))); ok {
			break
		}
	}
	return c, ok, err
}

// take leaves out a chain that goes with the rule that it stands in, and by nothing else.
func (k *inKernel) take(c inspect.Chain) {
	if !c.Bound {
		k.chains[c.Name] = c
	}
}

func (k *inKernel) readChains(r *inspect.Reader, family Family) error {
	all, err := r.Chains(nfFamily(family))
	if err != nil {
		return err
	}
	k.chains = map[string]inspect.Chain{}
	for _, c := range all {
		if c.Table == TableName {
			k.take(c)
		}
	}
	for _, name := range k.chainNames(family) {
		c, there, err := r.Chain(family.table(), name)
		if err != nil {
			return err
		}
		if there {
			k.take(c)
		}
	}
	return nil
}

// chainNames names the chains that could be ours.
func (k *inKernel) chainNames(family Family) []string {
	names := []string{k.seal}
	for _, c := range NewSkeleton(Config{Family: family}).Chains {
		names = append(names, c.Name)
	}
	for name := range k.sets {
		if _, ok := countOf(name); ok {
			names = append(names, name)
		}
	}
	return slices.AppendSeq(names, maps.Keys(k.rules))
}

func (k *inKernel) readObjects(r *inspect.Reader, family Family) error {
	list, err := r.Objects(family.table())
	k.counters = map[string]uint64{}
	for _, o := range list {
		if o.Type == unix.NFT_OBJECT_COUNTER {
			k.counters[o.Name] = o.Packets
			continue
		}
		k.others = append(k.others, o)
	}
	return err
}

// Counters gives what the named counters of our table have counted: packets, which are
// first packets of connections. A table that is not there has none.
func Counters(family Family) (map[string]uint64, error) {
	r, err := inspect.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	return r.Counters(family.table())
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
	_, ok := k.chains[k.seal]
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
		if have, ok := k.chains[c.Name]; ok && c.Base == nil && have.Base {
			return "chain " + c.Name + " is hooked in"
		}
	}
	return ""
}

// fits says whether a chain is there as it should be: regular, or hooked in where it
// should be.
func fits(have inspect.Chain, want Chain) bool {
	if want.Base == nil || !have.Base {
		return !have.Base && want.Base == nil
	}
	hooks := map[string]uint32{
		"prerouting": unix.NF_INET_PRE_ROUTING, "input": unix.NF_INET_LOCAL_IN, "forward": unix.NF_INET_FORWARD,
		"output": unix.NF_INET_LOCAL_OUT, "postrouting": unix.NF_INET_POST_ROUTING,
	}
	const accept = 1
	return have.Type == "nat" && have.Hook == hooks[want.Base.Hook] && have.Priority == int32(want.Base.Priority) && have.Policy == accept
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
			size = uint32(dump.Align4(int(size)))
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
