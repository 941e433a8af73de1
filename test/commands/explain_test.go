package commands_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"onerule/daemon/inspect"
	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/oracle"
	"onerule/test/rig"
)

// clients are those that a proxy tells apart, and a pod of another node.
func clients(p addr.Plan) []oracle.Packet {
	return append(hosts.Clients(p), oracle.Packet{From: oracle.Outside, Iif: "between", Src: p.OtherPod(1)})
}

// destinations are all frontends of all Services, and what is none.
func destinations(p addr.Plan) []oracle.Packet {
	to := func(a netip.Addr, protocol model.Protocol, port uint16) oracle.Packet {
		return oracle.Packet{Dst: a, Protocol: protocol, Port: port}
	}
	var list []oracle.Packet
	for i := range plan() {
		list = append(list,
			to(p.VIP(i), model.TCP, 80), to(p.VIP(i), model.UDP, 53), to(p.VIP(i), model.SCTP, 80), to(p.VIP(i), model.TCP, 81),
			to(p.ExternalIP(i), model.TCP, 80), to(p.ExternalIP(i), model.TCP, 81), to(p.BalancerIP(i), model.TCP, 80), to(p.BalancerIP(i), model.UDP, 53),
			to(p.Node(), model.TCP, nodePort(i)), to(p.NodeBetween(), model.UDP, nodePort(i)))
	}
	return append(list, to(p.VIP(90), model.TCP, 80), to(p.OtherNode(), model.TCP, nodePort(0)), to(p.Node(), model.TCP, 22), to(p.OtherPod(0), model.TCP, target))
}

func query(p oracle.Packet) inspect.Query {
	q := inspect.Query{To: netip.AddrPortFrom(p.Dst, p.Port), Protocol: p.Protocol.String(), From: p.Src}
	if p.From == oracle.Node {
		q.From = netip.Addr{}
	}
	return q
}

// outcome gives what an explanation says, in the words of the oracle.
func outcome(e inspect.Explanation) oracle.Outcome {
	o := oracle.Outcome{Verdict: map[string]oracle.Verdict{
		"passes": oracle.Untouched, "translated": oracle.Reached, "refused": oracle.Refused, "dropped": oracle.Dropped,
	}[e.Verdict]}
	for _, r := range e.Reached {
		o.Arrivals = append(o.Arrivals, oracle.Arrival{Endpoint: netip.MustParseAddrPort(r.Address), Masqueraded: r.Masqueraded})
	}
	return o
}

func TestExplainSaysWhatTheOracleAndPacketsSay(t *testing.T) {
	w := newWorld(t, "--nodeport-addresses", fmt.Sprintf("%s,%s", addr.IPv4().Uplink, addr.IPv6().Uplink))
	cluster, met := w.cluster(t), map[string]int{}
	for _, p := range addr.Both() {
		for _, client := range clients(p) {
			for _, packet := range destinations(p) {
				packet.From, packet.Iif, packet.Src = client.From, client.Iif, client.Src
				e := w.explain(t, packet)
				met[e.Verdict]++
				if diff := cmp.Diff(oracle.Judge(cluster, w.config(), oracle.Pins{}, packet), outcome(e), cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
					t.Errorf("%+v (-oracle +explained): %s\n%+v", packet, diff, e)
				}
				if len(e.Wrong)+len(e.Differs)+len(e.Notes) > 0 || e.Verdict != "translated" && e.Reason == "" {
					t.Errorf("%+v: got %+v, want no fault, and a reason", packet, e)
				}
			}
		}
	}
	t.Logf("explained: %v", met)
	for _, verdict := range []string{"passes", "translated", "refused", "dropped"} {
		if met[verdict] < 10 {
			t.Errorf("%s: %d times, want 10", verdict, met[verdict])
		}
	}
	t.Run("packets", func(t *testing.T) { w.packets(t) })
	t.Run("a client that session affinity pinned", func(t *testing.T) { w.pinned(t) })
	t.Run("in words", func(t *testing.T) { w.words(t) })
	t.Run("where the kernel differs", func(t *testing.T) { w.differs(t) })
}

