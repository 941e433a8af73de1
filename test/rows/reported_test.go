package rows_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/oracle"
	"onerule/test/rig"
)

// reportedTests are faults that users of Service proxies met.
func reportedTests() map[string]func(*testing.T, *world) {
	return map[string]func(*testing.T, *world){
		"R12": testDeletedAndMade, "R19": testFirstEndpoint, "R24": testEarlyConnect, "IN.dead": testConnectToTheDead,
		"F1": testServiceCIDR, "F2": testSameServiceCIDR,
		"A4.11": testDistribution, "R66607": testProxyModeLeaves, "R10437": testHostFirewall, "IN.claims": testClaims,
	}
}

func testDeletedAndMade(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", web(p), webSlice(p, p.Pod(1), p.Pod(2)))
		w.put(t, "other.yaml", rig.Service("other", []netip.Addr{p.VIP(1)}, webPort), slice(p, "other-1", "other", "", []string{webTarget}, ready(p, p.OtherPod(0))...))
		elements, shape := w.elements(), w.shape(t, p)
		written := w.d.Metric("onerule_nft_operations_total", "operation", "transaction")
		every := time.NewTicker(10 * time.Millisecond)
		defer every.Stop()
		for range 100 {
			<-every.C
			w.d.Remove("web.yaml")
			w.d.Write("web.yaml", web(p), webSlice(p, p.Pod(1), p.Pod(2)))
			if seen, err := w.h.Probe(at(p.VIP(1), model.TCP, 80).from(hosts.Clients(p)[0]), hosts.Patience); err != nil || seen.Verdict != hosts.Answered {
				t.Fatalf("another Service meanwhile: %s, %v", seen, err)
			}
		}
		w.settle(t)
		if w.d.Metric("onerule_nft_operations_total", "operation", "transaction") == written {
			t.Error("nothing was written meanwhile: the test shows nothing")
		}
		if diff := cmp.Diff(elements, w.elements()); diff != "" {
			t.Errorf("elements (-before +after): %s", diff)
		}
		if diff := cmp.Diff(shape, w.shape(t, p)); diff != "" {
			t.Errorf("sets, chains and rules (-before +after): %s", diff)
		}
		w.h.Forget(t)
		w.reached(t, p, at(p.VIP(0), model.TCP, 80), ports(8080, p.Pod(1), p.Pod(2))...)
	})
}

// shape lists everything of a table but elements and counters.
func (w *world) shape(t *testing.T, p addr.Plan) string {
	t.Helper()
	return w.h.Node.Run(t, "nft", "-s", "--terse", "list", "table", nftFamily(p), "onerule")
}

// A sender that keeps its port is refused as long as there is no endpoint, and leaves
// no flow that would outlive that. One that sends before its Service is there makes a
// flow that is not translated.
func testFirstEndpoint(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		t.Run("the endpoint comes", func(t *testing.T) {
			w.put(t, "web.yaml", web(p))
			sender := w.sender(t, at(p.VIP(0), model.UDP, 80).from(hosts.Clients(p)[0]))
			if _, err := sender.Ask(); err == nil {
				t.Error("answered without an endpoint")
			}
			w.write("web.yaml", web(p), webSlice(p, p.Pod(1)))
			w.answered(t, sender, netip.AddrPortFrom(p.Pod(1), 8080))
		})
		t.Run("the Service comes", func(t *testing.T) {
			packet := at(addr.Nth(p.StrayVIPs, 1), model.UDP, 80).from(hosts.Clients(p)[0])
			sender := w.sender(t, packet)
			w.tracked(t, packet)
			w.write("web.yaml", rig.Service("web", []netip.Addr{packet.Dst}, dnsPort), webSlice(p, p.Pod(1)))
			w.answered(t, sender, netip.AddrPortFrom(p.Pod(1), 8080))
		})
	})
}

