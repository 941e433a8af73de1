package hostport

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// TableName is the name of the table in both families.
const TableName = "onerule-hostports"

// The sets and maps.
const (
	atAddress = "hostports"     // address . protocol . port : pod's address . port
	atAny     = "hostports-any" // protocol . port : pod's address . port
	hairpins  = "hairpins"      // pod's address . pod's address
)

// Priorities: after the tables of Services (-110) and the usual one (-100), so that a
// frontend keeps its traffic; and before the usual masquerade (100).
const (
	priorityDNAT = -90
	prioritySNAT = 95
)

// Registers of 4 bytes, the first of the kernel's 16.
const firstRegister = unix.NFT_REG32_00

// A family is an IP family of nftables.
type family struct {
	number    nftables.TableFamily
	address   nftables.SetDatatype
	size      uint32 // of an address, in bytes
	src, dst  uint32 // offsets in the network header
	loopback  prefix
	linkLocal []prefix // none: they are as others
}

// A prefix is one of addresses that are local and that no other host reaches: the first
// bytes, and how many bits of them count.
type prefix struct {
	bytes, mask []byte
}

func ipv4() family {
	return family{unix.NFPROTO_IPV4, nftables.TypeIPAddr, 4, 12, 16, prefix{[]byte{127}, nil}, nil}
}

func ipv6() family {
	loopback, linkLocal, tenBits := [16]byte{15: 1}, [16]byte{0xfe, 0x80}, [16]byte{0xff, 0xc0}
	return family{unix.NFPROTO_IPV6, nftables.TypeIP6Addr, 16, 8, 24,
		prefix{loopback[:], nil}, []prefix{{linkLocal[:], tenBits[:]}}}
}

func families() []family { return []family{ipv4(), ipv6()} }

func familyOf(c Claim) family {
	if c.is6() {
		return ipv6()
	}
	return ipv4()
}

func (f family) table() *nftables.Table { return &nftables.Table{Name: TableName, Family: f.number} }

// registerAfter gives the register behind an address in the first one.
func (f family) registerAfter() uint32 { return firstRegister + f.size/4 }

// sets gives the sets and maps.
func (f family) sets() []*nftables.Set {
	to := nftables.MustConcatSetType(f.address, nftables.TypeInetService)
	return []*nftables.Set{
		{
			Table: f.table(), Name: atAddress, IsMap: true, DataType: to, Comment: "ports at one address of the node",
			KeyType: nftables.MustConcatSetType(f.address, nftables.TypeInetProto, nftables.TypeInetService),
		},
		{
			Table: f.table(), Name: atAny, IsMap: true, DataType: to, Comment: "ports at all addresses of the node",
			KeyType: nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService),
		},
		{
			Table: f.table(), Name: hairpins, Comment: "pods that may reach themselves",
			KeyType: nftables.MustConcatSetType(f.address, f.address),
		},
	}
}

// A chain is a chain with its rules; hook is nil for a regular one.
type chain struct {
	name     string
	hook     *nftables.ChainHook
	priority int
	rules    [][]expr.Any
}

// chains gives them in the order to load them. known are sets of the protocols that have
// ports, one for each of the rules that need it, since the kernel binds a set without a
// name to one rule only.
func (f family) chains(known [2]*nftables.Set) []chain {
	lead := &expr.Verdict{Kind: expr.VerdictJump, Chain: "hostports"}
	local := append(slices.Concat(f.ofOthers(f.dst), f.isLocal()), lead)
	loopback := append(slices.Concat(f.loopback.match(f.dst, expr.CmpOpEq), f.ofOthers(f.src)), lead)
	return []chain{
		{"hostports", nil, 0, [][]expr.Any{f.lead(known[0], true), f.lead(known[1], false)}},
		{"prerouting", nftables.ChainHookPrerouting, priorityDNAT, [][]expr.Any{local}},
		{"output", nftables.ChainHookOutput, priorityDNAT, [][]expr.Any{local, loopback}},
		{"postrouting", nftables.ChainHookPostrouting, prioritySNAT, [][]expr.Any{f.hairpin()}},
	}
}

func load(register, offset, size uint32, base expr.PayloadBase) expr.Any {
	return &expr.Payload{DestRegister: register, Base: base, Offset: offset, Len: size}
}

func (f family) loadSource(register uint32) expr.Any {
	return load(register, f.src, f.size, expr.PayloadBaseNetworkHeader)
}

func (f family) loadDestination(register uint32) expr.Any {
	return load(register, f.dst, f.size, expr.PayloadBaseNetworkHeader)
}

// ofOthers matches addresses, at an offset, that other hosts can reach or answer to: what
// comes from another one never leaves the node, also not when it is translated.
func (f family) ofOthers(offset uint32) []expr.Any {
	list := f.loopback.match(offset, expr.CmpOpNeq)
	for _, p := range f.linkLocal {
		list = append(list, p.match(offset, expr.CmpOpNeq)...)
	}
	return list
}

