package daemon

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/model"
	"onerule/test/netns"
)

// The younger of two Services that claim a NodePort is told once, by an event that
// names the field and the holder, however often the two change, and again when it comes
// to that anew.
func TestWhoClaimsWhatIsHeldIsToldByAnEvent(t *testing.T) {
	ns := netns.New(t, "node")
	d := newDaemon(t, ns)
	var told []Event
	d.cfg.Event = func(e Event) { told = append(told, e) }
	d.Synced()
	port := uint16(80) // which changes
	put := func(name string, vip string, created int64, there bool) {
		n := model.Name{Namespace: "ns", Name: name}
		c := model.Change{Key: model.Key{Kind: model.KindService, Name: n}}
		if there {
			c.Service = &model.Service{
				Name: n, Created: created, ClusterIPs: []netip.Addr{netip.MustParseAddr(vip)},
				Ports: []model.ServicePort{{Protocol: model.TCP, Port: port, NodePort: 30080}},
			}
			port++
		}
		d.Changed(c)
		if err := ns.Do(func() error { return d.sync(t.Context()) }); err != nil {
			t.Fatal(err)
		}
	}
	young := model.Key{Kind: model.KindService, Name: model.Name{Namespace: "ns", Name: "young"}}
	want := []Event{{Object: young, Reason: "FrontendHeldByAnother", Note: "spec.ports[0].nodePort: NodePort 30080 TCP is held by Service ns/old"}}
	put("young", "10.96.0.2", 2, true)
	if len(told) > 0 {
		t.Errorf("told %v of one Service", told)
	}
	for range 3 {
		put("old", "10.96.0.1", 1, true)
		put("young", "10.96.0.2", 2, true)
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("events (-want +got): %s", diff)
	}
	put("old", "", 1, false)
	put("old", "10.96.0.1", 1, true)
	if diff := cmp.Diff(append(want, want...), told); diff != "" {
		t.Errorf("events after the holder was made anew (-want +got): %s", diff)
	}
}
