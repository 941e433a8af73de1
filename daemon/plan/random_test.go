package plan_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"onerule/daemon/model"
	"onerule/daemon/plan"
)

// What a ledger holds after many changes, in batches of any order, is what a new one
// plans from the facts, and so is what it has said; and it names what changed, and
// nothing else.
func TestManyChangesLeaveNoTrace(t *testing.T) {
	seen := tally{}
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 0))
		w := newWorld(t)
		facts := map[model.Key]model.Change{}
		for range 40 {
			batch := randomBatch(r)
			for _, c := range batch {
				facts[c.Key] = c
			}
			w.apply(batch...)
			fresh := fromFacts(t, facts, r)
			w.same(seed, fresh)
			seen.add(w)
		}
	}
	seen.complete(t)
}

// fromFacts gives a ledger that saw nothing but what is so now, one by one in any order.
func fromFacts(t *testing.T, facts map[model.Key]model.Change, r *rand.Rand) *world {
	keys := slices.SortedFunc(maps.Keys(facts), func(a, b model.Key) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.Name.Compare(b.Name))
	})
	r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	w := newWorld(t)
	for _, key := range keys {
		w.hear(w.l.Apply([]model.Change{facts[key]}))
	}
	return w
}

func (w *world) same(seed uint64, fresh *world) {
	w.t.Helper()
	if diff := gocmp.Diff(fresh.outcome(), w.outcome(), opts()); diff != "" {
		w.t.Fatalf("seed %d (-from facts +after changes): %s", seed, diff)
	}
	if diff := gocmp.Diff(fresh.notes, w.notes); diff != "" {
		w.t.Fatalf("seed %d: notes (-from facts +after changes): %s", seed, diff)
	}
	if diff := gocmp.Diff(fresh.l.HealthChecks(), w.l.HealthChecks()); diff != "" {
		w.t.Fatalf("seed %d: health checks (-from facts +after changes): %s", seed, diff)
	}
	for _, f := range []plan.Family{plan.IPv4, plan.IPv6} {
		if from, got := fresh.l.NoLocal(f), w.l.NoLocal(f); from != got {
			w.t.Fatalf("seed %d: without local endpoints: got %+v after changes, %+v from facts", seed, got, from)
		}
	}
}

// A tally counts what the random worlds had, so that none of it is left out unseen.
type tally map[string]int

func (s tally) add(w *world) {
	out := w.outcome()
	for _, d := range out.Decisions {
		s[fmt.Sprint("kind ", d.Kind)]++
		for what, is := range map[string]bool{
			"local": d.Local, "guarded": d.Guarded, "affinity": d.Affinity != (plan.ServicePort{}),
			"serving": len(d.Keep) > len(d.Endpoints), "local and none": d.Local && len(d.LocalEndpoints) == 0 && len(d.Endpoints) > 0,
			"refuses": len(d.Endpoints) == 0, "IPv6": d.Frontend.InFamily() == plan.IPv6,
		} {
			if is {
				s[what]++
			}
		}
	}
	for _, notes := range w.notes {
		for _, n := range notes {
			s["note on "+n.Field]++
		}
	}
	s["no local"] += w.l.NoLocal(plan.IPv4).External + w.l.NoLocal(plan.IPv6).Internal
	s["health checks"] += len(w.l.HealthChecks())
	s["ranges"] += len(out.ServiceCIDRs)
}

func (s tally) complete(t *testing.T) {
	for _, what := range []string{
		"kind 0", "kind 1", "kind 2", "kind 3", "local", "guarded", "affinity", "serving", "local and none", "refuses", "IPv6",
		"note on spec.clusterIPs", "note on spec.externalIPs", "note on status.loadBalancer.ingress", "note on spec.ports[0].nodePort",
		"note on spec.healthCheckNodePort", "no local", "health checks", "ranges",
	} {
		if s[what] < 20 {
			t.Errorf("the random worlds had %q %d times only: %v", what, s[what], s)
		}
	}
}

// randomBatch gives up to six changes, of different objects.
func randomBatch(r *rand.Rand) []model.Change {
	var batch []model.Change
	for range 1 + r.IntN(6) {
		c := randomChange(r)
		if !slices.ContainsFunc(batch, func(o model.Change) bool { return o.Key == c.Key }) {
			batch = append(batch, c)
		}
	}
	return batch
}