func (w *world) explain(t *testing.T, p oracle.Packet) inspect.Explanation {
	t.Helper()
	e, err := w.client().Explain(t.Context(), query(p))
	if err != nil {
		t.Fatalf("%+v: %v", p, err)
	}
	return e
}

// packets sends real ones to a frontend of each kind of each Service, and compares what
// their senders see with what was explained.
func (w *world) packets(t *testing.T) {
	var sent sync.WaitGroup
	for _, p := range addr.Both() {
		for _, client := range hosts.Clients(p) {
			for i, s := range plan() {
				if s.name == "sticky" {
					continue
				}
				for _, to := range []netip.AddrPort{netip.AddrPortFrom(p.VIP(i), 80), netip.AddrPortFrom(p.BalancerIP(i), 80), netip.AddrPortFrom(p.Node(), nodePort(i))} {
					packet := oracle.Packet{From: client.From, Src: client.Src, Dst: to.Addr(), Protocol: model.TCP, Port: to.Port()}
					e := w.explain(t, packet)
					sent.Go(func() {
						if wrong, err := w.h.Check(packet, outcome(e), hosts.Patience); err != nil || wrong != "" {
							t.Errorf("%+v was explained as %s, but: %s %v", packet, e.Verdict, wrong, err)
						}
					})
				}
			}
			sent.Wait()
		}
	}
}

// pinned sends a packet of a client, and sees that it is pinned to what it reached.
func (w *world) pinned(t *testing.T) {
	i := slices.IndexFunc(plan(), func(s service) bool { return s.name == "sticky" })
	for _, p := range addr.Both() {
		packet := hosts.Clients(p)[0]
		packet.Dst, packet.Protocol, packet.Port = p.VIP(i), model.TCP, 80
		if e := w.explain(t, packet); len(e.Reached) != 2 {
			t.Errorf("before: got %+v, want both endpoints", e)
		}
		seen, err := w.h.Probe(packet, hosts.Patience)
		if err != nil || seen.Verdict != hosts.Answered {
			t.Fatalf("got %v, %v, want an answer", seen, err)
		}
		e := w.explain(t, packet)
		if len(e.Reached) != 1 || e.Reached[0].Address != seen.Endpoint.String() || !strings.Contains(e.Reason, "session affinity") {
			t.Errorf("after: got %+v, want only %s", e, seen.Endpoint)
		}
	}
}

