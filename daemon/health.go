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

// health says whether the tables hold what the sources say.
type health struct {
	mailbox *mailbox

	mu          sync.Mutex
	loaded      bool
	failedSince time.Time // zero: the last sync ended well
	updated     map[nft.Family]time.Time
}

func newHealth(m *mailbox) *health {
	return &health{mailbox: m, updated: map[nft.Family]time.Time{}}
}

func (h *health) succeeded(families []nft.Family) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.loaded, h.failedSince = true, time.Time{}
	for _, f := range families {
		h.updated[f] = time.Now()
	}
}

func (h *health) failed(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failedSince.IsZero() {
		h.failedSince = at
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

// report says how things are at a time.
func (h *health) report(now time.Time) healthReport {
	waiting := h.mailbox.waiting()
	h.mu.Lock()
	defer h.mu.Unlock()
	fresh := func(since time.Time) bool { return since.IsZero() || now.Sub(since) < staleAfter }
	r := healthReport{CurrentTime: now, Status: map[string]familyReport{}}
	r.Healthy = h.loaded && fresh(h.failedSince) && fresh(waiting)
	for family, at := range h.updated {
		r.Status[familyLabel(family)] = familyReport{LastUpdated: at, Healthy: r.Healthy}
		if r.LastUpdated.Before(at) {
			r.LastUpdated = at
		}
	}
	if r.Healthy {
		r.LastUpdated = now // while all is well, what was last written is still up to date
	}
	return r
}

// alive is report for /livez: a daemon that still waits for its first load lives.
func (h *health) alive(now time.Time) healthReport {
	r := h.report(now)
	h.mu.Lock()
	defer h.mu.Unlock()
	r.Healthy = r.Healthy || !h.loaded
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
