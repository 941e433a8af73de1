package bpf_test

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/bpf"
	"onerule/test/bpffs"
	"onerule/test/netns"
)

var addrs = cmp.Comparer(func(a, b bpf.Key) bool { return a == b })

func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// Each connection counts once, for its frontend and endpoint, wherever it comes from, and
// nothing else is counted anywhere.
func TestConnectionsCountOnceForTheirEndpoint(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		pod, local := at(w.podAddr(), 8080), at(w.nodeAddr(), 9090)
		serve(t, w.pod, pod)
		serve(t, w.node, local)
		swallow(t, w.pod, pod)
		c := open(t, w.node, bpf.Options{})
		key := func(frontend netip.AddrPort, endpoint netip.AddrPort, protocol uint8) bpf.Key {
			return bpf.Key{Frontend: frontend, Endpoint: endpoint, Protocol: protocol}
		}
		first, second, third := at(w.vip(1), 80), at(w.vip(2), 80), at(w.vip(3), 80)
		nodePort := at(netip.Addr{}, 30080)
		other := at(w.podAddr(), 8081)
		put(t, c, key(first, pod, tcp), key(first, pod, udp), key(first, other, tcp), key(third, local, tcp), key(nodePort, pod, tcp))

		connect(t, w.client, first, 5)                   // forwarded
		connect(t, w.node, first, 3)                     // sent by the node
		connect(t, w.client, second, 2)                  // nobody counts for it
		connect(t, w.client, third, 4)                   // to the node itself
		connect(t, w.node, third, 1)                     // from and to the node
		connect(t, w.client, at(w.nodeAddr(), 30080), 6) // by a NodePort
		connect(t, w.client, at(w.podAddr(), 8080), 7)   // not translated
		send(t, w.client, first, 3)                      // one flow of three datagrams
		send(t, w.node, first, 2)                        // one of two
		connect(t, w.node, at(w.nodeAddr(), 9090), 1)    // not translated
		send(t, w.client, at(w.podAddr(), 8080), 1)      // not translated
		want := map[bpf.Key]uint64{
			key(first, pod, tcp): 8, key(first, pod, udp): 2, key(first, other, tcp): 0,
			key(third, local, tcp): 5, key(nodePort, pod, tcp): 6,
		}
		if diff := cmp.Diff(want, hits(t, c), addrs); diff != "" {
			t.Errorf("hits (-want +got): %s", diff)
		}

		put(t, c, key(first, pod, tcp), key(second, pod, tcp))
		gone := []bpf.Key{key(first, pod, udp), key(first, pod, udp), key(first, other, tcp), key(third, local, tcp), key(nodePort, pod, tcp)}
		counted, err := c.Delete(gone)
		if diff := cmp.Diff([]uint64{2, 0, 0, 5, 6}, counted); err != nil || diff != "" {
			t.Errorf("%v, what was counted for those that are gone (-want +got): %s", err, diff)
		}
		connect(t, w.client, second, 1)
		send(t, w.client, first, 1)
		kept := key(first, netip.AddrPortFrom(w.address("0.0.0.0", "::"), 0), tcp)
		for range 2 {
			if err := c.Add(kept, 21); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(map[bpf.Key]uint64{key(first, pod, tcp): 8, key(second, pod, tcp): 1, kept: 42}, hits(t, c), addrs); diff != "" {
			t.Errorf("hits after other keys (-want +got): %s", diff)
		}
	})
}

