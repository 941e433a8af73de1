package nft

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// TableName is the name of our table in both families.
const TableName = "onerule"

// A Family is an IP family.
type Family uint8

// The families, one table each.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// String gives nft's word for the family.
func (f Family) String() string {
	if f == IPv6 {
		return "ip6"
	}
	return "ip"
}

func (f Family) addrType() string {
	if f == IPv6 {
		return "ipv6_addr"
	}
	return "ipv4_addr"
}

// A Detector says how traffic of pods is told from other traffic.
type Detector uint8

// The detectors.
const (
	// DetectNone knows no pods: nothing is masqueraded for where it comes from.
	DetectNone Detector = iota
	// DetectCIDR takes what comes from PodCIDRs for a pod's.
	DetectCIDR
	// DetectInterface takes what comes in by PodInterface for a pod's.
	DetectInterface
)

// A Config is what the rules depend on. Everything else is elements.
type Config struct {
	Family Family
	// MasqueradeBit is the bit of the packet mark, 0 to 31, between a decision to
	// masquerade and the masquerade.
	MasqueradeBit uint8
	// MasqueradeAll masquerades everything that goes to a ClusterIP.
	MasqueradeAll bool
	Detector      Detector
	// PodInterface is a name, or the beginning of names with * behind it.
	PodInterface string
	// NodePortsEverywhere takes NodePorts at every address of the node but loopback
	// ones, not only at those in NodePortIPs.
	NodePortsEverywhere bool
	// RefuseWithoutLocal refuses, rather than drops, what may go to endpoints on this
	// node only where there are none.
	RefuseWithoutLocal bool
	// LocalhostNodePorts refuses what LocalhostNodePorts holds on loopback addresses.
	LocalhostNodePorts bool
	// WithoutFib is for kernels that cannot say which addresses are the node's own:
	// NodeIPs and NodePortIPs have to hold them then.
	WithoutFib bool
}

// A Skeleton is the constant part of a table: it depends on the configuration
// only, never on a Service.
type Skeleton struct {
	Family   Family
	Counters []Counter
	Sets     []Set
	// Chains come in loadable order: a chain before the rules that go to it. Base
	// chains stand last.
	Chains []Chain
}

// A Set is a set or a map, in nft's words.
type Set struct {
	Name    string
	Type    string // for maps with the type of the values: "ipv4_addr : verdict"
	TypeOf  bool   // Type is an expression
	Flags   string
	Map     bool
	Size    uint32 // the most elements it takes; 0: nobody but us adds any
	Comment string
}

// A Counter is a named counter: it outlives the rules that count with it.
type Counter struct{ Name, Comment string }

// A Chain is a chain with its rules, in nft's words.
type Chain struct {
	Name    string
	Comment string
	Base    *Hook // nil: no base chain
	Rules   []string
}

// A Hook is where a base chain of type nat is called from.
type Hook struct {
	Hook     string
	Priority int
}

// Priorities of our base chains. At equal priority the chain that registered
// later runs first, and the first that sets up NAT ends the walk: with a margin of
// 10 no other table's DNAT at -100 or SNAT at 100 decides for a frontend, whichever
// was loaded first.
//
// Pins are set before sources change, and before the walk of the hook can end.
const (
	priorityDNAT = -110
	priorityPin  = 80
	prioritySNAT = 90
)

// Protocols lists what a frontend can speak: IANA number and nft's word.
func Protocols() []Protocol { return []Protocol{{6, "tcp"}, {17, "udp"}, {132, "sctp"}} }

// A Protocol is an IANA number and nft's word for it.
type Protocol struct {
	Number uint8
	Word   string
}

func protocolWord(number uint8) string {
	for _, p := range Protocols() {
		if p.Number == number {
			return p.Word
		}
	}
	return fmt.Sprintf("protocol-%d", number)
}

// RefuseChain is the chain that answers for frontends without endpoints.
const RefuseChain = "refuse"

// NewSkeleton gives the skeleton for a configuration.
func NewSkeleton(c Config) Skeleton {
	s := Skeleton{Family: c.Family, Counters: counters(), Sets: sets(c.Family)}
	s.Chains = append(s.Chains, refuse(c.Family), markForMasquerade(c), notAllowed())
	for _, p := range Protocols() {
		for _, m := range SlotMaps() {
			s.Chains = append(s.Chains, balance(c, m, p.Word))
		}
		s.Chains = append(s.Chains, entries(c, p.Word)...)
	}
	s.Chains = append(s.Chains, owned(c.Family), nodePorts(), localhost(), services(c), pinning(c.Family), masquerading(c))
	s.Chains = append(s.Chains,
		base("nat-prerouting", "prerouting", priorityDNAT, c.arrivals()...),
		base("nat-output", "output", priorityDNAT, "jump services"),
		base("pin-input", "input", priorityPin, "ct status dnat jump pinning"),
		base("pin-postrouting", "postrouting", priorityPin, "ct status dnat jump pinning"),
		base("nat-postrouting", "postrouting", prioritySNAT, "jump masquerading"))
	return s
}

