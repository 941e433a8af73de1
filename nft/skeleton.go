package nft

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
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
}

// A Skeleton is the constant part of a table: it depends on the configuration
// only, never on a Service.
type Skeleton struct {
	Family Family
	Sets   []Set
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
	Comment string
}

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
const (
	priorityDNAT = -110
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

// ClusterIPChain names the chain that a frontend at a ClusterIP goes to for one of its
// endpoints, however many there are.
func ClusterIPChain(protocol uint8) string { return "cluster-ip-" + protocolWord(protocol) }

// countName names both the set of the frontends with n endpoints and the chain
// that spreads their connections.
func countName(protocol uint8, n int) string {
	return fmt.Sprintf("lb-%s-%d", protocolWord(protocol), n)
}

// NewSkeleton gives the skeleton for a configuration.
func NewSkeleton(c Config) Skeleton {
	s := Skeleton{Family: c.Family, Sets: sets(c.Family)}
	s.Chains = append(s.Chains, refuse(c.Family), markForMasquerade(c))
	for _, p := range Protocols() {
		s.Chains = append(s.Chains, balance(c.Family, p.Word), clusterIP(c, p.Word))
	}
	s.Chains = append(s.Chains, owned(c.Family), services(c.Family), masquerading(c))
	s.Chains = append(s.Chains,
		base("nat-prerouting", "prerouting", priorityDNAT, "jump services"),
		base("nat-output", "output", priorityDNAT, "jump services"),
		base("nat-postrouting", "postrouting", prioritySNAT, "jump masquerading"))
	return s
}

func sets(f Family) []Set {
	addr := f.addrType()
	front := addr + " . inet_proto . inet_service"
	list := []Set{
		{Name: string(ClusterIPs), Type: addr, Comment: "ClusterIPs in use"},
		{Name: string(ServiceCIDRs), Type: addr, Flags: "interval", Comment: "ranges of ClusterIPs"},
		{Name: string(PodCIDRs), Type: addr, Flags: "interval", Comment: "ranges of pods"},
		{Name: string(Hairpins), Type: addr + " . " + addr, Comment: "endpoints on this node"},
		{Name: string(NoEndpoints), Type: front, Comment: "frontends to refuse"},
		{Name: string(ServiceIPs), Type: front + " : verdict", Map: true, Comment: "the decision for each frontend"},
	}
	for _, p := range Protocols() {
		list = append(list, Set{
			Name:    string(Endpoints) + "-" + p.Word,
			Type:    fmt.Sprintf("%s daddr . %s dport . numgen random mod 2 : %s daddr . %s dport", f, p.Word, f, p.Word),
			TypeOf:  true,
			Map:     true,
			Comment: "the endpoints of each frontend, numbered from 0",
		})
	}
	return list
}

// refuse answers at once. IPv6 TCP gets a reset: the ICMPv6 error finds the socket
// locked by the connect that sent the SYN, and is seen only with the second SYN,
// 1 s later (kernels 6.1 to 6.18).
func refuse(f Family) Chain {
	c := Chain{Name: RefuseChain, Comment: "answer that nobody serves here"}
	if f == IPv6 {
		c.Rules = append(c.Rules, "meta l4proto tcp counter reject with tcp reset")
	}
	c.Rules = append(c.Rules, "counter reject")
	return c
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
// The chain lb-PROTOCOL, which Counts fills, finds the frontend's number of
// endpoints and chooses. Behind it stands what is met only when a commit falls
// between two look-ups: the choice is made again from slot 0, which is right for
// any number. Without that the flow would be confirmed without NAT.
func balance(f Family, proto string) Chain {
	return Chain{
		Name:    "balance-" + proto,
		Comment: "one of the endpoints, or a refusal if there are none",
		Rules: []string{
			"jump lb-" + proto,
			choose(f, proto, 1),
			choose(f, proto, 1),
			fmt.Sprintf("%s daddr . meta l4proto . th dport @%s goto %s", f, NoEndpoints, RefuseChain),
			"counter drop",
		},
	}
}

// Counts gives the chains that depend on which numbers of endpoints are in use: for
// each protocol one that finds a frontend's number, trying the numbers in the given
// order, and one for each number. They are the only rules that are not constant.
func Counts(f Family, protocol uint8, counts []int) []Chain {
	proto := protocolWord(protocol)
	var chains []Chain
	for _, n := range counts {
		chains = append(chains, Chain{
			Name:    countName(protocol, n),
			Comment: "one of " + counted(n) + ", at random",
			Rules:   []string{choose(f, proto, n)},
		})
	}
	return append(chains, findCount(f, protocol, counts))
}

// findChain names the chain that finds a frontend's number of endpoints.
func findChain(protocol uint8) string { return "lb-" + protocolWord(protocol) }

func findCount(f Family, protocol uint8, counts []int) Chain {
	find := Chain{Name: findChain(protocol), Comment: "how many endpoints a frontend has"}
	for _, n := range counts {
		name := countName(protocol, n)
		find.Rules = append(find.Rules, fmt.Sprintf("%s daddr . %s dport @%s goto %s", f, protocolWord(protocol), name, name))
	}
	return find
}

// CountSet gives the set of the frontends with n endpoints.
func CountSet(f Family, protocol uint8, n int) Set {
	return Set{
		Name:    countName(protocol, n),
		Type:    f.addrType() + " . inet_service",
		Comment: "frontends with " + counted(n),
	}
}

func counted(n int) string {
	if n == 1 {
		return "1 endpoint"
	}
	return fmt.Sprintf("%d endpoints", n)
}

func choose(f Family, proto string, n int) string {
	return fmt.Sprintf("dnat %s addr . port to %s daddr . %s dport . numgen random mod %d map @%s-%s", f, f, proto, n, Endpoints, proto)
}

// clusterIP decides whether the client keeps its address, then balances. It stands
// behind the dispatch, not in front of it: a commit cannot fall between the two
// decisions.
func clusterIP(c Config, proto string) Chain {
	chain := Chain{Name: "cluster-ip-" + proto, Comment: "a ClusterIP: clients that are no pods are masqueraded"}
	switch {
	case c.MasqueradeAll:
		chain.Comment = "a ClusterIP: all clients are masqueraded"
		chain.Rules = append(chain.Rules, "jump mark-for-masquerade")
	case c.Detector == DetectCIDR:
		chain.Rules = append(chain.Rules, fmt.Sprintf("%s saddr != @%s jump mark-for-masquerade", c.Family, PodCIDRs))
	default:
		chain.Comment = "a ClusterIP: all clients keep their address"
	}
	chain.Rules = append(chain.Rules, "goto balance-"+proto)
	return chain
}

// owned is for what the dispatch did not find at an address that is ours. A commit may
// have fallen into the look-up: it looks again before it refuses.
func owned(f Family) Chain {
	return Chain{
		Name:    "owned",
		Comment: "no such frontend at one of our addresses",
		Rules:   []string{dispatch(f), "goto " + RefuseChain},
	}
}

func dispatch(f Family) string {
	return fmt.Sprintf("%s daddr . meta l4proto . th dport vmap @%s", f, ServiceIPs)
}

// services decides for every packet that begins a connection, from pods and other
// hosts (prerouting) and from this node (output).
func services(f Family) Chain {
	return Chain{
		Name:    "services",
		Comment: "the decision for each new connection",
		Rules: []string{
			dispatch(f),
			fmt.Sprintf("%s daddr @%s goto owned", f, ClusterIPs),
			fmt.Sprintf("%s daddr @%s counter drop", f, ServiceCIDRs),
		},
	}
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
	fmt.Fprintf(h, "%+v", s.Sets)
	for _, c := range s.Chains {
		fmt.Fprintf(h, "%s %+v %q", c.Name, c.Base, c.Rules)
	}
	for _, p := range Protocols() {
		fmt.Fprintf(h, "%v", Counts(s.Family, p.Number, []int{2}))
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}

// Text gives the skeleton as nft would load it.
func (s Skeleton) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table %s %s {\n", s.Family, TableName)
	for _, set := range s.Sets {
		b.WriteString(set.text())
	}
	for _, c := range s.Chains {
		b.WriteString(c.text())
	}
	b.WriteString("}\n")
	return b.String()
}

func (s Set) text() string {
	kind, word := "set", "type"
	if s.Map {
		kind = "map"
	}
	if s.TypeOf {
		word = "typeof"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\t%s %s {\n\t\t%s %s\n", kind, s.Name, word, s.Type)
	if s.Flags != "" {
		fmt.Fprintf(&b, "\t\tflags %s\n", s.Flags)
	}
	fmt.Fprintf(&b, "\t\tcomment %q\n\t}\n", s.Comment)
	return b.String()
}

func (c Chain) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\tchain %s {\n", c.Name)
	if c.Comment != "" {
		fmt.Fprintf(&b, "\t\tcomment %q\n", c.Comment)
	}
	if c.Base != nil {
		fmt.Fprintf(&b, "\t\ttype nat hook %s priority %d; policy accept;\n", c.Base.Hook, c.Base.Priority)
	}
	for _, r := range c.Rules {
		fmt.Fprintf(&b, "\t\t%s\n", r)
	}
	b.WriteString("\t}\n")
	return b.String()
}
