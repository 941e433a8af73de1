package plan_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"onerule/daemon/model"
	"onerule/daemon/plan"
)

func opts() cmp.Options {
	return cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}, plan.Frontend{}), cmpopts.EquateEmpty()}
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func ready(a string) model.Endpoint {
	return model.Endpoint{Addr: addr(a), Node: "n1", Ready: true, Serving: true}
}

func slice(name string, port uint16, endpoints ...model.Endpoint) *model.EndpointSlice {
	return &model.EndpointSlice{
		Name: model.Name{Namespace: "ns", Name: name}, Service: "web",
		Ports:     []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: port}},
		Endpoints: endpoints,
	}
}

func web() *model.Service {
	return &model.Service{
		Name:       model.Name{Namespace: "ns", Name: "web"},
		ClusterIPs: []netip.Addr{addr("10.96.0.1")},
		Ports:      []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}},
	}
}

func TestChosenEndpoints(t *testing.T) {
	unready := model.Endpoint{Addr: addr("10.0.0.3"), Node: "n1"}
	servingOnly := model.Endpoint{Addr: addr("10.0.0.4"), Node: "n1", Serving: true}
	leaving := model.Endpoint{Addr: addr("10.0.0.5"), Node: "n2", Serving: true, Terminating: true}
	gone := model.Endpoint{Addr: addr("10.0.0.6"), Node: "n2", Terminating: true}
	for _, c := range []struct {
		name   string
		slices []*model.EndpointSlice
		want   []string
	}{
		{"A1.1: the ready ones", []*model.EndpointSlice{slice("a", 8080, ready("10.0.0.2"), ready("10.0.0.1"))}, []string{"10.0.0.1:8080", "10.0.0.2:8080"}},
		{"A3.1: none at all", nil, nil},
		{"A4.1: a ready one hides those that terminate", []*model.EndpointSlice{slice("a", 8080, ready("10.0.0.1"), leaving)}, []string{"10.0.0.1:8080"}},
		{"A4.1: without a ready one, those that serve while they terminate", []*model.EndpointSlice{slice("a", 8080, unready, leaving, gone)}, []string{"10.0.0.5:8080"}},
		{"A4.3: neither ready nor terminating is never used, even if it serves", []*model.EndpointSlice{slice("a", 8080, unready, servingOnly)}, nil},
		{"A1.16: slices are merged, and one address with two ports is two endpoints", []*model.EndpointSlice{slice("a", 8080, ready("10.0.0.1")), slice("b", 9090, ready("10.0.0.1"))}, []string{"10.0.0.1:8080", "10.0.0.1:9090"}},
		{"A1.17: a target port that is another one in each slice", []*model.EndpointSlice{slice("a", 8080, ready("10.0.0.1")), slice("b", 9090, ready("10.0.0.2"))}, []string{"10.0.0.1:8080", "10.0.0.2:9090"}},
		{"A1.16: a terminating entry does not replace one that is there", []*model.EndpointSlice{slice("a", 8080, ready("10.0.0.5")), slice("b", 8080, leaving, ready("10.0.0.1"))}, []string{"10.0.0.1:8080", "10.0.0.5:8080"}},
		{"A1.16: another entry does", []*model.EndpointSlice{slice("a", 8080, leaving), slice("b", 8080, ready("10.0.0.5"), ready("10.0.0.1"))}, []string{"10.0.0.1:8080", "10.0.0.5:8080"}},
		{"A1.23: endpoints of the other family are none", []*model.EndpointSlice{slice("a", 8080, ready("fd00::1"), ready("10.0.0.1"))}, []string{"10.0.0.1:8080"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := plan.ForService(plan.Config{NodeName: "n1"}, model.Node{}, web(), c.slices)
			var got []string
			for _, ep := range p.Decisions[0].Endpoints {
				got = append(got, ep.String())
			}
			if diff := cmp.Diff(c.want, got, opts()); diff != "" {
				t.Errorf("endpoints (-want +got): %s", diff)
			}
		})
	}
}

