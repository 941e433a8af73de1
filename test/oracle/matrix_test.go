package oracle_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/oracle"
)

const nodePort = 30080

// full gives the Service of plain with every kind of frontend.
func full(p addr.Plan) *world {
	w := plain(p)
	s := w.service()
	s.ExternalIPs = []netip.Addr{p.ExternalIP(0), p.Node()}
	s.LoadBalancerIPs = []netip.Addr{p.BalancerIP(0)}
	s.Ports[0].NodePort = nodePort
	w.cluster.Node = &model.Node{Name: addr.NodeName, Zone: "here", Addrs: []netip.Addr{p.Node()}}
	return w
}

func (w *world) service() *model.Service { return &w.cluster.Services[0] }

// A target is a frontend of the full Service.
type target struct {
	name string
	at   func(w *world, p addr.Plan)
}

func at(a netip.Addr, port uint16) func(w *world, p addr.Plan) {
	return func(w *world, _ addr.Plan) { w.packet.Dst, w.packet.Port = a, port }
}

func toClusterIP(w *world, p addr.Plan) { w.packet.Dst, w.packet.Port = p.VIP(1), 80 }

// externals are the frontends that one row of the matrix is about.
func externals() []target {
	return []target{
		{"NodePort", func(w *world, p addr.Plan) { at(p.Node(), nodePort)(w, p) }},
		{"NodePort at another address", func(w *world, p addr.Plan) { at(p.NodeBetween(), nodePort)(w, p) }},
		{"external IP", func(w *world, p addr.Plan) { at(p.ExternalIP(0), 80)(w, p) }},
		{"external IP of the node", func(w *world, p addr.Plan) { at(p.Node(), 80)(w, p) }},
		{"load balancer IP", func(w *world, p addr.Plan) { at(p.BalancerIP(0), 80)(w, p) }},
	}
}

// A client sends the packet.
type client struct {
	name string
	from func(w *world, p addr.Plan)
}

func clients() []client {
	return []client{{"pod", fromPod}, {"node", fromNode}, {"outside", fromOutside}}
}

func fromPod(w *world, p addr.Plan) {
	w.packet.From, w.packet.Src, w.packet.Iif = oracle.Pod, p.Pod(1), "pod1"
}

func fromNode(w *world, p addr.Plan) {
	w.packet.From, w.packet.Src, w.packet.Iif = oracle.Node, p.Node(), ""
}

func fromOutside(w *world, p addr.Plan) {
	w.packet.From, w.packet.Src, w.packet.Iif = oracle.Outside, p.Outside(), "uplink"
}

func fromOtherPod(w *world, p addr.Plan) {
	w.packet.From, w.packet.Src, w.packet.Iif = oracle.Outside, p.OtherPod(3), "between"
}

// The cells of the matrix: which of the endpoint here and the one elsewhere, and whether
// they see the client.
type outcome string

const (
	bothKept     outcome = "L,R SNAT n"
	bothReplaced outcome = "L,R SNAT y"
	hereKept     outcome = "L SNAT n"
	hereReplaced outcome = "L SNAT y"
	elseKept     outcome = "R SNAT n"
	elseReplaced outcome = "R SNAT y"
	refusal      outcome = "refused"
	silence      outcome = "silent"
)

func (o outcome) on(p addr.Plan) oracle.Outcome {
	here, elsewhere := p.Pod(0), p.OtherPod(0)
	switch o {
	case bothKept:
		return reached(kept(here, 8080), kept(elsewhere, 8080))
	case bothReplaced:
		return reached(replaced(here, 8080), replaced(elsewhere, 8080))
	case hereKept:
		return reached(kept(here, 8080))
	case hereReplaced:
		return reached(replaced(here, 8080))
	case elseKept:
		return reached(kept(elsewhere, 8080))
	case elseReplaced:
		return reached(replaced(elsewhere, 8080))
	case refusal:
		return oracle.Outcome{Verdict: oracle.Refused}
	}
	return oracle.Outcome{Verdict: oracle.Dropped}
}

// A policy is a column of the matrix.
type policy struct {
	name string
	set  func(s *model.Service)
}

