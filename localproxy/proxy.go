// Package localproxy serves NodePorts on loopback addresses. A packet from 127.0.0.1
// can't be sent on to another host, so connections are taken here and made anew; what they
// carry stays in the kernel. TCP only.
package localproxy

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"
)

// retryAfter is how long after a port could not be had it is tried again.
const retryAfter = 5 * time.Second

// A Service is what a port leads to.
type Service struct {
	Endpoints []netip.AddrPort // at least one
	// Affinity is how long after a connection the next one goes to the same endpoint, 0
	// for not at all. Clients on this host are one client.
	Affinity time.Duration
}

// Config says whom a proxy tells what. Its functions do not wait, and may be nil.
type Config struct {
	// Failed is told of each attempt to listen that fails, and whether the one before
	// failed the same way; Served of one that succeeds after some that failed. Listening is
	// told how many addresses of a family are served whenever that changes.
	Failed    func(at netip.AddrPort, err error, again bool)
	Served    func(at netip.AddrPort)
	Listening func(ipv6 bool, n int)
	// NotTaken is told of the first of some connections that can't be taken, for want of
	// descriptors perhaps; Unanswered of one that the endpoint chosen does not answer.
	NotTaken   func(at netip.AddrPort, err error)
	Unanswered func(at, endpoint netip.AddrPort, err error)
	// Given is told of each connection that an endpoint is given, whether it takes it or not.
	Given func(at, endpoint netip.AddrPort)
	// Socket makes a socket of TCP that does not block, of a family (AF_INET or AF_INET6),
	// to reach an endpoint with; nil for one in the network of this process.
	Socket func(family int) (fd int, err error)
}

func (c Config) withDefaults() Config {
	if c.Failed == nil {
		c.Failed = func(netip.AddrPort, error, bool) {}
	}
	if c.Served == nil {
		c.Served = func(netip.AddrPort) {}
	}
	if c.Listening == nil {
		c.Listening = func(bool, int) {}
	}
	if c.NotTaken == nil {
		c.NotTaken = func(netip.AddrPort, error) {}
	}
	if c.Unanswered == nil {
		c.Unanswered = func(_, _ netip.AddrPort, _ error) {}
	}
	if c.Given == nil {
		c.Given = func(_, _ netip.AddrPort) {}
	}
	if c.Socket == nil {
		c.Socket = socket
	}
	return c
}

// A Proxy serves ports. Its methods may be called by several goroutines.
type Proxy struct {
	cfg Config

	mu     sync.Mutex
	want   map[netip.AddrPort]Service
	ports  map[netip.AddrPort]*port
	failed map[netip.AddrPort]string // what was said of a port that can't be had
	number map[bool]int              // of ports, by whether they are of IPv6
	again  *time.Timer               // runs while there are some that failed
	closed bool
	pipes  *pipes
	loop   *loop // as soon as there is a port
}

// New makes a proxy without ports.
func New(cfg Config) *Proxy {
	return &Proxy{
		cfg: cfg.withDefaults(), pipes: &pipes{size: pipeSize},
		want: map[netip.AddrPort]Service{}, ports: map[netip.AddrPort]*port{}, failed: map[netip.AddrPort]string{}, number: map[bool]int{},
	}
}

// Put serves an address from now on, and leads it to other endpoints if it is served
// already: the connections that are open stay. An address that can't be had is tried again
// every five seconds.
func (p *Proxy) Put(at netip.AddrPort, service Service) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.want[at] = service
	if one, ok := p.ports[at]; ok {
		one.set(service)
		return
	}
	p.open(at, service)
	p.tryLater()
}

// Delete serves an address no longer. Its connections end.
func (p *Proxy) Delete(at netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.want, at)
	delete(p.failed, at)
	if one, ok := p.ports[at]; ok {
		one.close()
		delete(p.ports, at)
		p.count(at, -1)
	}
}

// Listening gives the number of addresses of a family that are served.
func (p *Proxy) Listening(ipv6 bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.number[ipv6]
}

// Fault says why an address that was put is not served; "" if it is, or was not put.
func (p *Proxy) Fault(at netip.AddrPort) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed[at]
}

// count takes note of a port that came or went.
func (p *Proxy) count(at netip.AddrPort, more int) {
	ipv6 := at.Addr().Is6()
	p.number[ipv6] += more
	p.cfg.Listening(ipv6, p.number[ipv6])
}

// Keep deletes all addresses but these.
func (p *Proxy) Keep(these func(netip.AddrPort) bool) {
	p.mu.Lock()
	var gone []netip.AddrPort
	for at := range p.want {
		if !these(at) {
			gone = append(gone, at)
		}
	}
	p.mu.Unlock()
	for _, at := range gone {
		p.Delete(at)
	}
}

// Close ends all connections, and returns when nothing is left of them.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	if p.again != nil {
		p.again.Stop()
	}
	gone := slices.Collect(maps.Values(p.ports))
	clear(p.ports)
	for _, one := range gone {
		one.close()
	}
	loop := p.loop
	p.loop = nil
	p.mu.Unlock()
	if loop != nil {
		loop.end()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pipes.close()
}

// tryLater tries what failed again after a while. Other ports that come do not put it off.
func (p *Proxy) tryLater() {
	if len(p.failed) > 0 && p.again == nil {
		p.again = time.AfterFunc(retryAfter, p.retry)
	}
}

func (p *Proxy) retry() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.again = nil
	if p.closed {
		return
	}
	for _, at := range slices.Collect(maps.Keys(p.failed)) {
		p.open(at, p.want[at])
	}
	p.tryLater()
}

// open listens at an address.
func (p *Proxy) open(at netip.AddrPort, service Service) {
	one, err := p.listen(at, service)
	if err != nil {
		p.cfg.Failed(at, err, p.failed[at] == err.Error())
		p.failed[at] = err.Error()
		return
	}
	if _, ok := p.failed[at]; ok {
		p.cfg.Served(at)
		delete(p.failed, at)
	}
	p.ports[at] = one
	p.count(at, 1)
}

// listen makes a port.
func (p *Proxy) listen(at netip.AddrPort, service Service) (one *port, err error) {
	if p.loop == nil {
		if p.loop, err = newLoop(&p.mu); err != nil {
			return nil, err
		}
	}
	listener, err := listen(at)
	if err != nil {
		return nil, err
	}
	one = &port{at: at, listener: listener, cfg: p.cfg, mu: &p.mu, loop: p.loop, pipes: p.pipes, service: service, open: map[*conn]bool{}, client: -1}
	if err := p.loop.watch(listener, wantListener, one); err != nil {
		_ = syscall.Close(listener)
		return nil, err
	}
	return one, nil
}
