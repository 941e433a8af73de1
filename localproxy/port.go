package localproxy

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// dialTimeout is how long an endpoint may take to answer, as with kube-proxy.
const dialTimeout = 5 * time.Second

// A port takes the connections to one address.
type port struct {
	at       netip.AddrPort
	listener end
	cfg      Config
	pipes    *pipes
	work     sync.WaitGroup

	mu      sync.Mutex
	service Service
	pin     pin
	open    map[end]bool // both ends of each connection
	closed  bool
}

func newPort(at netip.AddrPort, l end, s Service, pipes *pipes, cfg Config) *port {
	return &port{at: at, listener: l, cfg: cfg, pipes: pipes, service: s, open: map[end]bool{}}
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
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	_ = p.listener.Close()
	for e := range p.open {
		e.reset()
	}
}

// pause is how long after a connection could not be taken, for want of descriptors
// perhaps, the next one is.
const pause = 100 * time.Millisecond

// serve takes connections until the listener is closed.
func (p *port) serve() {
	said := false
	for {
		client, err := p.accept()
		switch {
		case p.isClosed(): // with the client, if there is one
			_ = client.Close()
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

func (p *port) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// accept waits for the next client.
func (p *port) accept() (client end, err error) {
	fd := -1
	waited := p.listener.raw.Read(func(l uintptr) bool {
		for {
			fd, _, err = syscall.Accept4(int(l), syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK)
			if !errors.Is(err, syscall.EINTR) && !errors.Is(err, syscall.ECONNABORTED) {
				return !errors.Is(err, syscall.EAGAIN)
			}
		}
	})
	if err = errors.Join(waited, os.NewSyscallError("accept4", err)); err != nil {
		return end{}, err
	}
	return newEnd(fd)
}

// join connects a client with an endpoint until both have said all.
func (p *port) join(client end) {
	defer func() { _ = client.Close() }()
	if !p.keep(client) {
		return
	}
	defer p.forget(client)
	endpoint := p.choose(time.Now())
	server, err := p.cfg.connect(endpoint)
	if err != nil {
		p.cfg.Unanswered(p.at, endpoint, err)
		client.reset()
		return
	}
	p.cfg.Given(p.at, endpoint)
	defer func() { _ = server.Close() }()
	if !p.keep(server) {
		return
	}
	defer p.forget(server)
	if err := server.awaitAnswer(endpoint, dialTimeout); err != nil {
		p.cfg.Unanswered(p.at, endpoint, err)
		client.reset()
		return
	}
	p.pipes.both(client, server)
}

// keep takes note of an end, so that close ends it.
func (p *port) keep(e end) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.open[e] = true
	return true
}

func (p *port) forget(e end) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, e)
}
