package localproxy

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"
)

// A port takes the connections to one address. Who uses it holds the lock.
type port struct {
	at       netip.AddrPort
	listener int
	cfg      Config
	mu       *sync.Mutex // the proxy's
	loop     *loop
	pipes    *pipes

	service Service
	pin     pin
	open    map[*conn]bool
	client  int         // one that was taken and waits for descriptors, or -1
	pause   *time.Timer // runs while no connections are taken
	said    bool        // that they can't be
}

// A pin is the endpoint that connections go to for a time.
type pin struct {
	endpoint netip.AddrPort
	until    time.Time
}

// set exchanges what the port leads to. The pin stays if it still may.
func (p *port) set(s Service) {
	if s.Affinity != p.service.Affinity || !slices.Contains(s.Endpoints, p.pin.endpoint) {
		p.pin = pin{}
	}
	p.service = s
}

// choose gives an endpoint for a connection.
func (p *port) choose(now time.Time) netip.AddrPort {
	endpoint := p.service.Endpoints[rand.IntN(len(p.service.Endpoints))]
	if p.service.Affinity <= 0 {
		return endpoint
	}
	if now.Before(p.pin.until) {
		endpoint = p.pin.endpoint
	}
	p.pin = pin{endpoint, now.Add(p.service.Affinity)}
	return endpoint
}

// close ends listening and all connections.
func (p *port) close() {
	if p.pause != nil {
		p.pause.Stop()
	}
	p.loop.ignore(p.listener)
	_ = syscall.Close(p.listener)
	p.listener = -1
	if p.client >= 0 {
		reset(p.client)
	}
	for c := range p.open {
		c.end(reset)
	}
}

const (
	// pauseFor is how long after a connection could not be taken, for want of descriptors
	// perhaps, the next one is.
	pauseFor = 100 * time.Millisecond
	// atOnce is how many clients are taken before others have their turn.
	atOnce = 64
)

// ready takes clients that wait.
func (p *port) ready(int, uint32) {
	for range atOnce {
		err := p.serve()
		if errors.Is(err, syscall.EAGAIN) {
			return
		}
		if err != nil {
			p.rest(err)
			return
		}
		p.said = false
	}
}

// serve takes one client; EAGAIN: nobody waits.
func (p *port) serve() (err error) {
	client := p.client
	p.client = -1
	if client < 0 {
		if client, err = accept(p.listener); err != nil {
			return err
		}
	}
	if err := p.lead(client); err != nil {
		p.client = client
		return err
	}
	return nil
}

// rest takes no clients for a while.
func (p *port) rest(err error) {
	if !p.said {
		p.cfg.NotTaken(p.at, err)
	}
	p.said = true
	p.loop.ignore(p.listener)
	p.pause = time.AfterFunc(pauseFor, p.goOn)
}

func (p *port) goOn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener < 0 {
		return
	}
	if err := p.loop.watch(p.listener, wantListener, p); err != nil {
		p.rest(err)
		return
	}
	p.ready(p.listener, 0)
}
