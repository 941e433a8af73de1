package nft_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"onerule/nft"
	"onerule/test/netns"
)

// families are those that every test with a table runs for.
func families() []nft.Family { return []nft.Family{nft.IPv4, nft.IPv6} }

func each(t *testing.T, f func(t *testing.T, family nft.Family)) {
	t.Helper()
	for _, family := range families() {
		t.Run(family.String(), func(t *testing.T) { f(t, family) })
	}
}

func config(family nft.Family) nft.Config {
	return nft.Config{Family: family, MasqueradeBit: 14, Detector: nft.DetectCIDR}
}

// vip and endpoint number addresses of a family.
func vip(family nft.Family, n int) netip.Addr {
	if family == nft.IPv6 {
		return netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x96, 12: byte(n >> 24), 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)})
	}
	return netip.AddrFrom4([4]byte{10, 96 + byte(n>>16), byte(n >> 8), byte(n)})
}

func endpoint(family nft.Family, n int) netip.AddrPort {
	a := netip.AddrFrom4([4]byte{10, 128 + byte(n>>16), byte(n >> 8), byte(n)})
	if family == nft.IPv6 {
		a = netip.AddrFrom16([16]byte{0xfd, 0, 1, 0x28, 12: byte(n >> 24), 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)})
	}
	return netip.AddrPortFrom(a, 8080)
}

func endpoints(family nft.Family, first, n int) []netip.AddrPort {
	var list []netip.AddrPort
	for i := range n {
		list = append(list, endpoint(family, first+i))
	}
	return list
}

func web(family nft.Family, n int) nft.Frontend {
	return nft.Frontend{Addr: vip(family, n), Protocol: 6, Port: 80}
}

// balance says that connections to a ClusterIP are spread over endpoints.
func balance(s nft.State, f nft.Frontend, endpoints []netip.AddrPort) {
	s.Set(f, nft.Route{Endpoints: endpoints})
}

// world gives a state of so many Services, each with so many endpoints.
func world(family nft.Family, services, each int) nft.State {
	s := nft.NewState()
	for i := range services {
		f := web(family, i)
		s.Addrs[nft.ClusterIPs][f.Addr] = true
		balance(s, f, endpoints(family, i*each, each))
	}
	return s
}

// randomWorld gives a state with some of everything.
func randomWorld(r *rand.Rand, family nft.Family) nft.State {
	s := nft.NewState()
	for i := range 8 {
		if r.IntN(4) == 0 {
			continue
		}
		s.Addrs[[]nft.AddrSet{nft.ClusterIPs, nft.ExternalIPs, nft.NodePortIPs, nft.NodeIPs}[r.IntN(4)]][vip(family, i)] = true
		for _, p := range nft.Protocols() {
			f := nft.Frontend{Addr: vip(family, i), Protocol: p.Number, Port: uint16(80 + r.IntN(2))}
			if r.IntN(3) == 0 {
				f = nft.Frontend{Protocol: p.Number, Port: uint16(30000 + r.IntN(3))}
			}
			if r.IntN(3) > 0 {
				s.Set(f, randomRoute(r, s, family, f))
			}
		}
	}
	for i := range 5 {
		if r.IntN(2) == 0 {
			s.Addrs[nft.Hairpins][endpoint(family, i).Addr()] = true
		}
	}
	for name, all := range map[nft.RangeSet][]netip.Prefix{
		nft.ServiceCIDRs: ranges(family, 16, 3), nft.PodCIDRs: ranges(family, 64, 4),
	} {
		if n := r.IntN(len(all) + 1); n > 0 {
			s.Ranges[name] = all[:n]
		}
	}
	return s
}

