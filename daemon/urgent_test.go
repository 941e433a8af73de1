package daemon

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/model"
	"onerule/daemon/plan"
	"onerule/nft"
	"onerule/test/netns"
)

// While very many Services are written, another zone and another ServiceCIDR arrive: who
// tells of them does not wait, and one transaction of elements is all that is written
// before them.
func TestF13AZoneAndAServiceCIDRDoNotWaitForALongWrite(t *testing.T) {
	const services = 3 * changesAtOnce
	ns := netns.New(t, "node")
	d := newDaemon(t, ns)
	d.Synced()
	sync := func() nft.Operations {
		t.Helper()
		before := d.programs[nft.IPv4].Done()
		if err := ns.Do(func() error { return d.round(t.Context()) }); err != nil {
			t.Fatal(err)
		}
		return operationsSince(before, d.programs[nft.IPv4].Done())
	}
	list := func(kind, name string) string { return ns.Run(t, "nft", "list", kind, "ip", "onerule", name) }
	d.Changed(nodeInZone("a"))
	hinted(d)
	sync()
	for i := range services {
		n := model.Name{Namespace: "ns", Name: fmt.Sprint("many-", i)}
		d.Changed(model.Change{Key: model.Key{Kind: model.KindService, Name: n}, Service: &model.Service{
			Name: n, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 97, byte(i >> 8), byte(i)})}, Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
		}})
	}
	if done := sync(); done.Added < changesAtOnce || done.Transactions > 1 {
		t.Errorf("a part of the many is %+v, want one transaction with %d elements or more", done, changesAtOnce)
	}
	d.Changed(nodeInZone("b"))
	key := model.Key{Kind: model.KindServiceCIDR, Name: model.Name{Name: "more"}}
	d.Changed(model.Change{Key: key, ServiceCIDR: &model.ServiceCIDR{Name: "more", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.98.0.0/24")}}})
	sync()
	if text := list("set", "service-cidrs"); !strings.Contains(text, "10.98.0.0/24") {
		t.Errorf("the ServiceCIDR is not among %s", text)
	}
	if text := list("map", "endpoints-tcp"); !strings.Contains(text, "10.96.0.1 . 80 . 0 : 10.0.0.2 . 8080") {
		t.Errorf("the zone counts not: %s", text)
	}
	parts := 2
	for ; strings.Count(list("map", "service-ips"), " : goto ") <= services; parts++ {
		if parts > services/changesAtOnce+2 {
			t.Fatalf("not all Services are there after %d parts", parts)
		}
		if len(d.wake) == 0 {
			t.Fatal("nobody is told that there is more to write")
		}
		sync()
	}
	if parts < services/changesAtOnce {
		t.Errorf("%d Services came in %d parts: the test shows nothing", services, parts)
	}
}

func operationsSince(before, now nft.Operations) nft.Operations {
	return nft.Operations{Transactions: now.Transactions - before.Transactions, Added: now.Added - before.Added, Deleted: now.Deleted - before.Deleted}
}

func nodeInZone(zone string) model.Change {
	key := model.Key{Kind: model.KindNode, Name: model.Name{Name: "n1"}}
	return model.Change{Key: key, Node: &model.Node{Name: "n1", Zone: zone}}
}

// hinted puts a Service into the mailbox that has an endpoint for zone a and one for b.
func hinted(d *Daemon) {
	web(d, 0)
	n := model.Name{Namespace: "ns", Name: "web"}
	s := &model.EndpointSlice{Name: n, Service: n.Name, Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}}}
	for i, zone := range []string{"a", "b"} {
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}), Ready: true, Serving: true, Hints: &model.Hints{Zones: []string{zone}}})
	}
	d.Changed(model.Change{Key: model.Key{Kind: model.KindEndpointSlice, Name: n}, EndpointSlice: s})
}

// aService is a Service with one port, and its slice.
func aService(n model.Name, vip netip.Addr, port string) model.Change {
	return model.Change{Key: model.Key{Kind: model.KindService, Name: n}, Service: &model.Service{
		Name: n, ClusterIPs: []netip.Addr{vip}, Ports: []model.ServicePort{{Name: port, Protocol: model.TCP, Port: 80}},
	}}
}

func aSlice(n model.Name, of, port string, endpoint netip.Addr) model.Change {
	return model.Change{Key: model.Key{Kind: model.KindEndpointSlice, Name: n}, EndpointSlice: &model.EndpointSlice{
		Name: n, Service: of, Ports: []model.SlicePort{{Name: port, Protocol: model.TCP, Port: 8080}},
		Endpoints: []model.Endpoint{{Addr: endpoint, Ready: true, Serving: true}},
	}}
}

