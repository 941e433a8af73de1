package layout

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Members are the nodes as far as what they claim is sound: no two addresses or ranges
// of them overlap.
type Members struct {
	Self     Node
	Peers    []Node // by age, then name
	Problems []Problem
}

// Admit takes from nodes what is sound. It gives false if this node is not among them:
// then too little is known to do anything.
func Admit(self string, nodes []Node) (Members, bool) {
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b Node) int {
		return cmp.Or(first(a.Name == self, b.Name == self), cmp.Compare(a.Created, b.Created), cmp.Compare(a.Name, b.Name))
	})
	if len(nodes) == 0 || nodes[0].Name != self {
		return Members{}, false
	}
	c := newClaims(nodes)
	c.decide()
	var m Members
	for i, n := range nodes {
		n.Addrs, n.PodCIDRs = c.addrs(n), c.cidrs(n)
		if i == 0 {
			m.Self = n
		} else {
			m.Peers = append(m.Peers, n)
		}
	}
	m.Problems = c.problems
	return m, true
}

func first(a, b bool) int {
	switch {
	case a && !b:
		return -1
	case b && !a:
		return 1
	}
	return 0
}

// Ranges gives the pod ranges of all members, merged and disjoint, sorted.
func (m Members) Ranges() []netip.Prefix {
	list := slices.Clone(m.Self.PodCIDRs)
	for _, n := range m.Peers {
		list = append(list, n.PodCIDRs...)
	}
	return merge(list)
}

// Claims are who wants, and who has, which address or range; an address is a range of
// one.
type claims struct {
	self    string
	nodes   int
	lengths [2][]int // of ranges that occur, of IPv4 and IPv6, ascending
	all     []claim
	equal   map[netip.Prefix][]int // numbers of nodes whose claims are of this range
	within  map[netip.Prefix][]int // and of those whose claims are of parts of it, some of them often

	owners   map[netip.Prefix]string
	above    map[netip.Prefix]string // ranges around those that are owned, with who was first
	refused  map[claimant]string     // with who has it
	problems []Problem
}

type claimant struct {
	node  string
	which netip.Prefix
	pods  bool // not an address of the node
}

type claim struct {
	claimant
	number    int // of the node
	conflicts int // with how many other nodes
}

// newClaims collects what nodes claim that could be theirs. The first node is this one.
func newClaims(nodes []Node) *claims {
	c := &claims{
		self: nodes[0].Name, nodes: len(nodes),
		equal: map[netip.Prefix][]int{}, within: map[netip.Prefix][]int{},
		owners: map[netip.Prefix]string{}, above: map[netip.Prefix]string{}, refused: map[claimant]string{},
	}
	for i, n := range nodes {
		for _, a := range n.Addrs {
			if a = a.Unmap(); usable(a) {
				c.add(i, claimant{n.Name, netip.PrefixFrom(a, a.BitLen()), false})
			}
		}
		for _, p := range n.PodCIDRs {
			if plausible(p) {
				c.add(i, claimant{n.Name, p.Masked(), true})
			}
		}
	}
	for i := range c.lengths {
		slices.Sort(c.lengths[i])
		c.lengths[i] = slices.Compact(c.lengths[i])
	}
	return c
}

func (c *claims) add(number int, cl claimant) {
	c.all = append(c.all, claim{claimant: cl, number: number})
	i := familyIndex(cl.which.Addr())
	c.lengths[i] = append(c.lengths[i], cl.which.Bits())
}

// decide gives each claim to who makes it, or not. This node's come first: its pods use
// them. Then those come that are in conflict with the fewest other nodes: a range that is
// too wide must not take those of all nodes, however old the node is that has it. Nodes
// count, not their claims, or one with many addresses would take the range around them.
// Among equals the older node is first.
func (c *claims) decide() {
	seen := map[claimant]bool{}
	c.all = slices.DeleteFunc(c.all, func(cl claim) bool {
		twice := seen[cl.claimant]
		seen[cl.claimant] = true
		return twice
	})
	for _, cl := range c.all {
		c.equal[cl.which] = append(c.equal[cl.which], cl.number)
		for _, w := range c.wider(cl.which) {
			c.within[w] = append(c.within[w], cl.number)
		}
	}
	count := c.counter()
	for i, cl := range c.all {
		if cl.node != c.self { // of whose claims none counts
			c.all[i].conflicts = count(cl.which)
		}
	}
	slices.SortStableFunc(c.all, func(a, b claim) int { return cmp.Compare(a.conflicts, b.conflicts) })
	for _, cl := range c.all {
		if holder, ok := c.take(cl.claimant); !ok {
			c.refused[cl.claimant] = holder
		}
	}
}

