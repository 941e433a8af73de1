package layout_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"onerule/daemon/fabric/layout"
)

func node(name string, created int64, addr, cidr string) layout.Node {
	return layout.Node{Name: name, Created: created, Addrs: addrs(addr), PodCIDRs: prefixes(cidr)}
}

func addrs(list ...string) (as []netip.Addr) {
	for _, s := range list {
		as = append(as, netip.MustParseAddr(s))
	}
	return as
}

func prefixes(list ...string) (ps []netip.Prefix) {
	for _, s := range list {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

// A bad node harms only itself: nodes a (this one), b and c are sound, and stay as they
// are, whatever a fourth one says.
func TestABadNodeHarmsOnlyItself(t *testing.T) {
	sound := []layout.Node{
		node("a", 5, "10.0.0.1", "10.1.1.0/24"),
		node("b", 2, "10.0.0.2", "10.1.2.0/24"),
		node("c", 3, "10.0.0.3", "10.1.3.0/24"),
	}
	for _, test := range []struct {
		name   string
		bad    layout.Node
		admit  layout.Node
		detail []string
	}{
		{"a range of another", node("bad", 9, "10.0.0.9", "10.1.2.0/24"), layout.Node{Addrs: addrs("10.0.0.9")},
			[]string{"podCIDR 10.1.2.0/24 overlaps with one, or with an address, of node b"}},
		{"a range within another's", node("bad", 9, "10.0.0.9", "10.1.2.64/26"), layout.Node{Addrs: addrs("10.0.0.9")},
			[]string{"podCIDR 10.1.2.64/26 overlaps with one, or with an address, of node b"}},
		{"a range around others'", node("bad", 9, "10.0.0.9", "10.1.0.0/16"), layout.Node{Addrs: addrs("10.0.0.9")},
			[]string{"podCIDR 10.1.0.0/16 overlaps with one, or with an address, of node a"}},
		{"a range around others', though it is the oldest", node("bad", 1, "10.0.0.9", "10.1.0.0/16"), layout.Node{Addrs: addrs("10.0.0.9")},
			[]string{"podCIDR 10.1.0.0/16 overlaps with one, or with an address, of node a"}},
		{"this node's range, though it is older", node("bad", 1, "10.0.0.9", "10.1.1.0/24"), layout.Node{Addrs: addrs("10.0.0.9")},
			[]string{"podCIDR 10.1.1.0/24 overlaps with one, or with an address, of node a"}},
		{"a range around addresses of nodes", node("bad", 9, "10.0.0.9", "10.0.0.0/24"), layout.Node{Addrs: addrs("10.0.0.9")},
			[]string{"podCIDR 10.0.0.0/24 overlaps with one, or with an address, of node a"}},
		{"an address of this node", node("bad", 1, "10.0.0.1", "10.1.9.0/24"), layout.Node{PodCIDRs: prefixes("10.1.9.0/24")},
			[]string{"address 10.0.0.1 belongs to node a, or to its pods", "has no usable address"}},
		{"an address of another node", node("bad", 9, "10.0.0.2", "10.1.9.0/24"), layout.Node{PodCIDRs: prefixes("10.1.9.0/24")},
			[]string{"address 10.0.0.2 belongs to node b, or to its pods", "has no usable address"}},
		{"an address of a pod", node("bad", 9, "10.1.3.7", "10.1.9.0/24"), layout.Node{PodCIDRs: prefixes("10.1.9.0/24")},
			[]string{"address 10.1.3.7 belongs to node c, or to its pods", "has no usable address"}},
		{"addresses of a pod, more than one", layout.Node{Name: "bad", Created: 9, Addrs: addrs("172.16.1.9", "10.1.2.200", "10.1.2.201"), PodCIDRs: prefixes("10.1.9.0/24")},
			layout.Node{Addrs: addrs("172.16.1.9"), PodCIDRs: prefixes("10.1.9.0/24")},
			[]string{"address 10.1.2.200 belongs to node b, or to its pods", "address 10.1.2.201 belongs to node b, or to its pods"}},
		{"many ranges within another's", layout.Node{Name: "bad", Created: 9, Addrs: addrs("10.0.0.9"), PodCIDRs: prefixes("10.1.2.0/26", "10.1.2.64/26", "10.1.2.128/26")},
			layout.Node{Addrs: addrs("10.0.0.9")},
			[]string{"podCIDR 10.1.2.0/26 overlaps with one, or with an address, of node b", "podCIDR 10.1.2.64/26 overlaps with one, or with an address, of node b",
				"podCIDR 10.1.2.128/26 overlaps with one, or with an address, of node b"}},
		{"no address", layout.Node{Name: "bad", PodCIDRs: prefixes("10.1.9.0/24")}, layout.Node{PodCIDRs: prefixes("10.1.9.0/24")},
			[]string{"has no usable address"}},
		{"addresses that no node has", layout.Node{Name: "bad", Addrs: append(addrs("127.0.0.1", "::", "fe80::1", "224.0.0.1"), netip.Addr{})}, layout.Node{},
			[]string{"address 127.0.0.1 can't be a node's", "address :: can't be a node's", "address fe80::1 can't be a node's",
				"address 224.0.0.1 can't be a node's", "address invalid IP can't be a node's", "has no usable address"}},
		{"ranges that no pods have", layout.Node{Name: "bad", Addrs: addrs("10.0.0.9"), PodCIDRs: append(
			prefixes("0.0.0.0/0", "::/0", "127.0.0.0/8", "fe80::/64", "224.0.0.0/24", "::ffff:10.1.9.0/120", "64.0.0.0/2"), netip.Prefix{})},
			layout.Node{Addrs: addrs("10.0.0.9")},
			[]string{"podCIDR 0.0.0.0/0 can't be one of pods", "podCIDR ::/0 can't be one of pods", "podCIDR 127.0.0.0/8 can't be one of pods",
				"podCIDR fe80::/64 can't be one of pods", "podCIDR 224.0.0.0/24 can't be one of pods", "podCIDR ::ffff:10.1.9.0/120 can't be one of pods",
				"podCIDR 64.0.0.0/2 can't be one of pods", "podCIDR invalid Prefix can't be one of pods"}},
		{"the same twice is no fault", layout.Node{Name: "bad", Addrs: addrs("10.0.0.9", "::ffff:10.0.0.9"), PodCIDRs: prefixes("10.1.9.0/24", "10.1.9.7/24")},
			layout.Node{Addrs: addrs("10.0.0.9"), PodCIDRs: prefixes("10.1.9.0/24")}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			nodes := append(slices.Clone(sound), test.bad)
			rand.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
			got, ok := layout.Admit("a", nodes)
			if !ok {
				t.Fatal("a is among the nodes")
			}
			test.admit.Name, test.admit.Created = "bad", test.bad.Created
			peers := []layout.Node{sound[1], sound[2]}
			if test.bad.Created < 2 {
				peers = slices.Insert(peers, 0, test.admit)
			} else {
				peers = append(peers, test.admit)
			}
			want := layout.Members{Self: sound[0], Peers: peers}
			for _, d := range test.detail {
				want.Problems = append(want.Problems, layout.Problem{Node: "bad", Detail: d})
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestOlderNodeKeepsWhatBothClaim(t *testing.T) {
	older, younger := node("z", 1, "10.0.0.2", "10.1.2.0/24"), node("b", 2, "10.0.0.3", "10.1.2.0/26")
	got, _ := layout.Admit("a", []layout.Node{younger, node("a", 9, "10.0.0.1", "10.3.0.0/24"), older})
	if len(got.Peers[0].PodCIDRs) != 1 || len(got.Peers[1].PodCIDRs) != 0 || got.Peers[0].Name != "z" {
		t.Errorf("got %+v, want the range with z", got.Peers)
	}
}

func TestNothingIsKnownWithoutThisNode(t *testing.T) {
	for _, nodes := range [][]layout.Node{nil, {node("b", 1, "10.0.0.2", "10.1.2.0/24")}} {
		if _, ok := layout.Admit("a", nodes); ok {
			t.Errorf("admitted %v for a", nodes)
		}
	}
}

func TestRangesAreMerged(t *testing.T) {
	nodes := []layout.Node{
		node("a", 1, "10.0.0.1", "10.1.1.0/24"),
		node("b", 1, "10.0.0.2", "10.1.0.0/24"),
		node("c", 1, "10.0.0.3", "10.1.2.0/23"),
		node("d", 1, "10.0.0.4", "10.1.5.0/24"),
		node("e", 1, "10.0.0.5", "fd00::1:0/112"),
		node("f", 1, "10.0.0.6", "fd00::/112"),
		node("overlapping", 2, "10.0.0.7", "10.1.0.0/16"),
	}
	m, _ := layout.Admit("a", nodes)
	want := prefixes("10.1.0.0/22", "10.1.5.0/24", "fd00::/111")
	if got := m.Ranges(); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// What is admitted never overlaps, whatever nodes claim, and every claim that is not
// admitted is told of.
func TestAdmittedClaimsNeverOverlap(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		var nodes []layout.Node
		for i := range 6 {
			n := layout.Node{Name: fmt.Sprint(i), Created: int64(random.IntN(3))}
			for range random.IntN(3) {
				n.Addrs = append(n.Addrs, netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + random.IntN(30))}))
			}
			for range random.IntN(3) {
				a := netip.AddrFrom4([4]byte{10, 0, byte(random.IntN(2)), byte(random.IntN(64))})
				n.PodCIDRs = append(n.PodCIDRs, netip.PrefixFrom(a, 24+random.IntN(9)))
			}
			nodes = append(nodes, n)
		}
		m, _ := layout.Admit("0", nodes)
		var taken []netip.Prefix
		for _, n := range append(m.Peers, m.Self) {
			for _, a := range n.Addrs {
				taken = append(taken, netip.PrefixFrom(a, 32))
			}
			taken = append(taken, n.PodCIDRs...)
		}
		for i, p := range taken {
			for _, q := range taken[i+1:] {
				if p.Overlaps(q) {
					t.Fatalf("seed %d: %s and %s of %+v", seed, p, q, nodes)
				}
			}
		}
		for _, n := range nodes {
			told := fmt.Sprint(m.Problems)
			i := slices.IndexFunc(append(m.Peers, m.Self), func(o layout.Node) bool { return o.Name == n.Name })
			got := append(m.Peers, m.Self)[i]
			for _, a := range n.Addrs {
				if !slices.Contains(got.Addrs, a) && !strings.Contains(told, fmt.Sprintf("node %s: address %s ", n.Name, a)) {
					t.Fatalf("seed %d: nothing is told of %s of node %s: %+v, %v", seed, a, n.Name, nodes, told)
				}
			}
			for _, p := range n.PodCIDRs {
				p = p.Masked()
				if !slices.Contains(got.PodCIDRs, p) && !strings.Contains(told, fmt.Sprintf("node %s: podCIDR %s ", n.Name, p)) {
					t.Fatalf("seed %d: nothing is told of %s of node %s: %+v, %v", seed, p, n.Name, nodes, told)
				}
			}
		}
	}
}
