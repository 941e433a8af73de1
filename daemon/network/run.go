package network

import (
	"context"
	"sync"
	"time"

	"onerule/daemon/podlink"
	"onerule/nft"
)

// Timing of the loop.
const (
	// patience is how long the tables of Services come first: the monitor that watches
	// them counts who wrote before it listened.
	patience = 10 * time.Second
	// settle is how long after a change of foreign rules they are looked at: a firewall
	// that is loaded again makes many.
	settle = time.Second
	// lookEvery is how often everything is looked at that nobody tells of.
	lookEvery = 30 * time.Second
	// localnetEvery is how often route_localnet is looked for, which lets others in at once.
	// It is a file for each device.
	localnetEvery = 2 * time.Second
	// A failed write is tried again after firstRetry, then twice as long each time.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
	// between is how long after a pass the next one begins: whoever goes on changing our
	// tables does not keep the machine busy.
	between = 250 * time.Millisecond
)

// Run works until ctx ends, in the network namespace of the process. monitor watches
// Tables, and services is closed once the tables of Services are loaded. What was made
// stays.
func (n *Network) Run(ctx context.Context, monitor *nft.Monitor, services <-chan struct{}) error {
	t, err := openTables(n, monitor)
	if err != nil {
		return err
	}
	defer t.close()
	n.raiseNeighbours()
	var beside sync.WaitGroup
	defer beside.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	beside.Go(func() { n.connect(ctx) })
	beside.Go(func() { n.keepLinks(ctx) })
	beside.Go(func() { n.newSweeper().run(ctx, sweepEvery) })
	if n.keeper != nil {
		beside.Go(func() { n.keeper.Run(ctx) })
	}
	r := reporter{network: n, status: status{path: n.cfg.Settings.StatusFile, log: n.cfg.Log}}
	l := loop{network: n, tables: t, reports: &r, elsewhere: monitor.Elsewhere(), services: services}
	l.run(ctx)
	return nil
}

// connect keeps the fabric running until ctx ends.
func (n *Network) connect(ctx context.Context) {
	n.keep(ctx, "routes between nodes are not kept, beginning again", func(ctx context.Context) error {
		err := n.fabric.Run(ctx)
		n.put(func() { n.changed = true }) // it has to be told of the nodes again
		return err
	})
}

// keepLinks keeps the links of pods until ctx ends.
func (n *Network) keepLinks(ctx context.Context) {
	n.keep(ctx, "links of pods are not kept, beginning again", func(ctx context.Context) error {
		return podlink.New(podlink.Config{
			State: n.cfg.Settings.CNIState, Sysctls: n.cfg.Sysctls, Log: n.cfg.Log, Foreign: n.repaired,
		}).Run(ctx)
	})
}

// keep runs something again and again until ctx ends.
func (n *Network) keep(ctx context.Context, failed string, run func(context.Context) error) {
	for {
		err := run(ctx)
		if ctx.Err() != nil {
			return
		}
		n.cfg.Log.Error(err, failed, "after", time.Second)
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}

// A loop is the goroutine that writes the tables and tells people.
type loop struct {
	network   *Network
	tables    *tables
	reports   *reporter
	elsewhere <-chan struct{}
	services  <-chan struct{}
}

func (l loop) run(ctx context.Context) {
	every := time.NewTicker(lookEvery)
	defer every.Stop()
	localnet := time.NewTicker(localnetEvery)
	defer localnet.Stop()
	look, retry, pause := time.After(0), (<-chan time.Time)(nil), (<-chan time.Time)(nil)
	first := time.After(patience)
	wait := firstRetry
	for {
		wake := l.network.wake
		if pause != nil {
			wake = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-l.services:
			l.services, l.tables.due = nil, true
		case <-first:
			l.tables.due = true
		case <-l.elsewhere:
			if look == nil {
				look = time.After(settle)
			}
			continue
		case <-look:
			look = nil
			l.reports.look()
			l.say()
			continue
		case <-localnet.C:
			l.reports.localnet()
			continue
		case <-every.C:
			l.reports.look()
			l.tables.doubtPorts()
		case <-pause:
			pause = nil
			continue
		case <-retry:
		}
		retry = nil
		if err := l.pass(ctx); err != nil && ctx.Err() == nil {
			l.network.cfg.Log.Error(err, "the tables of the pod network are not as they should be, trying again", "after", wait)
			retry = time.After(wait)
			wait = min(2*wait, lastRetry)
		} else {
			wait = firstRetry
		}
		pause = time.After(between)
	}
}

// pass brings in what came in.
func (l loop) pass(ctx context.Context) error {
	p := l.network.take()
	if p.nodes != nil {
		l.network.fabric.Set(l.network.cfg.Node, p.nodes)
		l.reports.know(p.nodes)
	}
	l.reports.problems(p.problems)
	l.tables.found(p.found)
	err := l.tables.bring(ctx)
	l.reports.failing(err)
	l.say()
	return err
}

// say tells the plugin how things are, and the container runtime once all is there: the
// tables of Services and ours, and routes to the other nodes. What is seen may be as old as
// lookEvery, so it looks again before that.
func (l loop) say() {
	served := l.services == nil && l.tables.brought
	l.reports.status.served = served
	if !l.reports.say() || !served || !l.network.unpublished() {
		return
	}
	l.reports.look()
	if l.reports.say() {
		l.network.publish()
	}
}
