package plan

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/model"
)

// A cluster whose objects come and go for years must not make the ledger grow: when all
// went, in any order, it is a new one.
func TestNothingIsLeftOfObjectsThatWent(t *testing.T) {
	changes := everything()
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		r.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
		l := NewLedger(Config{NodeName: "n1"})
		l.Apply(changes[:len(changes)/2])
		l.Apply(changes[len(changes)/2:])
		for name, size := range sizes(l) {
			if size == 0 {
				t.Fatalf("seed %d: the changes leave %s of the ledger empty", seed, name)
			}
		}
		r.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
		for _, c := range changes {
			l.Apply([]model.Change{{Key: c.Key}})
		}
		if diff := cmp.Diff(sizes(NewLedger(Config{NodeName: "n1"})), sizes(l)); diff != "" {
			t.Fatalf("seed %d: sizes (-new +left): %s", seed, diff)
		}
		if !reflect.DeepEqual(l.node, model.Node{}) {
			t.Errorf("seed %d: the node is left: %+v", seed, l.node)
		}
	}
}

// sizes gives those of all maps and lists of a ledger.
func sizes(l *Ledger) map[string]int {
	n := map[string]int{}
	v := reflect.ValueOf(*l)
	for i := range v.NumField() {
		if k := v.Field(i).Kind(); k == reflect.Map || k == reflect.Slice {
			n[v.Type().Field(i).Name] = v.Field(i).Len()
		}
	}
	return n
}

// everything has three Services that claim the same, and slices that move.
func everything() []model.Change {
	change := func(kind model.Kind, name string) model.Change {
		return model.Change{Key: model.Key{Kind: kind, Name: model.Name{Namespace: "ns", Name: name}}}
	}
	var all []model.Change
	for i, name := range []string{"a", "b", "c"} {
		c := change(model.KindService, name)
		c.Service = &model.Service{
			Name: c.Key.Name, Created: int64(i), ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			ExternalIPs: []netip.Addr{netip.MustParseAddr("198.51.100.1")}, LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("203.0.113.1")},
			SourceRanges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, ExternalLocal: true, InternalLocal: true,
			Affinity: 60, HealthCheckNodePort: 32000,
			Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80, NodePort: 30080}},
		}
		all = append(all, c)
		s := change(model.KindEndpointSlice, name+"-1")
		s.EndpointSlice = &model.EndpointSlice{
			Name: s.Key.Name, Service: name, Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}},
			Endpoints: []model.Endpoint{{Addr: netip.MustParseAddr("10.0.0.1"), Node: "n2", Ready: true, Serving: true, Hints: &model.Hints{Zones: []string{"z1"}}}},
		}
		all = append(all, s)
	}
	cidr := change(model.KindServiceCIDR, "c")
	cidr.ServiceCIDR = &model.ServiceCIDR{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}
	node := model.Change{Key: model.Key{Kind: model.KindNode, Name: model.Name{Name: "n1"}}, Node: &model.Node{Name: "n1", Zone: "z1"}}
	return append(all, cidr, node)
}
