package daemon

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"

	"onerule/bpf"
	"onerule/daemon/plan"
)

// counted is what the kernel counts for a frontend.
type counted struct {
	of        plan.ServicePort
	endpoints []netip.AddrPort // sorted and distinct; none: it is nobody's, or refuses
}

// A tally has the kernel count the connections that each endpoint of a frontend is given.
// Changes take the keys with them; those of a load follow beside the loop. What endpoints
// have counted that are gone is kept for their frontend, under an endpoint of zeros.
type tally struct {
	counters atomic.Pointer[bpf.Counters] // nil: nothing is counted, or not yet
	log      logr.Logger
	wake     chan struct{}
	proxied  proxied

	mu      sync.Mutex
	known   map[plan.Frontend]counted
	begun   map[plan.Frontend]counted // that are being written
	pending map[plan.Frontend]counted // of a load
	loaded  map[plan.Family]bool      // whose keys without an owner are to be found
	// awaited are the families of which no load came yet. The sums are whole once there is
	// none and all was brought in.
	awaited map[plan.Family]bool
	whole   bool
	moved   uint64 // how often counts went from one key to another
	// lacking are frontends whose keys found no room. There may be some since room.
	lacking map[plan.Frontend]bool
	room    bool
	why     error // nothing is counted
}

func newTally(c *bpf.Counters, log logr.Logger) *tally {
	t := &tally{
		log: log, wake: make(chan struct{}, 1),
		known: map[plan.Frontend]counted{}, begun: map[plan.Frontend]counted{}, pending: map[plan.Frontend]counted{},
		loaded: map[plan.Family]bool{}, lacking: map[plan.Frontend]bool{},
		awaited: map[plan.Family]bool{}, whole: true,
	}
	t.use(c, nil)
	return t
}

// use takes the counters, or why there are none. Nothing has been counted before.
func (t *tally) use(c *bpf.Counters, why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counters.Store(c)
	t.why = why
}

// await has nothing told before a family was loaded.
func (t *tally) await(family plan.Family) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.awaited[family], t.whole = true, false
}

// off says why nothing is counted; nil: it is, or nobody wants it.
func (t *tally) off() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.why
}

func (t *tally) close() error {
	if t.counters.Load() == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settle()
	return t.counters.Load().Close()
}

// mode says how the kernel sees connections, "" if it counts none.
func (t *tally) mode() string {
	if t.counters.Load() == nil {
		return ""
	}
	return t.counters.Load().Mode()
}

// reject has packets to these NodePorts on loopback addresses counted.
func (t *tally) reject(list []bpf.Reject) {
	if t.counters.Load() == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.say(t.counters.Load().SetRejects(list))
}

// perTurn is how many frontends of a load are taken at once: a change waits for no more.
const perTurn = 200

// begin puts the keys of frontends that are about to change.
func (t *tally) begin(now map[plan.Frontend]counted) {
	if t.counters.Load() == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for f, c := range now {
		delete(t.pending, f) // older than this
		t.begun[f] = c
		t.put(f, missing(c.endpoints, t.known[f].endpoints))
	}
}

// end deletes the keys that frontends had before they changed. Without it what was begun
// failed, and a load follows.
func (t *tally) end(now map[plan.Frontend]counted) {
	if t.counters.Load() == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for f, c := range now {
		delete(t.begun, f)
		t.exchange(f, c)
	}
}

// load says what all frontends of a family are.
func (t *tally) load(family plan.Family, now map[plan.Frontend]counted) {
	if t.counters.Load() == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for f := range t.known {
		if _, still := now[f]; !still && f.InFamily() == family {
			t.pending[f] = counted{}
		}
	}
	maps.DeleteFunc(t.begun, func(f plan.Frontend, _ counted) bool { return f.InFamily() == family })
	maps.Copy(t.pending, now)
	t.loaded[family] = true
	delete(t.awaited, family)
	t.wakeUp()
}

func (t *tally) wakeUp() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// run brings in what loads leave, until ctx ends.
func (t *tally) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		}
		for ctx.Err() == nil && t.turn() {
			// another one
		}
		t.sweep(ctx)
	}
}

// turn takes some of what a load left in, and says whether there is more.
func (t *tally) turn() (more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for f, c := range t.pending {
		if n++; n > perTurn {
			return true
		}
		delete(t.pending, f)
		t.put(f, missing(c.endpoints, t.known[f].endpoints))
		t.exchange(f, c)
	}
	t.whole = t.whole || len(t.awaited) == 0
	t.refill()
	t.settle()
	return false
}