// words looks for what a person must find in the text.
func (w *world) words(t *testing.T) {
	p := addr.IPv4()
	at := func(name string) int {
		return slices.IndexFunc(plan(), func(s service) bool { return s.name == name })
	}
	outside := p.Outside().String()
	for name, c := range map[string]struct {
		from, to string
		want     []string
	}{
		"a ClusterIP":                   {p.Pod(0).String(), fmt.Sprintf("%s:80/tcp", p.VIP(at("web"))), []string{"(a pod, by ", "goto cluster-ip-tcp", "in pod-cidrs", "lb-tcp-2 has", "one of 2 endpoints, for Service default/web port http (ClusterIP)", "2 endpoints of 3: 1 not ready", "sees the sender's address"}},
		"from the node":                 {"node", fmt.Sprintf("%s:80/tcp", p.VIP(at("web"))), []string{"(this node)", "nat-output", "mark for masquerade", "sees an address of this node"}},
		"no ready endpoint":             {outside, fmt.Sprintf("%s:53/udp", p.VIP(at("empty"))), []string{"refused, for Service default/empty port dns (ClusterIP)", "no ready endpoint: 2 not ready", "no-endpoints has"}},
		"no endpoint at all":            {outside, fmt.Sprintf("%s:53/udp", p.VIP(at("nothing"))), []string{"refused", "no EndpointSlice has an IPv4 address"}},
		"Local with none here":          {outside, fmt.Sprintf("%s:%d/tcp", p.Node(), nodePort(at("local-elsewhere"))), []string{"dropped, for Service default/local-elsewhere port http (NodePort)", "no endpoint on this node", "1 endpoint elsewhere, for pods and this node only"}},
		"Local with none here, inner":   {outside, fmt.Sprintf("%s:80/tcp", p.VIP(at("inner-elsewhere"))), []string{"dropped", "no endpoint on this node"}},
		"outside the source ranges":     {p.OtherNode().String(), fmt.Sprintf("%s:80/tcp", p.BalancerIP(at("guarded"))), []string{"dropped, for Service default/guarded", "none of the ranges that the Service lets in: " + p.Uplink.Masked().String()}},
		"inside the source ranges":      {outside, fmt.Sprintf("%s:80/tcp", p.BalancerIP(at("guarded"))), []string{"allowed-sources lets " + p.Uplink.Masked().String() + " in"}},
		"a port that nobody serves":     {outside, fmt.Sprintf("%s:81/tcp", p.VIP(at("web"))), []string{"refused", "is a Service's address, and has no port 81/TCP"}},
		"an address that nobody has":    {outside, fmt.Sprintf("%s:80/tcp", p.VIP(90)), []string{"dropped", "no Service has the address", "service-cidrs"}},
		"what is for no Service":        {outside, "8.8.8.8:53/udp", []string{"passes", "it is for no Service"}},
		"a NodePort on loopback":        {"node", fmt.Sprintf("127.0.0.1:%d/tcp", nodePort(0)), []string{"passes", "takes no NodePorts"}},
		"a pod that may reach itself":   {p.Pod(0).String(), fmt.Sprintf("%s:80/tcp", p.VIP(at("itself"))), []string{"hairpins has", "masquerade, if it does"}},
		"endpoints that only terminate": {outside, fmt.Sprintf("%s:80/tcp", p.VIP(at("leaving"))), []string{"those that serve while they terminate are used", "terminating, serves"}},
		"a family that is not asked":    {"node", fmt.Sprintf("[%s]:80/tcp", addr.IPv6().VIP(at("web"))), []string{"in table ip6 onerule", "one of 2 endpoints"}},
	} {
		t.Run(name, func(t *testing.T) {
			w.tells(t, c.from, c.to, c.want)
		})
	}
}

// tells wants words in what is explained of a packet, and nothing amiss in the kernel.
func (w *world) tells(t *testing.T, from, to string, want []string) {
	t.Helper()
	text := w.ask(t, 0, "explain", from, to)
	for _, want := range append(want, "the kernel holds what it should") {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// differs looks at what is spoiled. The daemon heals it, so that it is seen for a moment only.
func (w *world) differs(t *testing.T) {
	p := addr.IPv4()
	spoil := func() {
		for range 2 { // the second time within the pause between two repairs
			_, _ = w.h.Node.Output("nft", "delete", "element", "ip", "onerule", "service-ips", fmt.Sprintf("{ %s . tcp . 80 }", p.VIP(0)))
		}
	}
	rig.Eventually(t, "the explanation tells of the missing element", func() error {
		spoil()
		r := w.run(t, "explain", p.Outside().String(), fmt.Sprintf("%s:80/tcp", p.VIP(0)), "--socket", w.socket)
		for _, want := range []string{"refused", "the kernel differs", fmt.Sprintf("add element ip onerule service-ips { %s . tcp . 80 : goto cluster-ip-tcp }", p.VIP(0)), "with that, the packet is translated to"} {
			if r.code != 2 || !strings.Contains(r.out, want) {
				return fmt.Errorf("exit code %d, and no %q in %s%s", r.code, want, r.out, r.errs)
			}
		}
		return nil
	})
	rig.Eventually(t, "the difference tells of the missing element", func() error {
		spoil()
		r := w.run(t, "diff", "--socket", w.socket)
		if want := fmt.Sprintf("+ service-ips { %s . tcp . 80 : goto cluster-ip-tcp }", p.VIP(0)); r.code != 2 || !strings.Contains(r.out, want) {
			return fmt.Errorf("exit code %d, and no %q in %s%s", r.code, want, r.out, r.errs)
		}
		return nil
	})
	rig.Eventually(t, "all is well again", func() error {
		if r := w.run(t, "diff", "--socket", w.socket); r.code != 0 {
			return fmt.Errorf("exit code %d: %s", r.code, r.out)
		}
		return nil
	})
}
