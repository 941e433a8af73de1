package daemon

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"onerule/daemon/model"
	"onerule/daemon/plan"
	"onerule/nft"
)

const (
	// countersEvery is how often counters are read that nobody asks the metrics for.
	countersEvery = time.Minute
	// fullAgain is how long after it was told that a map of pins is full it is told
	// again, if it still is.
	fullAgain = 10 * time.Minute
)

// A pinMap is of one service port in one family. The ID is that of an nft.Affinity.
type pinMap struct {
	family nft.Family
	id     string
}

// fullPins holds how many connections found a map of pins full, and whether that was
// told. Its methods may be called from any goroutine.
type fullPins struct {
	reading map[nft.Family]*sync.Mutex // one reader at a time: the older reading is taken in first
	mu      sync.Mutex
	counted map[nft.Family]map[string]uint64 // what the kernel last said, by ID
	untold  map[pinMap]uint64
	told    map[pinMap]time.Time
}

func newFullPins() *fullPins {
	return &fullPins{
		reading: map[nft.Family]*sync.Mutex{nft.IPv4: {}, nft.IPv6: {}},
		counted: map[nft.Family]map[string]uint64{}, untold: map[pinMap]uint64{}, told: map[pinMap]time.Time{},
	}
}

// read takes in what the counters of a table are now, and says whether any tells of a full
// map.
func (p *fullPins) read(family nft.Family, counters func(nft.Family) (map[string]uint64, error)) (named map[string]uint64, more bool, err error) {
	p.reading[family].Lock()
	defer p.reading[family].Unlock()
	named, err = counters(family)
	return named, err == nil && p.counts(family, named), err
}

// counts does so. What a table counted before it was first read is history.
func (p *fullPins) counts(family nft.Family, named map[string]uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	before, known := p.counted[family]
	now, more := map[string]uint64{}, false
	for name, n := range named {
		id, ok := strings.CutPrefix(name, nft.PinsFullPrefix)
		if !ok {
			continue
		}
		now[id] = n
		if n < before[id] {
			before[id] = 0 // it began anew
		}
		if known && n > before[id] {
			p.untold[pinMap{family, id}] += n - before[id]
			more = true
		}
	}
	for id := range before {
		if _, still := now[id]; !still {
			delete(p.untold, pinMap{family, id})
			delete(p.told, pinMap{family, id})
		}
	}
	p.counted[family] = now
	return more
}

// take gives what is to be told now, and takes it for told.
func (p *fullPins) take(now time.Time) map[pinMap]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := map[pinMap]uint64{}
	for which, n := range p.untold {
		if last, told := p.told[which]; told && now.Sub(last) < fullAgain {
			continue
		}
		list[which] = n
		p.told[which] = now
		delete(p.untold, which)
	}
	return list
}

// watchCounters reads counters from time to time until ctx ends, so that it is told what
// they say although nobody asks for metrics.
func (d *Daemon) watchCounters(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-d.loaded:
	}
	tick := time.NewTicker(countersEvery)
	defer tick.Stop()
	for {
		for _, f := range d.cfg.Families {
			if _, err := d.readCounters(f); err != nil {
				d.cfg.Log.Error(err, "it is not known whether clients find no room in session affinity")
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// readCounters reads what the rules of a family have counted.
func (d *Daemon) readCounters(f nft.Family) (map[string]uint64, error) {
	named, more, err := d.full.read(f, nft.Counters)
	if more {
		d.poke()
	}
	return named, err
}

// tellFull says which service ports have more clients than their affinity has room for.
func (d *Daemon) tellFull(now time.Time) {
	full := d.full.take(now)
	if len(full) == 0 {
		return
	}
	for port := range d.ledger.All().Affinities {
		n, ok := full[pinMap{nft.Family(port.Family), affinityID(port)}]
		if !ok {
			continue
		}
		d.cfg.Log.Info("session affinity has no room for more clients, theirs are balanced without it",
			"service", port.Service.String(), "port", port.Port, "protocol", port.Protocol.String(), "family", familyLabel(nft.Family(port.Family)), "connections", n)
		d.event(fullEvent(d.cfg.Settings.Node, port, n))
	}
}

func fullEvent(node string, port plan.ServicePort, n uint64) Event {
	return Event{
		Object: model.Key{Kind: model.KindService, Name: port.Service}, Reason: "SessionAffinityFull",
		Note: fmt.Sprintf("node %s: %d connections to port %q (%s, %s) are of clients that session affinity has no room for: they are balanced without it", node, n, port.Port, port.Protocol, familyLabel(nft.Family(port.Family))),
	}
}
