package invariants_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/rig"
)

// others are what a firewall's reload or an administrator may do, by the kind that it is
// counted as. $F is the family.
func others() map[string]struct{ script, kind string } {
	return map[string]struct{ script, kind string }{
		"R9 a: flush ruleset":             {"flush ruleset", "table-deleted"},
		"R9 b, F3: flush our table":       {"flush table $F onerule", "rules-deleted"},
		"R9 c: one element deleted":       {"delete element $F onerule service-ips { $VIP . tcp . 80 }", "elements-deleted"},
		"R9 d: a chain deleted":           {"flush chain $F onerule nat-prerouting\ndelete chain $F onerule nat-prerouting", "chains-deleted"},
		"a rule exchanged for another":    {"flush chain $F onerule refuse\nadd rule $F onerule refuse accept", "rules-added"},
		"the endpoints of all are gone":   {"flush map $F onerule endpoints-tcp", "elements-deleted"},
		"a rule that drops, in the front": {"insert rule $F onerule services drop", "rules-added"},
	}
}

// What others do to our table is put right without any change of an object, said and
// counted, and flows that began meanwhile are mended.
func TestRepairOfWhatOthersDo(t *testing.T) {
	h := newHosts(t)
	for _, p := range addr.Both() {
		h.serve(t, p)
	}
	d := rig.Start(t, h.node, "--cluster-cidr", fmt.Sprint(addr.IPv4().ClusterCIDR, ",", addr.IPv6().ClusterCIDR))
	for _, p := range addr.Both() {
		name := "web-" + family(p).String()
		d.Write(name+".yaml", rig.Service(name, []netip.Addr{p.VIP(0)}, "web/TCP/80", "dns/UDP/80"), rig.Slice(name+"-1", name, []netip.Addr{p.OtherPod(0)}, "web/TCP/8080", "dns/UDP/8080"))
	}
	for _, p := range addr.Both() {
		h.answers(t, p, "at the beginning")
		for name, c := range others() {
			t.Run(family(p).String()+"/"+name, func(t *testing.T) {
				// Somebody else's ct rule keeps conntrack at work while our table is gone.
				apply(t, h.node, "table inet keep { chain c { type filter hook prerouting priority 0; ct state new counter; }; chain d { type filter hook output priority 0; ct state new counter; }; }")
				before := d.Metric("onerule_foreign_changes_total", "kind", c.kind)
				words := strings.NewReplacer("$F", family(p).String(), "$VIP", p.VIP(0).String())
				apply(t, h.node, words.Replace(c.script))
				h.answers(t, p, name)
				rig.Eventually(t, "it is counted", func() error {
					if d.Metric("onerule_foreign_changes_total", "kind", c.kind) <= before {
						return fmt.Errorf("no change of kind %s counted", c.kind)
					}
					return nil
				})
				if !strings.Contains(d.Log(), "others changed our table") {
					t.Error("nothing is said of it")
				}
			})
		}
	}
}

func apply(t *testing.T, ns *netns.NS, text string) {
	t.Helper()
	script := filepath.Join(t.TempDir(), "script.nft")
	if err := os.WriteFile(script, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ns.Run(t, "nft", "-f", script)
}

// answers waits until the Service answers in TCP, and a UDP socket that begins to send now.
func (h *hosts) answers(t *testing.T, p addr.Plan, when string) {
	t.Helper()
	to := netip.AddrPortFrom(p.VIP(0), 80)
	_ = h.client.Do(func() error {
		conn, err := net.Dial("udp", to.String())
		if err != nil {
			t.Errorf("%s: %v", when, err)
			return nil
		}
		defer func() { _ = conn.Close() }()
		answer := make([]byte, 1)
		rig.Eventually(t, when+": UDP is answered", func() error {
			_, _ = conn.Write([]byte("?")) // refused at first, perhaps
			_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			_, err := conn.Read(answer)
			return err
		})
		rig.Eventually(t, when+": TCP is answered", func() error {
			_, _, err := connect(to, 500*time.Millisecond)
			if errors.Is(err, errResent) {
				return nil
			}
			return err
		})
		return nil
	})
}
