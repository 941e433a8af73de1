package health

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"onerule/daemon/model"
)

// bindRetry is how often sockets that can't be had are tried again.
const bindRetry = 5 * time.Second

// A Check is what load balancers are told on a healthCheckNodePort.
type Check struct {
	Service model.Name
	// Endpoints is the number of addresses on this node that are ready, both families
	// together.
	Endpoints int
}

// A ServicesConfig is what the checks of Services are answered with.
type ServicesConfig struct {
	// Healthy says whether the proxy is: Proxy.Healthy.
	Healthy func() bool
	// Failed, if set, is called when the port of a Service can't be listened on, once
	// until it can, from the goroutine of Run.
	Failed func(service model.Name, port uint16, err error)
	Log    logr.Logger
	Retry  time.Duration // 0: 5 s
}

// Services answers on the healthCheckNodePorts of Services. Both families share a
// socket wherever they can: what is counted is the same.
type Services struct {
	cfg  ServicesConfig
	wake chan struct{}

	mu     sync.Mutex
	checks map[uint16]Check
	addrs  []netip.Addr
	dead   []socket                // that stopped answering by themselves
	open   map[socket]*http.Server // written by Run's goroutine only
	// What follows belongs to that goroutine alone.
	due     map[socket]time.Time // when sockets that can't be had are tried again
	told    map[failure]bool
	serving sync.WaitGroup
}

// A failure is of a Service and its port: it is told once until it is over.
type failure struct {
	service model.Name
	port    uint16
}

// NewServices gives a server without checks, for all addresses.
func NewServices(cfg ServicesConfig) *Services {
	if cfg.Failed == nil {
		cfg.Failed = func(model.Name, uint16, error) {}
	}
	if cfg.Retry == 0 {
		cfg.Retry = bindRetry
	}
	return &Services{
		cfg: cfg, wake: make(chan struct{}, 1),
		addrs: []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()},
		told:  map[failure]bool{},
		open:  map[socket]*http.Server{},
		due:   map[socket]time.Time{},
	}
}

// Sync says which ports to answer on, and what. It does not wait for sockets.
func (s *Services) Sync(checks map[uint16]Check) {
	s.mu.Lock()
	s.checks = checks
	s.mu.Unlock()
	s.poke()
}

// Listen says at which addresses. An unspecified one stands for all of its family;
// without any of a family, that one is not answered. It does not wait for sockets.
func (s *Services) Listen(addrs []netip.Addr) {
	s.mu.Lock()
	s.addrs = addrs
	s.mu.Unlock()
	s.poke()
}

func (s *Services) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run opens and closes sockets until ctx ends. Then it closes all of them.
func (s *Services) Run(ctx context.Context) {
	defer s.serving.Wait()
	defer s.closeAll()
	for {
		var retry <-chan time.Time
		if next := s.reconcile(ctx); !next.IsZero() {
			retry = time.After(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-retry:
		}
	}
}

// reconcile opens and closes what differs, and says when to try again what can't be
// had, the zero time if all that is wanted is open.
func (s *Services) reconcile(ctx context.Context) time.Time {
	checks, want := s.wanted()
	for at := range s.open {
		if !want[at] {
			s.close(at)
		}
	}
	for at := range want {
		if s.open[at] == nil && !time.Now().Before(s.due[at]) {
			s.try(ctx, at, checks[at.port].Service)
		}
	}
	return s.failing(checks, want)
}

// wanted gives the checks and the sockets that there should be. Those that stopped
// answering are forgotten, and opened again.
func (s *Services) wanted() (map[uint16]Check, map[socket]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.dead {
		delete(s.open, at)
	}
	s.dead = nil
	want := map[socket]bool{}
	for port := range s.checks {
		for _, at := range socketsOf(s.addrs, port) {
			want[at] = true
		}
	}
	return s.checks, want
}

// try opens a socket. Of a port that can't be had a Service hears once.
func (s *Services) try(ctx context.Context, at socket, service model.Name) {
	l, err := at.listen(ctx)
	if err == nil {
		delete(s.due, at)
		s.serve(at, l)
		return
	}
	s.due[at] = time.Now().Add(s.cfg.Retry)
	f := failure{service, at.port}
	if s.told[f] {
		return
	}
	s.told[f] = true
	err = fmt.Errorf("health check of %s on port %d: %w", service, at.port, err)
	s.cfg.Log.Error(err, "cannot answer load balancers, trying again", "service", service.String(), "port", at.port, "after", s.cfg.Retry)
	s.cfg.Failed(service, at.port, err)
}

// failing forgets failures that are over, and gives when the first that is not is due.
func (s *Services) failing(checks map[uint16]Check, want map[socket]bool) (next time.Time) {
	told := map[failure]bool{}
	for at, due := range s.due {
		if !want[at] {
			delete(s.due, at)
			continue
		}
		if f := (failure{checks[at.port].Service, at.port}); s.told[f] {
			told[f] = true
		}
		if next.IsZero() || due.Before(next) {
			next = due
		}
	}
	s.told = told
	return next
}

// serve answers on a socket until it is closed.
func (s *Services) serve(at socket, l net.Listener) {
	server := &http.Server{
		Handler:                      s.handler(at.port),
		ReadHeaderTimeout:            10 * time.Second,
		DisableGeneralOptionsHandler: true, // any method is answered
		ErrorLog:                     quiet(),
	}
	s.mu.Lock()
	s.open[at] = server
	s.mu.Unlock()
	s.serving.Go(func() { // ends when the server is closed, or its socket fails
		err := server.Serve(l)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.open[at] != server {
			return
		}
		s.cfg.Log.Error(err, "health checks are not answered, trying again", "port", at.port)
		s.dead = append(s.dead, at)
		s.poke()
	})
}

// close closes a socket and its connections. When it returns the port is free.
func (s *Services) close(at socket) {
	s.mu.Lock()
	server := s.open[at]
	delete(s.open, at)
	s.mu.Unlock()
	_ = server.Close() // all that can fail is closing what is closed
}

func (s *Services) closeAll() {
	for at := range s.open {
		s.close(at)
	}
}

// A checkReport is the body of an answer.
type checkReport struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

// handler answers whatever is asked on a port.
func (s *Services) handler(port uint16) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		check, ok := s.checks[port]
		s.mu.Unlock()
		if !ok { // it was closed since
			http.Error(w, "no Service has this port", http.StatusServiceUnavailable)
			return
		}
		r := checkReport{LocalEndpoints: check.Endpoints, ServiceProxyHealthy: s.cfg.Healthy()}
		r.Service.Namespace, r.Service.Name = check.Service.Namespace, check.Service.Name
		code := http.StatusServiceUnavailable
		if check.Endpoints > 0 && r.ServiceProxyHealthy {
			code = http.StatusOK
		}
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(check.Endpoints))
		writeJSON(w, code, r, func(v any) ([]byte, error) { return json.MarshalIndent(v, "", "\t") })
	}
}
