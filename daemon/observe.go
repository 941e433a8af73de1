package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"onerule/daemon/config"
	"onerule/daemon/health"
	"onerule/daemon/metrics"
	"onerule/daemon/model"
	"onerule/nft"
)

// An Event is for people who look at an object of the cluster.
type Event struct {
	Object model.Key
	Reason string // in the words of kube-proxy, where it has one
	Note   string
}

// event tells an event, if anybody listens.
func (d *Daemon) event(e Event) {
	if d.cfg.Event != nil {
		d.cfg.Event(e)
	}
}

// observe makes what others see of the daemon.
func (d *Daemon) observe() {
	var labels []string
	for _, f := range d.cfg.Families {
		labels = append(labels, familyLabel(f))
	}
	d.health = health.NewProxy(health.ProxyConfig{
		Families:   labels,
		StaleAfter: staleAfter(d.settings),
		Waiting:    d.waiting,
		Eligible:   !d.cfg.KnownNode,
		Answered:   func(path string, code int) { d.metrics.Answered(path, code) },
	})
	d.checks = health.NewServices(health.ServicesConfig{
		Healthy: d.health.Healthy,
		Log:     d.cfg.Log,
		Failed: func(service model.Name, port uint16, err error) {
			d.event(Event{
				Object: model.Key{Kind: model.KindService, Name: service}, Reason: "FailedToStartServiceHealthcheck",
				Note: fmt.Sprintf("node %s failed to start healthcheck %q on port %d: %v", d.cfg.Settings.Node, service, port, errors.Unwrap(err)),
			})
		},
	})
	d.asked = func() {
		for _, label := range labels {
			d.metrics.Queued(label)
		}
	}
	d.localhost.Store(d.servesLocalhost())
	d.metrics = metrics.New(metrics.Config{
		Version:            d.cfg.Version,
		Families:           labels,
		ForeignKinds:       d.foreignKinds(),
		Features:           d.cfg.Features,
		LocalhostNodePorts: d.localhost.Load,
		PendingAge:         d.health.Pending,
		Pending:            d.unwritten,
		Lost:               d.cfg.Lost,
		Counters:           d.counters,
		HitsMode:           d.tally.mode,
		Hits:               d.tally.hits,
		HitsFull:           d.tally.isFull,
		EndpointMetrics:    metrics.EndpointMetrics(d.settings.EndpointMetrics),
		Network:            d.sample(),
		Log:                d.cfg.Log,
	})
	d.metrics.Skipped(nil)
	d.metrics.Lacks("fib", d.cfg.WithoutFib)
}

// periods are those of syncs: see loop. Nothing delays the first load.
func (d *Daemon) periods() (least, most time.Duration) {
	if d.isLoaded() {
		least = d.settings.MinSyncPeriod
	}
	return least, max(d.settings.SyncPeriod, firstRetry)
}

// staleAfter is how long a change may wait for the kernel.
func staleAfter(s config.Settings) time.Duration { return 2 * s.SyncPeriod }

// counters reads what the rules of a family have counted.
func (d *Daemon) counters(_ context.Context, label string) (metrics.Counters, error) {
	family := nft.IPv4
	if label == familyLabel(nft.IPv6) {
		family = nft.IPv6
	}
	named, err := d.readCounters(family)
	if err != nil {
		return metrics.Counters{}, err
	}
	rejected, err := d.tally.rejected(family == nft.IPv6)
	return metrics.Counters{Named: named, LocalhostRejected: rejected}, err
}

func familyLabel(f nft.Family) string { return config.Family(f).String() }

// did takes note of what was done in the kernel since before.
func (d *Daemon) did(family nft.Family, before nft.Operations, p *nft.Program) {
	label, now := familyLabel(family), p.Done()
	d.metrics.Operated(label, map[string]int{
		"transaction": now.Transactions - before.Transactions,
		"add":         now.Added - before.Added,
		"delete":      now.Deleted - before.Deleted,
		"ruleset":     now.Rulesets - before.Rulesets,
		"list":        now.Listings - before.Listings,
		"afresh":      now.Afresh - before.Afresh,
	})
	elements, rules := p.Sizes()
	d.metrics.Holds(label, elements, rules)
}

// round is sync, and takes note of whether all that came in is in the kernel: also where
// nothing had to be written for it, or nothing could be yet.
func (d *Daemon) round(ctx context.Context) error {
	err := d.sync(ctx)
	d.tellFull(time.Now())
	all := err == nil && d.isLoaded()
	d.written(all)
	d.history.ended(err, d.isLoaded())
	if !all {
		return err
	}
	for _, f := range d.cfg.Families {
		d.metrics.UpToDate(familyLabel(f))
	}
	return nil
}

// isLoaded says whether all tables were loaded once.
func (d *Daemon) isLoaded() bool {
	select {
	case <-d.loaded:
		return true
	default:
		return false
	}
}

// HealthHandler answers /healthz, which is 503 until everything has been loaded, and
// while changes do not get into the kernel or the node is being removed, and /livez.
func (d *Daemon) HealthHandler() http.Handler { return d.health.Handler() }

// MetricsHandler answers /metrics.
func (d *Daemon) MetricsHandler() http.Handler { return d.metrics.Handler() }

// listenAt gives the addresses of healthCheckNodePorts: those of NodePorts.
func (d *Daemon) listenAt() []netip.Addr {
	var list []netip.Addr
	for _, family := range d.cfg.Families {
		if !d.addrs.everywhere(d.settings, family) {
			list = append(list, d.addrs.nodePorts(d.settings, family)...)
			continue
		}
		every := netip.IPv4Unspecified()
		if family == nft.IPv6 {
			every = netip.IPv6Unspecified()
		}
		list = append(list, every)
	}
	return list
}

// tellChecks tells healthCheckNodePorts what plans say.
func (d *Daemon) tellChecks() {
	checks := map[uint16]health.Check{}
	for port, c := range d.ledger.HealthChecks() {
		checks[port] = health.Check{Service: c.Service, Endpoints: c.Endpoints}
	}
	d.checks.Sync(checks)
}
