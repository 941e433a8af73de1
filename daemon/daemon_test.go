package daemon

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"onerule/daemon/metrics"
	"onerule/daemon/model"
	"onerule/daemon/plan"
	"onerule/nft"
)

func service(name string) model.Change {
	n := model.Name{Namespace: "ns", Name: name}
	return model.Change{Key: model.Key{Kind: model.KindService, Name: n}, Service: &model.Service{Name: n}}
}

func TestMailboxHoldsWhatCameLast(t *testing.T) {
	m := newMailbox()
	m.Changed(service("a"))
	if _, ready := m.take(); ready {
		t.Error("letters are given before everything was delivered once")
	}
	if m.waiting().IsZero() {
		t.Error("no change is waiting")
	}
	m.HostAddrs(nil)
	m.Synced()
	gone := model.Change{Key: service("a").Key}
	m.Changed(gone)
	m.Changed(service("b"))
	m.Noted("x", []model.Note{{Reason: model.ReasonParse}})
	select {
	case <-m.wake:
	default:
		t.Error("nobody is woken")
	}
	l, ready := m.take()
	want := map[model.Key]model.Change{gone.Key: gone, service("b").Key: service("b")}
	if diff := cmp.Diff(want, l.changes, cmpopts.EquateEmpty()); !ready || diff != "" {
		t.Errorf("ready %v, changes (-want +got): %s", ready, diff)
	}
	if len(l.noted["x"]) != 1 {
		t.Errorf("got notes %v, want one", l.noted)
	}
	if l, _ := m.take(); len(l.changes)+len(l.noted) != 0 {
		t.Errorf("letters are given twice: %v", l)
	}
}

// What the loop has taken waits until it is in the kernel.
func TestAChangeInHandWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMailbox()
		m.HostAddrs(nil)
		m.Synced()
		first := time.Now()
		check := func(when string, want time.Time) {
			t.Helper()
			if got := m.waiting(); !got.Equal(want) {
				t.Errorf("%s: waiting since %v, want %v", when, got, want)
			}
		}
		check("at first", time.Time{})
		m.Noted("x", nil)
		check("with a note only", time.Time{})
		m.Changed(service("a"))
		m.take()
		check("taken", first)
		<-time.After(time.Second)
		m.Changed(service("b"))
		check("taken, and another one came in", first)
		m.done()
		check("the first is done", first.Add(time.Second))
		m.take()
		m.done()
		check("both are", time.Time{})
	})
}

// What failed to be written is counted until it is, each object once.
func TestObjectsWaitUntilTheyAreWritten(t *testing.T) {
	m := newMailbox()
	asked := 0
	m.asked = func() { asked++ }
	m.HostAddrs(nil)
	m.Synced()
	slice := model.Change{Key: model.Key{Kind: model.KindEndpointSlice, Name: model.Name{Name: "a-1"}}}
	check := func(when string, slices, services int) {
		t.Helper()
		if gotSlices, gotServices := m.unwritten(); gotSlices != slices || gotServices != services {
			t.Errorf("%s: got %d slices and %d Services, want %d and %d", when, gotSlices, gotServices, slices, services)
		}
	}
	check("at first", 0, 0)
	m.Changed(service("a"))
	m.Changed(service("b"))
	m.Changed(slice)
	check("in the box", 1, 2)
	m.take()
	m.Changed(service("b"))
	check("taken, and one changed again", 1, 2)
	m.written(false)
	check("not written", 1, 2)
	m.take()
	m.Changed(slice)
	m.written(true)
	check("written, but for what came meanwhile", 1, 0)
	m.take()
	m.written(true)
	check("all", 0, 0)
	if want := 7; asked != want {
		t.Errorf("a sync was asked for %d times, want %d", asked, want)
	}
}

