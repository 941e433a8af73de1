// Package metrics counts what the daemon does, under kube-proxy's names and under our
// own.
//
// Two registries are gathered together. What a daemon counts is in a plain Prometheus
// registry of its own: nothing is at package level, and several daemons of one process,
// as tests have them, count apart. What belongs to the process (go_*, process_*,
// rest_client_*, kubernetes_feature_enabled, and the hidden metrics of libraries) is in
// the registry of Kubernetes' component-base, where client-go counts its requests. The
// program holds that library anyway, for its logs, so it costs nothing more; and its
// types, which could hide or stage a metric by its release, would serve none of ours.
package metrics

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	basemetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/prometheus/feature"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // has client-go count requests

	"onerule/daemon/model"
)

// A Config is what the metrics of a daemon are made with.
type Config struct {
	// Version is that of the program.
	Version string
	// Families are the IP families that are served, as Kubernetes writes them: IPv4,
	// IPv6. They are the values of the label ip_family.
	Families []string
	// ForeignKinds are the kinds of changes by others that are counted.
	ForeignKinds []string
	// Features are the feature gates.
	Features []Feature
	// LocalhostNodePorts says whether NodePorts are served on loopback addresses, or the
	// gate for it is on; their metrics are there then. nil: never.
	LocalhostNodePorts func() bool
	// PendingAge gives the age of the oldest change that is not in the kernel, 0 if
	// there is none; nil: there never is one.
	PendingAge func() time.Duration
	// Lost gives for how long the API server has not been heard, 0 if it is; nil: there is
	// none.
	Lost func() time.Duration
	// Pending counts the EndpointSlices and Services that changed and are not in the
	// kernel; nil: there never are any.
	Pending func() (slices, services int)
	// Counters reads what the rules of a family have counted. It is called for each
	// scrape, from a goroutine of its own, one at a time for each family; nil: nothing
	// is counted.
	Counters func(ctx context.Context, family string) (Counters, error)
	// HitsMode says how the kernel sees the connections that endpoints are given, "" if it
	// does not count them. Hits reads what it has counted, each endpoint of a service port
	// once. HitsFull says whether there is no room to count for some; nil: there always is.
	HitsMode        func() string
	Hits            func() ([]Hit, error)
	HitsFull        func() bool
	EndpointMetrics EndpointMetrics
	// Network reads what there is to say of the pod network; nil: there is none.
	Network func() Network
	Log     logr.Logger
}

// A Feature is a feature gate. Stage is ALPHA, BETA or DEPRECATED, and empty for what
// is here to stay.
type Feature struct {
	Name, Stage string
	Enabled     bool
}

// Metrics are what a daemon counts. Their methods may be called from any goroutine.
type Metrics struct {
	registry *prometheus.Registry
	gatherer prometheus.Gatherer
	log      logr.Logger
	started  time.Time
	proxy    proxy
	own      own
}

// New gives metrics that have counted nothing.
func New(cfg Config) *Metrics {
	if cfg.LocalhostNodePorts == nil {
		cfg.LocalhostNodePorts = func() bool { return false }
	}
	m := &Metrics{registry: prometheus.NewRegistry(), log: cfg.Log, started: time.Now()}
	m.gatherer = prometheus.Gatherers{m.registry, legacyregistry.DefaultGatherer}
	register := func(c ...prometheus.Collector) { m.registry.MustRegister(c...) }
	m.proxy = newProxy(register, cfg)
	m.own = newOwn(register, cfg)
	register(buildInfo(), newCountersCollector(cfg), newHitsCollector(cfg))
	if cfg.Network != nil {
		register(newNetworkCollector(cfg.Network))
	}
	for _, f := range cfg.Features {
		feature.RecordFeatureInfo(context.Background(), f.Name, f.Stage, f.Enabled)
	}
	m.Skipped(nil)
	return m
}

// Gather gives all there is, also what belongs to the process.
func (m *Metrics) Gather() ([]*dto.MetricFamily, error) { return m.gatherer.Gather() }

// Handler answers /metrics. What can't be read is logged and left out.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.gatherer, promhttp.HandlerOpts{
		ErrorLog:         scrapeLog{m.log},
		ErrorHandling:    promhttp.ContinueOnError,
		ProcessStartTime: legacyregistry.GetProcessStart(),
	})
}

type scrapeLog struct{ log logr.Logger }

// Println logs what went wrong in a scrape.
func (l scrapeLog) Println(v ...any) {
	l.log.Error(nil, "metrics are not complete", "why", fmt.Sprintln(v...))
}

// ShowHidden shows the metrics of libraries that are hidden since a release. It holds
// for the whole process, and can't be taken back.
func ShowHidden() { basemetrics.SetShowHidden() }

// Skipped says which objects are skipped now, and why, by their names.
func (m *Metrics) Skipped(notes map[string][]model.Note) {
	counts := map[model.Reason]int{}
	for _, list := range notes {
		for _, n := range list {
			counts[n.Reason]++
		}
	}
	for _, reason := range model.Reasons() {
		m.own.skipped.WithLabelValues(string(reason)).Set(float64(counts[reason]))
	}
}

const ipFamily = "ip_family"

// A registerer registers collectors, and ends the program if one is there already.
type registerer func(...prometheus.Collector)

// A sometimes is a collector that is there only when it is asked for.
type sometimes struct {
	prometheus.Collector
	when func() bool
}

// Collect is part of prometheus.Collector.
func (s sometimes) Collect(to chan<- prometheus.Metric) {
	if s.when() {
		s.Collector.Collect(to)
	}
}

// only registers what is there only when it is asked for.
func (r registerer) only(when func() bool) registerer {
	return func(list ...prometheus.Collector) {
		for _, c := range list {
			r(sometimes{c, when})
		}
	}
}

func (r registerer) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	r(c)
	return c
}

func (r registerer) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	r(g)
	return g
}

func (r registerer) histograms(name, help string, buckets []float64) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{ipFamily})
	r(h)
	return h
}
