package invariants_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/rig"
)

// foreign is the text of a table of somebody else with a ct rule, in both families. Without one the
// kernel takes conntrack's hooks away together with our table, and no flow could begin
// untranslated: tests of that would pass for nothing.
func foreign() string {
	text := ""
	for _, f := range []string{"ip", "ip6"} {
		text += "add table " + f + " foreign\n"
		for _, hook := range []string{"prerouting", "output"} {
			text += "add chain " + f + " foreign " + hook + " { type filter hook " + hook + " priority -150; }\n" +
				"add rule " + f + " foreign " + hook + " ct state new counter\n"
		}
	}
	return text
}

func loadForeign(t *testing.T, ns *netns.NS) {
	t.Helper()
	if err := ns.Do(func() error { return nftScript(foreign()) }); err != nil {
		t.Fatal(err)
	}
}

// I4, reports 19 and 24: a TCP connect and a UDP flow that begin half a second before
// their Service exists work once it does.
func TestI4FlowsBegunBeforeTheirServiceAreMended(t *testing.T) {
	for _, p := range addr.Both() {
		t.Run(family(p).String(), func(t *testing.T) {
			h := newHosts(t)
			h.serve(t, p)
			loadForeign(t, h.node)
			d := rig.Start(t, h.node, "--cluster-cidr", p.ClusterCIDR.String())
			to := netip.AddrPortFrom(p.VIP(0), 80)

			udp := h.beginUDP(t, to)
			tcp := h.beginTCP(to)
			await(t, 500*time.Millisecond)
			for _, proto := range []string{"TCP", "UDP"} {
				if !h.hasEntry(t, proto, p.VIP(0)) {
					t.Fatalf("conntrack has no %s flow to %s: the test shows nothing", proto, to)
				}
			}
			d.Write("web.yaml", rig.Service("web", []netip.Addr{p.VIP(0)}, "web/TCP/80", "dns/UDP/80"),
				rig.Slice("web-1", "web", addrs(p, 2), "web/TCP/8080", "dns/UDP/8080"))

			select {
			case err := <-tcp:
				if err != nil {
					t.Errorf("TCP: %v", err)
				}
			case <-time.After(10 * time.Second):
				t.Error("TCP: no connection 10 s after its Service came")
			}
			rig.Eventually(t, "the UDP flow gets an answer", func() error { return ping(udp) })
			if n := d.Metric("onerule_conntrack_untranslated_deleted_total"); n < 2 {
				t.Errorf("the daemon deleted %v untranslated entries, want both flows", n)
			}
		})
	}
}

func addrs(p addr.Plan, n int) []netip.Addr {
	var list []netip.Addr
	for i := range n {
		list = append(list, p.OtherPod(i))
	}
	return list
}

// beginUDP sends a datagram from a socket that keeps its port.
func (h *hosts) beginUDP(t *testing.T, to netip.AddrPort) net.Conn {
	t.Helper()
	var c net.Conn
	err := h.client.Do(func() (err error) {
		if c, err = net.Dial("udp", to.String()); err == nil {
			_, err = c.Write([]byte{0})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// ping sends another datagram and waits a moment for the answer.
func ping(c net.Conn) error {
	if _, err := c.Write([]byte{0}); err != nil {
		return err
	}
	_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	return err
}

// beginTCP connects, for up to 8 s, and delivers how that ended.
func (h *hosts) beginTCP(to netip.AddrPort) <-chan error {
	end := make(chan error, 1)
	go func() {
		end <- h.client.Do(func() error {
			_, _, err := connect(to, 8*time.Second)
			if errors.Is(err, errResent) {
				return nil // the first one was sent before the Service came
			}
			return err
		})
	}()
	return end
}

// hasEntry says whether conntrack holds a flow to an address.
func (h *hosts) hasEntry(t *testing.T, proto string, dst netip.Addr) bool {
	t.Helper()
	found, err := conntrackHas(h.node, proto, dst)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// await lets time pass, where what is tested is what happens after it.
func await(t *testing.T, d time.Duration) {
	t.Helper()
	<-time.After(d)
}
