package plan_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/model"
	"onerule/daemon/plan"
)

func TestChosenByPolicyAndTopology(t *testing.T) {
	here := func(a string) model.Endpoint { return on("n1", a) }
	there := func(a string) model.Endpoint { return on("n2", a) }
	unready := func(e model.Endpoint) model.Endpoint {
		e.Ready, e.Serving = false, false
		return e
	}
	zoneless := func(e model.Endpoint) model.Endpoint {
		e.Hints = &model.Hints{Zones: []string{""}}
		return e
	}
	for _, c := range []struct {
		name           string
		endpoints      []model.Endpoint
		zone           string
		cluster, local string
	}{
		{"A3.1: none", nil, "", "[]", "[]"},
		{"A3.2, A3.3: elsewhere only", []model.Endpoint{there("10.0.0.2")}, "", "[2]", "[]"},
		{"A2: one here and one there", []model.Endpoint{there("10.0.0.2"), here("10.0.0.1")}, "", "[1 2]", "[1]"},
		{"A4.2: what leaves here, although others are ready there", []model.Endpoint{there("10.0.0.2"), goes("n1", "10.0.0.1")}, "", "[2]", "[1]"},
		{"A4.2: what is ready here, and not what leaves", []model.Endpoint{here("10.0.0.2"), goes("n1", "10.0.0.1")}, "", "[2]", "[2]"},
		{"A4.1: what leaves anywhere", []model.Endpoint{goes("n2", "10.0.0.2"), goes("n1", "10.0.0.1")}, "", "[1 2]", "[1]"},
		{"A1.14: an endpoint without a node is not here", []model.Endpoint{on("", "10.0.0.1")}, "", "[1]", "[]"},

		{"A4.6: hints for this node", []model.Endpoint{hinted(here("10.0.0.1"), "n1", ""), hinted(there("10.0.0.2"), "n2", ""), hinted(there("10.0.0.3"), "n1", "")}, "z1", "[1 3]", "[1]"},
		{"A4.6: hints for nodes come before those for zones", []model.Endpoint{hinted(here("10.0.0.1"), "n2", "z1"), hinted(there("10.0.0.2"), "n1", "z2")}, "z1", "[2]", "[1]"},
		{"A4.6: those for zones hold if one has none for a node", []model.Endpoint{hinted(here("10.0.0.1"), "", "z1"), hinted(there("10.0.0.2"), "n1", "z2")}, "z1", "[1]", "[1]"},
		{"A4.6: or none is for this node", []model.Endpoint{hinted(here("10.0.0.1"), "n3", "z1"), hinted(there("10.0.0.2"), "n2", "z2")}, "z1", "[1]", "[1]"},
		{"A4.7: hints for this zone", []model.Endpoint{hinted(here("10.0.0.1"), "", "z1"), hinted(there("10.0.0.2"), "", "z2"), hinted(there("10.0.0.3"), "", "z1")}, "z1", "[1 3]", "[1]"},
		{"A4.8: one without a hint", []model.Endpoint{hinted(here("10.0.0.1"), "", "z1"), there("10.0.0.2")}, "z1", "[1 2]", "[1]"},
		{"A4.8: one with hints that name nothing", []model.Endpoint{hinted(here("10.0.0.1"), "", "z1"), hinted(there("10.0.0.2"), "", "")}, "z1", "[1 2]", "[1]"},
		{"A4.8: a node without a zone", []model.Endpoint{hinted(here("10.0.0.1"), "", "z1"), hinted(there("10.0.0.2"), "", "z2")}, "", "[1 2]", "[1]"},
		{"A4.8: a node without a zone is not in a zone without a name", []model.Endpoint{zoneless(here("10.0.0.1")), hinted(there("10.0.0.2"), "", "z2")}, "", "[1 2]", "[1]"},
		{"A4.8: a zone that has none", []model.Endpoint{hinted(here("10.0.0.1"), "", "z1"), hinted(there("10.0.0.2"), "", "z2")}, "z3", "[1 2]", "[1]"},
		{"A4.9: what is not ready has no say", []model.Endpoint{hinted(here("10.0.0.1"), "", "z1"), hinted(there("10.0.0.2"), "", "z2"), unready(there("10.0.0.3")), goes("n2", "10.0.0.4")}, "z1", "[1]", "[1]"},
		{"A4.9: nor does its hint count", []model.Endpoint{hinted(here("10.0.0.1"), "", "z2"), unready(hinted(there("10.0.0.2"), "", "z1"))}, "z1", "[1]", "[1]"},
		{"A4.10: hints leave the local ones alone", []model.Endpoint{hinted(here("10.0.0.1"), "", "z2"), hinted(there("10.0.0.2"), "", "z1")}, "z1", "[2]", "[1]"},
		{"A4.13: what leaves in the zone is not used while any is ready", []model.Endpoint{hinted(goes("n2", "10.0.0.1"), "", "z1"), hinted(there("10.0.0.2"), "", "z2")}, "z1", "[2]", "[]"},
		{"A4.1: hints on what leaves do not matter", []model.Endpoint{hinted(goes("n1", "10.0.0.1"), "", "z1"), hinted(goes("n2", "10.0.0.2"), "", "z2")}, "z1", "[1 2]", "[1]"},
		{"A4.7: hints of the other family do not matter", []model.Endpoint{hinted(here("10.0.0.1"), "", "z1"), hinted(there("10.0.0.2"), "", "z2"), there("fd00::3")}, "z1", "[1]", "[1]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := web()
			s.InternalLocal = true
			for _, endpoints := range [][]model.Endpoint{c.endpoints, reversed(c.endpoints)} {
				p := plan.ForService(plan.Config{NodeName: "n1"}, model.Node{Name: "n1", Zone: c.zone}, s, []*model.EndpointSlice{slice("a", 8080, endpoints...)})
				want := []string{"cluster 10.96.0.1:80 TCP " + c.cluster + " local " + c.local}
				if diff := cmp.Diff(want, words(p.Decisions)); diff != "" {
					t.Errorf("decisions (-want +got): %s", diff)
				}
			}
		})
	}
}

