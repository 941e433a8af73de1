package daemon

import (
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"onerule/nft"
)

// staleAfter is how long a change may wait for the kernel before the node counts as
// unhealthy: twice kube-proxy's sync period.
const staleAfter = time.Minute

// health says whether the tables hold what the sources say, for each family.
type health struct {
	mailbox *mailbox

	mu       sync.Mutex
	families map[nft.Family]*familyHealth
}

// familyHealth is how the table of a family is.
type familyHealth struct {
	loaded  bool
	failing time.Time // the oldest change that writes fail for came in then; zero: the last one ended well
	updated time.Time
}

func newHealth(m *mailbox, families []nft.Family) *health {
	h := &health{mailbox: m, families: map[nft.Family]*familyHealth{}}
	for _, f := range families {
		h.families[f] = &familyHealth{}
	}
	return h
}

// succeeded says that a family's table is as it should be.
func (h *health) succeeded(family nft.Family) {
	h.mu.Lock()
	defer h.mu.Unlock()
	*h.families[family] = familyHealth{loaded: true, updated: time.Now()}
}

// failed says that a family's table is not what it should have been since a time.
func (h *health) failed(family nft.Family, since time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f := h.families[family]; f.failing.IsZero() {
		f.failing = since
	}
}

// A healthReport is the body of /healthz and /livez, as kube-proxy writes it.
type healthReport struct {
	LastUpdated time.Time               `json:"lastUpdated"`
	CurrentTime time.Time               `json:"currentTime"`
	Healthy     bool                    `json:"healthy"`
	Status      map[string]familyReport `json:"status"`
}

type familyReport struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// report says how things are at a time: healthy is what has been loaded and is not
// behind.
func (h *health) report(now time.Time) healthReport {
	return h.judge(now, func(loaded, behind bool) bool { return loaded && !behind })
}

// alive is report for /livez: a daemon that still waits for its first load lives.
func (h *health) alive(now time.Time) healthReport {
	return h.judge(now, func(loaded, behind bool) bool { return !loaded || !behind })
}

func (h *health) judge(now time.Time, good func(loaded, behind bool) bool) healthReport {
	waiting := h.mailbox.waiting()
	h.mu.Lock()
	defer h.mu.Unlock()
	stale := func(since time.Time) bool { return !since.IsZero() && now.Sub(since) >= staleAfter }
	r := healthReport{CurrentTime: now, Healthy: true, Status: map[string]familyReport{}}
	for family, f := range h.families {
		well := good(f.loaded, stale(f.failing) || stale(waiting))
		r.Status[familyLabel(family)] = familyReport{LastUpdated: f.updated, Healthy: well}
		r.Healthy = r.Healthy && well
		if r.LastUpdated.Before(f.updated) {
			r.LastUpdated = f.updated
		}
	}
	if r.Healthy {
		r.LastUpdated = now // while all is well, what was last written is still up to date
	}
	return r
}

// HealthHandler answers /healthz, which is 503 until everything has been loaded, and
// while changes do not get into the kernel, and /livez.
func (d *Daemon) HealthHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/healthz", d.reporter("healthz", d.health.report))
	mux.Handle("/livez", d.reporter("livez", d.health.alive))
	return mux
}

func (d *Daemon) reporter(path string, report func(time.Time) healthReport) http.Handler {
	counter := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubeproxy_proxy_" + path + "_total",
		Help: "Answers of /" + path + " by status code.",
	}, []string{"code"})
	d.metrics.registry.MustRegister(counter)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		r := report(time.Now())
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		code := http.StatusOK
		if !r.Healthy {
			code = http.StatusServiceUnavailable
		}
		w.WriteHeader(code)
		counter.WithLabelValues(strconv.Itoa(code)).Inc()
		_ = json.NewEncoder(w).Encode(r) // a client that went away needs no answer
	})
}

// MetricsHandler answers /metrics and /healthz of the metrics server.
func (d *Daemon) MetricsHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(d.metrics.registry, promhttp.HandlerOpts{Registry: d.metrics.registry}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) })
	return mux
}