// exchange takes note of what a frontend is, and deletes the keys that it had before.
func (t *tally) exchange(f plan.Frontend, now counted) {
	was, none := t.known[f], plan.ServicePort{}
	if was.of != none {
		t.settle()
	}
	if was.of != none && was.of != now.of { // gone, or another Service's
		t.delete(allKeysOf(f, append(slices.Clone(was.endpoints), nobody(f.InFamily()))))
		t.put(f, now.endpoints)
		was = counted{}
	}
	if now.of == none {
		delete(t.known, f)
		delete(t.lacking, f)
		return
	}
	t.known[f] = now
	t.keep(f, allKeysOf(f, missing(was.endpoints, now.endpoints)))
}

// keep deletes keys of endpoints that are gone, and keeps what they counted for their
// frontend.
func (t *tally) keep(f plan.Frontend, gone []bpf.Key) {
	var kept uint64
	for _, n := range t.delete(gone) {
		kept += n
	}
	if kept > 0 {
		t.moved++
		t.say(t.counters.Load().Add(keysOf(f, []netip.AddrPort{nobody(f.InFamily())})[0], kept))
	}
}

func (t *tally) put(f plan.Frontend, endpoints []netip.AddrPort) {
	if len(endpoints) == 0 {
		return
	}
	err := t.counters.Load().Put(keysOf(f, endpoints))
	if !errors.Is(err, bpf.ErrFull) {
		t.say(err)
		return
	}
	t.lacks(f, err)
}

// lacks takes note of a frontend that finds no room.
func (t *tally) lacks(f plan.Frontend, err error) {
	if len(t.lacking) == 0 { // once, until there was room for all
		t.say(err)
	}
	t.lacking[f] = true
}

func (t *tally) delete(keys []bpf.Key) []uint64 {
	if len(keys) == 0 {
		return nil
	}
	n, err := t.counters.Load().Delete(keys)
	t.say(err)
	if len(t.lacking) > 0 {
		t.room = true
		t.wakeUp()
	}
	return n
}

// refill puts what found no room, as far as there is some now.
func (t *tally) refill() {
	for f := range t.lacking {
		if !t.room {
			return
		}
		err := t.counters.Load().Put(keysOf(f, both(t.known[f].endpoints, t.begun[f].endpoints)))
		if t.room = !errors.Is(err, bpf.ErrFull); t.room {
			t.say(err)
			delete(t.lacking, f)
		}
	}
}

// say logs what went wrong.
func (t *tally) say(err error) {
	if err != nil {
		t.log.Error(err, "connections of some endpoints are not counted")
	}
}

// isFull says whether there is no room for all keys.
func (t *tally) isFull() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.lacking) > 0
}

// sweep deletes the keys of daemons before this one that are not wanted any more, and
// those of changes that failed. What endpoints counted that left while no daemon ran is
// kept. Reading takes its time: no change waits for that.
func (t *tally) sweep(ctx context.Context) {
	t.mu.Lock()
	loaded := maps.Clone(t.loaded)
	clear(t.loaded)
	t.mu.Unlock()
	if len(loaded) == 0 {
		return
	}
	gone := map[plan.Frontend][]bpf.Key{}
	err := t.counters.Load().Hits(func(k bpf.Key, _ uint64) {
		if f := frontendOf(k); loaded[f.InFamily()] {
			gone[f] = append(gone[f], k)
		}
	})
	t.say(err)
	for f, keys := range gone {
		if ctx.Err() != nil {
			return
		}
		t.sweepOne(f, keys)
	}
}

// sweepOne looks at all keys of a frontend.
func (t *tally) sweepOne(f plan.Frontend, keys []bpf.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known, ours := t.known[f]
	begun, begins := t.begun[f]
	gone := slices.DeleteFunc(keys, func(k bpf.Key) bool {
		return has(known.endpoints, k.Endpoint) || has(begun.endpoints, k.Endpoint) || k.Endpoint == nobody(f.InFamily()) && (ours || begins)
	})
	if ours {
		t.keep(f, gone)
		return
	}
	t.delete(gone)
}

// countedOf gives what is to be counted for the frontends of a family that keys name.
func (d *Daemon) countedOf(family plan.Family, keys plan.Keys, out plan.Outcome) map[plan.Frontend]counted {
	if d.tally.counters.Load() == nil {
		return nil
	}
	list := map[plan.Frontend]counted{}
	for f := range keys.Frontends {
		if f.InFamily() != family {
			continue
		}
		decision, ours := out.Decisions[f]
		if !ours {
			list[f] = counted{}
			continue
		}
		list[f] = counted{
			of:        plan.ServicePort{Service: d.ledger.Owner(f), Port: decision.PortName, Protocol: f.Protocol, Family: family},
			endpoints: both(decision.Endpoints, decision.LocalEndpoints),
		}
	}
	return list
}
