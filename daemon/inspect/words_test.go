package inspect_test

import (
	"net/netip"
	"testing"

	"onerule/daemon/inspect"
	"onerule/daemon/model"
	"onerule/daemon/plan"
)

// Why a frontend gets what it gets, in words, for every state that endpoints can be in.
func TestWhyInWords(t *testing.T) {
	var (
		ready       = model.Endpoint{Ready: true, Serving: true, Node: "here"}
		elsewhere   = model.Endpoint{Ready: true, Serving: true, Node: "there"}
		notReady    = model.Endpoint{Node: "there"}
		leaving     = model.Endpoint{Serving: true, Terminating: true, Node: "there"}
		terminating = model.Endpoint{Terminating: true, Node: "here"}
		forOther    = model.Endpoint{Ready: true, Serving: true, Node: "there", Hints: &model.Hints{Zones: []string{"west"}}}
		forUs       = model.Endpoint{Ready: true, Serving: true, Node: "there", Hints: &model.Hints{Zones: []string{"east"}}}
	)
	for name, c := range map[string]struct {
		endpoints    []model.Endpoint
		local        bool
		answer, want string
	}{
		"all ready":                   {[]model.Endpoint{ready, elsewhere}, false, "balance", ""},
		"none at all":                 {nil, false, "refuse", `no endpoint: no EndpointSlice has an IPv4 address for a port named "http" (TCP)`},
		"none ready":                  {[]model.Endpoint{notReady, notReady}, false, "refuse", "no ready endpoint: 2 not ready"},
		"none ready, some end":        {[]model.Endpoint{notReady, terminating}, false, "refuse", "no ready endpoint: 1 not ready, 1 terminating"},
		"some ready":                  {[]model.Endpoint{ready, notReady, terminating}, false, "balance", "1 endpoint of 3: 1 not ready, 1 terminating"},
		"terminating ones serve":      {[]model.Endpoint{notReady, leaving}, false, "balance", "no endpoint is ready, those that serve while they terminate are used: 1 not ready, 1 terminating and serving"},
		"hints leave some out":        {[]model.Endpoint{forUs, forOther}, false, "balance", "1 endpoint of 2 that are ready: hints mean the others for other zones or nodes"},
		"Local, some here":            {[]model.Endpoint{ready, elsewhere}, true, "balance", "1 endpoint of 2: only those on this node count"},
		"Local, none here":            {[]model.Endpoint{elsewhere, elsewhere, notReady}, true, "drop", "no endpoint on this node, where only those serve: 2 endpoints elsewhere, for pods and this node only"},
		"Local, none ready anywhere":  {[]model.Endpoint{notReady}, true, "refuse", "no ready endpoint: 1 not ready"},
		"Local, terminating one here": {[]model.Endpoint{{Serving: true, Terminating: true, Node: "here"}}, true, "balance", "no endpoint is ready, those that serve while they terminate are used: 1 terminating and serving"},
	} {
		t.Run(name, func(t *testing.T) {
			s := describe(c.endpoints, c.local)
			for _, f := range s.Frontends {
				if f.Kind == "NodePort" && (f.Answer != c.answer || f.Reason != c.want) {
					t.Errorf("got %s, %q\nwant %s, %q", f.Answer, f.Reason, c.answer, c.want)
				}
			}
			if len(s.Frontends) != 2 || len(s.Ports) != 1 || len(s.Ports[0].Endpoints) != len(c.endpoints) {
				t.Errorf("got %d frontends and %+v, want 2 and each endpoint", len(s.Frontends), s.Ports)
			}
		})
	}
}

func TestAServiceWithoutSlices(t *testing.T) {
	name := model.Name{Namespace: "default", Name: "web"}
	service := &model.Service{
		Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
	}
	l := plan.NewLedger(plan.Config{NodeName: "here"})
	l.Apply([]model.Change{{Key: model.Key{Kind: model.KindService, Name: name}, Service: service}})
	f, _ := l.Facts(name)
	s := inspect.Place{Node: "here"}.Describe(f, false)
	if len(s.Frontends) != 1 || s.Frontends[0].Reason != "no endpoint: no EndpointSlice of it is known" {
		t.Errorf("got %+v", s)
	}
}

// describe describes a Service with a NodePort and these endpoints, on a node in the zone
// east.
func describe(endpoints []model.Endpoint, local bool) inspect.Service {
	name := model.Name{Namespace: "default", Name: "web"}
	slice := &model.EndpointSlice{Name: model.Name{Namespace: "default", Name: "web-1"}, Service: "web", Ports: []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: 8080}}}
	for i, e := range endpoints {
		e.Addr = netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)})
		slice.Endpoints = append(slice.Endpoints, e)
	}
	service := &model.Service{
		Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, ExternalLocal: local,
		Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80, NodePort: 30080}},
	}
	l := plan.NewLedger(plan.Config{NodeName: "here"})
	l.Apply([]model.Change{
		{Key: model.Key{Kind: model.KindNode, Name: model.Name{Name: "here"}}, Node: &model.Node{Name: "here", Zone: "east"}},
		{Key: model.Key{Kind: model.KindService, Name: name}, Service: service},
		{Key: model.Key{Kind: model.KindEndpointSlice, Name: slice.Name}, EndpointSlice: slice},
	})
	f, _ := l.Facts(name)
	return inspect.Place{Node: "here"}.Describe(f, false)
}
