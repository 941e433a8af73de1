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
	"onerule/daemon/metrics"
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
	pending map[plan.Frontend]counted // of a load
	swept   bool                      // nothing of earlier daemons is left
	full    bool
}

func newTally(c *bpf.Counters, log logr.Logger) *tally {
	return &tally{counters: c, log: log, wake: make(chan struct{}, 1), known: map[plan.Frontend]counted{}, pending: map[plan.Frontend]counted{}}
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

// hits gives what was counted, by service port and endpoint.
func (t *tally) hits() ([]metrics.Hit, error) {
	read := map[bpf.Key]uint64{}
	if err := t.counters.Hits(func(k bpf.Key, n uint64) { read[k] = n }); err != nil {
		return nil, err
	}
	type endpoint struct {
		metrics.ServicePort
		address string
	}
	sums := map[endpoint]uint64{}
	t.mu.Lock()
	for k, n := range read {
		c, ours := t.known[frontendOf(k)]
		if !ours {
			continue
		}
		e := endpoint{ServicePort: metrics.ServicePort{
			Namespace: c.of.Service.Namespace, Service: c.of.Service.Name, Port: c.of.Port, Protocol: c.of.Protocol.String(),
		}}
		if k.Endpoint != nobody(c.of.Family) {
			e.address = k.Endpoint.String()
		}
		sums[e] += n
	}
	t.mu.Unlock()
	list := make([]metrics.Hit, 0, len(sums))
	for e, n := range sums {
		list = append(list, metrics.Hit{ServicePort: e.ServicePort, Endpoint: e.address, Connections: n})
	}
	return list, nil
}

// rejected gives the packets to NodePorts on loopback addresses that were refused, by
// protocol.
func (t *tally) rejected(ipv6 bool) (map[string]uint64, error) {
	if t.counters == nil {
		return nil, nil
	}
	sums := map[string]uint64{}
	err := t.counters.Rejects(func(r bpf.Reject, n uint64) {
		if r.IPv6 == ipv6 {
			sums[model.Protocol(r.Protocol).String()] += n
		}
	})
	return sums, err
}

// reject has packets to these NodePorts on loopback addresses counted.
func (t *tally) reject(list []bpf.Reject) {
	if t.counters != nil {
		t.say(t.counters.SetRejects(list))
	}
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
		t.put(f, missing(c.endpoints, t.known[f].endpoints))
	}
}

// end deletes the keys that frontends had before they changed.
func (t *tally) end(now map[plan.Frontend]counted) {
	if t.counters == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for f, c := range now {
		delete(t.pending, f)
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
	maps.Copy(t.pending, now)
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
	if !t.swept {
		t.swept = true
		t.sweep()
	}
	return false
}

// exchange takes note of what a frontend is, and deletes the keys that it had before.
func (t *tally) exchange(f plan.Frontend, now counted) {
	gone := keysOf(f, missing(t.known[f].endpoints, now.endpoints))
	if len(now.endpoints) == 0 && now.of == (plan.ServicePort{}) {
		delete(t.known, f)
		gone = append(gone, keysOf(f, []netip.AddrPort{nobody(f.InFamily())})...)
		t.delete(gone)
		return
	}
	t.known[f] = now
	var kept uint64
	for _, n := range t.delete(gone) {
		kept += n
	}
	if kept > 0 {
		t.say(t.counters.Add(keysOf(f, []netip.AddrPort{nobody(f.InFamily())})[0], kept))
	}
}

func (t *tally) put(f plan.Frontend, endpoints []netip.AddrPort) {
	if len(endpoints) > 0 {
		t.say(t.counters.Put(keysOf(f, endpoints)))
	}
}

func (t *tally) delete(keys []bpf.Key) []uint64 {
	if len(keys) == 0 {
		return nil
	}
	n, err := t.counters.Delete(keys)
	t.say(err)
	return n
}

// say logs what went wrong, a full map once until there is room again.
func (t *tally) say(err error) {
	full := errors.Is(err, bpf.ErrFull)
	if err != nil && !(full && t.full) {
		t.log.Error(err, "connections of some endpoints are not counted")
	}
	if err == nil || full {
		t.full = full
	}
}

// sweep deletes the keys of daemons before this one that are not wanted any more.
func (t *tally) sweep() {
	var gone []bpf.Key
	err := t.counters.Hits(func(k bpf.Key, _ uint64) {
		f := frontendOf(k)
		c, ours := t.known[f]
		if ours && (k.Endpoint == nobody(f.InFamily()) || slices.Contains(c.endpoints, k.Endpoint)) {
			return
		}
		gone = append(gone, k)
	})
	t.say(err)
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
		if _, found := slices.BinarySearchFunc(other, e, netip.AddrPort.Compare); !found {
			more = append(more, e)
		}
	}
	return more
}
