package localproxy

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// dialTimeout is how long an endpoint may take to answer, as with kube-proxy.
const dialTimeout = 5 * time.Second

// A port takes the connections to one address.
type port struct {
	at       netip.AddrPort
	listener *net.TCPListener
	cfg      Config
	pipes    *pipes
	work     sync.WaitGroup

	mu      sync.Mutex
	service Service
	pin     pin
	open    map[*net.TCPConn]bool // both ends of each connection
	closed  bool
	ctx     context.Context // of attempts to reach an endpoint
	cancel  context.CancelFunc
}

func newPort(at netip.AddrPort, l *net.TCPListener, s Service, pipes *pipes, cfg Config) *port {
	p := &port{at: at, listener: l, cfg: cfg, pipes: pipes, service: s, open: map[*net.TCPConn]bool{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// A pin is the endpoint that connections go to for a time.
type pin struct {
	endpoint netip.AddrPort
	until    time.Time
}

// set exchanges what the port leads to. The pin stays if it still may.
func (p *port) set(s Service) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.Affinity != p.service.Affinity || !slices.Contains(s.Endpoints, p.pin.endpoint) {
		p.pin = pin{}
	}
	p.service = s
}

// choose gives an endpoint for a connection.
func (p *port) choose(now time.Time) netip.AddrPort {
	p.mu.Lock()
	defer p.mu.Unlock()
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
	_ = p.listener.Close()
	p.cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for conn := range p.open {
		reset(conn)
		_ = conn.Close()
	}
}

// pause is how long after a connection could not be taken, for want of descriptors
// perhaps, the next one is.
const pause = 100 * time.Millisecond

// serve takes connections until the listener is closed.
func (p *port) serve() {
	said := false
	for {
		client, err := p.listener.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			if !said {
				p.cfg.NotTaken(p.at, err)
			}
			said = true
			time.Sleep(pause)
			continue
		}
		said = false
		p.work.Go(func() { p.join(client) })
	}
}

// join connects a client with an endpoint until both have said all.
func (p *port) join(client *net.TCPConn) {
	defer func() { _ = client.Close() }()
	if !p.keep(client) {
		return
	}
	defer p.forget(client)
	endpoint := p.choose(time.Now())
	ctx, cancel := context.WithTimeout(p.ctx, dialTimeout)
	defer cancel()
	server, err := p.cfg.Dial(ctx, endpoint)
	if err != nil {
		p.cfg.Unanswered(p.at, endpoint, err)
		reset(client)
		return
	}
	defer func() { _ = server.Close() }()
	if !p.keep(server) {
		return
	}
	defer p.forget(server)
	p.pipes.both(client, server)
}

// keep takes note of an end, so that close ends it.
func (p *port) keep(conn *net.TCPConn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.open[conn] = true
	return true
}

func (p *port) forget(conn *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, conn)
}

// reset makes the other end see that the connection failed, not that it ended.
func reset(conn *net.TCPConn) { _ = conn.SetLinger(0) }
