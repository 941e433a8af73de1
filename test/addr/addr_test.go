package addr_test

import (
	"net/netip"
	"testing"

	"onerule/test/addr"
)

func TestAddressesLieWhereTheyBelong(t *testing.T) {
	for _, p := range addr.Both() {
		seen := map[netip.Addr]bool{}
		check := func(a netip.Addr, in netip.Prefix) {
			t.Helper()
			if !in.Contains(a) {
				t.Errorf("%s is not in %s", a, in)
			}
			if seen[a] {
				t.Errorf("%s is given twice", a)
			}
			seen[a] = true
		}
		check(p.Node(), p.Uplink)
		check(p.Outside(), p.Uplink)
		check(p.NodeBetween(), p.Between)
		check(p.OtherNode(), p.Between)
		for i := range 63 {
			check(p.Pod(i), p.NodePods)
			check(p.PodGateway(i), p.NodePods)
			if link := netip.PrefixFrom(p.PodGateway(i), p.PodLinkBits()); !link.Contains(p.Pod(i)) {
				t.Errorf("pod %s is not on its link %s", p.Pod(i), link)
			}
		}
		for i := range 200 {
			check(p.OtherPod(i), p.OtherPods)
		}
		for i := range 1000 {
			check(p.VIP(i), p.ServiceCIDR)
		}
		for i := range 100 {
			check(p.ExternalIP(i), p.External)
			check(p.BalancerIP(i), p.Balancers)
		}
	}
}

func TestRangesAreApart(t *testing.T) {
	for _, p := range addr.Both() {
		apart := []netip.Prefix{p.ServiceCIDR, p.SecondServiceCIDR, p.StrayVIPs, p.External, p.Balancers, p.NodePods, p.OtherPods, p.Uplink, p.Between}
		for i, a := range apart {
			for _, b := range apart[:i] {
				if a.Overlaps(b) {
					t.Errorf("%s overlaps %s", a, b)
				}
			}
		}
		for _, pods := range []netip.Prefix{p.NodePods, p.OtherPods} {
			if !p.ClusterCIDR.Overlaps(pods) || p.ClusterCIDR.Bits() > pods.Bits() {
				t.Errorf("%s is not in %s", pods, p.ClusterCIDR)
			}
		}
	}
}
