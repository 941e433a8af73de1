package daemon

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"onerule/daemon/model"
	"onerule/nft"
	"onerule/test/netns"
)

// sticky puts a Service with session affinity and an endpoint into the mailbox.
func sticky(d *Daemon) {
	web(d, 1)
	n := model.Name{Namespace: "ns", Name: "web"}
	d.Changed(model.Change{Key: model.Key{Kind: model.KindService, Name: n}, Service: &model.Service{
		Name: n, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}}, Affinity: 60,
	}})
}

// Writes that fail leave pins to be looked for, and the loop does not turn for that: it asks
// for them after each try.
func TestPinsThatCannotBeReadDoNotTurnTheLoop(t *testing.T) {
	ns := netns.New(t, "node")
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon(t, ns)
		d.Synced()
		sticky(d)
		if err := ns.Do(func() error { return d.sync(t.Context()) }); err != nil {
			t.Fatal(err)
		}
		if _, due := d.programs[nft.IPv4].StaleAt(); !due {
			t.Fatal("no pins are to be looked for: the test shows nothing")
		}
		d.programs[nft.IPv4].Doubt()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		tries, asked := 0, 0
		loop{wake: d.wake, periods: d.periods, log: logr.Discard(),
			sync: func(context.Context) error {
				tries++
				return errors.New("refused")
			},
			retire: func(context.Context, time.Time) {},
			unpin: func(now time.Time) (time.Time, bool) {
				if asked++; asked > 10*tries+10 {
					cancel() // no time passes while it turns
				}
				return d.unpin(now)
			},
		}.run(ctx)
		if asked != tries || tries < 5 {
			t.Errorf("pins were asked for %d times in %d tries, want once in each of several", asked, tries)
		}
	})
}
