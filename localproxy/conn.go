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
	due            bool // it is in the loop's list
}

// lead connects a client with an endpoint, or resets it. An error says that there are no
// descriptors for that: the client is as it was.
func (p *port) lead(client int) error {
	c := &conn{port: p, endpoint: p.choose(time.Now()), client: side{fd: client}}
	server, err := p.cfg.connect(c.endpoint)
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return err
	}
	if err != nil {
		p.cfg.Unanswered(p.at, c.endpoint, err)
		reset(client)
		return nil
	}
	p.cfg.Given(p.at, c.endpoint)
	c.server.fd = server
	p.open[c] = true
	if c.join(); c.joined || c.ended {
		return nil
	}
	c.patience = time.AfterFunc(dialTimeout, c.late)
	if err := p.loop.watch(server, wantSide, c); err != nil {
		c.unanswered(err)
	}
	return nil
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
	c.port.loop.soon(c)
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
	switch {
	case !c.joined:
		c.join()
	case s.over && events&syscall.EPOLLERR != 0: // it has said all, and is gone: no read or write would show it
		c.end(reset)
	default:
		c.port.loop.soon(c)
	}
}

// carry moves in both directions what there is.
func (c *conn) carry() {
	c.due = false
	if c.ended {
		return
	}
	pipes := c.port.pipes
	more, err := pipes.carry(&c.server, &c.client)
	back, errBack := pipes.carry(&c.client, &c.server)
	switch err := errors.Join(err, errBack); {
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE): // of a pipe
		time.AfterFunc(pauseFor, c.again)
	case err != nil:
		c.end(reset) // both are to see it
	case c.client.told && c.server.told:
		c.end(func(fd int) { _ = syscall.Close(fd) })
	case more || back:
		c.port.loop.soon(c)
	}
}

// again has a connection go on that had no pipe.
func (c *conn) again() {
	c.port.mu.Lock()
	defer c.port.mu.Unlock()
	if !c.ended {
		c.port.loop.soon(c)
		c.port.loop.begin()
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