func reversed(list []model.Endpoint) []model.Endpoint {
	list = slices.Clone(list)
	slices.Reverse(list)
	return list
}

// A12.1: whose flows may go on, whatever policies and topology say.
func TestEndpointsThatKeepTheirFlows(t *testing.T) {
	endpoints := []model.Endpoint{
		hinted(on("n1", "10.0.0.1"), "n1", ""), hinted(on("n2", "10.0.0.2"), "n2", ""), goes("n2", "10.0.0.3"),
		{Addr: addr("10.0.0.4"), Serving: true},
		{Addr: addr("10.0.0.5"), Ready: true, Hints: &model.Hints{Nodes: []string{"n2"}}}, // R33: published although it is not ready
		{Addr: addr("10.0.0.6"), Terminating: true}, {Addr: addr("10.0.0.7")}, ready("fd00::8"),
	}
	for _, c := range []struct {
		protocol   model.Protocol
		keepListed bool
		want       string
	}{
		{model.TCP, false, "[1 2 3 4 5]"}, {model.TCP, true, "[1 2 3 4 5 6 7]"},
		{model.UDP, false, "[1 2 3 4 5]"}, {model.UDP, true, "[1 2 3 4 5]"}, {model.SCTP, false, "[1 2 3 4 5]"},
	} {
		s, part := full(), slice("a", 8080, endpoints...)
		s.ClusterIPs, s.InternalLocal = s.ClusterIPs[:1], true
		s.Ports[0].Protocol, part.Ports[0].Protocol = c.protocol, c.protocol
		p := plan.ForService(plan.Config{NodeName: "n1", KeepListed: c.keepListed}, model.Node{}, s, []*model.EndpointSlice{part})
		if len(p.Decisions) != 4 {
			t.Fatalf("%s: got %d decisions, want 4", c.protocol, len(p.Decisions))
		}
		for _, d := range p.Decisions {
			if got := short(d.Keep); got != c.want {
				t.Errorf("%s, listed %v: %s: keeps flows to %s, want %s", c.protocol, c.keepListed, d.Frontend, got, c.want)
			}
			if got := short(d.Endpoints); got != "[1]" {
				t.Errorf("%s: %s: got endpoints %s, want [1]", c.protocol, d.Frontend, got)
			}
		}
	}
}

// A2.4: what is chosen on this node in either set, and only if the set is used.
func TestHairpinsOfBothSets(t *testing.T) {
	parts := []*model.EndpointSlice{slice("a", 8080, hinted(on("n1", "10.0.0.1"), "", "z2"), hinted(on("n2", "10.0.0.2"), "", "z1"), hinted(on("n1", "10.0.0.3"), "", "z1"))}
	for _, c := range []struct {
		local bool
		want  []string
	}{{false, []string{"10.0.0.3"}}, {true, []string{"10.0.0.1", "10.0.0.3"}}} {
		s := web()
		s.InternalLocal = c.local
		p := plan.ForService(plan.Config{NodeName: "n1"}, model.Node{Zone: "z1"}, s, parts)
		if diff := cmp.Diff(addrs(c.want...), p.Hairpins, opts()); diff != "" {
			t.Errorf("local %v: hairpins (-want +got): %s", c.local, diff)
		}
	}
}

