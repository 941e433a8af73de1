package daemon

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

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
	if l, _ := m.take(); len(l.changes)+len(l.noted) != 0 || !m.waiting().IsZero() {
		t.Errorf("letters are given twice: %v", l)
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
		Decisions:    map[plan.Frontend][]netip.AddrPort{front(four, 80): {ep4}, front(six, 80): {ep6}, front(four, 81): nil},
		ClusterIPs:   map[netip.Addr]bool{four: true, six: true},
		Hairpins:     map[netip.Addr]bool{ep4.Addr(): true},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")},
		PodCIDRs:     []netip.Prefix{netip.MustParsePrefix("fd00::/64")},
	}
	k, s := Spell(nft.IPv4, keys, out)
	f := func(port uint16) nft.Frontend { return nft.Frontend{Addr: four, Protocol: 6, Port: port} }
	wantKeys := nft.Keys{Frontends: map[nft.Frontend]bool{f(80): true, f(81): true, f(82): true}, Addrs: map[netip.Addr]bool{four: true, ep4.Addr(): true}, Ranges: true}
	want := nft.NewState()
	want.Balance(f(80), []netip.AddrPort{ep4})
	want.Balance(f(81), nil)
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

func TestA10_2HealthGoesByWhatIsNotInTheKernel(t *testing.T) {
	m := newMailbox()
	h := newHealth(m)
	now := time.Now()
	check := func(when string, at time.Time, healthy, alive bool) {
		t.Helper()
		if got := h.report(at).Healthy; got != healthy {
			t.Errorf("%s: healthy %v, want %v", when, got, healthy)
		}
		if got := h.alive(at).Healthy; got != alive {
			t.Errorf("%s: alive %v, want %v", when, got, alive)
		}
	}
	check("before the first load", now, false, true)
	h.succeeded([]nft.Family{nft.IPv4})
	check("after it", now, true, true)
	m.Synced()
	m.Changed(service("a"))
	check("while a change waits", now.Add(staleAfter-time.Second), true, true)
	check("when it has waited too long", now.Add(staleAfter+time.Second), false, false)
	m.take()
	h.failed(now)
	h.failed(now.Add(30 * time.Second))
	check("while writes fail", now.Add(staleAfter-time.Second), true, true)
	check("when they have failed too long", now.Add(staleAfter+time.Second), false, false)
	h.succeeded([]nft.Family{nft.IPv4})
	check("when one is well again", now.Add(2*staleAfter), true, true)
}

func TestA10_1HealthAnswersAsKubeProxyDoes(t *testing.T) {
	d := &Daemon{mailbox: newMailbox(), metrics: newMetrics("test")}
	d.health = newHealth(d.mailbox)
	server := d.HealthHandler()
	get := func(path string) (*http.Response, map[string]any) {
		w := httptest.NewRecorder()
		server.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		var body map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
			t.Fatalf("%s: %v in %s", path, err, w.Body)
		}
		return w.Result(), body
	}
	if r, _ := get("/healthz"); r.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("/healthz before the first load: %d, want 503", r.StatusCode)
	}
	d.health.succeeded([]nft.Family{nft.IPv4, nft.IPv6})
	for _, path := range []string{"/healthz", "/livez"} {
		r, body := get(path)
		if r.StatusCode != http.StatusOK || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %v", path, r.StatusCode, r.Header)
		}
		status, _ := body["status"].(map[string]any)
		if body["healthy"] != true || body["lastUpdated"] != body["currentTime"] || len(status) != 2 || status["IPv6"] == nil {
			t.Errorf("%s: %v", path, body)
		}
	}
}

// Each fault is logged once, and the gauge says how many there are now.
func TestNotesAreLoggedOnce(t *testing.T) {
	var lines []string
	log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	d := &Daemon{cfg: Config{Log: log}, metrics: newMetrics("test"), notes: map[string][]model.Note{}}
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
	families, err := d.metrics.registry.Gather()
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
