package metrics

import (
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// proxy has the metrics that kube-proxy has in nftables mode.
type proxy struct {
	syncs     syncs
	changes   changes
	noLocal   *prometheus.GaugeVec
	answers   map[string]*prometheus.CounterVec // by path
	conntrack struct {
		duration *prometheus.HistogramVec
		deleted  *prometheus.CounterVec
	}
	localhost struct {
		listeners *prometheus.GaugeVec
		failures  *prometheus.CounterVec
	}
}

type syncs struct {
	duration, full, partial *prometheus.HistogramVec
	last, queued            *prometheus.GaugeVec
	failures, cleanups      *prometheus.CounterVec
	programming             *prometheus.HistogramVec
}

type changes struct {
	endpoints, services prometheus.Counter
}

// Of service ports with a Local policy.
const (
	internal = "internal"
	external = "external"
)

// syncBuckets go from 1 ms to 16 s.
func syncBuckets() []float64 { return prometheus.ExponentialBuckets(0.001, 2, 15) }

// programmingBuckets go from 250 ms to 5 minutes, in seconds up to one.
func programmingBuckets() []float64 {
	return slices.Concat(
		[]float64{0.25, 0.5},
		prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12),
		prometheus.LinearBuckets(120, 30, 7))
}

func newProxy(r registerer, cfg Config) proxy {
	p := proxy{syncs: newSyncs(r), changes: newChanges(r, cfg.Pending)}
	p.noLocal = r.gauges("kubeproxy_sync_proxy_rules_no_local_endpoints_total",
		"Service ports whose traffic policy is Local, with endpoints elsewhere and none on this node.", "traffic_policy", ipFamily)
	p.answers = map[string]*prometheus.CounterVec{
		"healthz": r.counters("kubeproxy_proxy_healthz_total", "Answers of /healthz, by status code.", "code"),
		"livez":   r.counters("kubeproxy_proxy_livez_total", "Answers of /livez, by status code.", "code"),
	}
	p.conntrack.duration = r.histograms("kubeproxy_conntrack_reconciler_sync_duration_seconds",
		"Time that a pass over conntrack took.", syncBuckets())
	p.conntrack.deleted = r.counters("kubeproxy_conntrack_reconciler_deleted_entries_total",
		"Conntrack entries deleted because they would lead somewhere else than the Services say.", ipFamily)
	p.localhost.listeners = r.only(cfg.LocalhostNodePorts).gauges("kubeproxy_nftables_localhost_nodeport_listeners",
		"Listeners for NodePorts on loopback addresses.", ipFamily)
	p.localhost.failures = r.only(cfg.LocalhostNodePorts).counters("kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
		"Listeners for NodePorts on loopback addresses that could not be opened.", ipFamily)
	p.begin(cfg)
	return p
}

func newSyncs(r registerer) syncs {
	const prefix = "kubeproxy_sync_proxy_rules_"
	return syncs{
		duration: r.histograms(prefix+"duration_seconds", "Time that a sync took, from the plan to the kernel.", syncBuckets()),
		full: r.histograms("kubeproxy_sync_full_proxy_rules_duration_seconds",
			"Time that a sync took which loaded the whole table.", syncBuckets()),
		partial: r.histograms("kubeproxy_sync_partial_proxy_rules_duration_seconds",
			"Time that a sync took which wrote only what changed.", syncBuckets()),
		last:     r.gauges(prefix+"last_timestamp_seconds", "When the last sync ended that brought all into the kernel, in Unix time.", ipFamily),
		queued:   r.gauges(prefix+"last_queued_timestamp_seconds", "When a sync was last asked for, in Unix time.", ipFamily),
		failures: r.counters(prefix+"nftables_sync_failures_total", "Syncs that the kernel refused.", ipFamily),
		cleanups: r.counters(prefix+"nftables_cleanup_failures_total", "Deletions of chains out of use that the kernel refused.", ipFamily),
		programming: r.histograms("kubeproxy_network_programming_duration_seconds",
			"Time from a pod's or Service's change, as the EndpointSlice dates it, to its being in the kernel.", programmingBuckets()),
	}
}

