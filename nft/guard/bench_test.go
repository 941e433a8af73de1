package guard_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"onerule/nft"
	"onerule/nft/guard"
	"onerule/test/addr"
	"onerule/test/wired"
)

// tracked turns connection tracking on, as the table of Services does. The kernel needs a
// rule for that, of which this one costs an established flow nothing.
const tracked = "table inet base { chain out { type nat hook prerouting priority 0; ct state new counter; }; }"

// BenchmarkPacket prints what a packet of an established flow from pod to pod costs the
// node more with the guard, and with a set of links and addresses in place of the look-up
// for routes. The ways take turns, since the machine is never quiet; the best of all rounds counts.
func BenchmarkPacket(b *testing.B) {
	w := wired.New(b, 2)
	p := addr.IPv4()
	elements := []string{}
	for i := range 110 {
		elements = append(elements, fmt.Sprintf("%q . %s", wired.Link(i), p.Pod(i%60)))
	}
	bySet := strings.Replace(guard.Text(nft.IPv4, vxlanPort), "fib saddr . iif oif missing", "iifname . ip saddr != @links", 1)
	bySet = strings.Replace(bySet, "\tset pod-ranges", "\tset links { type ifname . ipv4_addr; elements = { "+strings.Join(slices.Compact(elements), ", ")+" } }\n\tset pod-ranges", 1)
	ways := []struct{ name, rules string }{
		{"none", ""},
		{"guard", guard.Text(nft.IPv4, vxlanPort)},
		{"set", bySet},
		{"spoof-only", "table ip onerule-guard { chain c { type filter hook prerouting priority -310; iifname \"one*\" fib saddr . iif oif missing drop; }; }"},
	}
	to := netip.AddrPortFrom(p.Pod(1), 9)
	sink, send := flow(b, w, to)
	defer sink.Close()
	defer send.Close()
	costs := map[string][]time.Duration{}
	for b.Loop() {
		for _, way := range ways {
			w.Node.Run(b, "nft", "flush ruleset; "+tracked+"\n"+way.rules)
			costs[way.name] = append(costs[way.name], cost(b, send))
		}
	}
	for _, way := range ways {
		b.ReportMetric(float64(slices.Min(costs[way.name]).Nanoseconds()), "ns/packet-"+way.name)
	}
	b.ReportMetric(0, "ns/op")
}

func flow(b *testing.B, w *wired.World, to netip.AddrPort) (sink, send *net.UDPConn) {
	b.Helper()
	err := w.Pods[1].Do(func() (err error) {
		sink, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(to))
		return err
	})
	if err == nil {
		err = w.Pods[0].Do(func() (err error) {
			send, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
			return err
		})
	}
	if err != nil {
		b.Fatal(err)
	}
	return sink, send
}

// cost is what a packet takes from the sender until the receiver has it: the kernel passes
// it on in the time of the one who sends. It is that of the best of many short runs, which
// nobody else interrupted.
func cost(b *testing.B, send *net.UDPConn) time.Duration {
	const runs, packets = 100, 200
	payload := make([]byte, 64)
	best := time.Hour
	for range runs {
		began := time.Now()
		for range packets {
			if _, err := send.Write(payload); err != nil {
				b.Fatal(err)
			}
		}
		best = min(best, time.Since(began))
	}
	return best / packets
}
