package health

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A clock says since when a change waits.
type clock struct {
	mu    sync.Mutex
	since time.Time
}

func (c *clock) waiting() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since
}

func (c *clock) set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since = t
}

func families() []string { return []string{"IPv4", "IPv6"} }

// loaded gives a proxy that has loaded both families, on a node that is eligible.
func loaded(cfg ProxyConfig) *Proxy {
	cfg.Families, cfg.Eligible = families(), true
	p := NewProxy(cfg)
	for _, f := range families() {
		p.Succeeded(f)
	}
	return p
}

// get asks a handler by a real server.
func get(t *testing.T, h http.Handler, path string) (*http.Response, map[string]any) {
	t.Helper()
	server := httptest.NewServer(h)
	defer server.Close()
	r, err := server.Client().Get(server.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	var body map[string]any
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return r, body
}

// codes gives what both paths answer.
func codes(t *testing.T, p *Proxy) [2]int {
	t.Helper()
	var list [2]int
	for i, path := range []string{"/healthz", "/livez"} {
		r, _ := get(t, p.Handler(), path)
		list[i] = r.StatusCode
	}
	return list
}

func TestA10_2R3HealthGoesByWhatIsNotInTheKernel(t *testing.T) {
	var c clock
	p := NewProxy(ProxyConfig{Families: []string{"IPv4"}, Waiting: c.waiting, Eligible: true})
	now := time.Now()
	check := func(when string, at time.Time, healthy, lives bool) {
		t.Helper()
		if _, got := p.healthz(at); got != healthy {
			t.Errorf("%s: healthy %v, want %v", when, got, healthy)
		}
		if _, got := p.livez(at); got != lives {
			t.Errorf("%s: alive %v, want %v", when, got, lives)
		}
	}
	check("before the first load", now, false, true)
	c.set(now)
	check("before it, when a change has waited long", now.Add(2*staleAfter), false, true)
	p.Failed("IPv4", now)
	check("when the first load has failed for long", now.Add(2*staleAfter), false, true)
	c.set(time.Time{})
	p.Succeeded("IPv4")
	check("after it", now, true, true)
	c.set(now)
	check("while a change waits", now.Add(staleAfter-time.Second), true, true)
	check("when it has waited long enough", now.Add(staleAfter), false, false)
	p.Failed("IPv4", now)
	c.set(time.Time{})
	p.Failed("IPv4", now.Add(30*time.Second))
	check("while writes fail", now.Add(staleAfter-time.Second), true, true)
	check("when they have failed long enough", now.Add(staleAfter), false, false)
	p.SetStaleAfter(2 * staleAfter)
	check("with another sync period", now.Add(staleAfter), true, true)
	check("when that is over", now.Add(2*staleAfter), false, false)
	p.Succeeded("IPv4")
	check("when one is well again", now.Add(3*staleAfter), true, true)
}

// What is late is late for everybody who asks.
func TestWhatIsLateIsNotHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c clock
		p := loaded(ProxyConfig{Waiting: c.waiting})
		check := func(when string, age time.Duration, want bool) {
			t.Helper()
			if got, late := p.Late(); got != age || late != want || p.Healthy() == want {
				t.Errorf("%s: %s, late %t, healthy %t; want %s, late %t", when, got, late, p.Healthy(), age, want)
			}
		}
		check("nothing waits", 0, false)
		c.set(time.Now())
		<-time.After(staleAfter - time.Second)
		check("a change waits", staleAfter-time.Second, false)
		<-time.After(time.Second)
		check("it has waited long", staleAfter, true)
		p.SetStaleAfter(2 * staleAfter)
		check("that is not long any more", staleAfter, false)
		c.set(time.Time{})
		p.Failed("IPv6", time.Now().Add(-2*staleAfter))
		check("writes of one family fail", 2*staleAfter, true)
	})
}

func TestA10_6F5NothingIsHealthyBeforeTheFirstLoadOfAllFamilies(t *testing.T) {
	p := NewProxy(ProxyConfig{Families: families(), Eligible: true})
	for _, step := range []struct {
		load string
		want [2]int
	}{{"", [2]int{503, 200}}, {"IPv4", [2]int{503, 200}}, {"IPv6", [2]int{200, 200}}} {
		p.Succeeded(step.load)
		if got := codes(t, p); got != step.want {
			t.Errorf("after %q is loaded: %v, want %v", step.load, got, step.want)
		}
	}
}

