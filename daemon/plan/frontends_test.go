package plan_test

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/model"
	"onerule/daemon/plan"
)

// full is a Service with every kind of frontend, in both families.
func full() *model.Service {
	s := web()
	s.ClusterIPs = addrs("10.96.0.1", "fd00:96::1")
	s.ExternalIPs = addrs("198.51.100.1", "2001:db8::1")
	s.LoadBalancerIPs = addrs("203.0.113.1", "2001:db8:1::1")
	s.Ports[0].NodePort = 30080
	return s
}

func TestFrontends(t *testing.T) {
	type lines = []string
	for _, c := range []struct {
		name   string
		change func(*model.Service)
		want   lines
	}{
		{"A1.23: every kind, in both families", func(*model.Service) {}, lines{
			"v4 node NodePort 30080 TCP [1]", "v6 node NodePort 30080 TCP [6]",
			"cluster 10.96.0.1:80 TCP [1]", "external 198.51.100.1:80 TCP [1]", "lb 203.0.113.1:80 TCP [1]",
			"external [2001:db8::1]:80 TCP [6]", "lb [2001:db8:1::1]:80 TCP [6]", "cluster [fd00:96::1]:80 TCP [6]",
		}},
		{"A1.23: only the families that it has a ClusterIP of", func(s *model.Service) { s.ClusterIPs = s.ClusterIPs[1:] }, lines{
			"v6 node NodePort 30080 TCP [6]",
			"external [2001:db8::1]:80 TCP [6]", "lb [2001:db8:1::1]:80 TCP [6]", "cluster [fd00:96::1]:80 TCP [6]",
		}},
		{"A1.6: none without a ClusterIP", func(s *model.Service) { s.ClusterIPs = nil }, nil},
		{"A1.21: no NodePort, but a load balancer", func(s *model.Service) {
			s.ClusterIPs, s.ExternalIPs, s.Ports[0].NodePort = s.ClusterIPs[:1], nil, 0
		}, lines{"cluster 10.96.0.1:80 TCP [1]", "lb 203.0.113.1:80 TCP [1]"}},
		{"A6.11: one number for TCP and UDP", func(s *model.Service) {
			s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs = s.ClusterIPs[:1], nil, nil
			s.Ports = append(s.Ports, model.ServicePort{Name: "dns", Protocol: model.UDP, Port: 53, NodePort: 30080})
		}, lines{
			"v4 node NodePort 30080 TCP [1]", "v4 node NodePort 30080 UDP []",
			"cluster 10.96.0.1:80 TCP [1]", "cluster 10.96.0.1:53 UDP []",
		}},
		{"the policies hold for their kinds of frontends", func(s *model.Service) {
			s.ClusterIPs = s.ClusterIPs[:1]
			s.ExternalLocal = true
		}, lines{
			"v4 node NodePort 30080 TCP [1] local [1]",
			"cluster 10.96.0.1:80 TCP [1]", "external 198.51.100.1:80 TCP [1] local [1]", "lb 203.0.113.1:80 TCP [1] local [1]",
		}},
		{"A3.5: and never for the other kind", func(s *model.Service) {
			s.ClusterIPs = s.ClusterIPs[:1]
			s.InternalLocal = true
		}, lines{
			"v4 node NodePort 30080 TCP [1]",
			"cluster 10.96.0.1:80 TCP [1] local [1]", "external 198.51.100.1:80 TCP [1]", "lb 203.0.113.1:80 TCP [1]",
		}},
		{"an address that is of all kinds is a ClusterIP", func(s *model.Service) {
			s.ClusterIPs, s.Ports[0].NodePort, s.ExternalLocal = s.ClusterIPs[:1], 0, true
			s.ExternalIPs, s.LoadBalancerIPs = s.ClusterIPs, s.ClusterIPs
			s.SourceRanges = ranges("192.0.2.0/24")
		}, lines{"cluster 10.96.0.1:80 TCP [1]"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := full()
			c.change(s)
			p := plan.ForService(plan.Config{NodeName: "n1"}, model.Node{}, s, []*model.EndpointSlice{
				slice("a", 8080, ready("10.0.0.1")), slice("b", 8080, ready("fd00::6")),
			})
			if diff := cmp.Diff(c.want, words(p.Decisions)); diff != "" {
				t.Errorf("decisions (-want +got): %s", diff)
			}
		})
	}
}

