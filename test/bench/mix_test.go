package main

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"onerule/nft"
	"onerule/test/netns"
)

func TestMixHasItsShares(t *testing.T) {
	const services = 10_000
	c := newMix(services)
	got := map[serviceKind]int{}
	ports, addrs := map[uint16]bool{}, map[netip.Addr]bool{}
	for i := range services {
		k := c.kindOf(i)
		got[k]++
		s := c.service(i, firstVersion)
		for _, port := range s.Spec.Ports {
			if n := uint16(port.NodePort); n != 0 {
				if ports[n] || n < 30000 || n > lastNodePort {
					t.Fatalf("service %d: NodePort %d is another's or outside the usual range", i, n)
				}
				ports[n] = true
			}
		}
		list := s.Spec.ClusterIPs
		for _, in := range s.Status.LoadBalancer.Ingress {
			list = append(list, in.IP)
		}
		for _, text := range list {
			a := netip.MustParseAddr(text)
			if addrs[a] {
				t.Fatalf("service %d: address %s is another's", i, a)
			}
			addrs[a] = true
		}
	}
	want := map[serviceKind]int{clusterIP: 7000, nodePort: 1500, balancer: 500, sticky: 500, local: 500}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if len(ports) != 2500 || len(addrs) != 10_500 {
		t.Errorf("got %d NodePorts and %d addresses, want 2500 and 10500", len(ports), len(addrs))
	}
}

func TestEveryServiceOfAClusterWithoutMixIsAClusterIP(t *testing.T) {
	c := newCluster(mixEvery)
	for i := range mixEvery {
		if k := c.kindOf(i); k != clusterIP || len(c.frontends(i)) != 1 {
			t.Errorf("service %d: got kind %s and frontends %v", i, k, c.frontends(i))
		}
	}
}

// The first endpoint of a Service with Local policies stays on our node whatever
// becomes of it, so that each of its sets has one.
func TestLocalServicesHaveAnEndpointHere(t *testing.T) {
	c := newMix(40)
	for _, i := range c.ofKind(local) {
		c.replace(i, 0)
		c.shrink(i, 9)
		if got, want := c.here(i), c.sorted(i); !slices.Equal(got, want) {
			t.Errorf("service %d: got endpoints %v on our node, want %v", i, got, want)
		}
	}
}

// Each kind of frontend is looked up where it is, and missed where it is not.
func TestLookUpsOfEachKind(t *testing.T) {
	ns := netns.New(t, "node")
	one, two := netip.MustParseAddrPort("10.128.0.1:8080"), netip.MustParseAddrPort("10.128.0.2:8080")
	all := []netip.AddrPort{one, two}
	here := []netip.AddrPort{two}
	vip := vip(1)
	s := nft.NewState()
	affinity := nft.Affinity{ID: nft.AffinityID("a"), Protocol: unix.IPPROTO_TCP, Seconds: 60}
	s.Pin(affinity, all, nil)
	s.Set(nft.Frontend{Addr: vip, Protocol: unix.IPPROTO_TCP, Port: 80}, nft.Route{Entry: nft.Entry{Local: true}, Endpoints: all, Local: here})
	s.Set(nft.Frontend{Addr: vip, Protocol: unix.IPPROTO_TCP, Port: 81}, nft.Route{Endpoints: all, Affinity: affinity})
	s.Set(nft.Frontend{Protocol: unix.IPPROTO_TCP, Port: 30080}, nft.Route{Entry: nft.Entry{External: true, NodePort: true, Local: true}, Endpoints: all, Local: here})
	if err := loadTable(t.Context(), ns, s); err != nil {
		t.Fatal(err)
	}
	k, err := openKernel(ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.close)
	for _, c := range []struct {
		name   string
		f      frontend
		missed string // "" if it is there
	}{
		{"a ClusterIP with policy Local", frontend{vip, 80, nft.LocalEndpoints, false, here}, ""},
		{"its endpoint elsewhere", frontend{vip, 80, nft.LocalEndpoints, false, all}, "local-lb-tcp-2"},
		{"a ClusterIP with affinity", frontend{vip, 81, nft.Endpoints, true, all}, ""},
		{"one without it", frontend{vip, 80, nft.LocalEndpoints, true, here}, "sticky"},
		{"a NodePort from inside", frontend{netip.Addr{}, 30080, nft.NodePortEndpoints, false, all}, ""},
		{"a NodePort from outside", frontend{netip.Addr{}, 30080, nft.NodePortLocalEndpoints, false, here}, ""},
		{"another endpoint of it", frontend{netip.Addr{}, 30080, nft.NodePortLocalEndpoints, false, all[:1]}, "endpoints"},
		{"a NodePort that nobody has", frontend{netip.Addr{}, 30081, nft.NodePortEndpoints, false, all}, "nodeport"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := k.has([]frontend{c.f})
			if c.missed == "" && err != nil || c.missed != "" && (err == nil || !strings.Contains(err.Error(), c.missed)) {
				t.Errorf("got error %v, want one about %q", err, c.missed)
			}
		})
	}
}