func policies() []policy {
	return []policy{
		{"both Cluster", func(*model.Service) {}},
		{"external Local", func(s *model.Service) { s.ExternalLocal = true }},
		{"internal Local", func(s *model.Service) { s.InternalLocal = true }},
	}
}

// A matrix says for each client, in the order of clients, and each policy, in the order
// of policies, what becomes of packets to the ClusterIP and to what is external.
type matrix struct {
	clusterIP, external [3][3]outcome
}

// check compares every cell, of both families.
func (m matrix) check(t *testing.T, change func(w *world, p addr.Plan)) {
	t.Helper()
	for _, p := range addr.Both() {
		for i, from := range clients() {
			for j, policy := range policies() {
				for _, to := range append(externals(), target{"ClusterIP", toClusterIP}) {
					want := m.external[i][j]
					if to.name == "ClusterIP" {
						want = m.clusterIP[i][j]
					}
					w := full(p)
					policy.set(w.service())
					change(w, p)
					from.from(w, p)
					to.at(w, p)
					got := oracle.Judge(w.cluster, w.config, w.pins, w.packet)
					if diff := cmp.Diff(want.on(p), got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
						t.Errorf("%s to %s, %s, want %s: want -, got +:\n%s", from.name, to.name, policy.name, want, diff)
					}
				}
			}
		}
	}
}

func noDetector(w *world, p addr.Plan) { w.config.ClusterCIDRs = []netip.Prefix{other(p).ClusterCIDR} }
func byInterface(w *world, _ addr.Plan) {
	w.config.ClusterCIDRs, w.config.PodInterface = nil, "pod*"
}
func masqueradeAll(w *world, _ addr.Plan) { w.config.MasqueradeAll = true }

func TestFlowMatrix(t *testing.T) {
	usual := matrix{
		clusterIP: [3][3]outcome{
			{bothKept, bothKept, hereKept},
			{bothReplaced, bothReplaced, hereReplaced},
			{bothReplaced, bothReplaced, hereReplaced},
		},
		external: [3][3]outcome{
			{bothReplaced, bothKept, bothReplaced},
			{bothReplaced, bothReplaced, bothReplaced},
			{bothReplaced, hereKept, bothReplaced},
		},
	}
	undetected := matrix{
		clusterIP: [3][3]outcome{
			{bothKept, bothKept, hereKept},
			{bothKept, bothKept, hereKept},
			{bothKept, bothKept, hereKept},
		},
		external: usual.external,
	}
	undetected.external[0][1] = hereKept
	all := [3][3]outcome{
		{bothReplaced, bothReplaced, hereReplaced},
		{bothReplaced, bothReplaced, hereReplaced},
		{bothReplaced, bothReplaced, hereReplaced},
	}
	for _, variant := range []struct {
		name   string
		change func(w *world, p addr.Plan)
		want   matrix
	}{
		{"A2: pods told by their range", func(*world, addr.Plan) {}, usual},
		{"A13: pods told by their interface", byInterface, usual},
		{"A2.1: pods not told apart", noDetector, undetected},
		{"A2.2: masqueradeAll", masqueradeAll, matrix{all, usual.external}},
		{"A2.3: masqueradeAll, and pods not told apart", func(w *world, p addr.Plan) {
			noDetector(w, p)
			masqueradeAll(w, p)
		}, matrix{all, undetected.external}},
	} {
		t.Run(variant.name, func(t *testing.T) { variant.want.check(t, variant.change) })
	}
}

