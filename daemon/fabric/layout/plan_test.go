package layout_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"onerule/daemon/fabric/layout"
)

// Node a is this one. Peer near is on its layer 2, far behind a router, by both families.
var (
	near = layout.Node{Name: "near", Addrs: addrs("10.0.0.2", "fd00::2"), PodCIDRs: prefixes("10.1.2.0/24", "fd01:2::/64")}
	far  = layout.Node{Name: "far", Addrs: addrs("10.9.0.3", "fd09::3"), PodCIDRs: prefixes("10.1.3.0/24", "fd01:3::/64")}
	self = layout.Node{Name: "a", Addrs: addrs("10.0.0.1", "fd00::1"), PodCIDRs: prefixes("10.1.1.0/24", "fd01:1::/64")}
)

func facts() layout.Facts {
	return layout.Facts{
		Links: map[int]layout.Link{
			2: {Name: "eth0", MTU: 1500, Resolves: true},
			3: {Name: "wg0", MTU: 1420},
		},
		Ways: map[netip.Addr]layout.Way{
			self.Addrs[0]: {Link: 2, Local: true}, self.Addrs[1]: {Link: 2, Local: true},
			near.Addrs[0]: {Link: 2}, near.Addrs[1]: {Link: 2},
			far.Addrs[0]: {Link: 2, Gateway: true}, far.Addrs[1]: {Link: 2, Gateway: true},
		},
		Uplinks: []int{2},
		IPv6:    true,
	}
}

// routes gives the routes of a plan as text, without that of the node's own ranges.
func routes(s layout.State) map[string]string {
	found := map[string]string{}
	for place, r := range s.Routes {
		dst := place.Dst
		if !dst.Overlaps(self.PodCIDRs[0]) && !dst.Overlaps(self.PodCIDRs[1]) {
			_, rest, _ := strings.Cut(r.String(), dst.String())
			found[dst.String()] = strings.TrimSpace(rest)
			if r.Refuses() {
				found[dst.String()] = "unreachable"
			}
		}
	}
	return found
}

