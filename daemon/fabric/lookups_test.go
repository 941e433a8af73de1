package fabric_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"onerule/test/wired"
)

// batch has ip do many things.
func (h *host) batch(t *testing.T, commands ...string) {
	t.Helper()
	h.ns.Run(t, "sh", "-c", "printf '"+strings.Join(commands, `\n`)+`\n'`+" | ip -force -batch -")
}

// heard waits until a node has looked at all that it was told until now: it has seen
// something that came later.
func (h *host) heard(t *testing.T) {
	t.Helper()
	h.told()
	h.ns.Run(t, "ip", "route", "del", "10.1.3.0/24")
	wired.Eventually(t, func() error {
		if got := h.changed(); !slices.Contains(got, "route") {
			return fmt.Errorf("told were %q, want a route", got)
		}
		return nil
	})
	h.quiet(t)
}

// A node may have a million routes that others change all the time, and thousands of other
// nodes: the ways to these are asked for only when one can have changed.
func TestWhatChangesNoWayCostsNoLookUp(t *testing.T) {
	w := newWorld(t)
	a := w.nodes[0]
	a.ns.Run(t, "ip", "link", "add", "other0", "type", "bridge")
	a.ns.Run(t, "ip", "link", "set", "other0", "up")
	a.ns.Addr(t, "other0", "192.0.2.1/24", "fd00:99::1/64")
	a.start(t, config(), w.list())
	a.quiet(t)
	for _, test := range []struct {
		name    string
		do, end []string
	}{
		{"a route of others", []string{"route add 198.18.0.7/32 via 172.16.1.254 dev eth0"}, []string{"route del 198.18.0.7/32"}},
		{"an IPv6 route of others", []string{"-6 route add fd00:98::7/128 via fd00:16:1::fe dev eth0"}, []string{"-6 route del fd00:98::7/128"}},
		{"a link of others", []string{"link add new0 type bridge", "link set new0 up", "addr add 192.0.2.129/25 dev new0", "addr add fd00:97::1/64 dev new0"}, []string{"link del new0"}},
		{"an address of a link that was there", []string{"addr add 192.0.2.2/24 dev other0", "addr add fd00:99::2/64 dev other0"}, []string{"addr del 192.0.2.2/24 dev other0", "addr del fd00:99::2/64 dev other0"}},
		{"a link that was there goes down and up", []string{"link set other0 down"}, []string{"link set other0 up"}},
		{"a rule of others", []string{"rule add pref 7 to 198.18.0.0/16 lookup 7", "rule add pref 8 fwmark 8 lookup 7"}, []string{"rule del pref 7", "rule del pref 8"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := a.fabric.Counts().Lookups
			for range 20 {
				a.batch(t, append(slices.Clone(test.do), test.end...)...)
			}
			a.heard(t)
			if got := a.fabric.Counts().Lookups - before; got != 0 {
				t.Errorf("%d ways were asked for, want none", got)
			}
		})
	}
}

// Whatever can change a way is seen.
func TestWhatMayChangeAWayIsLookedAt(t *testing.T) {
	w := newWorld(t)
	a := w.nodes[0]
	a.batch(t, "link add other0 type bridge", "link set other0 up", "addr add 192.0.2.1/24 dev other0", "addr add fd00:99::1/64 dev other0",
		"link add lonely type bridge", "addr add 192.0.2.200/32 dev lonely", "link set lonely up",
		"link add picky type bridge", "link set picky up", "route add 172.16.2.0/28 via 172.16.1.254 src 192.0.2.200")
	a.ns.Sysctl(t, "net.ipv4.conf.picky.ignore_routes_with_linkdown", "1")
	a.start(t, config(), w.list())
	a.quiet(t)
	for _, test := range []struct{ name, command string }{
		{"a route to a node", "route add 172.16.2.1/32 via 172.16.1.254 mtu 1400"},
		{"it goes", "route del 172.16.2.1/32"},
		{"an IPv6 route to a node", "-6 route add fd00:16:2::1/128 via fd00:16:1::fe"},
		{"a route to a part of a network of nodes", "route add 172.16.1.2/31 dev other0"},
		{"one of another table", "route add 172.16.0.0/16 dev other0 table 7"},
		{"a default route", "route add default via 192.0.2.9 metric 7"},
		{"it goes", "route del default via 192.0.2.9 metric 7"},
		{"an IPv6 default route", "-6 route add default via fd00:99::9 metric 7"},
		{"one that hides the default route", "route add 128.0.0.0/1 via 192.0.2.9"},
		{"an address of a node", "addr add 172.16.1.2/32 dev other0"},
		{"another address of the link to nodes", "addr add 172.16.77.1/24 dev eth0"},
		{"an address that a way prefers to send from goes", "addr del 192.0.2.200/32 dev lonely"},
		{"the MTU of a link that nodes are reached by", "link set eth0 mtu 1450"},
		{"a link by which routes count only with a carrier", "link set picky mtu 1450"},
		{"a rule", "rule add pref 7 lookup 7"},
		{"a rule about nodes", "rule add pref 8 to 172.16.2.0/24 lookup 7"},
		{"a rule about all others", "rule add pref 9 not to 198.18.0.0/16 lookup 7"},
		{"a rule that goes", "rule del pref 9"},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := a.fabric.Counts().Lookups
			a.ns.Run(t, "ip", strings.Fields(test.command)...)
			wired.Eventually(t, func() error {
				if a.fabric.Counts().Lookups == before {
					return fmt.Errorf("no way was asked for")
				}
				return nil
			})
			a.quiet(t)
		})
	}
}