func TestFlowMatrixWithoutEndpointsHere(t *testing.T) {
	elsewhere := func(w *world, _ addr.Plan) { w.cluster.Slices[0].Endpoints = w.cluster.Slices[0].Endpoints[1:] }
	want := func(without outcome) matrix {
		return matrix{
			clusterIP: [3][3]outcome{
				{elseKept, elseKept, without},
				{elseReplaced, elseReplaced, without},
				{elseReplaced, elseReplaced, without},
			},
			external: [3][3]outcome{
				{elseReplaced, elseKept, elseReplaced},
				{elseReplaced, elseReplaced, elseReplaced},
				{elseReplaced, without, elseReplaced},
			},
		}
	}
	t.Run("A3.2, A3.3, A3.4, A3.5: endpoints elsewhere only", func(t *testing.T) { want(silence).check(t, elsewhere) })
	t.Run("refused if so configured", func(t *testing.T) {
		want(refusal).check(t, func(w *world, p addr.Plan) {
			elsewhere(w, p)
			w.config.RefuseWithoutLocal = true
		})
	})
	every := [3][3]outcome{{refusal, refusal, refusal}, {refusal, refusal, refusal}, {refusal, refusal, refusal}}
	t.Run("A3.1: no endpoint anywhere", func(t *testing.T) {
		matrix{every, every}.check(t, func(w *world, _ addr.Plan) { w.cluster.Slices = nil })
	})
	t.Run("A3.9, A4.3: none that is ready or serves", func(t *testing.T) {
		matrix{every, every}.check(t, func(w *world, _ addr.Plan) {
			for i := range w.cluster.Slices[0].Endpoints {
				w.endpoint(i).Ready = false
			}
		})
	})
}

// A pod of another node that comes by this one is a pod by its address, and outside by
// its interface.
func TestPodsOfOtherNodes(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(w *world, p addr.Plan)
		want   outcome
	}{
		{"A2: by its address it is inside", func(*world, addr.Plan) {}, bothKept},
		{"A13: by its interface it is outside", byInterface, hereKept},
		{"A13: of an interface whose name begins the same, too", func(w *world, p addr.Plan) {
			byInterface(w, p)
			w.config.PodInterface = "betwee"
		}, hereKept},
		{"A13: the whole name of the interface", func(w *world, p addr.Plan) {
			byInterface(w, p)
			w.config.PodInterface = "between"
		}, bothKept},
	} {
		t.Run(c.name, func(t *testing.T) {
			matrixCell(t, c.want, func(w *world, p addr.Plan) {
				w.service().ExternalLocal = true
				c.change(w, p)
				fromOtherPod(w, p)
				at(p.Node(), nodePort)(w, p)
			})
		})
	}
}

// matrixCell compares one cell in both families.
func matrixCell(t *testing.T, want outcome, change func(w *world, p addr.Plan)) {
	t.Helper()
	for _, p := range addr.Both() {
		w := full(p)
		change(w, p)
		got := oracle.Judge(w.cluster, w.config, w.pins, w.packet)
		if diff := cmp.Diff(want.on(p), got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
			t.Errorf("%s: %+v, want %s: want -, got +:\n%s", p.ServiceCIDR, w.packet, want, diff)
		}
	}
}

func TestHairpinsAndTheNodesOwnEndpoints(t *testing.T) {
	itself := func(w *world, p addr.Plan) {
		fromPod(w, p)
		w.packet.Src = p.Pod(0)
	}
	for _, to := range externals() {
		t.Run(fmt.Sprintf("A2.4: a pod reaches itself by %s, policy Local", to.name), func(t *testing.T) {
			for _, p := range addr.Both() {
				w := full(p)
				w.service().ExternalLocal = true
				itself(w, p)
				to.at(w, p)
				want := sorted(replaced(p.Pod(0), 8080), kept(p.OtherPod(0), 8080))
				if diff := cmp.Diff(want, oracle.Judge(w.cluster, w.config, nil, w.packet), cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
					t.Errorf("want -, got +:\n%s", diff)
				}
			}
		})
		t.Run(fmt.Sprintf("A2.11: an endpoint with the node's address by %s", to.name), func(t *testing.T) {
			for _, p := range addr.Both() {
				w := full(p)
				w.endpoint(0).Addr = p.Node()
				fromOutside(w, p)
				to.at(w, p)
				want := sorted(kept(p.Node(), 8080), replaced(p.OtherPod(0), 8080))
				if diff := cmp.Diff(want, oracle.Judge(w.cluster, w.config, nil, w.packet), cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
					t.Errorf("want -, got +:\n%s", diff)
				}
			}
		})
	}
}