func TestHealthChecksCountAddressesThatAreReadyHere(t *testing.T) {
	s := full()
	s.HealthCheckNodePort, s.ExternalLocal = 32000, true
	s.Ports = append(s.Ports, model.ServicePort{Name: "admin", Protocol: model.TCP, Port: 81})
	admin := func(endpoints ...model.Endpoint) *model.EndpointSlice {
		part := slice("c", 9090, endpoints...)
		part.Ports[0].Name = "admin"
		return part
	}
	for _, c := range []struct {
		name  string
		parts []*model.EndpointSlice
		want  int
	}{
		{"none", nil, 0},
		{"A9.5: one with two ports counts once", []*model.EndpointSlice{slice("a", 8080, on("n1", "10.0.0.1")), admin(on("n1", "10.0.0.1"))}, 1},
		{"A9.5: of one port each", []*model.EndpointSlice{slice("a", 8080, on("n1", "10.0.0.1")), admin(on("n1", "10.0.0.2"))}, 2},
		{"R36: both families together", []*model.EndpointSlice{slice("a", 8080, on("n1", "10.0.0.1"), on("n1", "fd00::1"))}, 2},
		{"only those here", []*model.EndpointSlice{slice("a", 8080, on("n2", "10.0.0.1"), on("", "10.0.0.2"))}, 0},
		{"A4.5: what leaves does not count, although it is used", []*model.EndpointSlice{slice("a", 8080, goes("n1", "10.0.0.1"))}, 0},
		{"hints do not matter", []*model.EndpointSlice{slice("a", 8080, hinted(on("n1", "10.0.0.1"), "n2", ""), hinted(on("n2", "10.0.0.2"), "n1", ""))}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := plan.ForService(plan.Config{NodeName: "n1"}, model.Node{}, s, c.parts)
			want := plan.HealthCheck{Service: s.Name, Endpoints: c.want}
			if p.HealthCheckPort != 32000 || p.HealthCheck != want {
				t.Errorf("got port %d, %+v, want 32000, %+v", p.HealthCheckPort, p.HealthCheck, want)
			}
		})
	}
	t.Run("A9.1: none without a port", func(t *testing.T) {
		p := plan.ForService(plan.Config{NodeName: "n1"}, model.Node{}, web(), []*model.EndpointSlice{slice("a", 8080, on("n1", "10.0.0.1"))})
		if p.HealthCheckPort != 0 || p.HealthCheck != (plan.HealthCheck{}) {
			t.Errorf("got port %d, %+v, want none", p.HealthCheckPort, p.HealthCheck)
		}
	})
}

func TestServicePortsWithoutLocalEndpoints(t *testing.T) {
	far := []model.Endpoint{on("n2", "10.0.0.2"), on("n2", "fd00::2")}
	both := plan.NoLocal{Internal: 1, External: 1}
	for _, c := range []struct {
		name      string
		change    func(*model.Service)
		endpoints []model.Endpoint
		want      map[plan.Family]plan.NoLocal
	}{
		{"A11: both policies are Local", func(*model.Service) {}, far, map[plan.Family]plan.NoLocal{plan.IPv4: both, plan.IPv6: both}},
		{"A11: the internal one is", func(s *model.Service) { s.ExternalLocal = false }, far, map[plan.Family]plan.NoLocal{plan.IPv4: {Internal: 1}, plan.IPv6: {Internal: 1}}},
		{"A11: the external one is", func(s *model.Service) { s.InternalLocal = false }, far, map[plan.Family]plan.NoLocal{plan.IPv4: {External: 1}, plan.IPv6: {External: 1}}},
		{"A11: none is", func(s *model.Service) { s.InternalLocal, s.ExternalLocal = false, false }, far, nil},
		{"A11: there is no external frontend", func(s *model.Service) {
			s.ExternalIPs, s.LoadBalancerIPs, s.Ports[0].NodePort = nil, nil, 0
		}, far, map[plan.Family]plan.NoLocal{plan.IPv4: {Internal: 1}, plan.IPv6: {Internal: 1}}},
		{"A11: a family has a local one", func(*model.Service) {}, append(far, on("n1", "10.0.0.1")), map[plan.Family]plan.NoLocal{plan.IPv6: both}},
		{"A11: a family has none at all", func(*model.Service) {}, far[:1], map[plan.Family]plan.NoLocal{plan.IPv4: both}},
		{"A11: one that leaves is there", func(*model.Service) {}, append(far[:1:1], goes("n1", "10.0.0.1")), nil},
		{"A11: each port counts", func(s *model.Service) { s.Ports = append(s.Ports, s.Ports[0]); s.Ports[1].Port = 81 }, far[:1], map[plan.Family]plan.NoLocal{plan.IPv4: {Internal: 2, External: 2}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := full()
			s.InternalLocal, s.ExternalLocal = true, true
			c.change(s)
			p := plan.ForService(plan.Config{NodeName: "n1"}, model.Node{}, s, []*model.EndpointSlice{slice("a", 8080, c.endpoints...)})
			if diff := cmp.Diff(c.want, p.NoLocal, opts()); diff != "" {
				t.Errorf("(-want +got): %s", diff)
			}
		})
	}
}