func randomChange(r *rand.Rand) model.Change {
	var c model.Change
	switch r.IntN(10) {
	case 0:
		c = model.Change{Key: model.Key{Kind: model.KindNode, Name: model.Name{Name: oneOf(r, "n1", "n1", "n1", "n2")}}}
		c.Node = &model.Node{Name: c.Key.Name.Name, Zone: oneOf(r, "", "z1", "z2"), Addrs: someOf(r, "192.0.2.1", "2001:db8:9::1")}
	case 1:
		c = model.Change{Key: model.Key{Kind: model.KindServiceCIDR, Name: model.Name{Name: oneOf(r, "a", "b")}}}
		c.ServiceCIDR = &model.ServiceCIDR{CIDRs: ranges(oneOf(r, "10.96.0.0/16", "10.96.0.0/12", "fd00:96::/112"))}
	case 2, 3, 4, 5:
		c = randomService(r)
	default:
		c = randomSlice(r)
	}
	if r.IntN(5) == 0 {
		return gone(c)
	}
	return c
}

// randomService has up to four Services claim few frontends, at ages that change.
func randomService(r *rand.Rand) model.Change {
	n := oneOf(r, "a", "b", "c", "d")
	s := &model.Service{
		Name: name(n), Created: int64(r.IntN(4)),
		ClusterIPs:      someOf(r, oneOf(r, "10.96.0.1", "10.96.0.2"), oneOf(r, "fd00:96::1", "fd00:96::2")),
		ExternalIPs:     someOf(r, "198.51.100.1", "203.0.113.1", "10.96.0.1", "2001:db8::1"),
		LoadBalancerIPs: someOf(r, "203.0.113.1", "203.0.113.2", "2001:db8:1::1"),
		ExternalLocal:   r.IntN(2) == 0, InternalLocal: r.IntN(2) == 0,
		Affinity:            uint32(r.IntN(3)),
		HealthCheckNodePort: oneOf[uint16](r, 0, 30080, 32000),
	}
	if r.IntN(2) == 0 {
		s.SourceRanges = ranges(oneOf(r, "192.0.2.0/24", "192.0.2.0/25", "0.0.0.0/0"), oneOf(r, "2001:db8:9::/64", "198.18.0.0/15"))
	}
	for _, port := range ports() {
		if r.IntN(2) == 0 {
			port.NodePort = oneOf[uint16](r, 0, 30080, 30081)
			s.Ports = append(s.Ports, port)
		}
	}
	return model.Change{Key: model.Key{Kind: model.KindService, Name: s.Name}, Service: s}
}

func ports() []model.ServicePort {
	return []model.ServicePort{
		{Name: "http", Protocol: model.TCP, Port: 80}, {Name: "http", Protocol: model.UDP, Port: 80}, {Name: "admin", Protocol: model.TCP, Port: 81},
	}
}

func randomSlice(r *rand.Rand) model.Change {
	s := &model.EndpointSlice{Name: name(oneOf(r, "s1", "s2", "s3", "s4", "s5", "s6")), Service: oneOf(r, "a", "b", "c", "d")}
	for i, port := range ports() {
		s.Ports = append(s.Ports, model.SlicePort{Name: port.Name, Protocol: port.Protocol, Port: uint16(8080 + i)})
	}
	for range r.IntN(4) {
		e := model.Endpoint{Addr: addr(oneOf(r, "10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1", "fd00::2")), Node: oneOf(r, "n1", "n2", "")}
		e.Ready, e.Serving, e.Terminating = r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(3) == 0
		if r.IntN(3) > 0 {
			e = hinted(e, oneOf(r, "", "n1", "n2"), oneOf(r, "", "z1", "z2"))
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return model.Change{Key: model.Key{Kind: model.KindEndpointSlice, Name: s.Name}, EndpointSlice: s}
}

func oneOf[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// someOf gives each address with even odds.
func someOf(r *rand.Rand, list ...string) []netip.Addr {
	var some []netip.Addr
	for _, s := range list {
		if r.IntN(2) == 0 {
			some = append(some, addr(s))
		}
	}
	return some
}
