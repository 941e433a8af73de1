package daemon

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"onerule/daemon/model"
	"onerule/nft"
	"onerule/test/netns"
)

// While very many Services are written, another zone and another ServiceCIDR arrive: who
// tells of them does not wait, and one transaction of elements is all that is written
// before them.
func TestF13AZoneAndAServiceCIDRDoNotWaitForALongWrite(t *testing.T) {
	const services = 3 * changesAtOnce
	ns := netns.New(t, "node")
	d := newDaemon(t, ns)
	d.Synced()
	sync := func() nft.Operations {
		t.Helper()
		before := d.programs[nft.IPv4].Done()
		if err := ns.Do(func() error { return d.round(t.Context()) }); err != nil {
			t.Fatal(err)
		}
		return operationsSince(before, d.programs[nft.IPv4].Done())
	}
	list := func(kind, name string) string { return ns.Run(t, "nft", "list", kind, "ip", "onerule", name) }
	d.Changed(nodeInZone("a"))
	hinted(d)
	sync()
	for i := range services {
		n := model.Name{Namespace: "ns", Name: fmt.Sprint("many-", i)}
		d.Changed(model.Change{Key: model.Key{Kind: model.KindService, Name: n}, Service: &model.Service{
			Name: n, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 97, byte(i >> 8), byte(i)})}, Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
		}})
	}
	if done := sync(); done.Added < changesAtOnce || done.Transactions > 1 {
		t.Errorf("a part of the many is %+v, want one transaction with %d elements or more", done, changesAtOnce)
	}
	d.Changed(nodeInZone("b"))
	key := model.Key{Kind: model.KindServiceCIDR, Name: model.Name{Name: "more"}}
	d.Changed(model.Change{Key: key, ServiceCIDR: &model.ServiceCIDR{Name: "more", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.98.0.0/24")}}})
	sync()
	if text := list("set", "service-cidrs"); !strings.Contains(text, "10.98.0.0/24") {
		t.Errorf("the ServiceCIDR is not among %s", text)
	}
	if text := list("map", "endpoints-tcp"); !strings.Contains(text, "10.96.0.1 . 80 . 0 : 10.0.0.2 . 8080") {
		t.Errorf("the zone counts not: %s", text)
	}
	parts := 2
	for ; strings.Count(list("map", "service-ips"), " : goto ") <= services; parts++ {
		if parts > services/changesAtOnce+2 {
			t.Fatalf("not all Services are there after %d parts", parts)
		}
		if len(d.wake) == 0 {
			t.Fatal("nobody is told that there is more to write")
		}
		sync()
	}
	if parts < services/changesAtOnce {
		t.Errorf("%d Services came in %d parts: the test shows nothing", services, parts)
	}
}

func operationsSince(before, now nft.Operations) nft.Operations {
	return nft.Operations{Transactions: now.Transactions - before.Transactions, Added: now.Added - before.Added, Deleted: now.Deleted - before.Deleted}
}

func nodeInZone(zone string) model.Change {
	key := model.Key{Kind: model.KindNode, Name: model.Name{Name: "n1"}}
	return model.Change{Key: key, Node: &model.Node{Name: "n1", Zone: zone}}
}

// hinted puts a Service into the mailbox that has an endpoint for zone a and one for b.
func hinted(d *Daemon) {
	web(d, 0)
	n := model.Name{Namespace: "ns", Name: "web"}
	s := &model.EndpointSlice{Name: n, Service: n.Name, Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}}}
	for i, zone := range []string{"a", "b"} {
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}), Ready: true, Serving: true, Hints: &model.Hints{Zones: []string{zone}}})
	}
	d.Changed(model.Change{Key: model.Key{Kind: model.KindEndpointSlice, Name: n}, EndpointSlice: s})
}