func TestPortsAreMatchedByNameAndProtocol(t *testing.T) {
	s := web()
	s.Ports = append(s.Ports,
		model.ServicePort{Name: "http", Protocol: model.UDP, Port: 80},
		model.ServicePort{Name: "admin", Protocol: model.TCP, Port: 81})
	part := slice("a", 8080, ready("10.0.0.1"))
	part.Ports = append(part.Ports, model.SlicePort{Name: "http", Protocol: model.UDP, Port: 5353})
	p := plan.ForService(plan.Config{}, model.Node{}, s, []*model.EndpointSlice{part})
	var got []string
	for _, d := range p.Decisions {
		got = append(got, fmt.Sprint(d.Frontend.Protocol, " ", d.Frontend.Port, " ", d.Endpoints))
	}
	want := []string{"TCP 80 [10.0.0.1:8080]", "TCP 81 []", "UDP 80 [10.0.0.1:5353]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("decisions (-want +got): %s", diff)
	}
}

func TestTheFirstOfTwoPortsWithOneFrontendDecides(t *testing.T) {
	s := web()
	s.Ports = append(s.Ports, model.ServicePort{Name: "admin", Protocol: model.TCP, Port: 80})
	part := slice("a", 8080, ready("10.0.0.1"))
	part.Ports = append(part.Ports, model.SlicePort{Name: "admin", Protocol: model.TCP, Port: 9090})
	p := plan.ForService(plan.Config{}, model.Node{}, s, []*model.EndpointSlice{part})
	if got, want := decided(p), "10.96.0.1:80 TCP [10.0.0.1:8080]"; got != want {
		t.Errorf("got decisions %s, want %s", got, want)
	}
}

func TestA2_4HairpinsAreChosenEndpointsOfThisNode(t *testing.T) {
	far, lost := ready("10.0.0.2"), ready("10.0.0.3")
	far.Node, lost.Node = "n2", ""
	unready := ready("10.0.0.4")
	unready.Ready, unready.Serving = false, false
	parts := []*model.EndpointSlice{slice("a", 8080, ready("10.0.0.1"), far, lost, unready)}
	p := plan.ForService(plan.Config{NodeName: "n1"}, model.Node{}, web(), parts)
	if diff := cmp.Diff([]netip.Addr{addr("10.0.0.1")}, p.Hairpins, opts()); diff != "" {
		t.Errorf("hairpins (-want +got): %s", diff)
	}
	// A1.14: an endpoint without a node is local nowhere, not even on a node without a name.
	p = plan.ForService(plan.Config{}, model.Node{}, web(), parts)
	if len(p.Hairpins) > 0 {
		t.Errorf("a node without a name has hairpins %v", p.Hairpins)
	}
}

func TestA1_23EachFamilyHasItsClusterIP(t *testing.T) {
	s := web()
	s.ClusterIPs = append(s.ClusterIPs, addr("fd00:96::1"))
	six := slice("b", 8080, ready("fd00::1"))
	p := plan.ForService(plan.Config{}, model.Node{}, s, []*model.EndpointSlice{slice("a", 8080, ready("10.0.0.1")), six})
	got := decided(p)
	want := "10.96.0.1:80 TCP [10.0.0.1:8080]; [fd00:96::1]:80 TCP [[fd00::1]:8080]"
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// decided gives frontends and endpoints as text.
func decided(p plan.Service) string {
	var list []string
	for _, d := range p.Decisions {
		list = append(list, fmt.Sprint(d.Frontend, " ", d.Endpoints))
	}
	return strings.Join(list, "; ")
}

func TestMergeGivesTheFewestDisjointPrefixes(t *testing.T) {
	for _, c := range []struct{ in, want []string }{
		{nil, nil},
		{[]string{"10.0.0.0/8", "10.1.0.0/16", "10.0.0.0/8"}, []string{"10.0.0.0/8"}},
		{[]string{"10.0.1.0/24", "10.0.0.0/24", "10.0.2.0/23"}, []string{"10.0.0.0/22"}},
		{[]string{"10.0.1.0/24", "10.0.2.0/24"}, []string{"10.0.1.0/24", "10.0.2.0/24"}},
		{[]string{"10.0.0.7/16"}, []string{"10.0.0.0/16"}},
		{[]string{"0.0.0.0/1", "128.0.0.0/1"}, []string{"0.0.0.0/0"}},
		{[]string{"fd00::/112", "10.0.0.0/8", "fd00::/64"}, []string{"10.0.0.0/8", "fd00::/64"}},
	} {
		var in, want []netip.Prefix
		for _, s := range c.in {
			in = append(in, netip.MustParsePrefix(s))
		}
		for _, s := range c.want {
			want = append(want, netip.MustParsePrefix(s))
		}
		if diff := cmp.Diff(want, plan.Merge(in), opts()); diff != "" {
			t.Errorf("%v (-want +got): %s", c.in, diff)
		}
	}
}
