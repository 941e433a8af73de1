package rows_test

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/oracle"
	"onerule/test/rig"
)

// affinityTests are the rows about clients that come back to the same endpoint.
func affinityTests() map[string]func(*testing.T, *world) {
	return map[string]func(*testing.T, *world){
		"A5.1": testOneEndpoint, "A5.2": testPortsApart, "A5.3": testSlidingTimeout, "A5.4": testEndpointLeaves, "A5.4.kept": testPinsKept,
		"A5.5": testAffinityOnAndOff, "A5.6": testAffinityLocal, "A5.7": testKeyedBeforeMasquerade,
	}
}

// sticky are the fields of a Service with session affinity and a timeout in seconds.
func sticky(seconds int) string {
	return fmt.Sprintf(", sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: %d}}", seconds)
}

// three endpoints: by chance a client comes to one of them 12 times in 1 of 177,147
// cases.
func three(p addr.Plan) []netip.Addr { return []netip.Addr{p.Pod(1), p.Pod(2), p.OtherPod(0)} }

// visitors are clients with addresses of their own, none of them an endpoint.
func visitors(p addr.Plan) []oracle.Packet {
	return append(hosts.Clients(p), oracle.Packet{From: oracle.Outside, Src: p.OtherNode()})
}

// visit connects once and gives who answers.
func (w *world) visit(t *testing.T, client oracle.Packet, to place) hosts.Seen {
	t.Helper()
	seen, err := w.h.Probe(to.from(client), hosts.Patience)
	if err != nil || seen.Verdict != hosts.Answered {
		t.Fatalf("from %s to %s: %s, %v", client.Src, to.addr, seen, err)
	}
	return seen
}

// home gives the endpoint that a client comes to at all these places, however often.
func (w *world) home(t *testing.T, client oracle.Packet, places ...place) netip.Addr {
	t.Helper()
	first := w.visit(t, client, places[0]).Endpoint.Addr()
	for range repeats {
		for _, to := range places {
			if e := w.visit(t, client, to).Endpoint.Addr(); e != first {
				t.Fatalf("from %s to %s %s: %s, it was pinned to %s", client.Src, netip.AddrPortFrom(to.addr, to.port), to.protocol, e, first)
			}
		}
	}
	return first
}

// pinnedTo gives what the kernel holds in the maps of pins to addresses: the endpoint
// by client, with the time that is left.
func (w *world) pinnedTo(t *testing.T, p addr.Plan, scope string) map[netip.Addr]pinned {
	t.Helper()
	all := map[netip.Addr]pinned{}
	for _, id := range w.pinIDs(t, p) {
		text := w.h.Node.Run(t, "nft", "list", "map", nftFamily(p), "onerule", "pins-"+scope+"addr-"+id)
		for _, m := range regexp.MustCompile(`([0-9a-f.:]+) timeout \S+ expires (\S+) : ([0-9a-f.:]+)`).FindAllStringSubmatch(text, -1) {
			left, err := time.ParseDuration(m[2])
			if err != nil {
				t.Fatal(err)
			}
			all[netip.MustParseAddr(m[1])] = pinned{netip.MustParseAddr(m[3]), left}
		}
	}
	return all
}

type pinned struct {
	to   netip.Addr
	left time.Duration
}

// pinIDs gives the service ports with affinity, as they stand in names.
func (w *world) pinIDs(t *testing.T, p addr.Plan) []string {
	t.Helper()
	ids := map[string]bool{}
	for _, m := range regexp.MustCompile(`goto pin-([0-9a-f]+)-`).FindAllStringSubmatch(w.ruleset(t, p), -1) {
		ids[m[1]] = true
	}
	return slices.Sorted(maps.Keys(ids))
}

func tcpPlaces(p addr.Plan) []place {
	return slices.DeleteFunc(append(outsidePlaces(p), clusterPlaces(p)...), func(to place) bool { return to.protocol != model.TCP })
}

func udpPlaces(p addr.Plan) []place {
	return slices.DeleteFunc(append(outsidePlaces(p), clusterPlaces(p)...), func(to place) bool { return to.protocol != model.UDP })
}

