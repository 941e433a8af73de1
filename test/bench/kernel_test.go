package main

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"onerule/daemon/model"
	"onerule/daemon/source"
	"onerule/nft"
	"onerule/test/netns"
)

// A told is a sink that keeps the number of endpoints of each slice.
type told struct {
	mu        sync.Mutex
	objects   map[model.Kind]int
	endpoints map[model.Name]int
	notes     int
	synced    chan struct{}
	changed   chan struct{}
}

func (s *told) Changed(c model.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[c.Key.Kind]++
	if c.EndpointSlice != nil {
		s.endpoints[c.Key.Name] = len(c.EndpointSlice.Endpoints)
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *told) Noted(string, []model.Note) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes++
}

func (s *told) Synced() { close(s.synced) }

func wait(t *testing.T, on <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-on:
	case <-time.After(20 * time.Second):
		t.Fatalf("gave up waiting for %s", what)
	}
}

// The daemon's own client reads the server: by watches alone, and without a word
// about any object.
func TestAPIServerIsReadByTheRealClient(t *testing.T) {
	c := newCluster(30)
	api, err := newAPIServer(c)
	if err != nil {
		t.Fatal(err)
	}
	var lists sync.Map
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if q := r.URL.Query(); q.Get("watch") == "" && q.Get("limit") != "1" {
			lists.Store(r.URL.Path, true)
		}
		api.ServeHTTP(w, r)
	}))
	t.Cleanup(server.CloseClientConnections)
	client, err := source.Connect(source.Connection{Master: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	sink := &told{objects: map[model.Kind]int{}, endpoints: map[model.Name]int{}, synced: make(chan struct{}), changed: make(chan struct{}, 1)}
	go func() { _ = source.API{Client: client, Node: nodeName}.Run(t.Context(), sink) }() // ends with the test
	wait(t, sink.synced, "Synced")
	sink.mu.Lock()
	for kind, want := range map[model.Kind]int{model.KindService: 30, model.KindEndpointSlice: 30, model.KindNode: 1, model.KindServiceCIDR: 1} {
		if got := sink.objects[kind]; got != want {
			t.Errorf("got %d objects of kind %s, want %d", got, kind, want)
		}
	}
	for name, n := range sink.endpoints {
		if n != endpointsPerService {
			t.Errorf("slice %s: got %d endpoints, want %d", name, n, endpointsPerService)
		}
	}
	if sink.notes != 0 {
		t.Errorf("got %d complaints about objects, want none", sink.notes)
	}
	sink.mu.Unlock()
	lists.Range(func(path, _ any) bool {
		t.Errorf("%v was listed: the watch did not do", path)
		return true
	})
	if _, ok := api.lastSent(); !ok {
		t.Error("everything was sent, and the server says that it was not")
	}

	select { // what is left from the load
	case <-sink.changed:
	default:
	}
	c.shrink(3, 4)
	if _, err := api.changed(3); err != nil {
		t.Fatal(err)
	}
	wait(t, sink.changed, "the change")
	sink.mu.Lock()
	defer sink.mu.Unlock()
	slice := model.Name{Namespace: serviceName(3).Namespace, Name: serviceName(3).Name + "-x7k2p"}
	if got, want := sink.endpoints[slice], endpointsPerService-4; got != want {
		t.Errorf("got %d endpoints after the change, want %d", got, want)
	}
}

func TestLookUpsTellWhatTheKernelHolds(t *testing.T) {
	ns := netns.New(t, "node")
	c := newCluster(20)
	if err := loadTable(t.Context(), ns, stateOf(c)); err != nil {
		t.Fatal(err)
	}
	k, err := openKernel(ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.close)
	for i := range c.endpoints {
		if err := k.has(c.frontends(i)); err != nil {
			t.Error(err)
		}
	}
	for _, f := range []struct {
		name    string
		service int
		fault   func()
		want    string
	}{
		{"another endpoint", 1, func() { c.replace(1, 4) }, "endpoints"},
		{"an endpoint too many", 2, func() { c.shrink(2, 1) }, "lb-tcp-9"},
		{"an endpoint left behind the last one", 3, func() { leave(t, ns, clusterIPOf(3).slotKey(endpointsPerService), c.sorted(3)[0]) }, "endpoints"},
		{"no Service", 20, func() { c.endpoints = append(c.endpoints, c.endpoints[0]) }, "service-ips"},
	} {
		t.Run(f.name, func(t *testing.T) {
			f.fault()
			err := k.has(c.frontends(f.service))
			if err == nil || !strings.Contains(err.Error(), f.want) {
				t.Errorf("got error %v, want one about %q", err, f.want)
			}
		})
	}
}

// leave writes an endpoint where none belongs.
func leave(t *testing.T, ns *netns.NS, key []byte, e netip.AddrPort) {
	t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(ns.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	set := &nftables.Set{
		Name:  nft.Endpoints.Of(unix.IPPROTO_TCP),
		Table: &nftables.Table{Name: nft.TableName, Family: nftables.TableFamilyIPv4},
	}
	if err := conn.SetAddElements(set, []nftables.SetElement{{Key: key, Val: endpointValue(e)}}); err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
}

func TestFloorWritesWhatTheDaemonWrites(t *testing.T) {
	netns.Privileged(t)
	f, err := openFloor(t.Context(), newCluster(20))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.close)
	k, err := openKernel(f.ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.close)
	in := func(set string, key []byte) (string, bool) {
		value, ok, err := k.element(nft.TableName, set, key)
		if err != nil {
			t.Fatal(err)
		}
		return string(value), ok
	}
	endpoints := nft.Endpoints.Of(unix.IPPROTO_TCP)
	before, _ := in(endpoints, clusterIPOf(5).slotKey(2))
	if _, err := f.replace(5, 2); err != nil {
		t.Fatal(err)
	}
	if after, ok := in(endpoints, clusterIPOf(5).slotKey(2)); !ok || after == before {
		t.Errorf("got endpoint %x after it was replaced, and %x before", after, before)
	}
	for _, step := range []struct {
		name       string
		do         func(int) (time.Duration, error)
		ten, slot9 bool
	}{{"one endpoint less", f.shrink, false, false}, {"one endpoint more", f.grow, true, true}} {
		if _, err := step.do(5); err != nil {
			t.Fatal(err)
		}
		_, ten := in("lb-tcp-10", clusterIPOf(5).countKey())
		_, nine := in("lb-tcp-9", clusterIPOf(5).countKey())
		_, slot9 := in(endpoints, clusterIPOf(5).slotKey(9))
		if ten != step.ten || nine == step.ten || slot9 != step.slot9 {
			t.Errorf("%s: got in lb-tcp-10 %v, in lb-tcp-9 %v, slot 9 %v", step.name, ten, nine, slot9)
		}
	}
}

func TestMonitorSeesWhatIsInForce(t *testing.T) {
	ns := netns.New(t, "node")
	c := newCluster(20)
	if err := loadTable(t.Context(), ns, stateOf(c)); err != nil {
		t.Fatal(err)
	}
	m, err := openMonitor(ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.close)
	fresh := c.replace(7, 0).As4()
	seen := m.expect(fresh[:])
	before := monotonic()
	if err := loadTable(t.Context(), ns, stateOf(c)); err != nil {
		t.Fatal(err)
	}
	select {
	case at := <-seen:
		if at < before {
			t.Errorf("seen at %v, before it was written at %v", at, before)
		}
	case <-time.After(10 * time.Second):
		t.Error("the change was not seen")
	}
}

// A small run from end to end: the daemon in a process of its own, all sorts of
// changes, each looked up in the kernel, and a restart that writes nothing.
func TestScaleFromEndToEnd(t *testing.T) {
	netns.Privileged(t)
	s, err := measureScale(t.Context(), 20, 20, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.loads) != loads || s.loads[0].synced <= 0 || s.loads[0].began <= s.loads[0].synced {
		t.Errorf("got loads %+v", s.loads)
	}
	if got := s.restart.did["add"] + s.restart.did["delete"]; got != 0 {
		t.Errorf("the restart wrote %v elements, want 0", got)
	}
	for name, one := range map[string]series{"replaced": s.replaced, "numbered": s.numbered} {
		if len(one.event) != 20 || len(one.inside) != 20 || len(one.floor) != 20 || one.did["transaction"] != 20 {
			t.Errorf("%s: got %d events, %d times in the daemon, %d of the floor and %v", name, len(one.event), len(one.inside), len(one.floor), one.did)
		}
		for i := range one.event {
			if one.inside[i] <= 0 || one.event[i] < one.inside[i] {
				t.Errorf("%s: event to kernel took %v, %v of it in the daemon", name, one.event[i], one.inside[i])
			}
		}
	}
	if len(s.first.event) != firsts || s.first.did["ruleset"] != firsts {
		t.Errorf("got %d changes to new numbers, with %v", len(s.first.event), s.first.did)
	}
	if s.verified < 10 || s.memory.settled < 1<<20 || s.memory.peak < s.memory.freed {
		t.Errorf("got %d changes looked up, memory %+v", s.verified, s.memory)
	}
}

func TestPathsLeadThroughTheTable(t *testing.T) {
	netns.Privileged(t)
	n, err := openPathNet()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.close)
	stop, err := n.serve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	state, paths := pathState(3)
	try := func(p *path) (err error) {
		return n.client.Do(func() error {
			_, err := connect(p.to)
			return err
		})
	}
	for i, p := range paths {
		if err := try(p); (err == nil) != (i < 2) {
			t.Errorf("without our table: %s: got error %v", p.name, err)
		}
	}
	if err := loadTable(t.Context(), n.node, state); err != nil {
		t.Fatal(err)
	}
	for _, p := range paths {
		if err := try(p); err != nil {
			t.Errorf("with our table: %s: %v", p.name, err)
		}
	}
	if got := paths[len(paths)-1].name; len(paths) != 4 || got != "ClusterIP, rarest number" {
		t.Errorf("got %d paths, the last one %q", len(paths), got)
	}
}
