package plan

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/model"
)

// A cluster whose objects come and go for years must not make the ledger grow.
func TestNothingIsLeftOfObjectsThatWent(t *testing.T) {
	l := NewLedger(Config{NodeName: "n1"})
	vip, pod := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.0.0.1")
	change := func(kind model.Kind, name string) model.Change {
		return model.Change{Key: model.Key{Kind: kind, Name: model.Name{Namespace: "ns", Name: name}}}
	}
	service := func(name string) model.Change {
		c := change(model.KindService, name)
		c.Service = &model.Service{Name: c.Key.Name, ClusterIPs: []netip.Addr{vip}, Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}}}
		return c
	}
	slice := func(name, of string) model.Change {
		c := change(model.KindEndpointSlice, name)
		c.EndpointSlice = &model.EndpointSlice{
			Name: c.Key.Name, Service: of, Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}},
			Endpoints: []model.Endpoint{{Addr: pod, Node: "n1", Ready: true, Serving: true}},
		}
		return c
	}
	cidr := change(model.KindServiceCIDR, "c")
	cidr.ServiceCIDR = &model.ServiceCIDR{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}
	changes := []model.Change{service("a"), service("b"), service("c"), slice("s", "a"), slice("t", "b"), slice("s", "b"), cidr}
	l.Apply(changes)
	if len(l.losers) != 1 || len(l.parents) != 2 || len(l.slices) != 1 || len(l.hairpins) != 1 {
		t.Fatalf("the changes fill too little of the ledger: %+v", l)
	}
	for _, c := range changes {
		l.Apply([]model.Change{{Key: c.Key}})
	}
	if diff := cmp.Diff(fmt.Sprint(*NewLedger(Config{NodeName: "n1"})), fmt.Sprint(*l)); diff != "" {
		t.Errorf("ledger (-new +left): %s", diff)
	}
}
