// Package health answers those who ask how the proxy and the node are: /healthz and
// /livez, the healthCheckNodePorts of Services, and the status server with its pages
// for people and for monitoring. It decides from what it is told and asks nobody.
package health

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// staleAfter is twice kube-proxy's sync period.
const staleAfter = time.Minute

// A ProxyConfig is what the health of a proxy follows from.
type ProxyConfig struct {
	// Families are the IP families that are served, as Kubernetes writes them: IPv4,
	// IPv6. The proxy is healthy if all are.
	Families []string
	// StaleAfter is how long a change may wait for the kernel; 0: a minute.
	StaleAfter time.Duration
	// Waiting says since when the oldest change has been waiting that no write has
	// ended for, the zero time if there is none. It is called from any goroutine; nil:
	// there never is one.
	Waiting func() time.Time
	// Eligible is whether a node that nothing has been said of can take connections:
	// not where an API server ought to know it.
	Eligible bool
	// Answered, if set, is called with the path and the status code of each answer.
	Answered func(path string, code int)
}

// A Proxy says whether the kernel holds what the sources say, for each family, and
// whether the node may get new connections. Its methods may be called from any
// goroutine.
type Proxy struct {
	cfg ProxyConfig

	mu         sync.Mutex
	staleAfter time.Duration
	eligible   bool
	families   map[string]*family
}

// A family is how the table of an IP family is.
type family struct {
	loaded  bool
	failing time.Time // the oldest change that writes fail for came in then; zero: the last one ended well
	updated time.Time
}

// NewProxy gives the health of a proxy that has loaded nothing yet.
func NewProxy(cfg ProxyConfig) *Proxy {
	if cfg.Waiting == nil {
		cfg.Waiting = func() time.Time { return time.Time{} }
	}
	if cfg.Answered == nil {
		cfg.Answered = func(string, int) {}
	}
	p := &Proxy{cfg: cfg, eligible: cfg.Eligible, families: map[string]*family{}}
	p.SetStaleAfter(cfg.StaleAfter)
	for _, name := range cfg.Families {
		p.families[name] = &family{}
	}
	return p
}

// SetStaleAfter sets how long a change may wait for the kernel; 0: a minute.
func (p *Proxy) SetStaleAfter(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.staleAfter = d
	if d <= 0 {
		p.staleAfter = staleAfter
	}
}

// SetEligible says whether the node may get new connections from load balancers: it is
// known, is not being deleted, and has no taint that announces its removal.
func (p *Proxy) SetEligible(eligible bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eligible = eligible
}

// Succeeded says that a family's table is as it should be.
func (p *Proxy) Succeeded(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f, ok := p.families[name]; ok {
		*f = family{loaded: true, updated: time.Now()}
	}
}

// Failed says that a family's table is not what it should have been since a time. Of
// several in a row the earliest counts.
func (p *Proxy) Failed(name string, since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f, ok := p.families[name]; ok && (f.failing.IsZero() || since.Before(f.failing)) {
		f.failing = since
	}
}

// Healthy says whether everything has been loaded and no change is late. It is what
// healthCheckNodePorts go by: the node's removal does not change it.
func (p *Proxy) Healthy() bool { return p.at(time.Now(), ready).Healthy }

// Pending says how old the oldest change is that is not in the kernel; 0: there is
// none.
func (p *Proxy) Pending() time.Duration {
	age, _ := p.Late()
	return age
}

// Late gives how old the oldest change is that is not in the kernel, and whether that is too
// long for /healthz.
func (p *Proxy) Late() (age time.Duration, late bool) {
	oldest := p.cfg.Waiting()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.families {
		if !f.failing.IsZero() && (oldest.IsZero() || f.failing.Before(oldest)) {
			oldest = f.failing
		}
	}
	if oldest.IsZero() {
		return 0, false
	}
	age = time.Since(oldest)
	return max(0, age), p.isLate(age)
}

func (p *Proxy) isLate(age time.Duration) bool { return age >= p.staleAfter }

// A report is the body of /healthz and /livez.
type report struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"` // nil: not asked for
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyReport `json:"status"`
}

type familyReport struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// ready says whether a family can serve.
func ready(loaded, late bool) bool { return loaded && !late }

// alive says whether a family gets on: one that waits for its first load does.
func alive(loaded, late bool) bool { return !loaded || !late }

// at reports how things are at a time, by what is good enough.
func (p *Proxy) at(now time.Time, good func(loaded, late bool) bool) report {
	waiting := p.cfg.Waiting()
	p.mu.Lock()
	defer p.mu.Unlock()
	late := func(since time.Time) bool { return !since.IsZero() && p.isLate(now.Sub(since)) }
	r := report{CurrentTime: now, Healthy: true, Status: map[string]familyReport{}}
	for name, f := range p.families {
		well := good(f.loaded, late(f.failing) || late(waiting))
		r.Status[name] = familyReport{LastUpdated: f.updated, Healthy: well}
		r.Healthy = r.Healthy && well
		if r.LastUpdated.Before(f.updated) {
			r.LastUpdated = f.updated
		}
	}
	return r
}

// healthz reports whether new connections may be sent to this node.
func (p *Proxy) healthz(now time.Time) (report, bool) {
	r := p.at(now, ready)
	p.mu.Lock()
	defer p.mu.Unlock()
	eligible := p.eligible
	r.NodeEligible = &eligible
	return r, r.Healthy && eligible
}

// livez reports whether the daemon does its work, wherever the node is going.
func (p *Proxy) livez(now time.Time) (report, bool) {
	r := p.at(now, alive)
	return r, r.Healthy
}

// Handler answers /healthz and /livez.
func (p *Proxy) Handler() http.Handler {
	mux := http.NewServeMux()
	for path, ask := range map[string]func(time.Time) (report, bool){"healthz": p.healthz, "livez": p.livez} {
		mux.HandleFunc("/"+path, func(w http.ResponseWriter, _ *http.Request) {
			r, well := ask(time.Now())
			code := http.StatusServiceUnavailable
			if well {
				code = http.StatusOK
				r.LastUpdated = r.CurrentTime // while all is well, what was last written is up to date
			}
			p.cfg.Answered(path, code)
			writeJSON(w, code, r, json.Marshal)
		})
	}
	return mux
}

// writeJSON answers with a value of ours, spelled by one of encoding/json's functions.
// A client that went away needs no answer.
func writeJSON(w http.ResponseWriter, code int, v any, marshal func(any) ([]byte, error)) {
	body, err := marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(body)
}