func (w *world) sender(t *testing.T, packet oracle.Packet) *hosts.Session {
	t.Helper()
	s, err := w.h.Send(packet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// answered waits until a sender that keeps sending is answered.
func (w *world) answered(t *testing.T, s *hosts.Session, by netip.AddrPort) {
	t.Helper()
	rig.Eventually(t, "the sender is answered", func() error {
		seen, err := s.Ask()
		if err == nil && seen.Endpoint != by {
			err = fmt.Errorf("answered by %s, want %s", seen.Endpoint, by)
		}
		return err
	})
}

// tracked fails unless conntrack has a flow of a packet: without it a test of flows
// that are not translated shows nothing.
func (w *world) tracked(t *testing.T, packet oracle.Packet) {
	t.Helper()
	rig.Eventually(t, "conntrack has the flow that is not translated", func() error {
		found, err := w.h.Tracked(packet)
		if err == nil && !found {
			err = fmt.Errorf("no flow of %+v", packet)
		}
		return err
	})
}

func testEarlyConnect(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		packet := at(addr.Nth(p.StrayVIPs, 1), model.TCP, 80).from(hosts.Clients(p)[0])
		seen, failed := make(chan hosts.Seen, 1), make(chan error, 1)
		go func() { // ends within 8 s
			s, err := w.h.Probe(packet, 8*time.Second)
			seen <- s
			failed <- err
		}()
		w.tracked(t, packet)
		w.write("web.yaml", rig.Service("web", []netip.Addr{packet.Dst}, webPort), webSlice(p, p.Pod(1)))
		s := <-seen
		if err := <-failed; err != nil || s.Endpoint != netip.AddrPortFrom(p.Pod(1), 8080) {
			t.Errorf("%s, %v, want an answer of the pod", s, err)
		}
		w.settle(t)
	})
}

// An endpoint that dies without a word answers no SYN. The client's next one goes to an
// endpoint that serves as soon as the dead one is listed no more, and no flow is left that
// would lead others there who come from the same port.
func testConnectToTheDead(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		dead := w.h.At(p.Pod(1))
		dead.Run(t, "nft", "table inet dead { chain in { type filter hook input priority -300; tcp dport 8080 drop; }; }")
		defer dead.Run(t, "nft", "delete", "table", "inet", "dead")
		w.put(t, "web.yaml", web(p), webSlice(p, p.Pod(1)))
		packet := at(p.VIP(0), model.TCP, 80).from(hosts.Clients(p)[0])
		seen, failed := make(chan hosts.Seen, 1), make(chan error, 1)
		go func() { // ends within 20 s
			s, err := w.h.Probe(packet, 20*time.Second)
			seen <- s
			failed <- err
		}()
		w.tracked(t, packet)
		w.write("web.yaml", web(p), webSlice(p, p.Pod(2)))
		s := <-seen
		if err := <-failed; err != nil || s.Endpoint != netip.AddrPortFrom(p.Pod(2), 8080) {
			t.Errorf("%s, %v, want an answer of the pod that lives", s, err)
		}
		w.settle(t)
	})
}

func testServiceCIDR(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.passes(t, p)
		w.put(t, "second.yaml", rig.ServiceCIDR("second", p.SecondServiceCIDR))
		w.strangerDropped(t, p)
		// A Service in it answers, next to an address that nobody holds.
		vip := addr.Nth(p.SecondServiceCIDR, 1)
		w.put(t, "web.yaml", strings.ReplaceAll(web(p), p.VIP(0).String(), vip.String()), webSlice(p, p.Pod(1)))
		w.reached(t, p, at(vip, model.TCP, 80), ports(8080, p.Pod(1))...)
		w.remove(t, "second.yaml")
		w.passes(t, p)
		w.reached(t, p, at(vip, model.TCP, 80), ports(8080, p.Pod(1))...)
		w.remove(t, "web.yaml")
	})
}

func testSameServiceCIDR(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		within := netip.PrefixFrom(stranger(p), stranger(p).BitLen()-3).Masked()
		w.put(t, "second.yaml", rig.ServiceCIDR("second", p.SecondServiceCIDR))
		w.put(t, "third.yaml", rig.ServiceCIDR("third", p.SecondServiceCIDR))
		w.put(t, "within.yaml", rig.ServiceCIDR("within", within)) // which the kernel would refuse beside the others
		w.strangerDropped(t, p)
		w.remove(t, "second.yaml")
		w.strangerDropped(t, p)
		w.remove(t, "third.yaml")
		w.strangerDropped(t, p)
		w.remove(t, "within.yaml")
		w.passes(t, p)
	})
}