func testOneEndpoint(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", outsideService(p, sticky(60)), webSlice(p, three(p)...))
		for _, client := range visitors(p) {
			w.home(t, client, tcpPlaces(p)...)
			w.home(t, client, udpPlaces(p)...)
		}
	})
}

func testPortsApart(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		// Each round, 4 clients agree on both ports by chance in 1 of 81 cases.
		for round := range 4 {
			name := fmt.Sprintf("apart-%d", round)
			service := strings.Replace(outsideService(p, sticky(60)), "name: web}", "name: "+name+"}", 1)
			w.put(t, "web.yaml", service, slice(p, name+"-1", name, "", []string{webTarget, dnsTarget}, ready(p, three(p)...)...))
			for _, client := range visitors(p) {
				if w.home(t, client, tcpPlaces(p)[0]) != w.home(t, client, udpPlaces(p)[0]) {
					return
				}
			}
		}
		t.Error("two ports of a Service pin all clients to the same endpoints")
	})
}

func testSlidingTimeout(t *testing.T, w *world) {
	const timeout = 3 * time.Second
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", outsideService(p, sticky(3)), webSlice(p, three(p)...))
		client, to := hosts.Clients(p)[oracle.Outside], at(p.VIP(0), model.TCP, 80)
		first, begin := w.visit(t, client, to).Endpoint.Addr(), time.Now()
		for time.Since(begin) < 2*timeout { // longer than without being renewed
			rig.Eventually(t, "half of the time is over", func() error { return overAfter(w.pinnedTo(t, p, "")[client.Src].left, timeout/2) })
			if e := w.visit(t, client, to).Endpoint.Addr(); e != first {
				t.Fatalf("after %s: %s, it was pinned to %s", time.Since(begin), e, first)
			}
			if left := w.pinnedTo(t, p, "")[client.Src].left; left < timeout/2 || left > timeout {
				t.Errorf("a pin has %s left after a connection, of %s", left, timeout)
			}
		}
		rig.Eventually(t, "the pin goes", func() error { return overAfter(w.pinnedTo(t, p, "")[client.Src].left, 0) })
	})
}

func overAfter(left, enough time.Duration) error {
	if left > enough {
		return fmt.Errorf("%s left", left)
	}
	return nil
}

func testEndpointLeaves(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		places := tcpPlaces(p)
		all := three(p)
		put := func(endpoints ...string) {
			w.put(t, "web.yaml", outsideService(p, sticky(60)), webSliceOf(p, endpoints...))
		}
		put(ready(p, all...)...)
		homes := map[netip.Addr]netip.Addr{}
		for _, client := range visitors(p) {
			homes[client.Src] = w.home(t, client, places...)
		}
		leaver := homes[visitors(p)[0].Src]
		rest := slices.DeleteFunc(slices.Clone(all), func(a netip.Addr) bool { return a == leaver })
		for what, endpoints := range map[string][]string{
			"gone":     ready(p, rest...),
			"no ready": append(ready(p, rest...), conditioned(p, "ready: false, serving: false, terminating: false", leaver)...),
		} {
			put(endpoints...)
			for _, client := range visitors(p) {
				now := w.home(t, client, places...)
				switch before := homes[client.Src]; {
				case before != leaver && now != before:
					t.Errorf("%s: %s was pinned to %s, which stayed, and is to %s", what, client.Src, before, now)
				case now == leaver:
					t.Errorf("%s: %s comes to %s, which left", what, client.Src, now)
				}
				homes[client.Src] = now
			}
		}
		put(ready(p, all...)...) // and nobody goes back
		for _, client := range visitors(p) {
			if now := w.home(t, client, places...); now != homes[client.Src] {
				t.Errorf("%s was pinned to %s and comes to %s when another endpoint is back", client.Src, homes[client.Src], now)
			}
		}
	})
}

// homes gives the endpoint of each visitor of both families.
func (w *world) homes(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, p := range addr.Both() {
		for _, client := range visitors(p) {
			all[client.Src.String()] = w.home(t, client, at(p.VIP(0), model.TCP, 80), at(p.BalancerIP(0), model.TCP, 80)).String()
		}
	}
	return all
}

