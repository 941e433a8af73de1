package source_test

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"

	"onerule/daemon/source"
	"onerule/test/netns"
)

// A watcher holds what HostAddrs gave.
type watcher struct {
	mu    sync.Mutex
	lists [][]netip.Addr
	gate  chan struct{} // receives of it, if it is there
	in    chan struct{} // a sign for each call that waits at the gate
	log   []string
}

func (w *watcher) changed(list []netip.Addr) {
	w.mu.Lock()
	w.lists = append(w.lists, list)
	gate := w.gate
	w.mu.Unlock()
	if gate != nil {
		w.in <- struct{}{}
		<-gate
	}
}

// watch runs HostAddrs in a namespace until the test ends.
func watch(t *testing.T, ns *netns.NS, w *watcher) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	log := funcr.New(func(_, args string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.log = append(w.log, args)
	}, funcr.Options{Verbosity: 1})
	go func() { // ends with the test
		ended <- ns.Do(func() error { return source.HostAddrs{Log: log}.Run(ctx, w.changed) })
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("run: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("HostAddrs did not end with its context")
		}
	})
}

// await waits until the last list is this one.
func (w *watcher) await(t *testing.T, want ...string) {
	t.Helper()
	w.awaitAddrs(t, parse(want...))
}

func parse(texts ...string) []netip.Addr {
	addrs := make([]netip.Addr, 0, len(texts))
	for _, text := range texts {
		addrs = append(addrs, netip.MustParseAddr(text))
	}
	return addrs
}

func (w *watcher) awaitAddrs(t *testing.T, addrs []netip.Addr) {
	t.Helper()
	eventually(t, func() string {
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.lists) == 0 {
			return "nothing was given yet"
		}
		return cmp.Diff(addrs, w.lists[len(w.lists)-1], cmpopts.EquateComparable(netip.Addr{}))
	})
}

// eventually asks again and again until nothing lacks, and fails the test in the end.
func eventually(t *testing.T, lacks func() string) {
	t.Helper()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for deadline := time.Now().Add(30 * time.Second); ; <-again.C {
		lack := lacks()
		if lack == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("gave up waiting: %s", lack)
		}
	}
}

func (w *watcher) given() [][]netip.Addr {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.lists)
}

// link adds a link that is up and has no address of its own.
func link(t *testing.T, ns *netns.NS, name string) {
	t.Helper()
	peer := name + "-peer"
	ns.Run(t, "ip", "link", "add", name, "type", "veth", "peer", "name", peer)
	for _, dev := range []string{name, peer} {
		ns.Sysctl(t, "net.ipv6.conf."+dev+".addr_gen_mode", "1")
		ns.Run(t, "ip", "link", "set", dev, "up")
	}
}

func TestAddressesOfTheHostAreFollowed(t *testing.T) { // A6.6, A6.7
	ns := netns.New(t, "node")
	link(t, ns, "d0")
	link(t, ns, "d1")
	ns.Run(t, "ip", "addr", "add", "192.0.2.7/24", "dev", "d0")
	ns.Run(t, "ip", "addr", "add", "127.0.0.53/8", "dev", "lo")
	w := &watcher{}
	watch(t, ns, w)
	for _, step := range []struct {
		name, ip string
		want     []string
	}{
		{"what is there at the start, without loopback addresses", "", []string{"192.0.2.7"}},
		{"an address of each family is added", "addr add 192.0.2.3/32 dev d1\naddr add 2001:db8::7/64 dev d1 nodad", []string{"192.0.2.3", "192.0.2.7", "2001:db8::7"}},
		{"a link-local address", "addr add fe80::7/64 dev d1 nodad", []string{"192.0.2.3", "192.0.2.7", "2001:db8::7", "fe80::7"}},
		{"an address that is on two links is one", "addr add 192.0.2.7/32 dev d1\naddr add 192.0.2.9/32 dev d1", []string{"192.0.2.3", "192.0.2.7", "192.0.2.9", "2001:db8::7", "fe80::7"}},
		{"it goes from one of them, beside others", "addr del 192.0.2.7/24 dev d0\naddr del 192.0.2.3/32 dev d1\naddr del 192.0.2.9/32 dev d1", []string{"192.0.2.7", "2001:db8::7", "fe80::7"}},
		{"a deprecated address", "addr add 2001:db8::8/64 dev d0 preferred_lft 0", []string{"192.0.2.7", "2001:db8::7", "2001:db8::8", "fe80::7"}},
		{"an address with a peer: the own one counts", "addr add 198.51.100.1 peer 198.51.100.2 dev d0", []string{"192.0.2.7", "198.51.100.1", "2001:db8::7", "2001:db8::8", "fe80::7"}},
		{"a link is deleted", "link del d1", []string{"198.51.100.1", "2001:db8::8"}},
		{"the last one is deleted", "link del d0", nil},
		{"an address on the loopback that is none of its own", "addr add 192.0.2.1/32 dev lo", []string{"192.0.2.1"}},
	} {
		for line := range strings.Lines(step.ip) {
			ns.Run(t, "ip", strings.Fields(line)...)
		}
		t.Run(step.name, func(t *testing.T) { w.await(t, step.want...) })
	}
}

