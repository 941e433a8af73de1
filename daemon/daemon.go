// Package daemon wires sources, plan and tables together: one loop takes what the
// sources say, plans it, and writes what differs into the kernel. It decides
// nothing itself.
package daemon

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"onerule/bpf"
	"onerule/daemon/config"
	"onerule/daemon/health"
	"onerule/daemon/metrics"
	"onerule/daemon/model"
	"onerule/daemon/network"
	"onerule/daemon/plan"
	"onerule/nft"
)

// A Config is what a daemon is started with.
type Config struct {
	Settings config.Settings
	// Families lists the IP families to serve, the primary one first.
	Families []nft.Family
	// WithoutFib says that the kernel cannot tell the node's own addresses.
	WithoutFib bool
	Version    string
	// Machine is what was found of it, for people who ask.
	Machine nft.Found
	// KnownNode says that a node is only served with a Node object: an API server ought
	// to have it.
	KnownNode bool
	// Features are the feature gates, for metrics.
	Features []metrics.Feature
	// Count, if set, begins to count what endpoints are given; it gives nil if nobody wants
	// that. It is called once no other daemon writes the tables: the kernel has room for the
	// programs of one. What it gives is the daemon's from then on.
	Count func() (*bpf.Counters, error)
	// Lost, if set, says for how long the API server has not been heard.
	Lost func() time.Duration
	// Event, if set, tells people of a cluster what they have to know. It does not wait.
	Event func(Event)
	Log   logr.Logger
	// Written, if set, is called by the loop after each sync that ended well, with
	// the time since the first of its changes came in.
	Written func(changes int, took time.Duration)
}

// A Daemon holds the tables of a node to what its sources say. It is a
// source.Sink.
type Daemon struct {
	*mailbox
	cfg           Config
	settings      config.Settings
	addrs         addresses
	wanted        map[nft.Family]held         // what the tables are to hold of addrs
	held          map[nft.Family]held         // what they hold
	nodePortAddrs map[nft.Family][]netip.Addr // that take NodePorts
	podCIDRs      []netip.Prefix              // of the Node object; none: it has none yet
	patience      *time.Timer                 // runs while they are waited for
	hadNode       bool                        // the Node object was seen
	ledger        *plan.Ledger
	owed          *owed // what is not written yet
	// What loads left undone: see finish. When it is tried again, and what was logged.
	finishAt   map[nft.Family]time.Time
	unfinished map[nft.Family]string
	programs   map[nft.Family]*nft.Program
	monitor    *nft.Monitor
	cleaners   map[nft.Family]cleaners
	full       *fullPins
	tally      *tally
	network    *network.Network // nil: pods are connected by others
	loopback   *loopbackPorts
	rejects    map[bpf.Reject]bool // NodePorts that are refused on loopback addresses
	localhost  atomic.Bool         // whether there are metrics of them
	metrics    *metrics.Metrics
	health     *health.Proxy
	checks     *health.Services
	notes      map[string][]model.Note
	// listening is where healthCheckNodePorts are.
	listening []netip.Addr
	warned    map[string]bool
	waited    chan struct{} // holds none: another daemon wants to write them, now
	writes    chan struct{} // is closed once no other daemon writes the tables
	loaded    chan struct{} // is closed once all tables are
	fatal     chan error    // holds the first reason to end
	asks      chan func()   // are called by the loop: see ask
	history   *history
}

// New prepares a daemon. It writes nothing.
func New(cfg Config) (*Daemon, error) {
	d := &Daemon{
		mailbox:       newMailbox(),
		cfg:           cfg,
		settings:      cfg.Settings,
		addrs:         addresses{node: config.FindNodeIPs(cfg.Settings.BindAddress, nil)},
		wanted:        map[nft.Family]held{},
		held:          map[nft.Family]held{},
		programs:      map[nft.Family]*nft.Program{},
		cleaners:      map[nft.Family]cleaners{},
		nodePortAddrs: map[nft.Family][]netip.Addr{},
		finishAt:      map[nft.Family]time.Time{},
		unfinished:    map[nft.Family]string{},
		notes:         map[string][]model.Note{},
		full:          newFullPins(),
		warned:        map[string]bool{},
		waited:        make(chan struct{}),
		writes:        make(chan struct{}),
		loaded:        make(chan struct{}),
		fatal:         make(chan error, 1),
		asks:          make(chan func()),
		history:       newHistory(),
	}
	d.ledger, d.owed = plan.NewLedger(d.planConfig()), newOwed(cfg.Families)
	d.mailbox.later = d.later
	d.tally = newTally(nil, cfg.Log)
	d.loopback, d.rejects = d.newLoopback(), map[bpf.Reject]bool{}
	d.network = d.newNetwork()
	d.observe()
	monitor, err := nft.OpenMonitor(d.furtherTables()...)
	if err != nil {
		return nil, err
	}
	d.monitor = monitor
	for _, family := range cfg.Families {
		p, err := nft.Open(d.skeleton(family))
		if err != nil {
			_ = d.close()
			return nil, err
		}
		p.WatchedBy(monitor)
		d.programs[family] = p
		d.cleaners[family] = d.newCleaners(family)
		d.tally.await(plan.Family(family))
	}
	return d, nil
}

func (d *Daemon) close() error {
	var errs []error
	for _, p := range d.programs {
		errs = append(errs, p.Close())
	}
	d.loopback.close()
	errs = append(errs, d.monitor.Close(), d.tally.close())
	return errors.Join(errs...)
}

// Writes gives what is closed once no other daemon writes the tables of this network
// namespace.
func (d *Daemon) Writes() <-chan struct{} { return d.writes }

// Run works until ctx ends, or until something happens that only a restart brings in.
// It leaves the tables as they are: what was translated goes on being translated.
func (d *Daemon) Run(ctx context.Context) error {
	defer func() { _ = d.close() }()
	release, err := d.takeLock(ctx)
	if ctx.Err() != nil {
		err = nil // it was asked to end
	}
	if release == nil {
		return err
	}
	defer release()
	close(d.writes)
	if d.cfg.Count != nil {
		d.tally.use(d.cfg.Count())
	}
	var beside sync.WaitGroup
	defer beside.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil) // before it waits: a panic must end the process, not hang in it
	for _, both := range d.cleaners {
		for _, c := range both {
			beside.Go(func() { c.Run(ctx) })
		}
	}
	beside.Go(func() { d.checks.Run(ctx) })
	beside.Go(func() { d.watch(ctx) })
	beside.Go(func() { d.takeOver(ctx) })
	beside.Go(func() { d.keepNetwork(ctx) })
	beside.Go(func() { d.watchCounters(ctx) })
	beside.Go(func() { d.tally.run(ctx) })
	beside.Go(func() { d.giveWay(ctx, emptyHanded) })
	d.awaitPodCIDRs()
	defer d.stopWaiting()
	beside.Go(func() { // ends with ctx
		select {
		case <-ctx.Done():
		case err := <-d.fatal:
			cancel(err)
		}
	})
	d.history.runs()
	loop{wake: d.wake, asks: d.asks, sync: d.round, retire: d.retire, unpin: d.unpin, periods: d.periods, log: d.cfg.Log}.run(ctx)
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = cause
	}
	cancel(nil)
	return err
}

// end asks for the daemon to end, for a reason that only a restart brings in.
func (d *Daemon) end(err error) {
	select {
	case d.fatal <- err:
	default:
	}
}
