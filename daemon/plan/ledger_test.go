package plan_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/model"
	"onerule/daemon/plan"
)

func name(n string) model.Name { return model.Name{Namespace: "ns", Name: n} }

func service(n string, created int64, vip string, ports ...uint16) model.Change {
	s := &model.Service{Name: name(n), Created: created, ClusterIPs: []netip.Addr{addr(vip)}}
	for _, p := range ports {
		s.Ports = append(s.Ports, model.ServicePort{Name: fmt.Sprint("p", p), Protocol: model.TCP, Port: p})
	}
	return model.Change{Key: model.Key{Kind: model.KindService, Name: name(n)}, Service: s}
}

func endpointsOf(n, service string, port uint16, addrs ...string) model.Change {
	s := &model.EndpointSlice{Name: name(n), Service: service, Ports: []model.SlicePort{{Name: fmt.Sprint("p", port), Protocol: model.TCP, Port: 8080}}}
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, ready(a))
	}
	return model.Change{Key: model.Key{Kind: model.KindEndpointSlice, Name: name(n)}, EndpointSlice: s}
}

func gone(c model.Change) model.Change { return model.Change{Key: c.Key} }

func front(vip string, port uint16) plan.Frontend {
	return plan.Frontend{Addr: addr(vip), Protocol: model.TCP, Port: port}
}

