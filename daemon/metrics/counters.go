package metrics

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// readLimit is how long reading the counters of a family may hold up a scrape.
const readLimit = 2 * time.Second

// Counters are what the rules of a family have counted.
type Counters struct {
	// Named are the counters that outlive their rules, by name: new connections that
	// were refused (refused-REASON) and dropped (dropped-REASON), and clients that
	// could not be pinned to an endpoint because the map is full (pins-full-ID, one for
	// each service port with affinity). Others are not ours to know.
	Named map[string]uint64
	// LocalhostRejected has packets to NodePorts on loopback addresses that were
	// refused, by protocol: TCP, UDP, SCTP.
	LocalhostRejected map[string]uint64
}

// countersCollector reads counters when it is asked.
type countersCollector struct {
	cfg                               Config
	limit                             time.Duration
	refused, dropped, pins, localhost *prometheus.Desc
	readers                           map[string]*reader
}

// A reader reads the counters of a family, one at a time. Who has the turn has the rest.
type reader struct {
	turn chan struct{}     // holds the token of who reads
	pins map[string]uint64 // what each counter of full pins last said
	full uint64            // their sum, which does not fall when one goes
}

// A reading is what was read, with the sum of full pins up to then.
type reading struct {
	Counters
	full uint64
}

func newCountersCollector(cfg Config) *countersCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	c := &countersCollector{
		cfg: cfg, limit: readLimit, readers: map[string]*reader{},
		refused: desc("onerule_refused_connections_total", "New connections that were refused, by reason.", ipFamily, "reason"),
		dropped: desc("onerule_dropped_connections_total", "First packets of connections that were dropped, by reason.", ipFamily, "reason"),
		pins: desc("onerule_pins_full_total",
			"Connections of clients that could not be pinned to their endpoint, because the map of pins was full.", ipFamily),
		localhost: desc("kubeproxy_nftables_localhost_nodeport_rejected_packets_total",
			"Packets to NodePorts on loopback addresses that were refused, by protocol.", ipFamily, "protocol"),
	}
	for _, family := range cfg.Families {
		c.readers[family] = &reader{turn: make(chan struct{}, 1), pins: map[string]uint64{}}
	}
	return c
}

// Describe is part of prometheus.Collector.
func (c *countersCollector) Describe(to chan<- *prometheus.Desc) {
	to <- c.refused
	to <- c.dropped
	to <- c.pins
	to <- c.localhost
}

// Collect is part of prometheus.Collector. The families are read side by side: they
// share the limit.
func (c *countersCollector) Collect(to chan<- prometheus.Metric) {
	if c.cfg.Counters == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.limit)
	defer cancel()
	var readers sync.WaitGroup
	defer readers.Wait()
	for family, r := range c.readers {
		readers.Go(func() {
			read, err := r.read(ctx, func(ctx context.Context) (Counters, error) { return c.cfg.Counters(ctx, family) })
			if err != nil {
				c.cfg.Log.Error(err, "counters of rules are missing from the metrics", "ip_family", family)
				return
			}
			c.send(to, family, read)
		})
	}
}

// read waits for what f gives, not longer than ctx. An f that goes on keeps the turn,
// so that there is never a second one, and what is read is added in the order in which it
// was: a later reading that came first would be taken for counters that began anew.
func (r *reader) read(ctx context.Context, f func(context.Context) (Counters, error)) (reading, error) {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return reading{}, fmt.Errorf("wait for the last reading of the counters: %w", ctx.Err())
	}
	type answer struct {
		reading
		err error
	}
	done := make(chan answer, 1)
	go func() { // ends with f
		defer func() { <-r.turn }()
		read, err := f(ctx)
		if err != nil {
			done <- answer{err: err}
			return
		}
		done <- answer{reading: reading{read, r.add(read.Named)}}
	}()
	select {
	case a := <-done:
		return a.reading, a.err
	case <-ctx.Done():
		return reading{}, fmt.Errorf("read the counters: %w", ctx.Err())
	}
}

func (c *countersCollector) send(to chan<- prometheus.Metric, family string, read reading) {
	send := func(d *prometheus.Desc, n uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), append([]string{family}, labels...)...)
	}
	for _, name := range slices.Sorted(maps.Keys(read.Named)) {
		n := read.Named[name]
		if reason, ok := strings.CutPrefix(name, "refused-"); ok {
			send(c.refused, n, reason)
		} else if reason, ok := strings.CutPrefix(name, "dropped-"); ok {
			send(c.dropped, n, reason)
		}
	}
	send(c.pins, read.full)
	if c.cfg.LocalhostNodePorts() {
		for protocol, n := range read.LocalhostRejected {
			send(c.localhost, n, protocol)
		}
	}
}

// add gives the sum of what all counters of full pins have ever counted: one goes with
// its service port, and a counter that falls would be taken for one that began anew.
func (r *reader) add(named map[string]uint64) uint64 {
	pins := map[string]uint64{}
	for name, n := range named {
		if !strings.HasPrefix(name, "pins-full-") {
			continue
		}
		pins[name] = n
		if last := r.pins[name]; n >= last {
			r.full += n - last
		} else {
			r.full += n
		}
	}
	r.pins = pins
	return r.full
}