func sets(f Family) []Set {
	addr := f.addrType()
	list := []Set{
		{Name: string(ClusterIPs), Type: addr, Comment: "ClusterIPs in use"},
		{Name: string(ExternalIPs), Type: addr, Comment: "external and load balancer IPs in use"},
		{Name: string(NodePortIPs), Type: addr, Comment: "addresses of this node that take NodePorts"},
		{Name: string(NodeIPs), Type: addr, Comment: "addresses of this node, where the kernel cannot tell"},
		{Name: string(ServiceCIDRs), Type: addr, Flags: "interval", Comment: "ranges of ClusterIPs"},
		{Name: string(PodCIDRs), Type: addr, Flags: "interval", Comment: "ranges of pods"},
		{Name: string(Hairpins), Type: addr + " . " + addr, Comment: "endpoints on this node"},
		{Name: AllowedSources, Type: frontType(f, false) + " . " + addr, Flags: "interval", Comment: "clients that may use a frontend with source ranges"},
	}
	for _, m := range RouteMaps() {
		list = append(list, Set{Name: string(m), Type: frontType(f, m.NodePorts()) + " : verdict", Map: true, Comment: m.comment()})
	}
	for _, m := range SlotMaps() {
		list = append(list, Set{Name: m.EmptySet(), Type: frontType(f, m.NodePorts()), Comment: "frontends without " + m.words()})
		for _, p := range Protocols() {
			list = append(list, Set{
				Name:    m.Of(p.Number),
				Type:    fmt.Sprintf("%s . numgen random mod 2 : %s daddr . %s dport", m.key(f, p.Word), f, p.Word),
				TypeOf:  true,
				Map:     true,
				Comment: m.words() + " of each frontend, numbered from 0",
			})
		}
	}
	return list
}

// frontType is the type of a frontend in keys. A NodePort has no address.
func frontType(f Family, nodePort bool) string {
	if nodePort {
		return "inet_proto . inet_service"
	}
	return f.addrType() + " . inet_proto . inet_service"
}

// refuse answers at once. IPv6 TCP gets a reset: the ICMPv6 error finds the socket
// locked by the connect that sent the SYN, and is seen only with the second SYN,
// 1 s later (kernels 6.1 to 6.18). IPv4 TCP gets one where the packet is no SYN: it is of
// a connection that conntrack does not know any more, whose client takes an ICMP error for
// one that will pass.
func refuse(f Family) Chain {
	reset := "tcp flags and 0x2 == 0x0"
	if f == IPv6 {
		reset = "meta l4proto tcp"
	}
	return Chain{
		Name:    RefuseChain,
		Comment: "answer that nobody serves here",
		Rules:   []string{reset + " counter reject with tcp reset", "counter reject"},
	}
}

func markForMasquerade(c Config) Chain {
	bit := uint32(1) << c.MasqueradeBit
	return Chain{
		Name:    "mark-for-masquerade",
		Comment: "set our bit of the mark and no other",
		Rules:   []string{fmt.Sprintf("meta mark set meta mark or %#x", bit)},
	}
}

// balance sends a new connection to one of a frontend's endpoints.
//
// A client of a Service with session affinity goes where it is pinned to. The chain
// lb-PROTOCOL, which Counts fills, finds the frontend's number of endpoints and
// chooses. Behind it stands what is met only when a commit falls between two look-ups:
// the choice is made again from slot 0, which is right for any number. Without that
// the flow would be confirmed without NAT.
func balance(c Config, m SlotMap, proto string) Chain {
	front := m.frontKey(c.Family)
	chain := Chain{
		Name:    m.balanceChain(proto),
		Comment: "one of " + m.words() + ", or a refusal if there are none",
		Rules: []string{
			fmt.Sprintf("%s vmap @%s", front, m.sticky()),
			"jump " + m.findChain(proto),
			choose(c.Family, m, proto, 1),
			choose(c.Family, m, proto, 1),
			fmt.Sprintf("%s @%s %s goto %s", front, m.cluster().EmptySet(), counting(RefusedNoEndpoints), RefuseChain),
		},
	}
	switch {
	case m.local() && c.RefuseWithoutLocal:
		chain.Rules = append(chain.Rules, fmt.Sprintf("%s @%s %s goto %s", front, m.EmptySet(), counting(RefusedNoLocal), RefuseChain))
	case m.local():
		chain.Rules = append(chain.Rules, fmt.Sprintf("%s @%s %s drop", front, m.EmptySet(), counting(DroppedNoLocal)))
	}
	chain.Rules = append(chain.Rules, counting(DroppedChanging)+" drop")
	return chain
}