// match compares the address at an offset.
func (p prefix) match(offset uint32, op expr.CmpOp) []expr.Any {
	n := uint32(len(p.bytes))
	list := []expr.Any{load(firstRegister, offset, n, expr.PayloadBaseNetworkHeader)}
	if p.mask != nil {
		list = append(list, &expr.Bitwise{
			SourceRegister: firstRegister, DestRegister: firstRegister, Len: n, Mask: p.mask, Xor: make([]byte, n),
		})
	}
	return append(list, &expr.Cmp{Op: op, Register: firstRegister, Data: p.bytes})
}

// isLocal matches destinations that are addresses of the node.
func (f family) isLocal() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: firstRegister, ResultADDRTYPE: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

// lead translates to what the map says, by the address too or not. A rule without an
// element does nothing.
func (f family) lead(known *nftables.Set, byAddress bool) []expr.Any {
	const portOffset = 2 // of the destination, in the headers of all three protocols
	list := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: firstRegister},
		&expr.Lookup{SourceRegister: firstRegister, SetName: known.Name, SetID: known.ID},
	}
	next, set := uint32(firstRegister), atAny
	if byAddress {
		list = append(list, f.loadDestination(firstRegister))
		next, set = f.registerAfter(), atAddress
	}
	return append(list,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: next},
		load(next+1, portOffset, 2, expr.PayloadBaseTransportHeader),
		&expr.Lookup{SourceRegister: firstRegister, DestRegister: firstRegister, IsDestRegSet: true, SetName: set},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.number), RegAddrMin: firstRegister, RegProtoMin: f.registerAfter()},
	)
}

// hairpin masquerades what a pod sends to itself by a port of the node: its answer would
// go past the translation otherwise.
func (f family) hairpin() []expr.Any {
	const dnat = 0x20 // IPS_DST_NAT
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: firstRegister},
		&expr.Bitwise{
			SourceRegister: firstRegister, DestRegister: firstRegister, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(dnat), Xor: make([]byte, 4),
		},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: make([]byte, 4)},
		f.loadSource(firstRegister),
		f.loadDestination(f.registerAfter()),
		&expr.Lookup{SourceRegister: firstRegister, SetName: hairpins},
		&expr.Masq{FullyRandom: true},
	}
}

// versionPrefix begins the name of an empty chain that says which rules the table has.
const versionPrefix = "skeleton-"

// version gives the name of that chain: it is another one for other rules.
func (f family) version() string {
	h := sha256.New()
	for _, s := range f.sets() {
		said(h, "set", s.Name, s.KeyType.Name, s.DataType.Name, s.IsMap)
	}
	for _, c := range f.chains([2]*nftables.Set{{}, {}}) {
		hook := "none"
		if c.hook != nil {
			hook = fmt.Sprint(*c.hook)
		}
		said(h, "chain", c.name, hook, c.priority)
		for _, r := range c.rules {
			said(h, "rule")
			for _, e := range r {
				b, err := expr.Marshal(byte(f.number), e)
				said(h, b, err)
			}
		}
	}
	const digits = 8
	return versionPrefix + hex.EncodeToString(h.Sum(nil)[:digits])
}

func said(h hash.Hash, words ...any) { _, _ = fmt.Fprintln(h, words...) } // a hash takes everything

// begin adds to a transaction what makes the table new and empty.
func (f family) begin(c *nftables.Conn) error {
	c.AddTable(f.table()) // or there may be none to delete
	c.DelTable(f.table())
	c.AddTable(f.table())
	for _, s := range f.sets() {
		if err := c.AddSet(s, nil); err != nil {
			return fmt.Errorf("encode set %s: %w", s.Name, err)
		}
	}
	var known [2]*nftables.Set
	for i := range known {
		known[i] = &nftables.Set{Table: f.table(), Anonymous: true, Constant: true, KeyType: nftables.TypeInetProto}
		if err := c.AddSet(known[i], elementsOf(protocols())); err != nil {
			return fmt.Errorf("encode set of protocols: %w", err)
		}
	}
	c.AddChain(&nftables.Chain{Table: f.table(), Name: f.version()})
	for _, ch := range f.chains(known) {
		kernel := &nftables.Chain{Table: f.table(), Name: ch.name}
		if ch.hook != nil {
			accept := nftables.ChainPolicyAccept
			kernel.Type, kernel.Hooknum, kernel.Policy = nftables.ChainTypeNAT, ch.hook, &accept
			kernel.Priority = nftables.ChainPriorityRef(nftables.ChainPriority(ch.priority))
		}
		c.AddChain(kernel)
		for _, r := range ch.rules {
			c.AddRule(&nftables.Rule{Table: f.table(), Chain: kernel, Exprs: r})
		}
	}
	return nil
}

func elementsOf(list []Protocol) (elements []nftables.SetElement) {
	for _, p := range list {
		elements = append(elements, nftables.SetElement{Key: []byte{byte(p)}})
	}
	return elements
}
