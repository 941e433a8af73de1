package invariants_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/rig"
)

const (
	restarts = 20
	// pause is how long after one connect the next begins: 200 a second.
	pause = 5 * time.Millisecond
)

// A daemon that is stopped or killed and started again loses no connection to a
// ClusterIP or a NodePort, not even where it is killed in the middle of a change, and
// goes on with the changes.
func TestR75360RestartsLoseNoConnection(t *testing.T) {
	h := newHosts(t)
	d := rig.New(t, h.node, "--cluster-cidr", fmt.Sprint(addr.IPv4().ClusterCIDR, ",", addr.IPv6().ClusterCIDR))
	var targets []netip.AddrPort
	for _, p := range addr.Both() {
		h.serve(t, p)
		targets = append(targets, netip.AddrPortFrom(p.VIP(0), 80), netip.AddrPortFrom(p.NodeBetween(), nodePort))
		writeWeb(d, p, 2)
	}
	d.Run()
	d.AwaitHealthy()
	h.settle(t, targets)
	s := h.stream(t, targets)
	for i := range restarts {
		for _, p := range addr.Both() {
			writeWeb(d, p, 2+i%(backends-1)) // just before the end
		}
		end, how := d.Stop, "stopped"
		if i%2 == 1 {
			end, how = d.Kill, "killed"
		}
		before := s.connects()
		end()
		d.Run()
		d.AwaitHealthy()
		if s.connects() == before {
			t.Errorf("restart %d (%s): nobody connected meanwhile", i, how)
		}
		for _, p := range addr.Both() {
			awaitEndpoints(t, h.node, p, 2+i%(backends-1))
			writeWeb(d, p, 1)
			awaitEndpoints(t, h.node, p, 1)
		}
	}
	s.finish().judgeStream(t)
}

// writeWeb writes a Service of a family with a NodePort and so many endpoints.
func writeWeb(d *rig.Daemon, p addr.Plan, endpoints int) {
	name := "web-" + family(p).String()
	service := strings.Replace(rig.Service(name, []netip.Addr{p.VIP(0)}, "web/TCP/80"), "port: 80}]", fmt.Sprintf("port: 80, nodePort: %d}]\n  type: NodePort", nodePort), 1)
	d.Write(name+".yaml", service, rig.Slice(name+"-1", name, addrs(p, endpoints), "web/TCP/8080"))
}

// awaitEndpoints waits until the kernel has so many endpoints of that Service, by its
// ClusterIP and by its NodePort.
func awaitEndpoints(t *testing.T, node *netns.NS, p addr.Plan, want int) {
	t.Helper()
	for name, key := range map[string]string{
		"endpoints-tcp":          fmt.Sprintf("%s . 80 . ", p.VIP(0)),
		"nodeport-endpoints-tcp": fmt.Sprintf("%d . ", nodePort),
	} {
		rig.Eventually(t, "the change is in "+name, func() error {
			out, err := node.Output("nft", "list", "map", family(p).String(), "onerule", name)
			if n := strings.Count(out, key); err == nil && n != want {
				err = fmt.Errorf("got %d endpoints, want %d: %s", n, want, out)
			}
			return err
		})
	}
}

// A stream is clients that connect again and again until finish is called.
type stream struct {
	cancel context.CancelFunc
	done   chan struct{}
	mu     sync.Mutex
	result result
}

// stream begins to connect 200 times a second, to one target after the other, once from
// the pod and once from the node.
func (h *hosts) stream(t *testing.T, targets []netip.AddrPort) *stream {
	ctx, cancel := context.WithCancel(t.Context())
	s := &stream{cancel: cancel, done: make(chan struct{})}
	go func() { // ends with ctx
		defer close(s.done)
		tick := time.NewTicker(pause)
		defer tick.Stop()
		var clients sync.WaitGroup
		defer clients.Wait()
		for i := 0; ctx.Err() == nil; i++ {
			from, to := h.client, targets[i/2%len(targets)]
			if i%2 == 1 {
				from = h.node
			}
			clients.Go(func() { s.connect(from, to) })
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	}()
	return s
}

// settle waits until every client has reached every target with its first SYN: neighbours
// that are still to be found would look like what is tested.
func (h *hosts) settle(t *testing.T, targets []netip.AddrPort) {
	t.Helper()
	for _, from := range []*netns.NS{h.client, h.node} {
		for _, to := range targets {
			rig.Eventually(t, fmt.Sprintf("%s answers %s", to, from.Name()), func() error {
				return from.Do(func() error {
					_, _, err := connect(to, lost)
					return err
				})
			})
		}
	}
}

func (s *stream) connect(from *netns.NS, to netip.AddrPort) {
	_ = from.Do(func() error {
		backend, took, err := connect(to, connectLimit)
		if err != nil {
			err = fmt.Errorf("from %s to %s after %s: %w", from.Name(), to, took, err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.result.note(backend, took, err)
		return nil
	})
}

func (s *stream) connects() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.result.connects
}

func (s *stream) finish() *result {
	s.cancel()
	<-s.done
	return &s.result
}

// judgeStream says what is wrong with what the clients of a stream saw.
func (r *result) judgeStream(t *testing.T) {
	t.Helper()
	t.Logf("%d connects, slowest %s, %d slow with their first SYN, spread %v", r.connects, r.slowest.Round(time.Microsecond), r.stalls, r.reached)
	if r.failures > 0 {
		t.Errorf("%d of %d connects failed or lost their SYN, the first: %v", r.failures, r.connects, r.first)
	}
	if r.stalls > max(1, r.connects/1000) {
		t.Errorf("%d of %d connects took over %s: that is no busy machine any more", r.stalls, r.connects, lost)
	}
	for i, n := range r.reached {
		if n == 0 {
			t.Errorf("backend %d was never reached: the test shows nothing", i)
		}
	}
}