func TestA10_1EachFamilyHasItsOwnHealth(t *testing.T) {
	p := NewProxy(ProxyConfig{Families: families(), Eligible: true})
	now := time.Now()
	check := func(when string, at time.Time, want, lives map[string]bool) {
		t.Helper()
		well, _ := p.healthz(at)
		live, _ := p.livez(at)
		for what, r := range map[string]struct {
			got  report
			want map[string]bool
		}{"healthy": {well, want}, "alive": {live, lives}} {
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
	p.Succeeded("IPv4")
	p.Failed("IPv6", now)
	check("one is loaded", now, states(false, true, false), states(true, true, true))
	p.Succeeded("IPv6")
	check("both are", now, states(true, true, true), states(true, true, true))
	p.Failed("IPv6", now)
	p.Succeeded("IPv4")
	late := now.Add(staleAfter + time.Second)
	check("one fails for long", late, states(false, true, false), states(false, true, false))
	r, _ := p.healthz(late)
	if four, six := r.Status["IPv4"].LastUpdated, r.Status["IPv6"].LastUpdated; !four.After(six) {
		t.Errorf("IPv4 was updated at %v, not after IPv6 at %v", four, six)
	}
	if !r.LastUpdated.Equal(r.Status["IPv4"].LastUpdated) {
		t.Errorf("updated at %v, want the time of the last family, %v", r.LastUpdated, r.Status["IPv4"].LastUpdated)
	}
}

func TestA10_1TheBodyIsThatOfKubeProxy(t *testing.T) {
	p := loaded(ProxyConfig{})
	for path, want := range map[string][]string{
		"/healthz": {"currentTime", "healthy", "lastUpdated", "nodeEligible", "status"},
		"/livez":   {"currentTime", "healthy", "lastUpdated", "status"},
	} {
		r, body := get(t, p.Handler(), path)
		if r.StatusCode != 200 || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %v", path, r.StatusCode, r.Header)
		}
		got := map[string]bool{}
		for field := range body {
			got[field] = true
		}
		fields := map[string]bool{}
		for _, field := range want {
			fields[field] = true
		}
		if diff := cmp.Diff(fields, got); diff != "" {
			t.Errorf("%s: fields (-want +got): %s", path, diff)
		}
		status, _ := body["status"].(map[string]any)
		six, _ := status["IPv6"].(map[string]any)
		if _, err := time.Parse(time.RFC3339Nano, fmt.Sprint(six["lastUpdated"])); err != nil || six["healthy"] != true || len(status) != 2 {
			t.Errorf("%s: status %v: %v", path, status, err)
		}
	}
	r, err := http.Get(httptestServer(t, p.Handler()) + "/other")
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close()
	if r.StatusCode != 404 {
		t.Errorf("/other: %d, want 404", r.StatusCode)
	}
}

func httptestServer(t *testing.T, h http.Handler) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

func TestA10_3A10_4R39ANodeThatLeavesIsAliveAndNotHealthy(t *testing.T) {
	p := loaded(ProxyConfig{})
	for _, step := range []struct {
		eligible bool
		want     [2]int
	}{{true, [2]int{200, 200}}, {false, [2]int{503, 200}}, {true, [2]int{200, 200}}} {
		p.SetEligible(step.eligible)
		if got := codes(t, p); got != step.want {
			t.Errorf("eligible %v: %v, want %v", step.eligible, got, step.want)
		}
		_, body := get(t, p.Handler(), "/healthz")
		if body["nodeEligible"] != step.eligible || body["healthy"] != true {
			t.Errorf("eligible %v: %v", step.eligible, body)
		}
	}
}

func TestA10_3ANodeThatIsUnknownIsNotHealthyWhereItShouldBeKnown(t *testing.T) {
	for _, eligible := range []bool{true, false} {
		p := NewProxy(ProxyConfig{Families: []string{"IPv4"}, Eligible: eligible})
		p.Succeeded("IPv4")
		want := [2]int{503, 200}
		if eligible {
			want[0] = 200
		}
		if got := codes(t, p); got != want {
			t.Errorf("unknown counts as eligible %v: %v, want %v", eligible, got, want)
		}
	}
}

func TestA10_5WhatIsWellIsUpToDate(t *testing.T) {
	p := loaded(ProxyConfig{})
	for _, path := range []string{"/healthz", "/livez"} {
		if _, body := get(t, p.Handler(), path); body["lastUpdated"] != body["currentTime"] {
			t.Errorf("%s: updated at %v, want now, %v", path, body["lastUpdated"], body["currentTime"])
		}
	}
	p.SetEligible(false)
	if _, body := get(t, p.Handler(), "/healthz"); body["lastUpdated"] == body["currentTime"] {
		t.Error("/healthz with 503: updated now, want when it was")
	}
}

func TestA11AnswersAreCountedByCode(t *testing.T) {
	got := map[string]int{}
	p := loaded(ProxyConfig{Answered: func(path string, code int) { got[fmt.Sprint(path, code)]++ }})
	codes(t, p)
	p.SetEligible(false)
	codes(t, p)
	if diff := cmp.Diff(map[string]int{"healthz200": 1, "healthz503": 1, "livez200": 2}, got); diff != "" {
		t.Errorf("answers (-want +got): %s", diff)
	}
}

func TestTheOldestChangeHasAnAge(t *testing.T) {
	var c clock
	p := loaded(ProxyConfig{Waiting: c.waiting})
	check := func(when string, want time.Duration) {
		t.Helper()
		if got := p.Pending(); got < want || got > want+time.Minute {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	if got := p.Pending(); got != 0 {
		t.Errorf("nothing waits: %v, want 0", got)
	}
	now := time.Now()
	c.set(now.Add(-2 * time.Hour))
	check("a change waits", 2*time.Hour)
	p.Failed("IPv6", now.Add(-5*time.Hour))
	check("an older one can't be written", 5*time.Hour)
	p.Succeeded("IPv6")
	check("it is written", 2*time.Hour)
	c.set(now.Add(time.Hour))
	if got := p.Pending(); got != 0 {
		t.Errorf("the clock went back: %v, want 0", got)
	}
}