func TestTheOlderServiceKeepsAFrontend(t *testing.T) {
	old, young := service("b", 1, "10.96.0.1", 80, 81), service("a", 2, "10.96.0.1", 80)
	feed := []model.Change{old, young, endpointsOf("b-1", "b", 80, "10.0.0.1"), endpointsOf("a-1", "a", 80, "10.0.0.2")}
	for range 20 {
		rand.Shuffle(len(feed), func(i, j int) { feed[i], feed[j] = feed[j], feed[i] })
		l := plan.NewLedger(plan.Config{})
		var notes []model.Note
		for _, c := range feed {
			if n, ok := l.Apply([]model.Change{c}).Noted[name("a")]; ok {
				notes = n
			}
		}
		got := l.Decide(l.All()).Decisions[front("10.96.0.1", 80)].Endpoints
		if diff := cmp.Diff([]netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:8080")}, got, opts()); diff != "" {
			t.Fatalf("after %v (-want +got): %s", feed, diff)
		}
		if len(notes) != 1 || notes[0].Reason != model.ReasonDuplicateFrontend {
			t.Fatalf("got notes %v on the younger Service, want one on the duplicate", notes)
		}

		a := l.Apply([]model.Change{gone(old)})
		if notes, told := a.Noted[name("a")]; !told || len(notes) != 0 {
			t.Errorf("got notes %v on the heir, told %v, want to be told that there are none", notes, told)
		}
		want := plan.Keys{Frontends: map[plan.Frontend]bool{front("10.96.0.1", 80): true, front("10.96.0.1", 81): true}}
		if diff := cmp.Diff(want, a.Touched, opts()); diff != "" {
			t.Errorf("touched when the older one goes (-want +got): %s", diff)
		}
		out := l.Decide(a.Touched)
		if diff := cmp.Diff(map[plan.Frontend]plan.Decision{front("10.96.0.1", 80): {Frontend: front("10.96.0.1", 80), Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.2:8080")}}}, out.Decisions, opts()); diff != "" {
			t.Errorf("decisions (-want +got): %s", diff)
		}
	}
}

func TestOnlyWhatChangesIsTouched(t *testing.T) {
	l := plan.NewLedger(plan.Config{NodeName: "n1"})
	l.Apply([]model.Change{service("a", 1, "10.96.0.1", 80, 81), endpointsOf("a-1", "a", 80, "10.0.0.1"), service("b", 1, "10.96.0.2", 80), endpointsOf("b-1", "b", 80, "10.0.0.1")})
	for _, c := range []struct {
		name   string
		change model.Change
		want   string
	}{
		{"the same again", endpointsOf("a-1", "a", 80, "10.0.0.1"), "map[] map[]"},
		{"another endpoint, that another Service uses no more", endpointsOf("a-1", "a", 80, "10.0.0.2"), "map[10.96.0.1:80 TCP:true] map[10.0.0.2:true]"},
		{"the last user of a local endpoint", endpointsOf("b-1", "b", 80), "map[10.96.0.2:80 TCP:true] map[10.0.0.1:true]"},
		{"a port less", service("a", 1, "10.96.0.1", 80), "map[10.96.0.1:81 TCP:true] map[]"},
		{"another ClusterIP", service("a", 1, "10.96.0.3", 80), "map[10.96.0.1:80 TCP:true 10.96.0.3:80 TCP:true] map[10.96.0.1:true 10.96.0.3:true]"},
		{"a slice that moves to another Service", endpointsOf("a-1", "b", 80, "10.0.0.2"), "map[10.96.0.2:80 TCP:true 10.96.0.3:80 TCP:true] map[10.0.0.2:true]"},
		{"an unknown slice that goes", gone(endpointsOf("x", "a", 80)), "map[] map[]"},
		{"a Service that goes", gone(service("a", 1, "10.96.0.3", 80)), "map[10.96.0.3:80 TCP:true] map[10.96.0.3:true]"},
	} {
		k := l.Apply([]model.Change{c.change}).Touched
		if got := fmt.Sprint(k.Frontends, " ", k.Addrs); got != c.want {
			t.Errorf("%s: touched %s, want %s", c.name, got, c.want)
		}
	}
}

// With three claimants, the losers inherit in order of age, whoever came first, and
// each is told who holds the frontend now.
func TestLosersInheritByAge(t *testing.T) {
	claims := []model.Change{service("a", 3, "10.96.0.1", 80), service("b", 1, "10.96.0.1", 80), service("c", 2, "10.96.0.1", 80)}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		w := newWorld(t)
		for _, i := range order {
			w.apply(claims[i])
		}
		w.want("all claim", "b", "a", "c")
		w.apply(gone(claims[1]))
		w.want("the oldest went", "c", "a")
		w.apply(service("a", 1, "10.96.0.1", 80))
		w.want("the youngest is made anew with an older date", "a", "c")
		w.apply(service("a", 5, "10.96.0.1", 80))
		w.want("and with a younger one", "c", "a")
	}
}

// A world is a ledger with what it said of each Service last.
type world struct {
	t     *testing.T
	l     *plan.Ledger
	notes map[model.Name][]model.Note
}

func newWorld(t *testing.T) *world {
	return &world{t: t, l: plan.NewLedger(plan.Config{NodeName: "n1"}), notes: map[model.Name][]model.Note{}}
}

// apply applies changes, and holds the ledger to naming every outcome that they change.
func (w *world) apply(changes ...model.Change) {
	w.t.Helper()
	before := w.l.Decide(w.l.All())
	a := w.l.Apply(changes)
	after := w.l.Decide(w.l.All())
	for f := range w.l.All().Frontends {
		was, held := before.Decisions[f]
		if (!held || !cmp.Equal(was, after.Decisions[f], opts())) && !a.Touched.Frontends[f] {
			w.t.Fatalf("%v: %v is another one and not touched", changes, f)
		}
	}
	for f := range before.Decisions {
		if _, held := after.Decisions[f]; !held && !a.Touched.Frontends[f] {
			w.t.Fatalf("%v: %v went and is not touched", changes, f)
		}
	}
	for n, notes := range a.Noted {
		if w.notes[n] = notes; len(notes) == 0 {
			delete(w.notes, n)
		}
	}
}

// want says who holds the frontend that all claim, and who is told so.
func (w *world) want(when, owner string, losers ...string) {
	w.t.Helper()
	want := map[model.Name][]model.Note{}
	for _, l := range losers {
		want[name(l)] = []model.Note{{
			Reason: model.ReasonDuplicateFrontend, Field: "spec.clusterIPs",
			Detail: "10.96.0.1:80 TCP is held by Service ns/" + owner,
		}}
	}
	if diff := cmp.Diff(want, w.notes); diff != "" {
		w.t.Errorf("%s: notes (-want +got): %s", when, diff)
	}
}

// What a ledger holds after many changes, in batches of any order, is what a new one
// plans from the facts, and so is what it has said.
func TestManyChangesLeaveNoTrace(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 0))
		w := newWorld(t)
		facts := map[model.Key]model.Change{}
		for range 30 {
			batch := randomBatch(r)
			for _, c := range batch {
				facts[c.Key] = c
			}
			w.apply(batch...)
			fresh := newWorld(t)
			for _, c := range facts {
				fresh.apply(c)
			}
			if diff := cmp.Diff(fresh.l.Decide(fresh.l.All()), w.l.Decide(w.l.All()), opts()); diff != "" {
				t.Fatalf("seed %d (-from facts +after changes): %s", seed, diff)
			}
			if diff := cmp.Diff(fresh.notes, w.notes); diff != "" {
				t.Fatalf("seed %d: notes (-from facts +after changes): %s", seed, diff)
			}
		}
	}
}