func TestSpellGivesEachFamilyItsOwn(t *testing.T) {
	four, six := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:96::1")
	ep4, ep6 := netip.MustParseAddrPort("10.0.0.1:8080"), netip.MustParseAddrPort("[fd00::1]:8080")
	front := func(a netip.Addr, port uint16) plan.Frontend {
		return plan.Frontend{Addr: a, Protocol: model.TCP, Port: port}
	}
	keys := plan.NewKeys()
	keys.Frontends = map[plan.Frontend]bool{front(four, 80): true, front(six, 80): true, front(four, 81): true, front(four, 82): true}
	keys.Addrs = map[netip.Addr]bool{four: true, six: true, ep4.Addr(): true, ep6.Addr(): true}
	keys.Ranges = true
	out := plan.Outcome{
		Decisions: map[plan.Frontend]plan.Decision{
			front(four, 80): {Endpoints: []netip.AddrPort{ep4}}, front(six, 80): {Endpoints: []netip.AddrPort{ep6}}, front(four, 81): {},
		},
		ClusterIPs:   map[netip.Addr]bool{four: true, six: true},
		Hairpins:     map[netip.Addr]bool{ep4.Addr(): true},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")},
		PodCIDRs:     []netip.Prefix{netip.MustParsePrefix("fd00::/64")},
	}
	k, s := Spell(nft.IPv4, keys, out)
	f := func(port uint16) nft.Frontend { return nft.Frontend{Addr: four, Protocol: 6, Port: port} }
	wantKeys := nft.Keys{Frontends: map[nft.Frontend]bool{f(80): true, f(81): true, f(82): true}, Addrs: map[netip.Addr]bool{four: true, ep4.Addr(): true}, Affinities: map[string]bool{}, Ranges: true}
	want := nft.NewState()
	want.Set(f(80), nft.Route{Endpoints: []netip.AddrPort{ep4}})
	want.Set(f(81), nft.Route{})
	want.Addrs[nft.ClusterIPs][four] = true
	want.Addrs[nft.Hairpins][ep4.Addr()] = true
	want.Ranges[nft.ServiceCIDRs] = out.ServiceCIDRs[:1]
	opts := cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}, nft.Frontend{})}
	if diff := cmp.Diff(wantKeys, k, opts); diff != "" {
		t.Errorf("keys (-want +got): %s", diff)
	}
	if diff := cmp.Diff(want, s, opts); diff != "" {
		t.Errorf("state (-want +got): %s", diff)
	}
	if _, s := Spell(nft.IPv6, keys, out); len(s.Routes[nft.ServiceIPs]) != 1 || len(s.Ranges) != 2 || len(s.Addrs[nft.Hairpins]) != 0 {
		t.Errorf("got %v for IPv6", s)
	}
}

// Each fault is logged once, and the gauge says how many there are now.
func TestNotesAreLoggedOnce(t *testing.T) {
	var lines []string
	log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	d := &Daemon{cfg: Config{Log: log}, metrics: metrics.New(metrics.Config{Version: "test", Log: log}), notes: map[string][]model.Note{}}
	bad := model.Note{Reason: model.ReasonInvalidPort, Field: "spec.ports[0].port", Detail: "70000 is not within 1 to 65535"}
	other := model.Note{Reason: model.ReasonDuplicateFrontend}
	web := model.Name{Namespace: "ns", Name: "web"}
	count := func(step string, logged int, port, duplicate float64) {
		t.Helper()
		if len(lines) != logged {
			t.Errorf("%s: got %d lines, want %d: %q", step, len(lines), logged, lines)
		}
		if got := gauge(t, d, model.ReasonInvalidPort); got != port {
			t.Errorf("%s: got %v objects with invalid ports, want %v", step, got, port)
		}
		if got := gauge(t, d, model.ReasonDuplicateFrontend); got != duplicate {
			t.Errorf("%s: got %v duplicates, want %v", step, got, duplicate)
		}
	}
	d.note(map[string][]model.Note{"web.yaml": {bad}}, nil)
	count("a fault", 1, 1, 0)
	d.note(map[string][]model.Note{"web.yaml": {bad}}, map[model.Name][]model.Note{web: {other}})
	count("the same and another one", 2, 1, 1)
	d.note(map[string][]model.Note{"web.yaml": nil}, map[model.Name][]model.Note{web: {other}})
	count("the first is mended", 2, 0, 1)
	d.note(nil, map[model.Name][]model.Note{web: nil})
	count("both are", 2, 0, 0)
}

func gauge(t *testing.T, d *Daemon, reason model.Reason) float64 {
	t.Helper()
	families, err := d.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "onerule_skipped_objects" && m.GetLabel()[0].GetValue() == string(reason) {
				return m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no onerule_skipped_objects for %s", reason)
	return 0
}

func TestTheClusterItselfComesFirst(t *testing.T) {
	for name, want := range map[model.Name]bool{
		{Namespace: "default", Name: "kubernetes"}:   true,
		{Namespace: "kube-system", Name: "kube-dns"}: true,
		{Namespace: "default", Name: "web"}:          false,
		{Namespace: "other", Name: "kubernetes"}:     false,
	} {
		if got := first(name); got != want {
			t.Errorf("%s comes first: %v, want %v", name, got, want)
		}
	}
}
