package daemon

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/model"
	"onerule/test/netns"
)

// Whoever asks for an external IP that is not allowed may see no node's log.
func TestD19WhoAsksForAnExternalIPThatIsRefusedIsToldByAnEvent(t *testing.T) {
	ns := netns.New(t, "node")
	d := newDaemon(t, ns)
	d.settings.ExternalIPs, d.settings.ExternalIPCIDRs = true, []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	d.ledger.Reconfigure(d.planConfig())
	var told []Event
	d.cfg.Event = func(e Event) { told = append(told, e) }
	d.Synced()
	n := model.Name{Namespace: "ns", Name: "web"}
	key := model.Key{Kind: model.KindService, Name: n}
	put := func(port uint16) {
		d.Changed(model.Change{Key: key, Service: &model.Service{
			Name: n, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			ExternalIPs: []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("203.0.113.1")},
			Ports:       []model.ServicePort{{Protocol: model.TCP, Port: port}},
		}})
		if err := ns.Do(func() error { return d.sync(t.Context()) }); err != nil {
			t.Fatal(err)
		}
	}
	put(80)
	put(81)
	want := []Event{{Object: key, Reason: "ExternalIPRefused", Note: "spec.externalIPs: 203.0.113.1 is in no range that external IPs may be of"}}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("events (-want +got): %s", diff)
	}
}
