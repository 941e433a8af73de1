package daemon

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"onerule/daemon/config"
	"onerule/nft"
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
