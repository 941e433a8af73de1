package network_test

import (
	"net/netip"
	"strings"
	"testing"

	"onerule/test/wired"
)

// The guard looks at the port that nodes take VXLAN at, if they take any.
func TestPodsAreKeptFromThePortOfVXLAN(t *testing.T) {
	for _, c := range []struct{ name, flag, want string }{
		{"--vxlan-port", "--vxlan-port=4790", "udp dport 4790 goto to-vxlan"},
		{"--encapsulation=never", "--encapsulation=never", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, nil, c.flag)
			h, other := w.nodes[0], w.nodes[2]
			h.daemon.Run()
			h.daemon.AwaitHealthy()
			h.awaitStatus(t)
			for _, family := range []string{"ip", "ip6"} {
				h.has(t, "nft list table "+family+" onerule-guard", "chain from-pods {", true)
				_, got, _ := strings.Cut(h.ns.Run(t, "nft", "list", "table", family, "onerule-guard"), "chain input {")
				if strings.Contains(got, "udp dport") != (c.want != "") || !strings.Contains(got, c.want) {
					t.Errorf("%s, behind chain input: %s\nwant %q", family, got, c.want)
				}
			}
			if c.want == "" {
				return
			}
			for _, to := range []netip.Addr{h.addrs[0], other.addrs[0]} {
				if answer, err := wired.Ask(h.pod, "udp", netip.AddrPort{}, netip.AddrPortFrom(to, 4790)); err == nil {
					t.Errorf("%s answers %q", to, answer)
				}
			}
			if got := h.daemon.Metric("onerule_guard_dropped_packets_total", "ip_family", "IPv4", "reason", "vxlan"); got != 2 {
				t.Errorf("%v are counted, want 2", got)
			}
		})
	}
}
