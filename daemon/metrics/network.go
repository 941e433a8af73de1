package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// A Network is what there is to say of the pod network.
type Network struct {
	Barriers []Barrier
	// RouteLocalnet is how many devices have it, NodeProblems how much is wrong with nodes.
	RouteLocalnet, NodeProblems int
	// Failing says that not all is in the kernel that should be.
	Failing bool
	// Operations are those of routes between nodes since the start, by their names.
	Operations map[string]int
	// Dropped are packets, by family and reason.
	Dropped map[string]map[string]uint64
	// Swept is what was left of pods that are gone and was removed since the start, by kind.
	Swept map[string]int
	// Neighbours are the machine's tables of them, by family: ipv4 and ipv6.
	Neighbours map[string]NeighbourTable
}

// A NeighbourTable is how full one is; a limit of 0 is not known.
type NeighbourTable struct {
	Entries, Limit int
	Refused        uint64
}

// A Barrier is a chain of others that drops packets of pods.
type Barrier struct{ Family, Table, Chain string }

// networkCollector reads them for each scrape.
type networkCollector struct {
	read                                                       func() Network
	barrier, localnet, problems, failing, operations, discards *prometheus.Desc
	swept, neighbours, neighbourLimit, neighbourRefusals       *prometheus.Desc
}

func newNetworkCollector(read func() Network) *networkCollector {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &networkCollector{
		read:       read,
		barrier:    describe("onerule_forward_barriers", "1 for a chain of others at the forward hook that drops packets of pods.", "family", "table", "chain"),
		localnet:   describe("onerule_route_localnet_devices", "Devices on which somebody has set route_localnet."),
		problems:   describe("onerule_node_problems", "Addresses and ranges of Nodes that are refused, and other things that are wrong with them."),
		failing:    describe("onerule_pod_network_failing", "1 while not all of the pod network is in the kernel, or the plugin is not installed as it should be."),
		operations: describe("onerule_route_operations_total", "Operations for routes between nodes since the start: set, delete, setting, read, lookup.", "operation"),
		discards:   describe("onerule_guard_dropped_packets_total", "Packets that the guard has dropped, by reason.", ipFamily, "reason"),
		swept:      describe("onerule_swept_total", "What was left of pods that are gone and was removed since the start: attachment, address, link, host_port, file.", "kind"),

		neighbours:        describe("onerule_neighbours", "Entries of the kernel's table of neighbours, of all network namespaces of the machine. Permanent ones are among them, and do not count towards the limit.", ipFamily),
		neighbourLimit:    describe("onerule_neighbours_max", "How many neighbours the kernel keeps that are not permanent (gc_thresh3), where it shows.", ipFamily),
		neighbourRefusals: describe("onerule_neighbours_refused_total", "Neighbours that found no room in the kernel's table, since the machine started.", ipFamily),
	}
}

// Describe gives the metrics that there may be.
func (c *networkCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.barrier, c.localnet, c.problems, c.failing, c.operations, c.discards, c.swept, c.neighbours, c.neighbourLimit, c.neighbourRefusals} {
		to <- d
	}
}

// Collect reads them.
func (c *networkCollector) Collect(to chan<- prometheus.Metric) {
	n := c.read()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for _, b := range n.Barriers {
		gauge(c.barrier, 1, b.Family, b.Table, b.Chain)
	}
	gauge(c.localnet, float64(n.RouteLocalnet))
	gauge(c.problems, float64(n.NodeProblems))
	failing := 0.0
	if n.Failing {
		failing = 1
	}
	gauge(c.failing, failing)
	for operation, count := range n.Operations {
		to <- prometheus.MustNewConstMetric(c.operations, prometheus.CounterValue, float64(count), operation)
	}
	for kind, count := range n.Swept {
		to <- prometheus.MustNewConstMetric(c.swept, prometheus.CounterValue, float64(count), kind)
	}
	for family, reasons := range n.Dropped {
		for reason, packets := range reasons {
			to <- prometheus.MustNewConstMetric(c.discards, prometheus.CounterValue, float64(packets), family, reason)
		}
	}
	for family, t := range n.Neighbours {
		gauge(c.neighbours, float64(t.Entries), family)
		if t.Limit > 0 {
			gauge(c.neighbourLimit, float64(t.Limit), family)
		}
		to <- prometheus.MustNewConstMetric(c.neighbourRefusals, prometheus.CounterValue, float64(t.Refused), family)
	}
}