func testPinsKept(t *testing.T, w *world) {
	put := func(seconds int) {
		for _, p := range addr.Both() {
			name := "web-" + nftFamily(p)
			service := strings.Replace(outsideService(p, sticky(seconds)), "name: web}", "name: "+name+"}", 1)
			w.put(t, name+".yaml", service, slice(p, name+"-1", name, "", []string{webTarget, dnsTarget}, ready(p, three(p)...)...))
		}
	}
	put(600)
	before := w.homes(t)
	w.restart(t, w.flags...)
	w.flags = nil // this daemon ends with this test: the usual one comes back afterwards
	if diff := cmp.Diff(before, w.homes(t)); diff != "" {
		t.Errorf("after a restart (-before +after): %s", diff)
	}
	put(900)
	if diff := cmp.Diff(before, w.homes(t)); diff != "" {
		t.Errorf("with another timeout (-before +after): %s", diff)
	}
	for _, p := range addr.Both() {
		for client, pin := range w.pinnedTo(t, p, "") {
			if pin.left <= 600*time.Second {
				t.Errorf("the pin of %s has %s left, want the new timeout of 900 s", client, pin.left)
			}
		}
	}
}

func testAffinityOnAndOff(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		for range 2 {
			w.put(t, "web.yaml", outsideService(p, ""), webSlice(p, three(p)...))
			for _, to := range append(tcpPlaces(p), udpPlaces(p)...) {
				w.sees(t, hosts.Clients(p)[oracle.Outside], to, reaches(true, three(p)...))
			}
			w.put(t, "web.yaml", outsideService(p, sticky(60)), webSlice(p, three(p)...))
			w.home(t, hosts.Clients(p)[oracle.Outside], tcpPlaces(p)...)
			w.home(t, hosts.Clients(p)[oracle.Outside], udpPlaces(p)...)
		}
	})
}

// A client that its ClusterIP pinned to an endpoint elsewhere reaches one here by a
// frontend of policy Local, and both pins live on.
func testAffinityLocal(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		service := outsideService(p, externalLocal+sticky(60))
		outside := hosts.Clients(p)[oracle.Outside]
		for _, places := range [][]place{tcpPlaces(p), udpPlaces(p)} {
			w.put(t, "web.yaml", service, webSlice(p, there(p)))
			cluster := places[len(places)-1] // the others are of policy Local
			w.home(t, outside, cluster)
			w.put(t, "web.yaml", service, webSlice(p, three(p)...))
			local := w.home(t, outside, places[:len(places)-1]...)
			if local == there(p) {
				t.Errorf("policy Local leads to %s", local)
			}
			for range 3 {
				if e := w.home(t, outside, cluster); e != there(p) {
					t.Errorf("the ClusterIP leads to %s, want %s, which it had pinned to", e, there(p))
				}
				if e := w.home(t, outside, places[0]); e != local {
					t.Errorf("policy Local leads to %s, want %s as before", e, local)
				}
			}
			w.remove(t, "web.yaml")
		}
	})
}

func testKeyedBeforeMasquerade(t *testing.T, w *world) {
	w.restart(t, detectBoth("--masquerade-all")...)
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", outsideService(p, sticky(60)), webSlice(p, p.Pod(1), p.OtherPod(0)))
		to := at(p.VIP(0), model.TCP, 80)
		var clients []netip.Addr
		for _, client := range []oracle.Packet{{From: oracle.Pod, Src: p.Pod(0)}, {From: oracle.Pod, Src: p.Pod(2)}, hosts.Clients(p)[oracle.Outside], hosts.Clients(p)[oracle.Node]} {
			seen := w.visit(t, client, to)
			if client.From != oracle.Node && !slices.Contains(w.h.NodeAddrs(), seen.Peer.Addr()) {
				t.Errorf("%s is not masqueraded: %s", client.Src, seen.Peer)
			}
			clients = append(clients, seen.Local.Addr())
			w.home(t, client, to)
		}
		got := slices.SortedFunc(maps.Keys(w.pinnedTo(t, p, "")), netip.Addr.Compare)
		slices.SortFunc(clients, netip.Addr.Compare)
		if !slices.Equal(got, clients) {
			t.Errorf("clients with pins are %s, want %s", got, clients)
		}
	})
}