func TestAffinity(t *testing.T) {
	parts := []*model.EndpointSlice{slice("a", 8080, on("n1", "10.0.0.1"), on("n2", "10.0.0.2"), on("n2", "fd00::6"))}
	four := func(cluster, local string, seconds uint32) string {
		return "v4 " + cluster + " local " + local + map[uint32]string{10800: " 10800 s", 60: " 60 s"}[seconds]
	}
	for _, c := range []struct {
		name   string
		change func(*model.Service)
		want   string // of IPv4; empty: no affinity
	}{
		{"A5.5: without", func(s *model.Service) { s.Affinity = 0 }, ""},
		{"A5.1: one for all frontends", func(*model.Service) {}, four("[1 2]", "none", 10800)},
		{"A5.3: with its time", func(s *model.Service) { s.Affinity = 60 }, four("[1 2]", "none", 60)},
		{"A5.6: with local ones where the external policy is Local", func(s *model.Service) { s.ExternalLocal = true }, four("[1 2]", "[1]", 10800)},
		{"A5.6: or the internal one", func(s *model.Service) { s.InternalLocal = true }, four("[1 2]", "[1]", 10800)},
		{"A5.6: clients of the cluster may leave the node although both are Local", func(s *model.Service) { s.InternalLocal, s.ExternalLocal = true, true }, four("[1 2]", "[1]", 10800)},
		{"A5.6: a Local ClusterIP alone has only local ones", func(s *model.Service) {
			s.InternalLocal, s.ExternalIPs, s.LoadBalancerIPs, s.Ports[0].NodePort = true, nil, nil, 0
		}, four("[]", "[1]", 10800)},
		{"A5.6: an external IP that is the ClusterIP is none", func(s *model.Service) {
			s.InternalLocal, s.ExternalIPs, s.LoadBalancerIPs, s.Ports[0].NodePort = true, s.ClusterIPs, nil, 0
		}, four("[]", "[1]", 10800)},
		{"A5.6: an external policy without external frontends is none", func(s *model.Service) {
			s.ExternalLocal, s.ExternalIPs, s.LoadBalancerIPs, s.Ports[0].NodePort = true, nil, nil, 0
		}, four("[1 2]", "none", 10800)},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := full()
			s.Affinity = 10800
			c.change(s)
			p := plan.ForService(plan.Config{NodeName: "n1"}, model.Node{}, s, parts)
			key := plan.ServicePort{Service: s.Name, Port: "http", Protocol: model.TCP, Family: plan.IPv4}
			a, pinned := p.Affinities[key]
			got := ""
			if pinned {
				local := "none"
				if a.Local {
					local = short(a.LocalEndpoints)
				}
				got = four(short(a.Endpoints), local, a.Seconds)
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			for _, d := range p.Decisions {
				want := plan.ServicePort{}
				if pinned {
					want = key
					want.Family = d.Frontend.InFamily()
				}
				if d.Affinity != want || d.AffinitySeconds != a.Seconds || d.AffinityLocal != a.Local {
					t.Errorf("%s: got affinity %v, %d s, local %v, want %v, %d s, local %v", d.Frontend, d.Affinity, d.AffinitySeconds, d.AffinityLocal, want, a.Seconds, a.Local)
				}
			}
		})
	}
}

// A5.2: each port, protocol and family has pins of its own.
func TestAffinityIsOfAServicePort(t *testing.T) {
	s := full()
	s.Affinity = 60
	s.Ports = append(s.Ports, model.ServicePort{Name: "http", Protocol: model.UDP, Port: 80}, model.ServicePort{Name: "admin", Protocol: model.TCP, Port: 81})
	p := plan.ForService(plan.Config{}, model.Node{}, s, nil)
	want := map[plan.ServicePort]plan.Affinity{}
	for _, family := range []plan.Family{plan.IPv4, plan.IPv6} {
		for _, port := range s.Ports {
			want[plan.ServicePort{Service: s.Name, Port: port.Name, Protocol: port.Protocol, Family: family}] = plan.Affinity{Seconds: 60}
		}
	}
	if diff := cmp.Diff(want, p.Affinities, opts()); diff != "" {
		t.Errorf("affinities (-want +got): %s", diff)
	}
}
