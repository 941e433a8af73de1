package daemon

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"onerule/daemon/model"
	"onerule/nft"
)

// metrics are what the daemon counts. Their registry is its own.
type metrics struct {
	registry   *prometheus.Registry
	skipped    *prometheus.GaugeVec
	conntrack  *prometheus.CounterVec
	failures   *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	last       *prometheus.GaugeVec
	latency    prometheus.Histogram
	operations *prometheus.CounterVec
	elements   *prometheus.GaugeVec
	rules      *prometheus.GaugeVec
}

func newMetrics(version string, families []nft.Family) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		skipped: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "onerule_skipped_objects",
			Help: "Objects, or parts of objects, that are skipped now, by reason.",
		}, []string{"reason"}),
		conntrack: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "onerule_conntrack_untranslated_deleted_total",
			Help: "Conntrack entries deleted because they began before their destination was a frontend.",
		}, []string{"ip_family"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
			Help: "Cumulative proxy nftables sync failures.",
		}, []string{"ip_family"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "kubeproxy_sync_proxy_rules_duration_seconds",
			Help:    "Time that a sync took, from the plan to the kernel.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, []string{"ip_family"}),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
			Help: "When the last successful sync ended.",
		}, []string{"ip_family"}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "onerule_change_duration_seconds",
			Help:    "Time from a change arriving at the daemon to its being in the kernel.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 18),
		}),
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "onerule_nft_operations_total",
			Help: "Operations in the kernel since the start: transactions, elements added and deleted, runs of nft, sets listed, tables begun afresh.",
		}, []string{"ip_family", "operation"}),
		elements: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "onerule_elements",
			Help: "Elements in each set and map.",
		}, []string{"ip_family", "set"}),
		rules: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "onerule_rules",
			Help: "Rules in the table.",
		}, []string{"ip_family"}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "onerule_build_info", Help: "Always 1, with the version as a label.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	for _, f := range families { // a rate needs the 0 before the first failure
		m.failures.WithLabelValues(familyLabel(f))
		m.conntrack.WithLabelValues(familyLabel(f))
	}
	m.registry.MustRegister(m.skipped, m.conntrack, m.failures, m.duration, m.last, m.latency,
		m.operations, m.elements, m.rules, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// familyLabel is how kube-proxy names families in its metrics.
func familyLabel(f nft.Family) string {
	if f == nft.IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// wrote takes note of a sync of a family that ended well.
func (m *metrics) wrote(family nft.Family, took time.Duration) {
	label := familyLabel(family)
	m.duration.WithLabelValues(label).Observe(took.Seconds())
	m.last.WithLabelValues(label).SetToCurrentTime()
}

// did counts operations, and what the table holds after them.
func (m *metrics) did(family nft.Family, before nft.Operations, p *nft.Program) {
	label, now := familyLabel(family), p.Done()
	for operation, n := range map[string]int{
		"transaction": now.Transactions - before.Transactions,
		"add":         now.Added - before.Added,
		"delete":      now.Deleted - before.Deleted,
		"ruleset":     now.Rulesets - before.Rulesets,
		"list":        now.Listings - before.Listings,
		"afresh":      now.Afresh - before.Afresh,
	} {
		m.operations.WithLabelValues(label, operation).Add(float64(n))
	}
	elements, rules := p.Sizes()
	m.rules.WithLabelValues(label).Set(float64(rules))
	for set, n := range elements {
		m.elements.WithLabelValues(label, set).Set(float64(n))
	}
}

// skip makes the gauge say what notes say.
func (m *metrics) skip(notes map[string][]model.Note) {
	for _, reason := range model.Reasons() {
		m.skipped.WithLabelValues(string(reason)).Set(0)
	}
	for _, list := range notes {
		for _, n := range list {
			m.skipped.WithLabelValues(string(n.Reason)).Inc()
		}
	}
}