func newChanges(r registerer, pending func() (slices, services int)) changes {
	const prefix = "kubeproxy_sync_proxy_rules_"
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + name, Help: help})
		r(c)
		return c
	}
	if pending == nil {
		pending = func() (slices, services int) { return 0, 0 }
	}
	gauge := func(name, help string, of func(slices, services int) int) {
		r(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + name, Help: help}, func() float64 { return float64(of(pending())) }))
	}
	gauge("endpoint_changes_pending", "EndpointSlices that changed and are not in the kernel yet.", func(slices, _ int) int { return slices })
	gauge("service_changes_pending", "Services that changed and are not in the kernel yet.", func(_, services int) int { return services })
	return changes{
		endpoints: counter("endpoint_changes_total", "Changes of EndpointSlices that came in."),
		services:  counter("service_changes_total", "Changes of Services that came in, counted for each family."),
	}
}

// begin makes the zeros seen that a rate needs before the first event.
func (p proxy) begin(cfg Config) {
	for _, family := range cfg.Families {
		for _, c := range []*prometheus.CounterVec{p.syncs.failures, p.syncs.cleanups, p.conntrack.deleted, p.localhost.failures} {
			c.WithLabelValues(family)
		}
		p.localhost.listeners.WithLabelValues(family)
		for _, policy := range []string{internal, external} {
			p.noLocal.WithLabelValues(policy, family)
		}
	}
	for _, c := range p.answers {
		for _, code := range []string{"200", "503"} {
			c.WithLabelValues(code)
		}
	}
}

// Queued says that a sync of a family is asked for now.
func (m *Metrics) Queued(family string) {
	m.proxy.syncs.queued.WithLabelValues(family).SetToCurrentTime()
}

// Synced says how long a sync of a family took, whether it was to load the whole table,
// and how it ended.
func (m *Metrics) Synced(family string, took time.Duration, full bool, err error) {
	s := m.proxy.syncs
	kind := s.partial
	if full {
		kind = s.full
	}
	s.duration.WithLabelValues(family).Observe(took.Seconds())
	kind.WithLabelValues(family).Observe(took.Seconds())
	if err != nil {
		s.failures.WithLabelValues(family).Inc()
		return
	}
	m.UpToDate(family)
}

// UpToDate says that all that was asked for of a family is in the kernel now, whether or
// not anything had to be written for it.
func (m *Metrics) UpToDate(family string) {
	m.proxy.syncs.last.WithLabelValues(family).SetToCurrentTime()
}

// CleanupFailed says that the kernel kept chains of a family that are out of use.
func (m *Metrics) CleanupFailed(family string) {
	m.proxy.syncs.cleanups.WithLabelValues(family).Inc()
}

// EndpointsChanged counts changes of EndpointSlices.
func (m *Metrics) EndpointsChanged(n int) { m.proxy.changes.endpoints.Add(float64(n)) }

// ServicesChanged counts changes of Services. As with kube-proxy, one counts once for
// each family that is served.
func (m *Metrics) ServicesChanged(n int) { m.proxy.changes.services.Add(float64(n)) }

// Programmed says that what a family's EndpointSlice follows from is in the kernel now.
// since is when that happened, as the slice says; what happened before the start, or
// at the zero time, is not counted.
func (m *Metrics) Programmed(family string, since time.Time) {
	if !since.After(m.started) {
		return
	}
	took := max(0, time.Since(since)) // the clock that wrote it may be ahead
	m.proxy.syncs.programming.WithLabelValues(family).Observe(took.Seconds())
}

// NoLocal says how many service ports of a family have a Local policy, endpoints
// elsewhere and none here, for internal and for external traffic.
func (m *Metrics) NoLocal(family string, inside, outside int) {
	m.proxy.noLocal.WithLabelValues(internal, family).Set(float64(inside))
	m.proxy.noLocal.WithLabelValues(external, family).Set(float64(outside))
}

// Answered counts answers of /healthz and /livez, by path without the slash.
func (m *Metrics) Answered(path string, code int) {
	if c, ok := m.proxy.answers[path]; ok {
		c.WithLabelValues(strconv.Itoa(code)).Inc()
	}
}

// ConntrackPass says how long a pass over a family's conntrack entries took, and how
// many it deleted.
func (m *Metrics) ConntrackPass(family string, took time.Duration, deleted int) {
	m.proxy.conntrack.duration.WithLabelValues(family).Observe(took.Seconds())
	m.proxy.conntrack.deleted.WithLabelValues(family).Add(float64(deleted))
}

// LocalhostListeners says how many listeners for NodePorts on loopback addresses of a
// family there are.
func (m *Metrics) LocalhostListeners(family string, n int) {
	m.proxy.localhost.listeners.WithLabelValues(family).Set(float64(n))
}

// LocalhostFailed says that such a listener could not be opened.
func (m *Metrics) LocalhostFailed(family string) {
	m.proxy.localhost.failures.WithLabelValues(family).Inc()
}
