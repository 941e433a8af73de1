package guard_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"onerule/nft"
	"onerule/nft/guard"
	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/wired"
)

// port is where everybody answers.
const port = 7

// saw asks, over UDP and TCP, and wants to hear who answered and whom it saw.
func saw(t *testing.T, from *netns.NS, to netip.AddrPort, want string) {
	t.Helper()
	for _, network := range []string{"udp", "tcp"} {
		if got, err := wired.Ask(from, network, netip.AddrPort{}, to); err != nil || got != want {
			t.Errorf("%s from %s to %s: %q, %v, want %q", network, from.Name(), to, got, err, want)
		}
	}
}

func TestD43_PodsThatLeaveTheClusterAreMasqueraded(t *testing.T) {
	each(t, func(t *testing.T, f nft.Family, p addr.Plan) {
		w, program := guarded(t, f, p)
		wired.Serve(t, w.Outside, "outside", netip.AddrPortFrom(p.Outside(), port))
		wired.Serve(t, w.Outside, "other pod", netip.AddrPortFrom(p.OtherPod(0), port))
		wired.Serve(t, w.Node, "node", netip.AddrPortFrom(p.Node(), port))
		wired.Serve(t, w.Pods[1], "pod 1", netip.AddrPortFrom(p.Pod(1), port))
		at := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, port) }

		t.Run("to outside as the node", func(t *testing.T) {
			saw(t, w.Pods[0], at(p.Outside()), "outside saw "+p.Node().String())
		})
		t.Run("to a pod elsewhere as themselves", func(t *testing.T) {
			saw(t, w.Pods[0], at(p.OtherPod(0)), "other pod saw "+p.Pod(0).String())
		})
		t.Run("to a pod here as themselves", func(t *testing.T) {
			saw(t, w.Pods[0], at(p.Pod(1)), "pod 1 saw "+p.Pod(0).String())
		})
		t.Run("to their node as themselves", func(t *testing.T) {
			saw(t, w.Pods[0], at(p.Node()), "node saw "+p.Pod(0).String())
		})
		t.Run("but who comes from outside is not", func(t *testing.T) {
			saw(t, w.Outside, at(p.Pod(1)), "pod 1 saw "+p.Outside().String())
		})
		t.Run("and a Service still leads there", func(t *testing.T) { throughServices(t, w, f, p) })
		t.Run("nor what is not to be", func(t *testing.T) {
			more := ranges(p)
			more.Cluster = append(more.Cluster, p.Uplink)
			set(t, w.Node, program, more)
			saw(t, w.Pods[0], at(p.Outside()), "outside saw "+p.Pod(0).String())
		})
		if n := dropped(t, w.Node, program); n[guard.Spoofed]+n[guard.Leaks] != 0 {
			t.Errorf("dropped %v", n)
		}
	})
}

// throughServices sends through the table of Services, which stands beside the guard.
func throughServices(t *testing.T, w *wired.World, f nft.Family, p addr.Plan) {
	var services *nft.Program
	wired.Do(t, w.Node, func() (err error) {
		services, err = nft.Open(nft.Config{Family: f, MasqueradeBit: 14, Detector: nft.DetectCIDR})
		return err
	})
	t.Cleanup(func() { _ = services.Close() })
	want := nft.NewState()
	want.Ranges[nft.PodCIDRs] = []netip.Prefix{p.ClusterCIDR}
	vip := func(i int) netip.AddrPort { return netip.AddrPortFrom(p.VIP(i), 80) }
	for i, endpoint := range []netip.Addr{p.Outside(), p.Pod(1)} {
		for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			want.Set(nft.Frontend{Addr: p.VIP(i), Protocol: protocol, Port: 80},
				nft.Route{Endpoints: []netip.AddrPort{netip.AddrPortFrom(endpoint, port)}})
		}
	}
	wired.Do(t, w.Node, func() error { return services.Load(context.Background(), want, nft.NewKeys()) })
	saw(t, w.Pods[0], vip(0), "outside saw "+p.Node().String())
	saw(t, w.Pods[0], vip(1), "pod 1 saw "+p.Pod(0).String())
}