func TestA1_22ExternalIPsCanBeLeftOut(t *testing.T) {
	for _, without := range []bool{false, true} {
		p := plan.ForService(plan.Config{WithoutExternalIPs: without}, model.Node{}, full(), nil)
		external, others := 0, 0
		for _, d := range p.Decisions {
			if d.Kind == plan.ExternalIP {
				external++
			} else {
				others++
			}
		}
		wantExternal, wantAddrs := 2, addrs("198.51.100.1", "203.0.113.1", "2001:db8::1", "2001:db8:1::1")
		if without {
			wantExternal, wantAddrs = 0, addrs("203.0.113.1", "2001:db8:1::1")
		}
		if external != wantExternal || others != 6 {
			t.Errorf("without %v: got %d external IPs and %d other frontends, want %d and 6", without, external, others, wantExternal)
		}
		if diff := cmp.Diff(wantAddrs, p.ExternalIPs, opts()); diff != "" {
			t.Errorf("without %v: external addresses (-want +got): %s", without, diff)
		}
	}
}

// The addresses whose other ports are refused are those of the families that the
// Service has.
func TestExternalAddressesAreOfTheServicesFamilies(t *testing.T) {
	s := full()
	s.ClusterIPs = s.ClusterIPs[:1]
	s.LoadBalancerIPs = append(s.LoadBalancerIPs, s.ExternalIPs...)
	p := plan.ForService(plan.Config{}, model.Node{}, s, nil)
	if diff := cmp.Diff(addrs("198.51.100.1", "203.0.113.1"), p.ExternalIPs, opts()); diff != "" {
		t.Errorf("external addresses (-want +got): %s", diff)
	}
	if diff := cmp.Diff(addrs("10.96.0.1"), p.ClusterIPs, opts()); diff != "" {
		t.Errorf("ClusterIPs (-want +got): %s", diff)
	}
}

func TestSourceRanges(t *testing.T) {
	const v4, v6 = "lb 203.0.113.1:80 TCP [1]", "lb [2001:db8:1::1]:80 TCP [6]"
	for _, c := range []struct {
		name   string
		ranges []string
		node   []string // addresses of it
		v4, v6 string   // what is added to the decisions
	}{
		{"A8.1: without ranges all may", nil, nil, "", ""},
		{"A8.1: those in the ranges may, which are merged", []string{"192.0.2.0/25", "192.0.2.128/25", "192.0.2.7/32", "2001:db8:9::/64"}, nil, " from [192.0.2.0/24]", " from [2001:db8:9::/64]"},
		{"A8.2: all may if a range says so, in its family", []string{"192.0.2.0/24", "0.0.0.0/0", "2001:db8:9::/64"}, nil, "", " from [2001:db8:9::/64]"},
		{"A8.2: the same in the other one", []string{"192.0.2.0/24", "::/0"}, nil, " from [192.0.2.0/24]", ""},
		{"A8.5: ranges of the other family do not guard", []string{"192.0.2.0/24"}, nil, " from [192.0.2.0/24]", ""},
		{"A8.4: a range with an address of the node lets the load balancer's in", []string{"192.0.2.0/24", "2001:db8:9::/64"}, []string{"10.1.1.1", "192.0.2.9"}, " from [192.0.2.0/24 203.0.113.1/32]", " from [2001:db8:9::/64]"},
		{"A8.4: of the family", []string{"192.0.2.0/24", "2001:db8:9::/64"}, []string{"2001:db8:9::9"}, " from [192.0.2.0/24]", " from [2001:db8:1::1/128 2001:db8:9::/64]"},
		{"A8.4: not if the node's are elsewhere", []string{"192.0.2.0/24"}, []string{"192.0.3.9"}, " from [192.0.2.0/24]", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := full()
			s.SourceRanges = ranges(c.ranges...)
			p := plan.ForService(plan.Config{NodeName: "n1"}, model.Node{Name: "n1", Addrs: addrs(c.node...)}, s, []*model.EndpointSlice{
				slice("a", 8080, ready("10.0.0.1")), slice("b", 8080, ready("fd00::6")),
			})
			// A8.6: the other frontends are not guarded.
			want := []string{
				"v4 node NodePort 30080 TCP [1]", "v6 node NodePort 30080 TCP [6]",
				"cluster 10.96.0.1:80 TCP [1]", "external 198.51.100.1:80 TCP [1]", v4 + c.v4,
				"external [2001:db8::1]:80 TCP [6]", v6 + c.v6, "cluster [fd00:96::1]:80 TCP [6]",
			}
			if diff := cmp.Diff(want, words(p.Decisions)); diff != "" {
				t.Errorf("decisions (-want +got): %s", diff)
			}
		})
	}
}