// What is pinned counts while nobody has it open, and the next one goes on from there.
func TestCountersOutliveTheirProcess(t *testing.T) {
	links := map[string]int{"netfilter": 6, "fexit": 3}
	each(t, func(t *testing.T, w world) {
		pod, vip := at(w.podAddr(), 8080), at(w.vip(1), 80)
		serve(t, w.pod, pod)
		dir, mode := bpffs.New(t), ""
		key := bpf.Key{Frontend: vip, Endpoint: pod, Protocol: tcp}
		for n := range 3 {
			c := open(t, w.node, bpf.Options{Dir: dir})
			mode = c.Mode()
			put(t, c, key)
			connect(t, w.client, vip, 2)
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			connect(t, w.client, vip, 3)
			c = open(t, w.node, bpf.Options{Dir: dir})
			if got := hits(t, c)[key]; got != uint64(5*(n+1)) {
				t.Errorf("after %d runs with 2 connections each and 3 behind each: %d", n+1, got)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
		pinned, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(pinned) != 2+links[mode] {
			t.Errorf("pinned: %v, %v, want 2 maps and %d links", pinned, err, links[mode])
		}

		// Another namespace takes the directory over: what counted here does no more.
		c := open(t, netns.New(t, "other"), bpf.Options{Dir: dir})
		connect(t, w.client, vip, 1)
		if got := hits(t, c)[key]; got != 15 {
			t.Errorf("the namespace before this one still counts: %d, want 15", got)
		}
		if err := bpf.Remove(dir); err != nil {
			t.Error(err)
		}
		if err := bpf.Remove(dir); err != nil {
			t.Errorf("with nothing there: %v", err)
		}
	})
}

// A pinned map of another layout does not stop anything.
func TestPinnedMapOfAnotherVersion(t *testing.T) {
	w := newWorld(t, false)
	pod, vip := at(w.podAddr(), 8080), at(w.vip(1), 80)
	serve(t, w.pod, pod)
	dir := bpffs.New(t)
	key := bpf.Key{Frontend: vip, Endpoint: pod, Protocol: tcp}
	c := open(t, w.node, bpf.Options{Dir: dir, Size: 10})
	put(t, c, key)
	connect(t, w.client, vip, 1)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = open(t, w.node, bpf.Options{Dir: dir, Size: 20})
	put(t, c, key)
	connect(t, w.client, vip, 2)
	if got := hits(t, c)[key]; got != 2 {
		t.Errorf("the new map has counted %d, want 2", got)
	}
}

func TestFullMap(t *testing.T) {
	w := newWorld(t, false)
	c := open(t, w.node, bpf.Options{Size: 10})
	var keys []bpf.Key
	for n := range uint16(12) {
		keys = append(keys, bpf.Key{Frontend: at(w.vip(1), n), Endpoint: at(w.podAddr(), n), Protocol: tcp})
	}
	err := c.Put(keys)
	if !errors.Is(err, bpf.ErrFull) {
		t.Fatalf("12 keys into a map of 10: %v", err)
	}
	if got := len(hits(t, c)); got != 10 {
		t.Errorf("%d keys, want 10", got)
	}
	put(t, c, keys[3]) // it is there
}

// A SYN that is sent again is the same connection.
func TestRetransmissionsDoNotCount(t *testing.T) {
	w := newWorld(t, false)
	vip, pod := at(w.vip(1), 80), at(w.podAddr(), 8080)
	w.pod.Run(t, "nft", "table ip t { chain c { type filter hook input priority 0; tcp dport 8080 counter drop; }; }")
	c := open(t, w.node, bpf.Options{})
	put(t, c, bpf.Key{Frontend: vip, Endpoint: pod, Protocol: tcp})
	unanswered(t, w.client, vip, 2500)
	if got := w.pod.Run(t, "nft", "list table ip t"); !strings.Contains(got, "counter packets 2") && !strings.Contains(got, "counter packets 3") {
		t.Fatalf("the pod did not see the SYN again: %s", got)
	}
	if got := hits(t, c)[bpf.Key{Frontend: vip, Endpoint: pod, Protocol: tcp}]; got != 1 {
		t.Errorf("a SYN that was sent again counts %d times", got)
	}
}

// Only the NodePorts that were asked for count, on loopback, and only what comes to them.
func TestRefusalsOnLoopback(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		c := open(t, w.node, bpf.Options{})
		dns := bpf.Reject{IPv6: w.ipv6, Protocol: udp, Port: 30053}
		if err := c.SetRejects([]bpf.Reject{dns, {IPv6: w.ipv6, Protocol: udp, Port: 30054}}); err != nil {
			t.Fatal(err)
		}
		loopback := w.address("127.0.0.1", "::1")
		send(t, w.node, at(loopback, 30053), 3)
		send(t, w.node, at(loopback, 30055), 1)
		send(t, w.node, at(w.nodeAddr(), 30054), 1)
		read := func() map[bpf.Reject]uint64 {
			got := map[bpf.Reject]uint64{}
			if err := c.Rejects(func(r bpf.Reject, n uint64) { got[r] = n }); err != nil {
				t.Fatal(err)
			}
			return got
		}
		if diff := cmp.Diff(map[bpf.Reject]uint64{dns: 3, {IPv6: w.ipv6, Protocol: udp, Port: 30054}: 0}, read()); diff != "" {
			t.Errorf("refused (-want +got): %s", diff)
		}
		if err := c.SetRejects([]bpf.Reject{dns}); err != nil {
			t.Fatal(err)
		}
		send(t, w.node, at(loopback, 30053), 1)
		if diff := cmp.Diff(map[bpf.Reject]uint64{dns: 4}, read()); diff != "" {
			t.Errorf("refused, after others (-want +got): %s", diff)
		}
	})
}

// None of 100,000 connections is lost or counted twice. Each frontend has a client of its
// own: of two connections that come out as the same one, if they begin at the same time,
// the kernel drops a SYN when it was counted.
func TestCountIsExact(t *testing.T) {
	const connections = 50_000
	w := newWorld(t, false)
	pod := at(w.podAddr(), 8080)
	serve(t, w.pod, pod)
	// A small machine forgets those that have ended too early, and resets what comes late.
	w.pod.Run(t, "sysctl", "-qw", fmt.Sprint("net.ipv4.tcp_max_tw_buckets=", 2*connections))
	c := open(t, w.node, bpf.Options{})
	want := map[bpf.Key]uint64{}
	var beside sync.WaitGroup
	for n, from := range []*netns.NS{w.client, w.node} {
		k := bpf.Key{Frontend: at(w.vip(n+1), 80), Endpoint: pod, Protocol: tcp}
		put(t, c, k)
		want[k] = connections
		beside.Go(func() {
			if err := connects(from, k.Frontend, connections); err != nil {
				t.Error(err)
			}
		})
	}
	beside.Wait()
	if diff := cmp.Diff(want, hits(t, c), addrs); diff != "" {
		t.Errorf("hits (-want +got): %s", diff)
	}
}