// Within a batch the facts are ahead of the claims: a comes while the owner b is to be
// made anew with a younger date, and must not get past c, which waits for longer.
func TestTheFactsOfABatchAreNotAheadOfItsClaims(t *testing.T) {
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		w := newWorld(t)
		w.apply(service("b", 1, "10.96.0.1", 80), service("c", 3, "10.96.0.1", 80))
		w.want("two claim", "b", "c")
		batch := []model.Change{service("a", 5, "10.96.0.1", 80), service("b", 9, "10.96.0.1", 80)}
		w.apply(batch[order[0]], batch[order[1]])
		w.want("a third comes, and the owner is made anew", "c", "a", "b")
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

// randomChange has up to four Services claim one frontend, at ages that change.
func randomChange(r *rand.Rand) model.Change {
	n := string(rune('a' + r.IntN(4)))
	c := service(n, int64(r.IntN(4)), fmt.Sprint("10.96.0.", r.IntN(2)), uint16(80+r.IntN(2)), 90)
	if r.IntN(2) == 0 {
		c = endpointsOf(fmt.Sprint(r.IntN(4)), n, uint16(80+r.IntN(2)), fmt.Sprint("10.0.0.", r.IntN(4)))
	}
	if r.IntN(4) == 0 {
		return gone(c)
	}
	return c
}

func TestServiceCIDRsAreMergedOverObjects(t *testing.T) {
	cidr := func(name string, cidrs ...string) model.Change {
		c := model.Change{Key: model.Key{Kind: model.KindServiceCIDR, Name: model.Name{Name: name}}, ServiceCIDR: &model.ServiceCIDR{Name: name}}
		for _, s := range cidrs {
			c.ServiceCIDR.CIDRs = append(c.ServiceCIDR.CIDRs, netip.MustParsePrefix(s))
		}
		return c
	}
	l := plan.NewLedger(plan.Config{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}})
	ranges := func(changes ...model.Change) string {
		a := l.Apply(changes)
		if !a.Touched.Ranges {
			t.Errorf("%v did not touch the ranges", changes)
		}
		out := l.Decide(a.Touched)
		return fmt.Sprint(out.ServiceCIDRs, out.PodCIDRs)
	}
	for _, c := range []struct {
		change model.Change
		want   string
	}{
		{cidr("a", "10.96.0.0/16"), "[10.96.0.0/16] [10.244.0.0/16]"},
		{cidr("b", "10.96.0.0/16", "fd00::/112"), "[10.96.0.0/16 fd00::/112] [10.244.0.0/16]"},
		// F2: another object still has the range.
		{gone(cidr("a")), "[10.96.0.0/16 fd00::/112] [10.244.0.0/16]"},
		{gone(cidr("b")), "[] [10.244.0.0/16]"},
	} {
		if got := ranges(c.change); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}
