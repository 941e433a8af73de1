package fabric_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"onerule/daemon/fabric/layout"
	"onerule/test/wired"
)

// whose gives the problems that a node tells of another.
func (h *host) whose(name string) (details []string) {
	for _, p := range h.wrong() {
		if p.Node == name {
			details = append(details, p.Detail)
		}
	}
	return details
}

// A route that the kernel refuses is the matter of the node that it is to lead to. Here rules
// hide from look-ups that the address is a broadcast one.
func TestARouteThatTheKernelRefusesIsThePeersProblem(t *testing.T) {
	w := newWorld(t)
	a := w.nodes[0]
	for _, command := range []string{
		"ip rule add pref 10 to 172.16.1.255 lookup main", "ip rule add pref 20 lookup local", "ip rule del pref 0",
	} {
		f := strings.Fields(command)
		a.ns.Run(t, f[0], f[1:]...)
	}
	bad := layout.Node{Name: "h", Created: 7, Addrs: addrs("172.16.1.255"), PodCIDRs: prefixes("10.1.70.0/24")}
	cfg := config()
	cfg.Verify = 100 * time.Millisecond // so that it is tried again and again
	for _, h := range w.nodes {
		h.start(t, cfg, append(w.list(), bad))
	}
	w.reach(t, routed, 50)
	const want = "the kernel refuses the route 10.1.70.0/24 via 172.16.1.255 "
	if got := a.whose("h"); len(got) != 1 || !strings.HasPrefix(got[0], want) || !strings.HasSuffix(got[0], ": invalid argument") {
		t.Errorf("told were %q, want %s", got, want)
	}
	if got := a.holds(t); !strings.Contains(got, "unreachable 10.1.70.0/24") {
		t.Errorf("got\n%s\nwant that the range is refused", got)
	}
	t.Run("until it has another address", func(t *testing.T) {
		bad.Addrs = addrs("172.16.1.70")
		a.fabric.Set("a", append(w.list(), bad))
		wired.Eventually(t, func() error {
			got, told := a.holds(t), a.whose("h")
			if !strings.Contains(got, "10.1.70.0/24 via 172.16.1.70 dev eth0") || len(told) > 0 {
				return fmt.Errorf("told were %q, and there is\n%s", told, got)
			}
			return nil
		})
	})
}

// What an earlier set of nodes wanted must not decide about the ways to those of the next.
func TestANodeWithAnAddressInAFormerRange(t *testing.T) {
	former := prefixes("172.16.9.0/24", "fd00:16:9::/64")
	for _, test := range []struct {
		name string
		gone layout.Node
	}{
		{"that led to a node on the same layer 2", layout.Node{Addrs: addrs("172.16.1.40", "fd00:16:1::40")}},
		{"that led through VXLAN", layout.Node{Addrs: addrs("172.16.2.40", "fd00:16:2::40")}},
		{"that was refused", layout.Node{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			a := w.nodes[0]
			test.gone.Name, test.gone.Created, test.gone.PodCIDRs = "d", 7, former
			a.start(t, config(), append(w.list(), test.gone))
			for _, family := range []int{0, 1} {
				e := layout.Node{Name: "e", Created: 8, Addrs: addrs([]string{"172.16.9.7", "fd00:16:9::7"}[family])}
				e.PodCIDRs = prefixes([]string{"10.1.50.0/24", "fd00:1:0:50::/112"}[family])
				self := a.node
				self.Addrs, self.PodCIDRs = self.Addrs[family:family+1], self.PodCIDRs[family:family+1]
				t.Run([]string{"IPv4", "IPv6"}[family], func(t *testing.T) {
					a.fabric.Set("a", []layout.Node{self, test.gone})
					a.quiet(t)
					a.fabric.Set("a", []layout.Node{self, e})
					want := e.PodCIDRs[0].String() + " via " + e.PodCIDRs[0].Addr().String() + " dev " + layout.DeviceName
					wired.Eventually(t, func() error {
						if got := a.holds(t); !strings.Contains(got, want) || strings.Contains(got, former[family].String()) {
							return fmt.Errorf("got\n%s\nwant %s", got, want)
						}
						return nil
					})
					if got := a.whose("e"); len(got) > 0 {
						t.Errorf("told were %q, want nothing", got)
					}
				})
			}
			if got := a.changed(); slices.Contains(got, "route") {
				t.Errorf("told were %q: nobody changed routes", got)
			}
		})
	}
}