func TestWaysToPeers(t *testing.T) {
	const direct4, direct6 = "via 10.0.0.2 link 2 mtu 0", "via fd00::2 link 2 mtu 0"
	vxlan := func(via string, mtu int) string { return fmt.Sprintf("via %s dev vxlan-onerule mtu %d", via, mtu) }
	for _, test := range []struct {
		name   string
		peer   layout.Node
		change func(self, peer *layout.Node, f *layout.Facts, c *layout.Config)
		want   [2]string // to the peer's IPv4 and IPv6 range; empty: no route
		told   string
	}{
		{name: "same layer 2", peer: near, want: [2]string{direct4, direct6}},
		{name: "behind a router", peer: far, want: [2]string{vxlan("10.1.3.0", 1450), vxlan("fd01:3::", 1450)}},
		{name: "same layer 2, always encapsulated", peer: near,
			change: func(_, _ *layout.Node, _ *layout.Facts, c *layout.Config) { c.Encapsulation = layout.Always },
			want:   [2]string{vxlan("10.1.2.0", 1450), vxlan("fd01:2::", 1450)}},
		{name: "behind a router, never encapsulated: the routers know", peer: far,
			change: func(_, _ *layout.Node, _ *layout.Facts, c *layout.Config) { c.Encapsulation = layout.Never }},
		{name: "by a tunnel, which is no layer 2", peer: near,
			change: func(_, peer *layout.Node, f *layout.Facts, _ *layout.Config) {
				f.Ways[peer.Addrs[0]], f.Ways[peer.Addrs[1]] = layout.Way{Link: 3}, layout.Way{Link: 3}
			},
			want: [2]string{vxlan("10.1.2.0", 1370), vxlan("fd01:2::", 1370)}},
		{name: "D20 a route with an MTU of its own", peer: far,
			change: func(_, peer *layout.Node, f *layout.Facts, _ *layout.Config) {
				f.Ways[peer.Addrs[0]] = layout.Way{Link: 2, Gateway: true, MTU: 1400}
			},
			want: [2]string{vxlan("10.1.3.0", 1350), vxlan("fd01:3::", 1350)}},
		{name: "D20 a direct route with an MTU of its own", peer: near,
			change: func(_, peer *layout.Node, f *layout.Facts, _ *layout.Config) {
				f.Ways[peer.Addrs[0]] = layout.Way{Link: 2, MTU: 1400}
			},
			want: [2]string{"via 10.0.0.2 link 2 mtu 1400", direct6}},
		{name: "D20 too small for IPv6", peer: far,
			change: func(_, peer *layout.Node, f *layout.Facts, _ *layout.Config) {
				f.Ways[peer.Addrs[0]] = layout.Way{Link: 2, Gateway: true, MTU: 1320}
			},
			want: [2]string{vxlan("10.1.3.0", 1270), "unreachable"}, told: "packets to it can have 1270 bytes, IPv6 needs 1280"},
		{name: "IPv6 addresses only", peer: far,
			change: func(self, peer *layout.Node, _ *layout.Facts, _ *layout.Config) {
				self.Addrs, peer.Addrs = self.Addrs[1:], peer.Addrs[1:]
			},
			want: [2]string{vxlan("10.1.3.0", 1430), vxlan("fd01:3::", 1430)}},
		{name: "only one family on the layer 2", peer: near,
			change: func(_, peer *layout.Node, _ *layout.Facts, _ *layout.Config) { peer.Addrs = peer.Addrs[:1] },
			want:   [2]string{direct4, vxlan("fd01:2::", 1450)}},
		{name: "no address of the underlay's family", peer: far,
			change: func(_, peer *layout.Node, _ *layout.Facts, _ *layout.Config) { peer.Addrs = peer.Addrs[1:] },
			want:   [2]string{"unreachable", "unreachable"}, told: "has no address of the family of 10.0.0.1"},
		{name: "no route to it", peer: far,
			change: func(_, peer *layout.Node, f *layout.Facts, _ *layout.Config) { delete(f.Ways, peer.Addrs[0]) },
			want:   [2]string{"unreachable", "unreachable"}, told: "no route leads to its address 10.9.0.3"},
		{name: "no address", peer: near,
			change: func(_, peer *layout.Node, _ *layout.Facts, _ *layout.Config) { peer.Addrs = nil },
			want:   [2]string{"unreachable", "unreachable"}, told: "has no usable address"},
		{name: "an address that this node has", peer: near,
			change: func(_, peer *layout.Node, f *layout.Facts, _ *layout.Config) {
				f.Ways[peer.Addrs[0]] = layout.Way{Link: 2, Local: true}
			},
			want: [2]string{"unreachable", direct6}, told: "address 10.0.0.2 is this node's"},
		{name: "this node has no address", peer: far,
			change: func(self, _ *layout.Node, _ *layout.Facts, _ *layout.Config) { self.Addrs = nil },
			want:   [2]string{"unreachable", "unreachable"}, told: "has no usable address"},
		{name: "a route that the kernel refuses", peer: near,
			change: func(_, peer *layout.Node, f *layout.Facts, _ *layout.Config) {
				refused := layout.Route{Place: at(peer.PodCIDRs[0], 112), Via: peer.Addrs[0], Link: 2}
				f.Refused = map[layout.Route]string{refused: "invalid argument"}
			},
			want: [2]string{"unreachable", direct6}, told: "the kernel refuses the route 10.1.2.0/24 via 10.0.0.2 link 2 mtu 0: invalid argument"},
		{name: "a kernel without IPv6", peer: far,
			change: func(_, _ *layout.Node, f *layout.Facts, _ *layout.Config) { f.IPv6 = false },
			want:   [2]string{vxlan("10.1.3.0", 1450), ""}},
	} {
		t.Run(test.name, func(t *testing.T) {
			me, peer, f, c := self, test.peer, facts(), layout.Config{VNI: 1, Port: 2}
			if test.change != nil {
				test.change(&me, &peer, &f, &c)
			}
			m, _ := layout.Admit("a", []layout.Node{me, peer})
			s, problems := layout.Plan(m, f, c)
			want := map[string]string{}
			for i, text := range test.want {
				if text != "" {
					want[peer.PodCIDRs[i].String()] = text
				}
			}
			if diff := cmp.Diff(want, routes(s)); diff != "" {
				t.Errorf("routes (-want +got):\n%s", diff)
			}
			told := fmt.Sprint(append(m.Problems, problems...))
			if !strings.Contains(told, test.told) || test.told == "" && told != "[]" {
				t.Errorf("told %s, want %q", told, test.told)
			}
		})
	}
}

