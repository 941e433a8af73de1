package commands_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"onerule/daemon/inspect"
	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/oracle"
	"onerule/test/rig"
)

func loopbackOf(p addr.Plan) netip.Addr {
	if p.Node().Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// local is a packet of the node itself to a NodePort on a loopback address.
func local(p addr.Plan, protocol model.Protocol, port uint16) oracle.Packet {
	return oracle.Packet{From: oracle.Node, Dst: loopbackOf(p), Protocol: protocol, Port: port}
}

// met gives what a client meets, by an explanation: where no rule is about the packet and
// nobody listens, the kernel refuses.
func met(e inspect.Explanation) oracle.Outcome {
	o := outcome(e)
	switch e.Verdict {
	case "proxied":
		o.Verdict = oracle.Reached
	case "passes":
		o.Verdict = oracle.Refused
	}
	return o
}

// What explain says of NodePorts on loopback addresses is what their clients meet.
func TestExplainOfNodePortsOnLoopback(t *testing.T) {
	w := newWorld(t, "--nodeport-addresses", fmt.Sprintf("127.0.0.0/8,::1/128,%s,%s", addr.IPv4().Uplink, addr.IPv6().Uplink))
	for _, p := range addr.Both() {
		t.Run(fmt.Sprintf("A7.2 A7.4 A7.6 F10 TCP to %s", loopbackOf(p)), func(t *testing.T) { w.loopbackTCP(t, p) })
		t.Run(fmt.Sprintf("A7.5 affinity at %s", loopbackOf(p)), func(t *testing.T) { w.loopbackAffinity(t, p) })
		t.Run(fmt.Sprintf("A7.8 UDP to %s", loopbackOf(p)), func(t *testing.T) { w.loopbackUDP(t, p) })
	}
	t.Run("in words", func(t *testing.T) { w.loopbackWords(t) })
	t.Run("A7.7 a port that somebody else has", func(t *testing.T) { w.loopbackTaken(t) })
	t.Run("addresses that nobody takes NodePorts on", func(t *testing.T) { w.loopbackElsewhere(t) })
}

// loopbackTCP compares for every Service but the one whose clients are pinned.
func (w *world) loopbackTCP(t *testing.T, p addr.Plan) {
	verdicts, lock := map[string][]string{}, sync.Mutex{}
	var sent sync.WaitGroup
	for i, s := range plan() {
		if s.name == "sticky" {
			continue
		}
		sent.Go(func() {
			packet := local(p, model.TCP, nodePort(i))
			e := w.explain(t, packet)
			lock.Lock()
			verdicts[e.Verdict] = append(verdicts[e.Verdict], s.name)
			lock.Unlock()
			if len(e.Wrong)+len(e.Differs)+len(e.Notes) > 0 || e.Service != "default/"+s.name || e.Kind != "NodePort" || e.Reason == "" {
				t.Errorf("%s: got %+v, want it to be of the Service, without fault", s.name, e)
			}
			if wrong, err := w.h.Check(packet, met(e), hosts.Patience); err != nil || wrong != "" {
				t.Errorf("%s was explained as %s to %+v, but: %s %v", s.name, e.Verdict, e.Reached, wrong, err)
			}
		})
	}
	sent.Wait()
	slices.Sort(verdicts["passes"])
	if got := strings.Join(verdicts["passes"], " "); got != "empty nothing" || len(verdicts["proxied"]) != len(plan())-3 {
		t.Errorf("got %v, want all to be proxied but empty and nothing, which have no endpoint", verdicts)
	}
	here, elsewhere := p.Pod(1).String(), p.OtherPod(0).String()
	for name, want := range map[string]string{"local": here, "local-elsewhere": elsewhere, "inner-elsewhere": elsewhere} {
		if e := w.explain(t, local(p, model.TCP, portOf(name))); len(e.Reached) != 1 || !strings.Contains(e.Reached[0].Address, want) {
			t.Errorf("%s: got %+v, want it to lead to %s only", name, e.Reached, want)
		}
	}
}

func (w *world) loopbackAffinity(t *testing.T, p addr.Plan) {
	packet := local(p, model.TCP, portOf("sticky"))
	e := w.explain(t, packet)
	if e.Verdict != "proxied" || len(e.Reached) != 2 || !strings.Contains(e.Reason, "all connections of this node go to one of them") {
		t.Errorf("got %+v, want both endpoints, and that one is chosen for all", e)
	}
	seen := map[string]bool{}
	for range 20 {
		got, err := w.h.Probe(packet, hosts.Patience)
		if err != nil || got.Verdict != hosts.Answered {
			t.Fatalf("got %v, %v, want an answer", got, err)
		}
		seen[got.Endpoint.String()] = true
	}
	for _, r := range e.Reached {
		delete(seen, r.Address)
		if len(seen) == 0 {
			return
		}
	}
	t.Errorf("reached %v besides, of what was explained: %+v", seen, e.Reached)
}

// loopbackUDP sees that all are refused by a rule, and said to be, with and without endpoints.
func (w *world) loopbackUDP(t *testing.T, p addr.Plan) {
	for i, s := range plan() {
		packet := local(p, model.UDP, nodePort(i))
		e := w.explain(t, packet)
		if e.Verdict != "refused" || len(e.Reached)+len(e.Wrong)+len(e.Differs) > 0 || e.Service != "default/"+s.name {
			t.Errorf("%s: got %+v, want that it is refused", s.name, e)
		}
		if wrong, err := w.h.Check(packet, outcome(e), hosts.Patience); err != nil || wrong != "" {
			t.Errorf("%s was explained as refused, but: %s %v", s.name, wrong, err)
		}
	}
}

func portOf(name string) uint16 {
	return nodePort(slices.IndexFunc(plan(), func(s service) bool { return s.name == name }))
}

func (w *world) loopbackWords(t *testing.T) {
	for name, c := range map[string]struct {
		from, to string
		want     []string
	}{
		"served":             {"node", fmt.Sprintf("127.0.0.1:%d/tcp", portOf("web")), []string{"proxied to one of 2 endpoints, for Service default/web port http (NodePort)", "the daemon itself listens", "2 endpoints of 3: 1 not ready", "sees an address of this node"}},
		"IPv6":               {"::1", fmt.Sprintf("[::1]:%d/tcp", portOf("web")), []string{"proxied to one of 2 endpoints", "in table ip6 onerule"}},
		"Local":              {"node", fmt.Sprintf("127.0.0.1:%d/tcp", portOf("local")), []string{"proxied to 1 endpoint", "only those on this node count"}},
		"F10 Local, none":    {"node", fmt.Sprintf("127.0.0.1:%d/tcp", portOf("local-elsewhere")), []string{"proxied to 1 endpoint", "all are used, as at the node's own address"}},
		"without endpoint":   {"node", fmt.Sprintf("127.0.0.1:%d/tcp", portOf("empty")), []string{"passes, for Service default/empty", "listens at this NodePort only while there is an endpoint: no ready endpoint: 2 not ready"}},
		"refused":            {"node", fmt.Sprintf("127.0.0.1:%d/udp", portOf("web")), []string{"refused, for Service default/web port dns (NodePort)", "takes TCP only, not UDP"}},
		"refused, SCTP":      {"node", fmt.Sprintf("127.0.0.1:%d/sctp", portOf("web")), []string{"passes", "it is for no Service"}},
		"from another host":  {addr.IPv4().Pod(0).String(), fmt.Sprintf("127.0.0.1:%d/tcp", portOf("web")), []string{"passes", "no other host has a way to a loopback address"}},
		"nobody's, loopback": {"node", "127.0.0.1:22/tcp", []string{"passes", "it is for no Service"}},
	} {
		t.Run(name, func(t *testing.T) {
			w.tells(t, c.from, c.to, c.want)
		})
	}
}

// loopbackTaken has a process of the node listen where a NodePort is to be.
func (w *world) loopbackTaken(t *testing.T) {
	p, number := addr.IPv4(), nodePort(len(plan()))
	packet := local(p, model.TCP, number)
	packet.Src = loopbackOf(p)
	w.h.ServeOn(t, w.h.Node, netip.AddrPortFrom(packet.Dst, number))
	late := service{"late", "", plan()[0].endpoints}
	w.d.Write("late.yaml", late.documents(len(plan()))...)
	rig.Eventually(t, "the daemon knows the Service", func() error {
		if e := w.explain(t, packet); e.Service != "default/late" {
			return fmt.Errorf("got %+v", e)
		}
		return nil
	})
	e := w.explain(t, packet)
	if e.Verdict != "passes" || len(e.Reached) > 0 || !strings.Contains(e.Reason, "address already in use") {
		t.Errorf("got %+v, want that the daemon does not listen, and why", e)
	}
	if wrong, err := w.h.Check(packet, outcome(e), hosts.Patience); err != nil || wrong != "" {
		t.Errorf("it was explained as %s, but: %s %v", e.Verdict, wrong, err)
	}
}

// loopbackElsewhere is about the rest of the loopback range.
func (w *world) loopbackElsewhere(t *testing.T) {
	for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
		packet := local(addr.IPv4(), protocol, portOf("web"))
		packet.Dst = netip.AddrFrom4([4]byte{127, 0, 0, 2})
		e := w.explain(t, packet)
		if wrong, err := w.h.Check(packet, met(e), hosts.Patience); err != nil || wrong != "" || len(e.Wrong)+len(e.Differs) > 0 {
			t.Errorf("%+v was explained as %+v, but: %s %v", packet, e, wrong, err)
		}
	}
}
