package daemon

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"onerule/daemon/inspect"
	"onerule/daemon/model"
	"onerule/nft"
	"onerule/test/netns"
)

// filled is a daemon that knows some Services with so many endpoints each, elsewhere.
func filled(t *testing.T, services, each int) *Daemon {
	t.Helper()
	d := loopbackDaemon(t, netns.New(t, "node"), nil, nft.IPv4)
	t.Cleanup(func() { _ = d.close() })
	var changes []model.Change
	for i := range services {
		name := model.Name{Namespace: "ns", Name: fmt.Sprint("web-", i)}
		s := &model.Service{Name: name, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 1, byte(i)})},
			Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}}}
		slice := &model.EndpointSlice{Name: name, Service: name.Name, Ports: []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: 8080}}}
		for j := range each {
			slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, byte(1 + i), byte(j >> 8), byte(j)}), Ready: true, Serving: true, Node: "there"})
		}
		changes = append(changes, model.Change{Key: model.Key{Kind: model.KindService, Name: name}, Service: s},
			model.Change{Key: model.Key{Kind: model.KindEndpointSlice, Name: name}, EndpointSlice: slice})
	}
	d.ledger.Apply(changes)
	return d
}

// What the loop itself does for a question does not follow from the number of endpoints: with
// 50,000 no change waits longer than with few.
func TestTheLoopLooksAtNoEndpointForAQuestion(t *testing.T) {
	few, many := filled(t, 20, 5), filled(t, 20, 2500)
	query := inspect.Query{To: netip.MustParseAddrPort("10.96.1.7:80"), Protocol: "TCP"}
	for name, question := range map[string]func(d *Daemon){
		"status":   func(d *Daemon) { d.owned(&inspect.Status{}) },
		"services": func(d *Daemon) { d.factsOf("") },
		"explain":  func(d *Daemon) { d.caseOf(nft.IPv4, query) },
		"diff":     func(d *Daemon) { d.wishNow(nft.IPv4) },
	} {
		t.Run(name, func(t *testing.T) {
			small, large := allocated(func() { question(few) }), allocated(func() { question(many) })
			if small == 0 || large > small+small/10 {
				t.Errorf("%d bytes for 100 endpoints, %d for 50,000", small, large)
			}
		})
	}
}

// allocated gives the bytes that f allocates, the least of some times: others may run.
func allocated(f func()) (least uint64) {
	var before, after runtime.MemStats
	for range 5 {
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; least == 0 || n < least {
			least = n
		}
	}
	return least
}