func at(dst netip.Prefix, metric uint32) layout.Place {
	return layout.Place{Dst: dst, Metric: metric}
}

func TestPlanOfANode(t *testing.T) {
	f := facts()
	f.PodLinks, f.Advertised = []string{"one1"}, []int{2}
	m, _ := layout.Admit("a", []layout.Node{self, near, far})
	got, problems := layout.Plan(m, f, layout.Config{VNI: 111, Port: 8472, ChecksumOffload: true})
	if len(problems) > 0 {
		t.Errorf("problems: %v", problems)
	}
	want := layout.NewState()
	mac := layout.DeviceMAC("far")
	want.Device = &layout.Device{MAC: layout.DeviceMAC("a"), MTU: 1450, Up: true, ChecksumOffload: true, Local: self.Addrs[0], VNI: 111, Port: 8472}
	want.Addresses[netip.MustParseAddr("10.1.1.0")] = true
	want.Addresses[netip.MustParseAddr("fd01:1::")] = true
	want.Entries[mac] = far.Addrs[0]
	want.Neighbours[netip.MustParseAddr("10.1.3.0")] = mac
	want.Neighbours[netip.MustParseAddr("fd01:3::")] = mac
	for _, r := range []layout.Route{
		{Place: at(self.PodCIDRs[0], 112)}, {Place: at(self.PodCIDRs[1], 0x7fffffff)},
		{Place: at(near.PodCIDRs[0], 112), Via: near.Addrs[0], Link: 2}, {Place: at(near.PodCIDRs[1], 112), Via: near.Addrs[1], Link: 2},
		{Place: at(far.PodCIDRs[0], 112), Via: netip.MustParseAddr("10.1.3.0"), MTU: 1450},
		{Place: at(far.PodCIDRs[1], 112), Via: netip.MustParseAddr("fd01:3::"), MTU: 1450},
	} {
		want.Routes[r.Place] = r
	}
	want.Settings = map[string]string{
		"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv6/conf/eth0/accept_ra": "2",
		"ipv4/conf/eth0/forwarding": "1", "ipv6/conf/eth0/forwarding": "1",
		"ipv4/conf/one1/forwarding": "1", "ipv6/conf/one1/forwarding": "1",
		"ipv4/conf/vxlan-onerule/forwarding": "1", "ipv6/conf/vxlan-onerule/forwarding": "1",
		"ipv4/conf/vxlan-onerule/rp_filter": "2", "ipv6/conf/vxlan-onerule/accept_ra": "0", "ipv6/conf/vxlan-onerule/disable_ipv6": "0",
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestDeviceMAC(t *testing.T) {
	// All nodes of a cluster must derive the same, whichever version they run.
	if got, want := layout.DeviceMAC("node-1").String(), "4e:a0:5b:c6:7d:9a"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for i := range 1000 {
		if m := layout.DeviceMAC(fmt.Sprint(i)); m[0]&3 != 2 {
			t.Fatalf("%s is not one of a single device, locally administered", m)
		}
	}
}

func TestParseEncapsulation(t *testing.T) {
	for _, e := range []layout.Encapsulation{layout.Auto, layout.Always, layout.Never} {
		if got, err := layout.ParseEncapsulation(e.String()); got != e || err != nil {
			t.Errorf("%s: got %s, %v", e, got, err)
		}
	}
	if _, err := layout.ParseEncapsulation("sometimes"); err == nil {
		t.Error("sometimes was accepted")
	}
}
