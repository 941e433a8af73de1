package cluster

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEachFamilyHasItsAddresses(t *testing.T) {
	for _, c := range []struct {
		family Family
		want   []string
	}{
		{IPv4, []string{"10.99.0.1", "10.99.0.12/24", "10.244.2.0/24", "10.244.0.0/16", "10.96.0.0/16", "10.96.0.10", "0.0.0.0", `"127.0.0.0/8", "10.99.0.0/24"`}},
		{Dual, []string{
			"10.99.0.1,fd00:99::1", "10.99.0.12/24,fd00:99::12/64", "10.244.2.0/24,fd00:10:244:2::/64", "10.244.0.0/16,fd00:10:244::/48",
			"10.96.0.0/16,fd00:10:96::/112", "10.96.0.10", "0.0.0.0", `"127.0.0.0/8", "::1/128", "10.99.0.0/24", "fd00:99::/64"`,
		}},
		{Dual6, []string{
			"fd00:99::1,10.99.0.1", "fd00:99::12/64,10.99.0.12/24", "fd00:10:244:2::/64,10.244.2.0/24", "fd00:10:244::/48,10.244.0.0/16",
			"fd00:10:96::/112,10.96.0.0/16", "fd00:10:96::a", "::", `"::1/128", "127.0.0.0/8", "fd00:99::/64", "10.99.0.0/24"`,
		}},
		{IPv6, []string{"fd00:99::1", "fd00:99::12/64", "fd00:10:244:2::/64", "fd00:10:244::/48", "fd00:10:96::/112", "fd00:10:96::a", "::", `"::1/128", "fd00:99::/64"`}},
	} {
		t.Run(string(c.family), func(t *testing.T) {
			f := c.family
			got := []string{
				commas(bare(f.controlAddresses())), commas(f.nodeAddresses(2)), commas(f.podRanges(2)), commas(f.clusterRanges()),
				commas(f.serviceRanges()), f.dnsService().String(), f.any(), f.nodePortAddresses(),
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNoTwoNodesShareAnAddress(t *testing.T) {
	owners := map[string]string{}
	take := func(what, owner string) {
		if other, taken := owners[what]; taken {
			t.Errorf("%s is of %s and of %s", what, other, owner)
		}
		owners[what] = owner
	}
	for _, a := range bare(Dual.controlAddresses()) {
		take(a.String(), "control")
	}
	for n := 1; n <= maxNodes; n++ {
		for i, r := range Dual.podRanges(n) {
			take(r.String(), nodeName(n))
			take(Dual.nodeAddresses(n)[i].Addr().String(), nodeName(n))
			if whole := Dual.clusterRanges()[i]; !whole.Contains(r.Addr()) || r.Bits() <= whole.Bits() {
				t.Errorf("pods of %s, %s, are not in %s", nodeName(n), r, whole)
			}
			if !r.IsValid() || r != netip.PrefixFrom(r.Addr(), r.Bits()).Masked() {
				t.Errorf("%s is no range", r)
			}
		}
	}
}

func TestLinksOfADualStackClusterOfTwoNodes(t *testing.T) {
	got := controlLinks(Dual, map[string]int{"n1": 71, "n2": 72}, 2) + "--\n" + nodeLinks(Dual, 2) + "--\n" + podRoutes(Dual, 2, 2)
	want := `link add br0 type bridge
link set br0 up
address add 10.99.0.1/24 dev br0
address add fd00:99::1/64 dev br0 nodad
link add n1 type veth peer name eth0 netns 71
link set n1 master br0 up
link add n2 type veth peer name eth0 netns 72
link set n2 master br0 up
--
link set eth0 up
address add 10.99.0.12/24 dev eth0
route add default via 10.99.0.1
address add fd00:99::12/64 dev eth0 nodad
route add default via fd00:99::1
--
route add 10.244.1.0/24 via 10.99.0.11
route add fd00:10:244:1::/64 via fd00:99::11
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
}

func TestOptionsThatMakeNoCluster(t *testing.T) {
	for want, o := range map[string]Options{
		`no such IP family: "ipv5" (ipv4, dual, dual6 or ipv6)`:                                              {Family: "ipv5", Nodes: 1, With: Onerule},
		"-1 nodes: from 1 to 200 are possible":                                                               {Family: IPv4, Nodes: -1, With: Onerule},
		"201 nodes: from 1 to 200 are possible":                                                              {Family: IPv4, Nodes: 201, With: Onerule},
		`no such network: "flannel" (onerule, onerule-binaries, kube-proxy, kube-proxy-iptables or nothing)`: {Family: IPv4, Nodes: 1, With: "flannel"},
	} {
		if got := fmt.Sprint(o.check()); got != want {
			t.Errorf("error is %q, want %q", got, want)
		}
	}
}
