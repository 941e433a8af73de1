package invariants_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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
// commit, and no flow is confirmed without translation, whatever the kind of frontend.
func TestI4ConnectsWhileEndpointsFlip(t *testing.T) {
	h := newHosts(t)
	for _, p := range addr.Both() {
		h.serve(t, p)
		for _, k := range kinds() {
			t.Run(family(p).String()+"/"+k.name, func(t *testing.T) {
				f := newFlipper(t, h.node, p, k)
				r := f.run(t, h, k.connects, false)
				t.Logf("%d connects during %d flips, slowest %s, %d slow with their first SYN, spread %v", r.connects, r.flips, r.slowest.Round(time.Microsecond), r.stalls, r.reached)
				r.judge(t, k)
				if n := f.untranslated(t); n != 0 {
					t.Errorf("%d flows to the frontend were confirmed without translation", n)
				}
			})
		}
	}
}

// judge says what is wrong with what clients saw.
func (r *result) judge(t *testing.T, k kind) {
	t.Helper()
	if r.stalls > max(1, r.connects/1000) {
		t.Errorf("%d connects took over %s: that is no busy machine any more", r.stalls, lost)
	}
	if r.failures != 0 {
		t.Errorf("%d of %d connects failed, were slow or reached a wrong endpoint, the first: %v", r.failures, r.connects, r.first)
	}
	if r.connects < 2*k.connects || r.flips < k.flips {
		t.Errorf("only %d connects and %d flips: the test shows nothing", r.connects, r.flips)
	}
	for i, n := range r.reached {
		if n == 0 && !k.sticky { // a client stays for as long as its endpoint does
			t.Errorf("backend %d was never reached", i)
		}
	}
}

// A kind is a kind of frontend.
type kind struct {
	name     string
	entry    nft.Entry
	sticky   bool
	connects int // of each client
	flips    int // at least
}

func kinds() []kind {
	const fewer = connects / 5
	return []kind{
		{"ClusterIP", nft.Entry{}, false, connects, 1000},
		{"ClusterIP, Local", nft.Entry{Local: true}, false, fewer, 200},
		{"external", nft.Entry{External: true}, false, fewer, 200},
		{"external, Local", nft.Entry{External: true, Local: true}, false, fewer, 200},
		{"source ranges", nft.Entry{External: true, Guarded: true}, false, fewer, 200},
		{"NodePort", nft.Entry{External: true, NodePort: true}, false, fewer, 200},
		{"NodePort, Local", nft.Entry{External: true, NodePort: true, Local: true}, false, fewer, 200},
		{"affinity", nft.Entry{}, true, fewer, 5},
	}
}

// The same without the retry must fail, or the test above proves nothing.
func TestI4WithoutRetryConnectsFail(t *testing.T) {
	h := newHosts(t)
	p := addr.IPv4()
	h.serve(t, p)
	f := newFlipper(t, h.node, p, kinds()[0])
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
	kind     kind
	frontend nft.Frontend
	to       netip.AddrPort // where clients connect to
	flips    atomic.Int64
}

// nodePort is the NodePort that flips.
const nodePort = 30080

