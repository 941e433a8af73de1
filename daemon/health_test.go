package daemon

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/nft"
)

func TestA10_2HealthGoesByWhatIsNotInTheKernel(t *testing.T) {
	m := newMailbox()
	h := newHealth(m, []nft.Family{nft.IPv4})
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
	m.Changed(service("a"))
	check("before it, when a change has waited long", now.Add(2*staleAfter), false, true)
	m.HostAddrs(nil)
	m.Synced()
	m.take()
	m.done()
	h.succeeded(nft.IPv4)
	check("after it", now, true, true)
	m.Changed(service("a"))
	check("while a change waits", now.Add(staleAfter-time.Second), true, true)
	check("when it has waited too long", now.Add(staleAfter+time.Second), false, false)
	m.take()
	check("while it is written", now.Add(staleAfter-time.Second), true, true)
	check("when its write takes too long", now.Add(staleAfter+time.Second), false, false)
	h.failed(nft.IPv4, now)
	m.done()
	h.failed(nft.IPv4, now.Add(30*time.Second))
	check("while writes fail", now.Add(staleAfter-time.Second), true, true)
	check("when they have failed too long", now.Add(staleAfter+time.Second), false, false)
	h.succeeded(nft.IPv4)
	check("when one is well again", now.Add(2*staleAfter), true, true)
}

func TestA10_1EachFamilyHasItsOwnHealth(t *testing.T) {
	h := newHealth(newMailbox(), []nft.Family{nft.IPv4, nft.IPv6})
	now := time.Now()
	check := func(when string, at time.Time, want, alive map[string]bool) {
		t.Helper()
		for what, r := range map[string]struct {
			got  healthReport
			want map[string]bool
		}{"healthy": {h.report(at), want}, "alive": {h.alive(at), alive}} {
			got := map[string]bool{"all": r.got.Healthy}
			for family, s := range r.got.Status {
				got[family] = s.Healthy
			}
			if diff := cmp.Diff(r.want, got); diff != "" {
				t.Errorf("%s: %s (-want +got): %s", when, what, diff)
			}
		}
	}
	states := func(all, four, six bool) map[string]bool {
		return map[string]bool{"all": all, "IPv4": four, "IPv6": six}
	}
	check("at the start", now, states(false, false, false), states(true, true, true))
	h.succeeded(nft.IPv4)
	h.failed(nft.IPv6, now)
	check("one is loaded", now, states(false, true, false), states(true, true, true))
	h.succeeded(nft.IPv6)
	check("both are", now, states(true, true, true), states(true, true, true))
	h.failed(nft.IPv6, now)
	h.succeeded(nft.IPv4)
	late := now.Add(staleAfter + time.Second)
	check("one fails for long", late, states(false, true, false), states(false, true, false))
	updated := h.report(late).Status
	if four, six := updated["IPv4"].LastUpdated, updated["IPv6"].LastUpdated; !four.After(six) {
		t.Errorf("IPv4 was updated at %v, not after IPv6 at %v", four, six)
	}
}

func TestA10_1HealthAnswersAsKubeProxyDoes(t *testing.T) {
	families := []nft.Family{nft.IPv4, nft.IPv6}
	d := &Daemon{mailbox: newMailbox(), metrics: newMetrics("test", families)}
	d.health = newHealth(d.mailbox, families)
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
	r, body := get("/healthz")
	if status, _ := body["status"].(map[string]any); r.StatusCode != http.StatusServiceUnavailable || len(status) != 2 {
		t.Errorf("/healthz before the first load: %d %v, want 503 and both families", r.StatusCode, body)
	}
	if r, _ := get("/livez"); r.StatusCode != http.StatusOK {
		t.Errorf("/livez before the first load: %d, want 200", r.StatusCode)
	}
	d.health.succeeded(nft.IPv4)
	d.health.succeeded(nft.IPv6)
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

// A rate can only be taken of what was 0 before.
func TestFailuresAreCountedFromTheStart(t *testing.T) {
	m := newMetrics("test", []nft.Family{nft.IPv4, nft.IPv6})
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "kubeproxy_sync_proxy_rules_nftables_sync_failures_total" {
			for _, s := range f.GetMetric() {
				got[s.GetLabel()[0].GetValue()] = s.GetCounter().GetValue()
			}
		}
	}
	if diff := cmp.Diff(map[string]float64{"IPv4": 0, "IPv6": 0}, got); diff != "" {
		t.Errorf("failures (-want +got): %s", diff)
	}
}