func TestRulesAreCounted(t *testing.T) {
	ns := netns.New(t, "node")
	k, err := openKernel(ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.close)
	// Rules of another table don't count.
	ns.Run(t, "nft", "add table ip "+nft.TableName+"; add chain ip "+nft.TableName+" c; add rule ip "+nft.TableName+
		" c accept; add rule ip "+nft.TableName+" c drop; add table ip other; add chain ip other c; add rule ip other c drop")
	if n, err := k.rules(); n != 2 || err != nil {
		t.Errorf("got %d rules, %v, want 2", n, err)
	}
}

// A small mix from end to end: each kind changes, and every frontend of what changed is
// looked up.
func TestMixFromEndToEnd(t *testing.T) {
	netns.Privileged(t)
	s, err := measureMixResting(t.Context(), mixEvery, 20, 0, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.restart.did["add"] + s.restart.did["delete"]; got != 0 {
		t.Errorf("the restart wrote %v elements, want 0", got)
	}
	if len(s.kinds) != len(serviceKinds()) {
		t.Fatalf("got changes to %d kinds, want %d", len(s.kinds), len(serviceKinds()))
	}
	for _, k := range s.kinds {
		for sort, one := range map[string]series{"replaced": k.replaced, "numbered": k.numbered} {
			if len(one.event) != 20 || one.did["transaction"] < 20 || one.did["ruleset"] != 0 {
				t.Errorf("%s, %s: got %d changes with %v, want 20 without a ruleset", k.kind, sort, len(one.event), one.did)
			}
			if k.kind != sticky && one.did["list"] != 0 {
				t.Errorf("%s, %s: %v listings, want none", k.kind, sort, one.did["list"])
			}
		}
	}
	if s.rules[0] == 0 || s.rules[1] < s.rules[0] || s.verified < 20 {
		t.Errorf("got %v rules, %d changes looked up", s.rules, s.verified)
	}
}

func TestKindsAreReported(t *testing.T) {
	s := &scale{
		services: 30_000,
		rules:    [2]int{200, 204},
		replaced: series{event: []time.Duration{time.Millisecond}},
		loads:    []load{{synced: time.Second}},
		kinds: []kindChanges{{
			kind: sticky, services: 1500,
			replaced: series{event: []time.Duration{time.Millisecond, 7 * time.Millisecond}, did: map[string]float64{"add": 4, "list": 6}},
			numbered: series{event: []time.Duration{2 * time.Millisecond}},
		}},
	}
	var text bytes.Buffer
	for _, table := range mixTables([]*scale{s}) {
		table.print(&text, true)
	}
	got := strings.Join(strings.Fields(text.String()), " ")
	for _, want := range []string{
		"The mix: ClusterIP 70 %, NodePort 15 %, LoadBalancer with source ranges 5 %, ClientIP affinity 5 %, Local policies 5 %.",
		"| rules in the kernel, after the load / after all changes | 200 / 204 |",
		"### One change by kind, in a mix of 30,000 Services",
		"| ClientIP affinity | 1,500 | 1.00 ms / 7.00 ms | 5.00 ms MISSED | 2 add, 3 list | 2.00 ms / 2.00 ms | 5.00 ms reached |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
}
