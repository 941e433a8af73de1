package invariants_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"onerule/nft"
	"onerule/test/addr"
	"onerule/test/netns"
)

const (
	// connects is how many connections each client makes while endpoints flip.
	connects = 10_000
	// brokenConnects bounds the search for a failure once the retry rules are out.
	brokenConnects = 200_000
	// connectLimit is beyond the second after which a SYN is sent again: a connect that
	// took over 400 ms lost its SYN, or the machine was busy, and the socket tells which.
	connectLimit = 3 * time.Second
)

// I4: a new connection meets an endpoint that its Service has, also in the middle of a
// commit, and no flow is confirmed without translation.
func TestI4ConnectsWhileEndpointsFlip(t *testing.T) {
	h := newHosts(t)
	for _, p := range addr.Both() {
		t.Run(family(p).String(), func(t *testing.T) {
			h.serve(t, p)
			f := newFlipper(t, h.node, p)
			r := f.run(t, h, connects, false)
			t.Logf("%d connects during %d flips, slowest %s, %d slow with their first SYN, spread %v", r.connects, r.flips, r.slowest.Round(time.Microsecond), r.stalls, r.reached)
			if r.stalls > connects/1000 {
				t.Errorf("%d connects took over %s: that is no busy machine any more", r.stalls, lost)
			}
			if r.failures != 0 {
				t.Errorf("%d of %d connects failed, were slow or reached a wrong endpoint, the first: %v", r.failures, r.connects, r.first)
			}
			if n := f.untranslated(t); n != 0 {
				t.Errorf("%d flows to the ClusterIP were confirmed without translation", n)
			}
			if r.connects < 2*connects || r.flips < 1000 {
				t.Errorf("only %d connects and %d flips: the test shows nothing", r.connects, r.flips)
			}
			for i, n := range r.reached {
				if n == 0 {
					t.Errorf("backend %d was never reached", i)
				}
			}
		})
	}
}

// The same without the retry must fail, or the test above proves nothing.
func TestI4WithoutRetryConnectsFail(t *testing.T) {
	h := newHosts(t)
	p := addr.IPv4()
	h.serve(t, p)
	f := newFlipper(t, h.node, p)
	script := filepath.Join(t.TempDir(), "no-retry.nft")
	rules := "flush chain ip onerule balance-tcp\nadd rule ip onerule balance-tcp jump lb-tcp\n"
	if err := os.WriteFile(script, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	h.node.Run(t, "nft", "-f", script)
	r := f.run(t, h, brokenConnects, true)
	n := f.untranslated(t)
	t.Logf("without retry: %d of %d connects went wrong during %d flips, the first: %v; %d untranslated flows", r.failures, r.connects, r.flips, r.first, n)
	if r.failures == 0 && n == 0 {
		t.Errorf("nothing went wrong in %d connects without the retry rules", r.connects)
	}
}

func family(p addr.Plan) nft.Family {
	if p.VIP(0).Is4() {
		return nft.IPv4
	}
	return nft.IPv6
}

// A flipper changes the endpoints of a Service as fast as the writer can.
type flipper struct {
	plan     addr.Plan
	node     *netns.NS
	program  *nft.Program
	frontend nft.Frontend
}

func newFlipper(t *testing.T, node *netns.NS, p addr.Plan) *flipper {
	t.Helper()
	f := &flipper{plan: p, node: node, frontend: nft.Frontend{Addr: p.VIP(0), Protocol: 6, Port: 80}}
	want := nft.NewState()
	want.Addrs[nft.ClusterIPs][p.VIP(0)] = true
	want.Ranges[nft.PodCIDRs] = []netip.Prefix{p.ClusterCIDR}
	// Bystanders bring in the rules for each number of endpoints, so that flips write
	// elements only.
	for n := range backends {
		want.Set(nft.Frontend{Addr: p.VIP(0), Protocol: 6, Port: uint16(81 + n)}, nft.Route{Endpoints: backendRange(p, n+1)})
	}
	want.Set(f.frontend, nft.Route{Endpoints: backendRange(p, backends)})
	err := node.Do(func() (err error) {
		if f.program, err = nft.Open(nft.Config{Family: family(p), MasqueradeBit: 14, Detector: nft.DetectCIDR}); err != nil {
			return err
		}
		return f.program.Load(context.Background(), want, nft.NewKeys())
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.program.Close() })
	return f
}

// flip writes until ctx ends. The sets of endpoints shrink and grow, move to other
// slots and are exchanged.
func (f *flipper) flip(ctx context.Context) (flips int, err error) {
	all := backendRange(f.plan, backends)
	choices := [][]netip.AddrPort{all[:1], all, all[4:], all[1:4], all[2:3], {all[3], all[0]}}
	keys := nft.NewKeys()
	keys.Frontends[f.frontend] = true
	for ctx.Err() == nil {
		want := nft.NewState()
		want.Set(f.frontend, nft.Route{Endpoints: choices[flips%len(choices)]})
		if err := f.program.Update(context.Background(), keys, want); err != nil {
			return flips, err
		}
		flips++
	}
	return flips, nil
}

// result is what clients saw.
type result struct {
	connects, failures, flips int
	stalls                    int // slow although their first SYN was answered
	slowest                   time.Duration
	first                     error
	reached                   [backends]int
}

// run connects from a pod and from the node, so often each, while endpoints flip.
// With untilWrong it ends when something went wrong.
func (f *flipper) run(t *testing.T, h *hosts, each int, untilWrong bool) result {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var total result
	var mu sync.Mutex
	var wrong atomic.Bool
	var clients sync.WaitGroup
	for _, from := range []*netns.NS{h.client, h.node} {
		clients.Go(func() {
			_ = from.Do(func() error {
				for n := 0; n < each && !(untilWrong && wrong.Load()); n++ {
					i, took, err := connect(netip.AddrPortFrom(f.frontend.Addr, f.frontend.Port), connectLimit)
					if err != nil {
						err = fmt.Errorf("from %s after %s: %w", from.Name(), took, err)
						wrong.Store(true)
					}
					mu.Lock()
					total.note(i, took, err)
					mu.Unlock()
				}
				return nil
			})
		})
	}
	done := make(chan error, 1)
	go func() {
		var err error
		total.flips, err = f.flip(ctx)
		done <- err
	}()
	clients.Wait()
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return total
}

func (r *result) note(backend int, took time.Duration, err error) {
	r.connects++
	r.slowest = max(r.slowest, took)
	if err == nil && took > lost {
		r.stalls++
	}
	if err == nil && backend >= backends {
		err = fmt.Errorf("reached %d, which is no backend", backend)
	}
	if err != nil {
		r.failures++
		r.first = errors.Join(r.first, err)
		if r.failures > 1 {
			r.first = errors.New(strings.SplitN(r.first.Error(), "\n", 2)[0])
		}
		return
	}
	r.reached[backend]++
}

// untranslated counts the conntrack entries to the Service that carry no DNAT, by
// deleting them.
func (f *flipper) untranslated(t *testing.T) (n int) {
	t.Helper()
	err := f.node.Do(func() (err error) {
		n, err = nft.DeleteUntranslated(context.Background(), family(f.plan), func(to nft.Frontend) bool { return to == f.frontend })
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