// Counts gives the chains that depend on which numbers of endpoints are in use: for
// each protocol one that finds a frontend's number, trying the numbers in the given
// order, and one for each number. They are the only rules that are not constant.
func Counts(f Family, m SlotMap, protocol uint8, counts []int) []Chain {
	proto := protocolWord(protocol)
	var chains []Chain
	for _, n := range counts {
		chains = append(chains, Chain{
			Name:    m.countName(protocol, n),
			Comment: "one of " + counted(n) + ", at random",
			Rules:   []string{choose(f, m, proto, n)},
		})
	}
	return append(chains, findCount(f, m, protocol, counts))
}

func findCount(f Family, m SlotMap, protocol uint8, counts []int) Chain {
	proto := protocolWord(protocol)
	find := Chain{Name: m.findChain(proto), Comment: "how many there are of " + m.words()}
	for _, n := range counts {
		name := m.countName(protocol, n)
		find.Rules = append(find.Rules, fmt.Sprintf("%s @%s goto %s", m.key(f, proto), name, name))
	}
	return find
}

// CountSet gives the set of the frontends with n endpoints.
func CountSet(f Family, m SlotMap, protocol uint8, n int) Set {
	typ := f.addrType() + " . inet_service"
	if m.NodePorts() {
		typ = "inet_service"
	}
	return Set{Name: m.countName(protocol, n), Type: typ, Comment: "frontends with " + counted(n)}
}

func counted(n int) string {
	if n == 1 {
		return "1 endpoint"
	}
	return fmt.Sprintf("%d endpoints", n)
}

func choose(f Family, m SlotMap, proto string, n int) string {
	return fmt.Sprintf("dnat %s addr . port to %s . numgen random mod %d map @%s-%s", f, m.key(f, proto), n, m, proto)
}

// owned is for what the dispatch did not find at an address that is ours. A commit may
// have fallen into the look-up: it looks again before it refuses.
func owned(f Family) Chain {
	return Chain{
		Name:    "owned",
		Comment: "no such frontend at one of our addresses",
		Rules:   []string{dispatch(f), counting(RefusedNoPort) + " goto " + RefuseChain},
	}
}

func dispatch(f Family) string {
	return fmt.Sprintf("%s daddr . meta l4proto . th dport vmap @%s", f, ServiceIPs)
}

// nodePorts looks twice, for the same reason as owned. What is no NodePort is the
// node's own business.
func nodePorts() Chain {
	look := fmt.Sprintf("meta l4proto . th dport vmap @%s", ServiceNodePorts)
	return Chain{Name: "nodeports", Comment: "the decision for each NodePort", Rules: []string{look, look}}
}

// masquerading replaces the source of what was marked, and of a pod that reaches
// itself: its answers would go past the translation otherwise.
func masquerading(c Config) Chain {
	bit := uint32(1) << c.MasqueradeBit
	f := c.Family.String()
	return Chain{
		Name:    "masquerading",
		Comment: "give this node's address to what was marked",
		Rules: []string{
			fmt.Sprintf("meta mark and %#x == %#x meta mark set meta mark xor %#x masquerade fully-random", bit, bit, bit),
			fmt.Sprintf("ct status dnat %s saddr . %s daddr @%s masquerade fully-random", f, f, Hairpins),
		},
	}
}

func base(name, hook string, priority int, rules ...string) Chain {
	return Chain{Name: name, Base: &Hook{hook, priority}, Rules: rules}
}

// Version is a short digest of everything that the skeleton and its chains for
// counts say. A table that carries it needs no rule written.
func (s Skeleton) Version() string {
	h := sha256.New()
	fmt.Fprintf(h, "%+v %+v", s.Sets, s.Counters)
	for _, c := range s.Chains {
		fmt.Fprintf(h, "%s %+v %q", c.Name, c.Base, c.Rules)
	}
	for _, m := range SlotMaps() {
		for _, p := range Protocols() {
			fmt.Fprintf(h, "%v", Counts(s.Family, m, p.Number, []int{2}))
		}
	}
	fmt.Fprintf(h, "%+v", Affinity{Protocol: 6, Seconds: 1, Local: true}.objects(s.Family))
	return hex.EncodeToString(h.Sum(nil)[:6])
}
