package metrics

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// maxSets is how many sets and maps of a family are told apart; the elements of others
// are counted together. There are a few dozen whatever the number of Services.
const maxSets = 128

// others is the name that elements of further sets are counted under.
const others = "others"

// own has the metrics that kube-proxy does not have.
type own struct {
	skipped      *prometheus.GaugeVec
	operations   *prometheus.CounterVec
	elements     *prometheus.GaugeVec
	rules        *prometheus.GaugeVec
	change       prometheus.Histogram
	untranslated *prometheus.CounterVec
	foreign      *prometheus.CounterVec
	lacks        *prometheus.GaugeVec
	sets         *sets
}

// sets remembers which sets of each family there is a value for.
type sets struct {
	mu   sync.Mutex
	seen map[string]map[string]int
}

func newOwn(r registerer, cfg Config) own {
	o := own{
		skipped: r.gauges("onerule_skipped_objects", "Objects, or parts of objects, that are skipped now, by reason.", "reason"),
		operations: r.counters("onerule_nft_operations_total",
			"Operations in the kernel since the start: transactions, elements added and deleted, runs of nft, sets listed, tables begun afresh.", ipFamily, "operation"),
		elements: r.gauges("onerule_elements", "Elements in each set and map.", ipFamily, "set"),
		rules:    r.gauges("onerule_rules", "Rules in the table.", ipFamily),
		change: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "onerule_change_duration_seconds",
			Help:    "Time from a change arriving at the daemon to its being in the kernel.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 18),
		}),
		untranslated: r.counters("onerule_conntrack_untranslated_deleted_total",
			"Conntrack entries deleted because they began before their destination was a frontend.", ipFamily),
		foreign: r.counters("onerule_foreign_changes_total", "Changes that others made to our tables, by kind.", "kind"),
		lacks:   r.gauges("onerule_kernel_lacks", "1 for an expression of nftables that the kernel lacks and that is done without.", "expression"),
		sets:    &sets{seen: map[string]map[string]int{}},
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "onerule_build_info", Help: "Always 1, with the version as a label.",
		ConstLabels: prometheus.Labels{"version": cfg.Version},
	})
	build.Set(1)
	r(o.change, build,
		age("onerule_pending_change_age_seconds", "Age of the oldest change that is not in the kernel, 0 if all are.", cfg.PendingAge),
		age("onerule_api_lost_seconds", "Time for which the API server has not been heard about some kind of objects, 0 if it is.", cfg.Lost))
	for _, family := range cfg.Families {
		o.untranslated.WithLabelValues(family)
	}
	for _, kind := range cfg.ForeignKinds {
		o.foreign.WithLabelValues(kind)
	}
	return o
}

// age gives a metric of how long something has been so; nil: it never is.
func age(name, help string, how func() time.Duration) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
		if how == nil {
			return 0
		}
		return how().Seconds()
	})
}

// Changed says how long after it came in a change was in the kernel.
func (m *Metrics) Changed(took time.Duration) { m.own.change.Observe(took.Seconds()) }

// Operated counts operations in the kernel, by their names.
func (m *Metrics) Operated(family string, operations map[string]int) {
	for operation, n := range operations {
		m.own.operations.WithLabelValues(family, operation).Add(float64(n))
	}
}

// Holds says what a table holds: elements by set, and rules. Sets that are gone are
// forgotten.
func (m *Metrics) Holds(family string, elements map[string]int, rules int) {
	m.own.rules.WithLabelValues(family).Set(float64(rules))
	s := m.own.sets
	s.mu.Lock()
	defer s.mu.Unlock()
	now := bounded(elements)
	for set := range s.seen[family] {
		if _, ok := now[set]; !ok {
			m.own.elements.DeleteLabelValues(family, set)
		}
	}
	for set, n := range now {
		m.own.elements.WithLabelValues(family, set).Set(float64(n))
	}
	s.seen[family] = now
}

// bounded gives sizes of maxSets sets at most; what is beyond is summed.
func bounded(sizes map[string]int) map[string]int {
	if len(sizes) <= maxSets {
		return maps.Clone(sizes)
	}
	few := map[string]int{}
	for i, set := range slices.Sorted(maps.Keys(sizes)) {
		name := set
		if i >= maxSets-1 {
			name = others
		}
		few[name] += sizes[set]
	}
	return few
}

// Untranslated counts conntrack entries of a family that were deleted because they
// began before their destination was a frontend.
func (m *Metrics) Untranslated(family string, n int) {
	m.own.untranslated.WithLabelValues(family).Add(float64(n))
}

// Lacks says whether the kernel lacks an expression of nftables.
func (m *Metrics) Lacks(expression string, lacks bool) {
	value := 0.0
	if lacks {
		value = 1
	}
	m.own.lacks.WithLabelValues(expression).Set(value)
}

// ForeignChange counts a change that others made to our tables.
func (m *Metrics) ForeignChange(kind string) { m.own.foreign.WithLabelValues(kind).Inc() }