// counter gives what counts the nodes whose claims overlap with a range of one of them,
// without that one. It counts once for each range, and asks no map for each node: a bad
// configuration can have all nodes claim one range.
func (c *claims) counter() func(netip.Prefix) int {
	known := map[netip.Prefix]int{}
	seen := make([]int, c.nodes) // the number of the count that a node was seen by
	return func(p netip.Prefix) int {
		n, counted := known[p]
		if counted {
			return n
		}
		n = -1
		count := len(known) + 1
		for _, list := range c.overlapping(p) {
			for _, node := range list {
				if seen[node] != count {
					seen[node] = count
					n++
				}
			}
		}
		known[p] = n
		return n
	}
}

// overlapping gives the nodes whose claims overlap with a range, some of them often.
func (c *claims) overlapping(p netip.Prefix) [][]int {
	lists := [][]int{c.equal[p], c.within[p]}
	for _, w := range c.wider(p) {
		lists = append(lists, c.equal[w])
	}
	return lists
}

// wider gives the ranges around one, of the lengths that occur, the widest first.
func (c *claims) wider(p netip.Prefix) []netip.Prefix {
	var list []netip.Prefix
	for _, bits := range c.lengths[familyIndex(p.Addr())] {
		if bits >= p.Bits() {
			break
		}
		list = append(list, netip.PrefixFrom(p.Addr(), bits).Masked())
	}
	return list
}

func familyIndex(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// take gives a range to a node, unless another overlaps with it: then it says whose.
func (c *claims) take(cl claimant) (holder string, ok bool) {
	if holder, held := c.owners[cl.which]; held {
		return holder, false
	}
	if holder, held := c.above[cl.which]; held {
		return holder, false
	}
	wider := c.wider(cl.which)
	for _, w := range wider {
		if holder, held := c.owners[w]; held {
			return holder, false
		}
	}
	c.owners[cl.which] = cl.node
	for _, w := range wider {
		if _, held := c.above[w]; !held {
			c.above[w] = cl.node
		}
	}
	return cl.node, true
}

func (c *claims) problem(node, format string, args ...any) {
	c.problems = append(c.problems, Problem{node, fmt.Sprintf(format, args...)})
}

// usable says whether an address can be a node's.
func usable(a netip.Addr) bool { return a.IsGlobalUnicast() && a.Zone() == "" }

// addrs gives the addresses of a node that it has.
func (c *claims) addrs(n Node) []netip.Addr {
	var kept []netip.Addr
	for _, a := range n.Addrs {
		if a = a.Unmap(); !usable(a) {
			c.problem(n.Name, "address %s can't be a node's", a)
			continue
		}
		if slices.Contains(kept, a) {
			continue
		}
		if holder, refused := c.refused[claimant{n.Name, netip.PrefixFrom(a, a.BitLen()), false}]; refused {
			c.problem(n.Name, "address %s belongs to node %s, or to its pods", a, holder)
			continue
		}
		kept = append(kept, a)
	}
	if len(kept) == 0 {
		c.problem(n.Name, "has no usable address")
	}
	return kept
}

// Ranges of pods are no wider than a network of RFC 1918 or RFC 4193 is.
const (
	widestIPv4 = 8
	widestIPv6 = 7
)

// cidrs gives the pod ranges of a node that it has.
func (c *claims) cidrs(n Node) []netip.Prefix {
	var kept []netip.Prefix
	for _, p := range n.PodCIDRs {
		if !plausible(p) {
			c.problem(n.Name, "podCIDR %s can't be one of pods", p)
			continue
		}
		if p = p.Masked(); slices.Contains(kept, p) {
			continue
		}
		if holder, refused := c.refused[claimant{n.Name, p, true}]; refused {
			c.problem(n.Name, "podCIDR %s overlaps with one, or with an address, of node %s", p, holder)
			continue
		}
		kept = append(kept, p)
	}
	return kept
}

func plausible(p netip.Prefix) bool {
	if !p.IsValid() || p.Addr().Is4In6() || !p.Masked().Addr().IsGlobalUnicast() {
		return false
	}
	if p.Addr().Is4() {
		return p.Bits() >= widestIPv4
	}
	return p.Bits() >= widestIPv6
}

// merge gives the fewest prefixes that cover the same addresses, sorted. What it is
// given does not overlap.
func merge(list []netip.Prefix) []netip.Prefix {
	slices.SortFunc(list, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	var merged []netip.Prefix
	for _, p := range list {
		merged = append(merged, p)
		for n := len(merged); n > 1; n = len(merged) {
			both, ok := union(merged[n-2], merged[n-1])
			if !ok {
				break
			}
			merged = append(merged[:n-2], both)
		}
	}
	return merged
}

// union gives the prefix that two halves make.
func union(a, b netip.Prefix) (netip.Prefix, bool) {
	if a.Bits() != b.Bits() || a.Bits() == 0 || a.Addr().BitLen() != b.Addr().BitLen() || a == b {
		return netip.Prefix{}, false
	}
	whole := netip.PrefixFrom(a.Addr(), a.Bits()-1).Masked()
	return whole, whole.Contains(b.Addr())
}
