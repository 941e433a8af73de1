package daemon

import (
	"context"
	"net"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"onerule/daemon/config"
	"onerule/daemon/health"
	"onerule/daemon/inspect"
	"onerule/daemon/model"
	"onerule/nft"
	"onerule/test/netns"
)

// byNode is as much of a daemon as waits for the ranges of its Node.
func byNode() *Daemon {
	s := config.Settings{Node: "n1", Detector: config.Detector{Mode: config.NodeCIDR}}
	return &Daemon{settings: s, cfg: Config{Settings: s}, fatal: make(chan error, 1)}
}

func (d *Daemon) ended() string {
	select {
	case err := <-d.fatal:
		return err.Error()
	default:
		return ""
	}
}

func TestA13_2WithoutRangesTheDaemonEndsInTime(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	for name, c := range map[string]struct {
		meanwhile func(*Daemon)
		want      string
	}{
		"nothing comes":     {func(*Daemon) {}, "node n1 has no spec.podCIDRs after 5m0s: pods are told by them"},
		"ranges come":       {func(d *Daemon) { d.podCIDRs = ranges }, ""},
		"they do not count": {func(d *Daemon) { d.settings.Detector.Mode = config.ClusterCIDR }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := byNode()
				d.awaitPodCIDRs()
				<-time.After(podCIDRsPatience - time.Second)
				d.awaitPodCIDRs() // as each change of the Node does
				if got := d.ended(); got != "" {
					t.Errorf("it ends before the time is up: %s", got)
				}
				c.meanwhile(d)
				d.awaitPodCIDRs()
				<-time.After(2 * time.Second)
				synctest.Wait()
				if got := d.ended(); got != c.want {
					t.Errorf("got %q, want %q", got, c.want)
				}
				d.stopWaiting()
			})
		})
	}
}

// Which family is primary is only known with the addresses of the Node.
func TestA13_6RangesOfTheNodeMustFit(t *testing.T) {
	addrs := func(list ...string) (found []netip.Addr) {
		for _, a := range list {
			found = append(found, netip.MustParseAddr(a))
		}
		return found
	}
	both := []nft.Family{nft.IPv4, nft.IPv6}
	for name, c := range map[string]struct {
		families []nft.Family
		addrs    []netip.Addr
		ranges   string
		wrong    bool
	}{
		"fitting":                         {both, addrs("192.0.2.1"), "10.244.1.0/24", false},
		"both":                            {both, addrs("192.0.2.1"), "10.244.1.0/24 fd00::/64", false},
		"wrong":                           {both, addrs("192.0.2.1"), "fd00::/64", true},
		"of a node of IPv6":               {both, addrs("fd00::1", "192.0.2.1"), "fd00::/64", false},
		"wrong for a node of IPv6":        {both, addrs("fd00::1"), "10.244.1.0/24", true},
		"of a node without addresses":     {both, nil, "fd00::/64", false},
		"where only the other is served":  {both[:1], nil, "fd00::/64", true},
		"where it is the only one served": {both[1:], nil, "fd00::/64", false},
	} {
		t.Run(name, func(t *testing.T) {
			d := byNode()
			d.cfg.Families = c.families
			for r := range strings.FieldsSeq(c.ranges) {
				d.podCIDRs = append(d.podCIDRs, netip.MustParsePrefix(r))
			}
			d.addrs.node = config.FindNodeIPs(netip.Addr{}, c.addrs)
			d.checkPodCIDRs()
			if got := strings.HasPrefix(d.ended(), "spec.podCIDRs of node n1 has only "); got != c.wrong {
				t.Errorf("it ends: %t, want %t", got, c.wrong)
			}
			if wrote := !d.awaitsPodCIDRs(); wrote == c.wrong {
				t.Errorf("rules are written with them: %t, want %t", wrote, !c.wrong)
			}
		})
	}
}

// adopted has a daemon take in settings.
func adopted(t *testing.T, ns *netns.NS, d *Daemon, change func(*config.Settings)) {
	t.Helper()
	s := testSettings()
	change(&s)
	d.Configured(s)
	if err := ns.Do(func() error { return d.round(t.Context()) }); err != nil {
		t.Fatal(err)
	}
}

// The status and /healthz are of one mind about what is late, also when the sync period is
// another one than at the start.
func TestTheStatusCallsLateWhatHealthDoes(t *testing.T) {
	ns := netns.New(t, "node")
	d := newDaemon(t, ns)
	d.Synced()
	for _, c := range []struct {
		period time.Duration
		late   bool
	}{{time.Minute, false}, {30 * time.Second, true}, {10 * time.Second, true}, {10 * time.Minute, false}} {
		adopted(t, ns, d, func(s *config.Settings) { s.SyncPeriod = c.period })
		web(d, 1)
		d.letters.since = time.Now().Add(-90 * time.Second)
		var s inspect.Status
		d.degraded(&s)
		told := slices.ContainsFunc(s.Degraded, func(line string) bool {
			return strings.HasPrefix(line, "a change has been waiting for the kernel")
		})
		w := httptest.NewRecorder()
		d.HealthHandler().ServeHTTP(w, httptest.NewRequest("GET", "/healthz", nil))
		if told != c.late || (w.Code != 200) != c.late {
			t.Errorf("with a sync period of %s: status %q, /healthz %d; want both to call it late: %t", c.period, s.Degraded, w.Code, c.late)
		}
	}
}

// What is told of the node has the name that the process began with, whatever settings the
// loop takes in meanwhile: those who tell do so beside it.
func TestTheNodeIsNamedBesideTheLoop(t *testing.T) {
	ns := netns.New(t, "node")
	told := make(chan Event, 1)
	d := newDaemon(t, ns)
	d.cfg.Event = func(e Event) { told <- e }
	d.Synced()
	var taken net.Listener
	if err := ns.Do(func() (err error) {
		taken, err = net.Listen("tcp", ":30000")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	beside.Go(func() { // ends with ctx
		_ = ns.Do(func() error { d.checks.Run(ctx); return nil })
	})
	beside.Go(func() { // ends by itself
		if key := d.nodeKey(); key.Name.Name != "n1" {
			t.Errorf("the node is called %s", key)
		}
	})
	adopted(t, ns, d, func(s *config.Settings) { s.Node = "" })
	d.checks.Sync(map[uint16]health.Check{30000: {Service: model.Name{Namespace: "ns", Name: "web"}}})
	select {
	case e := <-told:
		if !strings.HasPrefix(e.Note, "node n1 failed to start healthcheck") {
			t.Errorf("told of %q", e.Note)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("nobody is told of a port that is taken")
	}
	if key := d.nodeKey(); key.Name.Name != "n1" {
		t.Errorf("after others were taken in the node is called %s", key)
	}
}