// randomRoute draws a route of any kind, and the affinity that it belongs to.
func randomRoute(r *rand.Rand, s nft.State, family nft.Family, f nft.Frontend) nft.Route {
	pool := endpoints(family, 0, 12)
	r.Shuffle(len(pool), func(a, b int) { pool[a], pool[b] = pool[b], pool[a] })
	all := pool[:r.IntN(7)]
	route := nft.Route{Endpoints: all, Local: all[:r.IntN(len(all)+1)]}
	route.NodePort = !f.Addr.IsValid()
	route.External = route.NodePort || r.IntN(2) == 0
	route.Entry.Local = r.IntN(2) == 0
	if route.External && !route.NodePort && r.IntN(2) == 0 {
		route.Guarded, route.Sources = true, ranges(family, 16, 3)[:1+r.IntN(3)]
	}
	if r.IntN(3) == 0 {
		id := nft.AffinityID(fmt.Sprint(f.Protocol, r.IntN(3)))
		a, known := s.Affinities[id]
		if !known {
			a = nft.Affinity{ID: id, Protocol: f.Protocol, Seconds: []uint32{5, 10800}[r.IntN(2)], Local: r.IntN(2) == 0}
			s.Pin(a, all, route.Local)
		}
		if a.Local || !route.Entry.Local {
			route.Affinity = a
		}
	}
	return route
}

// ranges gives disjoint sorted prefixes, no two of them halves of one, the last one
// up to the last address of the family.
func ranges(family nft.Family, from byte, n int) []netip.Prefix {
	var list []netip.Prefix
	for i := range byte(n) {
		a := netip.AddrFrom4([4]byte{from + 3*i, 0, 0, 0})
		if family == nft.IPv6 {
			a = netip.AddrFrom16([16]byte{from + 3*i})
		}
		list = append(list, netip.PrefixFrom(a, 8))
	}
	last := netip.MustParsePrefix("255.0.0.0/8")
	if family == nft.IPv6 {
		last = netip.MustParsePrefix("ff00::/8")
	}
	return append(list, last)
}

// program opens a table in the namespace.
func program(t *testing.T, ns *netns.NS, c nft.Config) *nft.Program {
	t.Helper()
	var p *nft.Program
	do(t, ns, func() (err error) {
		p, err = nft.Open(c)
		return err
	})
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func do(t *testing.T, ns *netns.NS, f func() error) {
	t.Helper()
	if err := ns.Do(f); err != nil {
		t.Fatal(err)
	}
}

// load loads a state and gives the operations that it took.
func load(t *testing.T, ns *netns.NS, p *nft.Program, want nft.State) nft.Operations {
	t.Helper()
	return operations(t, ns, p, func(ctx context.Context) error { return p.Load(ctx, want, nft.NewKeys()) })
}

// update makes the keys hold what want says of them.
func update(t *testing.T, ns *netns.NS, p *nft.Program, keys nft.Keys, want nft.State) nft.Operations {
	t.Helper()
	return operations(t, ns, p, func(ctx context.Context) error { return p.Update(ctx, keys, want) })
}

func operations(t *testing.T, ns *netns.NS, p *nft.Program, f func(context.Context) error) nft.Operations {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	before := p.Done()
	do(t, ns, func() error { return f(ctx) })
	after := p.Done()
	return nft.Operations{
		Transactions: after.Transactions - before.Transactions,
		Added:        after.Added - before.Added,
		Deleted:      after.Deleted - before.Deleted,
		Rulesets:     after.Rulesets - before.Rulesets,
		Listings:     after.Listings - before.Listings,
	}
}

// listing gives what nft prints of our table, without counters and in one order.
func listing(t *testing.T, ns *netns.NS, family nft.Family) string {
	t.Helper()
	out := ns.Run(t, "nft", "-s", "-y", "list", "table", family.String(), nft.TableName)
	return out
}

// elements gives the elements of a set as nft prints them.
func elements(t *testing.T, ns *netns.NS, family nft.Family, kind, set string) string {
	t.Helper()
	out := ns.Run(t, "nft", "list", kind, family.String(), nft.TableName, set)
	_, list, ok := strings.Cut(out, "elements = {")
	if !ok {
		return ""
	}
	list, _, _ = strings.Cut(list, "}")
	return strings.Join(strings.Fields(list), " ")
}

func frontends(list ...nft.Frontend) nft.Keys {
	k := nft.NewKeys()
	for _, f := range list {
		k.Frontends[f] = true
	}
	return k
}

func seeded(t *testing.T, n uint64) *rand.Rand {
	t.Helper()
	t.Logf("seed %d", n)
	return rand.New(rand.NewPCG(n, 0))
}