// A source range is not got round by naming the load balancer's address as an external
// one, too.
func TestA8_1AnExternalIPThatIsALoadBalancersIsGuarded(t *testing.T) {
	s := web()
	s.LoadBalancerIPs, s.ExternalIPs = addrs("203.0.113.1"), addrs("203.0.113.1", "198.51.100.1")
	s.SourceRanges = ranges("192.0.2.0/24")
	p := plan.ForService(plan.Config{}, model.Node{}, s, nil)
	want := []string{"cluster 10.96.0.1:80 TCP []", "external 198.51.100.1:80 TCP []", "external 203.0.113.1:80 TCP [] from [192.0.2.0/24]"}
	if diff := cmp.Diff(want, words(p.Decisions)); diff != "" {
		t.Errorf("decisions (-want +got): %s", diff)
	}
}

// Whoever may write Services takes the traffic to any address otherwise.
func TestD19ExternalIPsAreLimitedToRanges(t *testing.T) {
	for name, c := range map[string]struct {
		allowed []netip.Prefix
		want    []netip.Addr // those of load balancers always
		refused []string
	}{
		"any":             {nil, addrs("198.51.100.1", "203.0.113.1", "2001:db8::1", "2001:db8:1::1"), nil},
		"of one family":   {ranges("198.51.100.0/24"), addrs("198.51.100.1", "203.0.113.1", "2001:db8:1::1"), []string{"2001:db8::1"}},
		"of other ranges": {ranges("198.51.100.2/32", "2001:db8:2::/48"), addrs("203.0.113.1", "2001:db8:1::1"), []string{"198.51.100.1", "2001:db8::1"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := plan.NewLedger(plan.Config{ExternalIPs: c.allowed})
			s := full()
			applied := l.Apply([]model.Change{{Key: model.Key{Kind: model.KindService, Name: s.Name}, Service: s}})
			out := l.Decide(l.All())
			got := slices.SortedFunc(maps.Keys(out.ExternalIPs), netip.Addr.Compare)
			if diff := cmp.Diff(c.want, got, opts()); diff != "" {
				t.Errorf("external addresses (-want +got): %s", diff)
			}
			var refused []string
			for _, n := range applied.Noted[s.Name] {
				if n.Reason == model.ReasonRefusedAddress && n.Field == "spec.externalIPs" {
					refused = append(refused, strings.Fields(n.Detail)[0])
				}
			}
			if diff := cmp.Diff(c.refused, refused); diff != "" {
				t.Errorf("notes (-want +got): %s", diff)
			}
		})
	}
}
