package localproxy

import (
	"errors"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// dialTimeout is how long an endpoint may take to answer, as with kube-proxy.
const dialTimeout = 5 * time.Second

// A conn leads a client to an endpoint.
type conn struct {
	port           *port
	endpoint       netip.AddrPort
	client, server side
	patience       *time.Timer // until the endpoint has answered
	joined, ended  bool
}

// lead connects a client with an endpoint, or resets it.
func (p *port) lead(client int) {
	c := &conn{port: p, endpoint: p.choose(time.Now()), client: side{fd: client}}
	server, err := p.cfg.connect(c.endpoint)
	if err != nil {
		p.cfg.Unanswered(p.at, c.endpoint, err)
		reset(client)
		return
	}
	p.cfg.Given(p.at, c.endpoint)
	c.server.fd = server
	p.open[c] = true
	if c.join(); c.joined || c.ended {
		return
	}
	c.patience = time.AfterFunc(dialTimeout, c.late)
	if err := p.loop.watch(server, wantSide, c); err != nil {
		c.unanswered(err)
	}
}

// join begins to carry if the endpoint has answered.
func (c *conn) join() {
	answered, err := hasAnswered(c.server.fd, c.endpoint)
	if err != nil {
		c.unanswered(err)
	}
	if !answered {
		return
	}
	c.joined = true
	for _, s := range []*side{&c.client, &c.server} {
		s.readable, s.writable = true, true
	}
	err = c.port.loop.watch(c.client.fd, wantSide, c)
	if err == nil && c.patience == nil {
		err = c.port.loop.watch(c.server.fd, wantSide, c)
	}
	if err != nil {
		c.end(reset)
		return
	}
	if c.patience != nil {
		c.patience.Stop()
	}
	c.carry()
}

// late ends a connection that the endpoint has not answered.
func (c *conn) late() {
	c.port.mu.Lock()
	defer c.port.mu.Unlock()
	if !c.joined && !c.ended {
		c.unanswered(os.ErrDeadlineExceeded)
	}
}

func (c *conn) unanswered(err error) {
	c.port.cfg.Unanswered(c.port.at, c.endpoint, err)
	c.end(reset)
}

// ready looks at a connection with a socket that something happened to.
func (c *conn) ready(fd int, events uint32) {
	s := &c.client
	if fd == c.server.fd {
		s = &c.server
	}
	const broken = syscall.EPOLLERR | syscall.EPOLLHUP
	s.readable = s.readable || events&(syscall.EPOLLIN|syscall.EPOLLRDHUP|broken) != 0
	s.writable = s.writable || events&(syscall.EPOLLOUT|broken) != 0
	if c.joined {
		c.carry()
		return
	}
	c.join()
}

// carry moves in both directions what there is.
func (c *conn) carry() {
	if c.ended {
		return
	}
	pipes := c.port.pipes
	more, err := pipes.carry(&c.server, &c.client)
	back, errBack := pipes.carry(&c.client, &c.server)
	switch {
	case errors.Join(err, errBack) != nil:
		c.end(reset) // both are to see it
	case c.client.told && c.server.told:
		c.end(func(fd int) { _ = syscall.Close(fd) })
	case more || back:
		c.port.loop.again = append(c.port.loop.again, c.carry)
	}
}

// end closes both sockets in this way.
func (c *conn) end(closing func(fd int)) {
	c.ended = true
	if c.patience != nil {
		c.patience.Stop()
	}
	delete(c.port.open, c)
	for _, s := range []*side{&c.client, &c.server} {
		delete(c.port.loop.owners, s.fd)
		closing(s.fd)
		if s.held > 0 { // what it holds is nobody's
			s.pipe.close()
		}
	}
}