// reset gives a TCP reset of a connection that there is not: connection tracking calls it
// invalid.
func reset(src, dst netip.AddrPort) []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, src.Port())
	binary.BigEndian.PutUint16(b[2:], dst.Port())
	b[12], b[13] = 5<<4, 4
	pseudo := append(append(src.Addr().AsSlice(), dst.Addr().AsSlice()...), 0, unix.IPPROTO_TCP, 0, byte(len(b)))
	binary.BigEndian.PutUint16(b[16:], checksum(pseudo, b))
	return ip(src.Addr(), dst.Addr(), unix.IPPROTO_TCP, b)
}

func TestD35_NoPodAddressLeaksUntranslated(t *testing.T) {
	each(t, func(t *testing.T, f nft.Family, p addr.Plan) {
		w, program := guarded(t, f, p)
		w.Outside.Run(t, "nft", fmt.Sprintf(`table inet observer {
	counter came { }
	chain prerouting {
		type filter hook prerouting priority -300; policy accept;
		%s saddr %s tcp flags rst counter name came
	}
}`, f, p.Pod(0)))
		came := func() bool {
			return !strings.Contains(w.Outside.Run(t, "nft", "list", "counter", "inet", "observer", "came"), "packets 0 ")
		}
		pod, gateway := netip.AddrPortFrom(p.Pod(0), 40000), wired.MAC(t, w.Node, wired.Link(0))
		wired.Send(t, w.Pods[0], "eth0", gateway, reset(pod, netip.AddrPortFrom(p.Outside(), 80)))
		wired.Eventually(t, func() error {
			if n := dropped(t, w.Node, program)[guard.Leaks]; n != 1 {
				return fmt.Errorf("leaks counts %d, want 1", n)
			}
			return nil
		})
		if came() {
			t.Error("came through with the pod's address")
		}
		t.Run("but inside the cluster it may be invalid", func(t *testing.T) {
			wired.Send(t, w.Pods[0], "eth0", gateway, reset(pod, netip.AddrPortFrom(p.OtherPod(0), 80)))
			wired.Eventually(t, func() error {
				if !came() {
					return fmt.Errorf("did not come")
				}
				return nil
			})
		})
	})
}

// Where a route carries less than the pods' links, TCP learns it from the first packets,
// also if messages about packets that are too large are filtered.
func TestD20_ConnectionsBeginWithWhatTheRouteCarries(t *testing.T) {
	each(t, func(t *testing.T, f nft.Family, p addr.Plan) {
		const mtu = 1400
		w, _ := guarded(t, f, p)
		w.Node.Run(t, "ip", "route", "change", p.OtherPods.String(), "via", p.Outside().String(), "dev", "eth0", "mtu", fmt.Sprint(mtu))
		headers := 40
		if f == nft.IPv6 {
			headers = 60
		}
		count := fmt.Sprintf(`table inet observer {
	counter small { }
	counter large { }
	chain prerouting {
		type filter hook prerouting priority -300; policy accept;
		tcp flags & syn == syn tcp option maxseg size <= %[1]d counter name small
		tcp flags & syn == syn tcp option maxseg size > %[1]d counter name large
	}
}`, mtu-headers)
		wired.Serve(t, w.Outside, "other pod", netip.AddrPortFrom(p.OtherPod(0), port))
		wired.Serve(t, w.Pods[0], "pod 0", netip.AddrPortFrom(p.Pod(0), port))
		ends := []*netns.NS{w.Outside, w.Pods[0]}
		for _, ns := range ends {
			ns.Run(t, "nft", count)
		}
		pod, other := netip.AddrPortFrom(p.Pod(0), port), netip.AddrPortFrom(p.OtherPod(0), port)
		if got, err := wired.Ask(w.Pods[0], "tcp", netip.AddrPort{}, other); err != nil {
			t.Errorf("from the pod: %q, %v", got, err)
		}
		if got, err := wired.Ask(w.Outside, "tcp", netip.AddrPortFrom(other.Addr(), 0), pod); err != nil {
			t.Errorf("to the pod: %q, %v", got, err)
		}
		for _, ns := range ends {
			small := ns.Run(t, "nft", "list", "counter", "inet", "observer", "small")
			large := ns.Run(t, "nft", "list", "counter", "inet", "observer", "large")
			if !strings.Contains(small, "packets 2 ") || !strings.Contains(large, "packets 0 ") {
				t.Errorf("%s saw %s%s", ns.Name(), small, large)
			}
		}
	})
}