// An API server that is heard again tells of very many changes at once. They are written in
// parts, and behind none a Service is without the endpoints that it has before and after.
func TestAServiceIsNeverWrittenInTwoParts(t *testing.T) {
	named := func(name string) model.Name { return model.Name{Namespace: "ns", Name: name} }
	vip, other := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.96.0.2")
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	gone := func(c model.Change) model.Change { return model.Change{Key: c.Key} }
	web, slice := aService(named("web"), vip, "http"), aSlice(named("web-a"), "web", "http", a)
	for name, c := range map[string]struct {
		before, changes []model.Change
		serve           []netip.Addr
	}{
		"its slice is exchanged for another one": {
			[]model.Change{web, slice}, []model.Change{gone(slice), aSlice(named("web-b"), "web", "http", b)}, []netip.Addr{vip},
		},
		"its port is renamed": {
			[]model.Change{web, slice}, []model.Change{aService(named("web"), vip, "web"), aSlice(named("web-a"), "web", "web", a)}, []netip.Addr{vip},
		},
		"a slice goes to another Service, and others come in its place": {
			[]model.Change{web, slice, aService(named("other"), other, "http"), aSlice(named("z"), "other", "http", b)},
			[]model.Change{aSlice(named("web-a"), "other", "http", a), aSlice(named("web-b"), "web", "http", b), gone(aSlice(named("z"), "", "", b))},
			[]netip.Addr{vip, other},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(t, netns.New(t, "node"))
			d.Synced()
			close(d.loaded)
			d.ledger.Apply(c.before)
			random := rand.New(rand.NewPCG(1, 2))
			var parts [][]model.Key
			for range 10 {
				now := partsOf(t, d, random, c.changes, c.serve)
				if parts == nil {
					parts = now
				}
				if diff := cmp.Diff(parts, now); diff != "" {
					t.Fatalf("the parts depend on chance (-one time +another): %s", diff)
				}
				d.ledger.Apply(append(undone(c.changes), c.before...))
			}
		})
	}
}

// partsOf gives the parts in which changes are written that come among thousands of others.
func partsOf(t *testing.T, d *Daemon, random *rand.Rand, changes []model.Change, serve []netip.Addr) (parts [][]model.Key) {
	t.Helper()
	all := slices.Clone(changes)
	for i := range 2 * changesAtOnce {
		of := fmt.Sprint("many-", i)
		all = append(all, aSlice(model.Name{Namespace: "ns", Name: of + "-a"}, of, "http", netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})))
	}
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, change := range all {
		d.Changed(change)
	}
	for {
		l, _ := d.take()
		if len(l.changes) == 0 {
			return parts
		}
		if len(l.changes) > changesAtOnce {
			t.Fatalf("a part has %d changes, want %d at most", len(l.changes), changesAtOnce)
		}
		parts = append(parts, slices.SortedFunc(maps.Keys(l.changes), compareKeys))
		d.ledger.Apply(changesOf(l))
		for _, vip := range serve {
			f := plan.Frontend{Addr: vip, Protocol: model.TCP, Port: 80}
			keys := plan.NewKeys()
			keys.Frontends[f] = true
			if n := len(d.ledger.Decide(keys).Decisions[f].Endpoints); n == 0 {
				t.Fatalf("after part %d %s has no endpoint", len(parts), vip)
			}
		}
	}
}

// undone gives what takes away what changes brought.
func undone(changes []model.Change) []model.Change {
	list := make([]model.Change, 0, len(changes))
	for _, c := range changes {
		list = append(list, model.Change{Key: c.Key})
	}
	return list
}

// What is more than a part stays together all the same, and goes alone; what all Services
// depend on comes first, and Services that are gone before others.
func TestPartsAreOfWholeServices(t *testing.T) {
	l := newLetters()
	put := func(list ...model.Change) {
		for _, c := range list {
			l.changes[c.Key] = c
		}
	}
	named := func(name string) model.Name { return model.Name{Name: name} }
	addr := netip.MustParseAddr("10.0.0.1")
	for i := range 5 {
		put(aSlice(named(fmt.Sprint("large-", i)), "large", "", addr))
	}
	put(aService(named("large"), addr, ""), aService(named("new"), addr, ""), nodeInZone("a"),
		aSlice(named("small-0"), "small", "", addr), model.Change{Key: model.Key{Kind: model.KindService, Name: named("gone")}},
		model.Change{Key: model.Key{Kind: model.KindEndpointSlice, Name: named("of-gone")}}, model.Change{Key: model.Key{Kind: model.KindEndpointSlice, Name: named("nobody's")}})
	serviceOf := func(slice model.Name) (model.Name, bool) { return named("gone"), slice == named("of-gone") }
	var got []string
	for len(l.changes) > 0 {
		rest := l.hold(3, serviceOf)
		var part []string
		for key := range l.changes {
			part = append(part, key.Name.Name)
		}
		slices.Sort(part)
		got, l = append(got, strings.Join(part, " ")), letters{changes: rest}
	}
	want := []string{"gone n1 of-gone", "large large-0 large-1 large-2 large-3 large-4", "new nobody's small-0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("parts (-want +got): %s", diff)
	}
}
