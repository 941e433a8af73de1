package daemon

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/go-logr/logr"

	"onerule/bpf"
	"onerule/daemon/model"
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
	counters *bpf.Counters // nil: nothing is counted
	log      logr.Logger
	wake     chan struct{}

	mu      sync.Mutex
	known   map[plan.Frontend]counted
	begun   map[plan.Frontend]counted // that are being written
	pending map[plan.Frontend]counted // of a load
	loaded  map[plan.Family]bool      // whose keys without an owner are to be found
	moved   uint64                    // how often counts went from one key to another
	// lacking are frontends whose keys found no room. There may be some since room.
	lacking map[plan.Frontend]bool
	room    bool
}

func newTally(c *bpf.Counters, log logr.Logger) *tally {
	return &tally{
		counters: c, log: log, wake: make(chan struct{}, 1),
		known: map[plan.Frontend]counted{}, begun: map[plan.Frontend]counted{}, pending: map[plan.Frontend]counted{},
		loaded: map[plan.Family]bool{}, lacking: map[plan.Frontend]bool{},
	}
}

func (t *tally) close() error {
	if t.counters == nil {
		return nil
	}
	return t.counters.Close()
}

// mode says how the kernel sees connections, "" if it counts none.
func (t *tally) mode() string {
	if t.counters == nil {
		return ""
	}
	return t.counters.Mode()
}

// reject has packets to these NodePorts on loopback addresses counted.
func (t *tally) reject(list []bpf.Reject) {
	if t.counters == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.say(t.counters.SetRejects(list))
}

// perTurn is how many frontends of a load are taken at once: a change waits for no more.
const perTurn = 200

// begin puts the keys of frontends that are about to change.
func (t *tally) begin(now map[plan.Frontend]counted) {
	if t.counters == nil {
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
	if t.counters == nil {
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
	if t.counters == nil {
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
	t.refill()
	return false
}

// exchange takes note of what a frontend is, and deletes the keys that it had before.
func (t *tally) exchange(f plan.Frontend, now counted) {
	was := t.known[f]
	if none := (plan.ServicePort{}); was.of != none && was.of != now.of { // gone, or another Service's
		t.delete(keysOf(f, append(slices.Clone(was.endpoints), nobody(f.InFamily()))))
		t.put(f, now.endpoints)
		was = counted{}
	}
	if now.of == (plan.ServicePort{}) {
		delete(t.known, f)
		delete(t.lacking, f)
		return
	}
	t.known[f] = now
	t.keep(f, keysOf(f, missing(was.endpoints, now.endpoints)))
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
		t.say(t.counters.Add(keysOf(f, []netip.AddrPort{nobody(f.InFamily())})[0], kept))
	}
}

func (t *tally) put(f plan.Frontend, endpoints []netip.AddrPort) {
	if len(endpoints) == 0 {
		return
	}
	err := t.counters.Put(keysOf(f, endpoints))
	if !errors.Is(err, bpf.ErrFull) {
		t.say(err)
		return
	}
	if len(t.lacking) == 0 { // once, until there was room for all
		t.say(err)
	}
	t.lacking[f] = true
}

func (t *tally) delete(keys []bpf.Key) []uint64 {
	if len(keys) == 0 {
		return nil
	}
	n, err := t.counters.Delete(keys)
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
		err := t.counters.Put(keysOf(f, both(t.known[f].endpoints, t.begun[f].endpoints)))
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
	err := t.counters.Hits(func(k bpf.Key, _ uint64) {
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

// nobody is the endpoint that is counted for all that are gone.
func nobody(family plan.Family) netip.AddrPort {
	if family == plan.IPv6 {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
}

func keysOf(f plan.Frontend, endpoints []netip.AddrPort) []bpf.Key {
	keys := make([]bpf.Key, len(endpoints))
	for i, e := range endpoints {
		keys[i] = bpf.Key{Frontend: netip.AddrPortFrom(f.Addr, f.Port), Endpoint: e, Protocol: uint8(f.Protocol)}
	}
	return keys
}

func frontendOf(k bpf.Key) plan.Frontend {
	f := plan.Frontend{Addr: k.Frontend.Addr(), Protocol: model.Protocol(k.Protocol), Port: k.Frontend.Port()}
	if !f.Addr.IsValid() {
		f.Family = plan.FamilyOf(k.Endpoint.Addr())
	}
	return f
}

// countedOf gives what is to be counted for the frontends of a family that keys name.
func (d *Daemon) countedOf(family plan.Family, keys plan.Keys, out plan.Outcome) map[plan.Frontend]counted {
	if d.tally.counters == nil {
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

// both gives what is in either of two lists that are sorted and distinct, the same way.
func both(a, b []netip.AddrPort) []netip.AddrPort {
	more := missing(b, a)
	if len(more) == 0 {
		return a
	}
	all := slices.Concat(a, more)
	slices.SortFunc(all, netip.AddrPort.Compare)
	return all
}

// missing gives what is in a list and not in another one, which is sorted.
func missing(list, other []netip.AddrPort) []netip.AddrPort {
	var more []netip.AddrPort
	for _, e := range list {
		if !has(other, e) {
			more = append(more, e)
		}
	}
	return more
}

// has says whether an endpoint is in a list that is sorted.
func has(list []netip.AddrPort, e netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(list, e, netip.AddrPort.Compare)
	return found
}