func TestATentativeAddressCounts(t *testing.T) {
	ns := netns.New(t, "node")
	ns.Run(t, "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1")
	ns.Sysctl(t, "net.ipv6.conf.v0.addr_gen_mode", "1")
	ns.Run(t, "ip", "addr", "add", "2001:db8::7/64", "dev", "v0") // down: stays tentative
	if out := ns.Run(t, "ip", "-6", "addr", "show", "dev", "v0"); !strings.Contains(out, "tentative") {
		t.Fatalf("the address is not tentative: %s", out)
	}
	w := &watcher{}
	watch(t, ns, w)
	w.await(t, "2001:db8::7")
}

// churn adds and deletes addresses, changes of them in all, and gives those that stay.
func churn(t *testing.T, ns *netns.NS, changes int) []netip.Addr {
	t.Helper()
	stay := parse("192.0.2.7")
	err := ns.Do(func() error {
		d0, err := netlink.LinkByName("d0")
		if err != nil {
			return err
		}
		for i := range changes / 2 {
			a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
			n, err := netlink.ParseAddr(a.String() + "/32")
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(d0, n); err != nil {
				return fmt.Errorf("add %s: %w", a, err)
			}
			if i%1000 == 0 {
				stay = append(stay, a)
				continue
			}
			if err := netlink.AddrDel(d0, n); err != nil {
				return fmt.Errorf("delete %s: %w", a, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(stay, netip.Addr.Compare)
	return stay
}

func TestABurstOfChangesEndsRight(t *testing.T) {
	ns := netns.New(t, "node")
	link(t, ns, "d0")
	ns.Run(t, "ip", "addr", "add", "192.0.2.7/32", "dev", "d0")
	w := &watcher{}
	watch(t, ns, w)
	w.await(t, "192.0.2.7")
	w.awaitAddrs(t, churn(t, ns, 10000))
	lists := w.given()
	if len(lists) > 1000 {
		t.Errorf("got %d lists for 10,000 changes, want them gathered", len(lists))
	}
	for i := range lists[1:] {
		if slices.Equal(lists[i], lists[i+1]) {
			t.Fatalf("list %d of %d is given twice", i, len(lists))
		}
	}
}

func TestChangesThatTheKernelDroppedAreRead(t *testing.T) {
	ns := netns.New(t, "node")
	link(t, ns, "d0")
	gate := make(chan struct{})
	w := &watcher{gate: gate, in: make(chan struct{}, 1)}
	watch(t, ns, w)
	<-w.in // nothing is received as long as the gate is closed
	ns.Run(t, "ip", "addr", "add", "192.0.2.7/32", "dev", "d0")
	want := churn(t, ns, 10000)
	ns.Run(t, "ip", "addr", "del", want[0].String()+"/32", "dev", "d0") // the last message is lost, surely
	w.mu.Lock()
	w.gate = nil
	w.mu.Unlock()
	close(gate)
	w.awaitAddrs(t, want[1:])
	w.mu.Lock()
	defer w.mu.Unlock()
	if !strings.Contains(strings.Join(w.log, "\n"), "were lost") {
		t.Errorf("no message was lost, so this test says nothing; log: %q", w.log)
	}
}

func TestHostAddrsLeavesNothingBehind(t *testing.T) {
	ns := netns.New(t, "node")
	link(t, ns, "d0")
	before := runtime.NumGoroutine()
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		w := &watcher{}
		err := ns.Do(func() error {
			return source.HostAddrs{}.Run(ctx, func(list []netip.Addr) {
				w.changed(list)
				churn(t, ns, 10) // there are messages that nobody takes
				cancel()
			})
		})
		cancel()
		ns.Run(t, "ip", "addr", "flush", "dev", "d0")
		if err != nil || len(w.given()) != 1 {
			t.Fatalf("got %v and %d lists, want no error and one list", err, len(w.given()))
		}
	}
	eventually(t, func() string {
		if now := runtime.NumGoroutine(); now > before {
			return fmt.Sprintf("%d goroutines, %d before", now, before)
		}
		return ""
	})
}
