package metrics

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// A Hit says how many connections an endpoint of a service port was given, by whatever
// frontend. Without an Endpoint it is about all that are gone.
type Hit struct {
	ServicePort
	Endpoint    string // address and port
	Connections uint64
}

// A ServicePort is one as labels name it.
type ServicePort struct{ Namespace, Service, Port, Protocol string }

// EndpointMetrics say what there are metrics of connections for.
type EndpointMetrics string

// The values, which are those of the flag --endpoint-metrics.
const (
	NoEndpointMetrics EndpointMetrics = "off"
	ServiceMetrics    EndpointMetrics = "service"
	EachEndpoint      EndpointMetrics = "endpoint"
)

// maxEndpoints is how many endpoints have a metric of their own. All count for their
// Service.
const maxEndpoints = 10_000

// hitsCollector reads what the kernel has counted when it is asked.
type hitsCollector struct {
	cfg                                Config
	services, endpoints, enabled, full *prometheus.Desc
}

func newHitsCollector(cfg Config) *hitsCollector {
	port := []string{"namespace", "service", "port", "protocol"}
	return &hitsCollector{
		cfg: cfg,
		services: prometheus.NewDesc("onerule_service_connections_total",
			"New connections that the endpoints of a service port were given, also those that are gone.", port, nil),
		endpoints: prometheus.NewDesc("onerule_endpoint_connections_total",
			"New connections that an endpoint of a service port was given.", append(port, "endpoint"), nil),
		enabled: prometheus.NewDesc("onerule_bpf_enabled", "1 if the kernel counts connections, by the mode in which it sees them; 0 if it does not.", []string{"mode"}, nil),
		full:    prometheus.NewDesc("onerule_bpf_full", "1 while connections of some endpoints are not counted, because the map of counters is full.", nil, nil),
	}
}

// Describe is part of prometheus.Collector.
func (c *hitsCollector) Describe(to chan<- *prometheus.Desc) {
	to <- c.services
	to <- c.endpoints
	to <- c.enabled
	to <- c.full
}

// Collect is part of prometheus.Collector.
func (c *hitsCollector) Collect(to chan<- prometheus.Metric) {
	on := 0.0
	mode := ""
	if c.cfg.HitsMode != nil {
		mode = c.cfg.HitsMode()
	}
	if mode != "" {
		on = 1
	}
	to <- prometheus.MustNewConstMetric(c.enabled, prometheus.GaugeValue, on, mode)
	full := 0.0
	if c.cfg.HitsFull != nil && c.cfg.HitsFull() {
		full = 1
	}
	to <- prometheus.MustNewConstMetric(c.full, prometheus.GaugeValue, full)
	if on == 0 || c.cfg.EndpointMetrics == NoEndpointMetrics {
		return
	}
	hits, err := c.cfg.Hits()
	if err != nil {
		c.cfg.Log.Error(err, "connections of endpoints are missing from the metrics")
		return
	}
	sums := map[ServicePort]uint64{}
	for _, h := range hits {
		sums[h.ServicePort] += h.Connections
	}
	for p, n := range sums {
		to <- prometheus.MustNewConstMetric(c.services, prometheus.CounterValue, float64(n), p.labels()...)
	}
	if c.cfg.EndpointMetrics == EachEndpoint {
		c.each(to, hits)
	}
}

// each gives the endpoints that there are, those of the first Services if they are many:
// the same ones each time. The list is not changed: it is its giver's.
func (c *hitsCollector) each(to chan<- prometheus.Metric, list []Hit) {
	hits := make([]Hit, 0, len(list))
	for _, h := range list {
		if h.Endpoint != "" {
			hits = append(hits, h)
		}
	}
	if len(hits) > maxEndpoints {
		slices.SortFunc(hits, Hit.compare)
		hits = hits[:maxEndpoints]
	}
	for _, h := range hits {
		to <- prometheus.MustNewConstMetric(c.endpoints, prometheus.CounterValue, float64(h.Connections), append(h.labels(), h.Endpoint)...)
	}
}

func (p ServicePort) labels() []string { return []string{p.Namespace, p.Service, p.Port, p.Protocol} }

func (h Hit) compare(o Hit) int {
	return cmp.Or(cmp.Compare(h.Namespace, o.Namespace), cmp.Compare(h.Service, o.Service), cmp.Compare(h.Port, o.Port),
		cmp.Compare(h.Protocol, o.Protocol), cmp.Compare(h.Endpoint, o.Endpoint))
}
