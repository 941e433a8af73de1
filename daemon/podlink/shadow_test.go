package podlink_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"onerule/daemon/rtnl"
	"onerule/test/wired"
)

// written gives how often the kernel has told since of a route to an address.
func (n *node) written(t *testing.T, to string) func() int {
	t.Helper()
	var j *rtnl.Journal
	wired.Do(t, n.ns, func() (err error) {
		j, err = rtnl.Listen(unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
		return err
	})
	t.Cleanup(j.Close)
	want := string(netip.MustParseAddr(to).AsSlice())
	return func() (count int) {
		events, lost, err := j.Take()
		if lost || err != nil {
			t.Fatalf("lost %t, %v", lost, err)
		}
		for _, m := range events {
			attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofRtMsg:])
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range attrs {
				if a.Attr.Type == unix.RTA_DST && string(a.Value) == want {
					count++
				}
			}
		}
		return count
	}
}

// A route of others that comes before ours is theirs. To write ours again would change
// nothing, and the kernel would tell of it: the next reason to look.
func TestARouteThatComesBeforeOursIsToldOnce(t *testing.T) {
	const link, sentinel, told = "one00000000000b", "oneffffffffffff", "comes before"
	for _, c := range []struct{ name, shadow, addr string }{
		{"IPv6, by a lower metric", "ip -6 route add fd00:1::2 dev other0 metric 32", "fd00:1::2"},
		{"IPv4, in front", "ip route prepend 10.1.0.2 dev other0", "10.1.0.2"},
		{"IPv4, by a rule", "ip rule add pref 100 to 10.1.0.2 blackhole", "10.1.0.2"},
		{"IPv6, by a rule", "ip -6 rule add pref 100 to fd00:1::2 blackhole", "fd00:1::2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t)
			n.run(t, "ip link add other0 type veth peer name other1")
			n.run(t, "ip link set other1 up")
			n.run(t, "ip link set other0 up")
			n.record(t, link, func(map[string]any) {})
			n.whole(t, link)
			n.record(t, sentinel, func(r map[string]any) { r["addresses"] = []string{"10.1.0.9"} })
			n.link(t, sentinel)
			n.keep(t)
			n.awaitUp(t, sentinel) // which is looked at last
			n.run(t, c.shadow)
			written := n.written(t, c.addr)
			for i := range 4 {
				n.run(t, fmt.Sprintf("ip link set %s mtu %d", link, 1400+i)) // a reason to look at it
				n.run(t, "ip link set "+sentinel+" down")
				n.awaitUp(t, sentinel)
			}
			if got := written(); got != 0 {
				t.Errorf("the route to %s is written %d times, want never", c.addr, got)
			}
			if got := n.noted(c.addr); got != nil {
				t.Errorf("counted are %q, want none", got)
			}
			if got := n.logged(told); len(got) != 1 || !strings.Contains(got[0], c.addr) {
				t.Errorf("told are %q, want one", got)
			}
			n.run(t, "ip route del "+c.addr+" dev "+link+" proto 111")
			wired.Eventually(t, func() error {
				if got := n.noted(c.addr); len(got) != 1 || !strings.Contains(got[0], "no route to "+c.addr) {
					return fmt.Errorf("without our route, counted are %q", got)
				}
				family := map[bool]string{true: "-4", false: "-6"}[netip.MustParseAddr(c.addr).Is4()]
				if got := n.run(t, "ip "+family+" route show proto 111 dev "+link); !strings.Contains(got, c.addr) {
					return fmt.Errorf("our route is not back: %q", got)
				}
				return nil
			})
		})
	}
}
