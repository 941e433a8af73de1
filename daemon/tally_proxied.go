package daemon

import (
	"errors"
	"net/netip"
	"sync"
	"time"

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
	due    bool // somebody will come for them
}

// settleAfter is how long connections may wait. To add each one at once took a sixth of the
// time that a client waits for his first byte.
const settleAfter = 100 * time.Millisecond

// count takes note of a connection, and says whether nobody comes for what waits: the
// caller is to see to it then.
func (p *proxied) count(k bpf.Key) (news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.put(k, 1)
	news = !p.due
	p.due = true
	return news
}

// keep lets some wait longer.
func (p *proxied) keep(k bpf.Key, n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.put(k, n)
}

func (p *proxied) put(k bpf.Key, n uint64) {
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
	p.counts, p.due = nil, false
	return counts
}

// gave takes note of a connection to a loopback address that an endpoint is given. It does
// not wait.
func (t *tally) gave(at, endpoint netip.AddrPort) {
	if t.counters.Load() == nil {
		return
	}
	if t.proxied.count(bpf.Key{Frontend: at, Endpoint: endpoint, Protocol: uint8(model.TCP)}) {
		time.AfterFunc(settleAfter, t.wakeUp)
	}
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
			t.proxied.keep(k, n)
			continue
		case !ours:
			continue
		}
		err := t.counters.Load().Add(k, n)
		if errors.Is(err, bpf.ErrFull) {
			t.proxied.keep(k, n)
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