func newFlipper(t *testing.T, node *netns.NS, p addr.Plan, k kind) *flipper {
	t.Helper()
	f := &flipper{plan: p, node: node, kind: k, frontend: nft.Frontend{Addr: p.VIP(0), Protocol: 6, Port: 80}, to: netip.AddrPortFrom(p.VIP(0), 80)}
	if k.entry.NodePort {
		f.frontend, f.to = nft.Frontend{Protocol: 6, Port: nodePort}, netip.AddrPortFrom(p.NodeBetween(), nodePort)
	}
	want := nft.NewState()
	want.Addrs[nft.ClusterIPs][p.VIP(0)] = true
	want.Ranges[nft.PodCIDRs] = []netip.Prefix{p.ClusterCIDR}
	// Bystanders bring in the rules for each number of endpoints, so that flips write
	// elements only.
	for n := range backends {
		bystander := nft.Frontend{Addr: f.frontend.Addr, Protocol: 6, Port: uint16(81 + n)}
		want.Set(bystander, f.route(backendRange(p, n+1), false))
	}
	want.Set(f.frontend, f.route(backendRange(p, backends), true))
	f.pin(want, backendRange(p, backends))
	err := node.Do(func() (err error) {
		if f.program, err = nft.Open(nft.Config{Family: family(p), MasqueradeBit: 14, Detector: nft.DetectCIDR, NodePortsEverywhere: true}); err != nil {
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

// route spreads connections over endpoints as the kind of frontend does.
func (f *flipper) route(endpoints []netip.AddrPort, sticky bool) nft.Route {
	r := nft.Route{Entry: f.kind.entry, Endpoints: endpoints}
	if r.Entry.Local {
		r.Local = endpoints
	}
	if r.Guarded {
		r.Sources = []netip.Prefix{netip.PrefixFrom(f.plan.NodeBetween(), f.plan.NodeBetween().BitLen()), f.plan.NodePods}
		slices.SortFunc(r.Sources, netip.Prefix.Compare)
	}
	if sticky && f.kind.sticky {
		r.Affinity = f.affinity()
	}
	return r
}

func (f *flipper) affinity() nft.Affinity {
	return nft.Affinity{ID: nft.AffinityID("flip"), Protocol: 6, Seconds: 60}
}

func (f *flipper) pin(s nft.State, endpoints []netip.AddrPort) {
	if f.kind.sticky {
		s.Pin(f.affinity(), endpoints, nil)
	}
}

// flip writes until ctx ends. The sets of endpoints shrink and grow, move to other
// slots and are exchanged.
func (f *flipper) flip(ctx context.Context) (flips int, err error) {
	all := backendRange(f.plan, backends)
	choices := [][]netip.AddrPort{all[:1], all, all[4:], all[1:4], all[2:3], {all[3], all[0]}}
	keys := nft.NewKeys()
	keys.Frontends[f.frontend] = true
	keys.Affinities[f.affinity().ID] = f.kind.sticky
	for ctx.Err() == nil {
		want := nft.NewState()
		endpoints := choices[flips%len(choices)]
		want.Set(f.frontend, f.route(endpoints, true))
		f.pin(want, endpoints)
		if err := f.program.Update(context.Background(), keys, want); err != nil {
			return flips, err
		}
		if _, err := f.program.Unpin(time.Now()); err != nil {
			return flips, err
		}
		flips++
		f.flips.Add(1)
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

// run connects from a pod and from the node, so often each, while endpoints flip: more
// often where a busy machine leaves these behind. With untilWrong it ends when something
// went wrong.
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
				behind := func(n int) bool { return f.flips.Load() < int64(f.kind.flips) && n < 20*each }
				for n := 0; (n < each || behind(n)) && !(untilWrong && wrong.Load()); n++ {
					i, took, err := connect(f.to, connectLimit)
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
		done <- f.node.Do(func() (err error) {
			total.flips, err = f.flip(ctx)
			return err
		})
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
func (f *flipper) untranslated(t *testing.T) (n uint) {
	t.Helper()
	inet := netlink.InetFamily(unix.AF_INET)
	if family(f.plan) == nft.IPv6 {
		inet = unix.AF_INET6
	}
	err := f.node.Do(func() (err error) {
		n, err = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, inet, past(f.to))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// past matches TCP flows that go past a translation.
type past netip.AddrPort

// MatchConntrackFlow says whether whoever the flow was sent to answers it.
func (p past) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	to, _ := netip.AddrFromSlice(f.Forward.DstIP)
	by, _ := netip.AddrFromSlice(f.Reverse.SrcIP)
	return f.Forward.Protocol == unix.IPPROTO_TCP && netip.AddrPortFrom(to.Unmap(), f.Forward.DstPort) == netip.AddrPort(p) &&
		to == by && f.Reverse.SrcPort == f.Forward.DstPort
}
