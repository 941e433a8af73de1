package daemon

import (
	"errors"
	"net/netip"
	"sync"

	"onerule/bpf"
	"onerule/daemon/model"
	"onerule/daemon/plan"
)

// proxied are connections that the daemon itself has made for NodePorts on loopback
// addresses, until they are added to what the kernel counts. Their keys have the loopback
// address as frontend: no program counts for them, so adding to them loses nothing, and
// they outlive the daemon like the others.
type proxied struct {
	mu     sync.Mutex
	counts map[bpf.Key]uint64
}

// add counts some connections.
func (p *proxied) add(k bpf.Key, n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counts == nil {
		p.counts = map[bpf.Key]uint64{}
	}
	p.counts[k] += n
}

// take gives what waits, which is the caller's then.
func (p *proxied) take() map[bpf.Key]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	counts := p.counts
	p.counts = nil
	return counts
}

// gave takes note of a connection to a loopback address that an endpoint is given. It does
// not wait.
func (t *tally) gave(at, endpoint netip.AddrPort) {
	if t.counters.Load() == nil {
		return
	}
	t.proxied.add(bpf.Key{Frontend: at, Endpoint: endpoint, Protocol: uint8(model.TCP)}, 1)
	t.wakeUp()
}

// settle adds what waits to what is counted. The caller holds the lock.
func (t *tally) settle() {
	for k, n := range t.proxied.take() {
		f := frontendOf(k)
		c, ours := t.known[f]
		switch {
		case ours && !has(c.endpoints, k.Endpoint): // it has left since
			k = keysOf(f, []netip.AddrPort{nobody(f.InFamily())})[0]
		case !ours && t.isToCome(f):
			t.proxied.add(k, n)
			continue
		case !ours:
			continue
		}
		err := t.counters.Load().Add(k, n)
		if errors.Is(err, bpf.ErrFull) {
			t.proxied.add(k, n)
			t.lacks(f, err)
			continue
		}
		t.say(err)
	}
}

// isToCome says whether a frontend is one that is being written, or of a load.
func (t *tally) isToCome(f plan.Frontend) bool {
	none := plan.ServicePort{}
	return t.begun[f].of != none || t.pending[f].of != none
}
