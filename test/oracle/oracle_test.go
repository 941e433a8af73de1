package oracle_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/oracle"
)

// A world is a cluster in which a test changes one thing.
type world struct {
	cluster oracle.Cluster
	config  oracle.Config
	pins    oracle.Pins
	packet  oracle.Packet
}

// plain gives a Service of one port with a pod on this node and one on the other,
// and a packet from another pod to it.
func plain(p addr.Plan) *world {
	name := model.Name{Namespace: "default", Name: "web"}
	return &world{
		cluster: oracle.Cluster{
			Services: []model.Service{{
				Name: name, Created: 100,
				ClusterIPs: []netip.Addr{p.VIP(1)},
				Ports:      []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}},
			}},
			Slices: []model.EndpointSlice{{
				Name: model.Name{Namespace: "default", Name: "web-a"}, Service: "web",
				Ports: []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: 8080}},
				Endpoints: []model.Endpoint{
					{Addr: p.Pod(0), Node: addr.NodeName, Ready: true, Serving: true},
					{Addr: p.OtherPod(0), Node: addr.OtherNodeName, Ready: true, Serving: true},
				},
			}},
			ServiceCIDRs: []model.ServiceCIDR{{Name: "kubernetes", CIDRs: []netip.Prefix{p.ServiceCIDR}}},
		},
		config: oracle.Config{
			NodeName:     addr.NodeName,
			NodeAddrs:    []netip.Addr{p.Node(), p.NodeBetween()},
			ClusterCIDRs: []netip.Prefix{p.ClusterCIDR},
		},
		packet: oracle.Packet{From: oracle.Pod, Src: p.Pod(1), Dst: p.VIP(1), Protocol: model.TCP, Port: 80},
	}
}

func (w *world) endpoint(i int) *model.Endpoint { return &w.cluster.Slices[0].Endpoints[i] }

func (w *world) addSlice(s model.EndpointSlice) { w.cluster.Slices = append(w.cluster.Slices, s) }

func (w *world) addService(s model.Service) {
	w.cluster.Services = append(w.cluster.Services, s)
}

func kept(a netip.Addr, port uint16) oracle.Arrival {
	return oracle.Arrival{Endpoint: netip.AddrPortFrom(a, port)}
}

func replaced(a netip.Addr, port uint16) oracle.Arrival {
	return oracle.Arrival{Endpoint: netip.AddrPortFrom(a, port), Masqueraded: true}
}

func reached(list ...oracle.Arrival) oracle.Outcome {
	return oracle.Outcome{Verdict: oracle.Reached, Arrivals: list}
}

// A row is one row of the specification: what it changes and what must come of it.
type row struct {
	name   string
	change func(w *world, p addr.Plan)
	want   func(p addr.Plan) oracle.Outcome
}

func both(masqueraded bool) func(addr.Plan) oracle.Outcome {
	return func(p addr.Plan) oracle.Outcome {
		if masqueraded {
			return reached(replaced(p.Pod(0), 8080), replaced(p.OtherPod(0), 8080))
		}
		return reached(kept(p.Pod(0), 8080), kept(p.OtherPod(0), 8080))
	}
}

func only(verdict oracle.Verdict) func(addr.Plan) oracle.Outcome {
	return func(addr.Plan) oracle.Outcome { return oracle.Outcome{Verdict: verdict} }
}

func run(t *testing.T, rows []row) {
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			for _, p := range addr.Both() {
				w := plain(p)
				r.change(w, p)
				got, want := oracle.Judge(w.cluster, w.config, w.pins, w.packet), r.want(p)
				if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
					t.Errorf("%s: want -, got +:\n%s", p.ServiceCIDR, diff)
				}
			}
		})
	}
}

func TestWhatIsProxied(t *testing.T) {
	run(t, []row{
		{"A1.1: a ClusterIP reaches the target port of its endpoints", func(*world, addr.Plan) {}, both(false)},
		{"A1.2: each protocol of a port goes to its own target", func(w *world, p addr.Plan) {
			w.cluster.Services[0].Ports = append(w.cluster.Services[0].Ports, model.ServicePort{Name: "quic", Protocol: model.UDP, Port: 80})
			w.cluster.Slices[0].Ports = append(w.cluster.Slices[0].Ports, model.SlicePort{Name: "quic", Protocol: model.UDP, Port: 8443})
			w.packet.Protocol = model.UDP
		}, func(p addr.Plan) oracle.Outcome {
			return reached(kept(p.Pod(0), 8443), kept(p.OtherPod(0), 8443))
		}},
		{"A1.3: another port is refused", func(w *world, _ addr.Plan) { w.packet.Port = 81 }, only(oracle.Refused)},
		{"A1.3: another protocol is refused", func(w *world, _ addr.Plan) { w.packet.Protocol = model.UDP }, only(oracle.Refused)},
		{"A1.4: an echo to a ClusterIP in use is refused", func(w *world, p addr.Plan) {
			w.packet.Protocol = oracle.ICMP
			if p.VIP(1).Is6() {
				w.packet.Protocol = oracle.ICMPv6
			}
		}, only(oracle.Refused)},
		{"A1.5: an address that no Service holds is dropped", func(w *world, p addr.Plan) { w.packet.Dst = p.VIP(2) }, only(oracle.Dropped)},
		{"A1.5: an address outside every range is left alone", func(w *world, p addr.Plan) {
			w.packet.Dst = addr.Nth(p.SecondServiceCIDR, 1)
		}, only(oracle.Untouched)},
		{"A1.5: a ClusterIP outside every range is proxied", func(w *world, _ addr.Plan) { w.cluster.ServiceCIDRs = nil }, both(false)},
		{"A1.12: a slice whose port was skipped has no endpoints", func(w *world, _ addr.Plan) { w.cluster.Slices[0].Ports = nil }, only(oracle.Refused)},
		{"a pod's own address is left alone", func(w *world, p addr.Plan) { w.packet.Dst = p.Pod(0) }, only(oracle.Untouched)},
		{"A1.23: a Service without the family is absent from it", func(w *world, p addr.Plan) {
			w.cluster.Services[0].ClusterIPs = []netip.Addr{other(p).VIP(1)}
		}, only(oracle.Dropped)},
		{"A1.23: endpoints of the other family are not used", func(w *world, p addr.Plan) {
			w.endpoint(0).Addr = other(p).Pod(0)
		}, func(p addr.Plan) oracle.Outcome { return reached(kept(p.OtherPod(0), 8080)) }},
	})
}

// other gives the plan of the other family.
func other(p addr.Plan) addr.Plan {
	if p.ServiceCIDR.Addr().Is4() {
		return addr.IPv6()
	}
	return addr.IPv4()
}

func TestSlicesAreMerged(t *testing.T) {
	second := func(w *world, port uint16, list ...model.Endpoint) {
		w.addSlice(model.EndpointSlice{
			Name: model.Name{Namespace: "default", Name: "web-b"}, Service: "web",
			Ports:     []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: port}},
			Endpoints: list,
		})
	}
	run(t, []row{
		{"A1.14: an endpoint without a node is not local", func(w *world, p addr.Plan) {
			w.endpoint(0).Node = ""
			w.packet.Src = p.Pod(0)
		}, both(false)},
		{"A1.14: nor where this node has no name either", func(w *world, p addr.Plan) {
			w.endpoint(0).Node, w.config.NodeName = "", ""
			w.packet.Src = p.Pod(0)
		}, both(false)},
		{"A1.16: one address with two ports is two endpoints", func(w *world, p addr.Plan) {
			second(w, 9090, *w.endpoint(0))
		}, func(p addr.Plan) oracle.Outcome {
			return reached(kept(p.Pod(0), 8080), kept(p.Pod(0), 9090), kept(p.OtherPod(0), 8080))
		}},
		{"A1.16: a terminating entry does not replace a ready one", func(w *world, _ addr.Plan) {
			e := *w.endpoint(0)
			e.Ready, e.Terminating = false, true
			second(w, 8080, e)
		}, both(false)},
		{"A1.16: an entry that is not terminating replaces one", func(w *world, _ addr.Plan) {
			e := *w.endpoint(0)
			w.endpoint(0).Ready, w.endpoint(0).Terminating = false, true
			second(w, 8080, e)
		}, both(false)},
		{"A1.16: an entry that is not ready replaces a ready one", func(w *world, _ addr.Plan) {
			e := *w.endpoint(0)
			e.Ready = false
			second(w, 8080, e)
		}, func(p addr.Plan) oracle.Outcome { return reached(kept(p.OtherPod(0), 8080)) }},
		{"A1.17: one port name with two numbers is balanced over both", func(w *world, p addr.Plan) {
			e := *w.endpoint(0)
			e.Addr = p.Pod(2)
			second(w, 9090, e)
		}, func(p addr.Plan) oracle.Outcome {
			return reached(kept(p.Pod(0), 8080), kept(p.Pod(2), 9090), kept(p.OtherPod(0), 8080))
		}},
		{"a slice of another Service is not used", func(w *world, _ addr.Plan) { w.cluster.Slices[0].Service = "other" }, only(oracle.Refused)},
		{"a slice of another namespace is not used", func(w *world, _ addr.Plan) { w.cluster.Slices[0].Name.Namespace = "other" }, only(oracle.Refused)},
		{"a slice port of another name is not used", func(w *world, _ addr.Plan) { w.cluster.Slices[0].Ports[0].Name = "" }, only(oracle.Refused)},
		{"a slice port of another protocol is not used", func(w *world, _ addr.Plan) {
			w.cluster.Slices[0].Ports[0].Protocol = model.SCTP
		}, only(oracle.Refused)},
	})
}

func TestClusterIPs(t *testing.T) {
	from := func(w *world, o oracle.Origin, src netip.Addr) { w.packet.From, w.packet.Src = o, src }
	fromPod := func(*world, addr.Plan) {}
	fromNode := func(w *world, p addr.Plan) { from(w, oracle.Node, p.Node()) }
	fromOutside := func(w *world, p addr.Plan) { from(w, oracle.Outside, p.Outside()) }
	with := func(changes ...func(*world, addr.Plan)) func(*world, addr.Plan) {
		return func(w *world, p addr.Plan) {
			for _, c := range changes {
				c(w, p)
			}
		}
	}
	noDetector := func(w *world, p addr.Plan) { w.config.ClusterCIDRs = []netip.Prefix{other(p).ClusterCIDR} }
	all := func(w *world, _ addr.Plan) { w.config.MasqueradeAll = true }
	itself := func(w *world, p addr.Plan) { w.packet.Src = p.Pod(0) }
	hostNetwork := func(w *world, p addr.Plan) { w.endpoint(0).Addr = p.Node() }
	run(t, []row{
		{"A2: pod to ClusterIP keeps its address", fromPod, both(false)},
		{"A2: node to ClusterIP is masqueraded", fromNode, both(true)},
		{"A2: outside to ClusterIP is masqueraded", fromOutside, both(true)},
		{"A2.1: node to ClusterIP keeps its address without a detector", with(fromNode, noDetector), both(false)},
		{"A2.1: outside to ClusterIP keeps its address without a detector", with(fromOutside, noDetector), both(false)},
		{"A2.2: pod to ClusterIP is masqueraded with masqueradeAll", with(fromPod, all), both(true)},
		{"A2.3: outside to ClusterIP is masqueraded with masqueradeAll and no detector", with(fromOutside, noDetector, all), both(true)},
		{"A2.4: a pod that reaches itself is masqueraded, and only then", itself, func(p addr.Plan) oracle.Outcome {
			return reached(replaced(p.Pod(0), 8080), kept(p.OtherPod(0), 8080))
		}},
		{"A2.4: also without a detector", with(itself, noDetector), func(p addr.Plan) oracle.Outcome {
			return reached(replaced(p.Pod(0), 8080), kept(p.OtherPod(0), 8080))
		}},
		{"A2.4: an endpoint of another node is not masqueraded towards itself", func(w *world, p addr.Plan) {
			w.packet.Src = p.OtherPod(0)
		}, both(false)},
		{"A2.11: outside to an endpoint on the node's own address keeps its address", with(fromOutside, hostNetwork), func(p addr.Plan) oracle.Outcome {
			return sorted(kept(p.Node(), 8080), replaced(p.OtherPod(0), 8080))
		}},
		{"A2.11: node to an endpoint on its own address", with(fromNode, hostNetwork), func(p addr.Plan) oracle.Outcome {
			return sorted(replaced(p.Node(), 8080), replaced(p.OtherPod(0), 8080))
		}},
	})
}

// sorted orders two arrivals, whose addresses sort otherwise in each family.
func sorted(a, b oracle.Arrival) oracle.Outcome {
	if a.Endpoint.Compare(b.Endpoint) > 0 {
		a, b = b, a
	}
	return reached(a, b)
}

func TestEndpointChoice(t *testing.T) {
	type conditions struct{ ready, serving, terminating bool }
	set := func(first, second conditions) func(*world, addr.Plan) {
		return func(w *world, _ addr.Plan) {
			for i, c := range []conditions{first, second} {
				e := w.endpoint(i)
				e.Ready, e.Serving, e.Terminating = c.ready, c.serving, c.terminating
			}
		}
	}
	ready := conditions{true, true, false}
	notReady := conditions{false, true, false}
	leaving := conditions{false, true, true}
	gone := conditions{false, false, true}
	first := func(p addr.Plan) oracle.Outcome { return reached(kept(p.Pod(0), 8080)) }
	run(t, []row{
		{"A3.1: no endpoint anywhere is refused", func(w *world, _ addr.Plan) { w.cluster.Slices = nil }, only(oracle.Refused)},
		{"A3.1: from outside too", func(w *world, p addr.Plan) {
			w.cluster.Slices = nil
			w.packet.From, w.packet.Src = oracle.Outside, p.Outside()
		}, only(oracle.Refused)},
		{"A4.1: ready endpoints hide those that leave", set(ready, leaving), first},
		{"A4.1: all that serve while they leave, if none is ready", set(leaving, leaving), both(false)},
		{"A4.1: what leaves and no longer serves is not used", set(leaving, gone), first},
		{"A4.1: nothing but what no longer serves is refused", set(gone, gone), only(oracle.Refused)},
		{"A4.3: serving without ready is not used", set(ready, notReady), first},
		{"A4.3: nor when nothing else is there", set(notReady, notReady), only(oracle.Refused)},
		{"A4.3: nor beside what leaves", set(leaving, notReady), first},
		{"A4.4: ready counts though the pod is not serving", set(ready, conditions{true, false, false}), both(false)},
		{"A4.4: ready counts though the pod is leaving", set(ready, conditions{true, true, true}), both(false)},
	})
}

func TestOneFrontendOfTwoServices(t *testing.T) {
	rival := func(created int64, name string) func(*world, addr.Plan) {
		return func(w *world, p addr.Plan) {
			w.addService(model.Service{
				Name: model.Name{Namespace: "default", Name: name}, Created: created,
				ClusterIPs: w.cluster.Services[0].ClusterIPs,
				Ports:      w.cluster.Services[0].Ports,
			})
			w.addSlice(model.EndpointSlice{
				Name: model.Name{Namespace: "default", Name: name + "-a"}, Service: name,
				Ports:     w.cluster.Slices[0].Ports,
				Endpoints: []model.Endpoint{{Addr: p.OtherPod(5), Node: addr.OtherNodeName, Ready: true, Serving: true}},
			})
		}
	}
	theirs := func(p addr.Plan) oracle.Outcome { return reached(kept(p.OtherPod(5), 8080)) }
	run(t, []row{
		{"the older one keeps it", rival(101, "a"), both(false)},
		{"an older one takes it", rival(99, "z"), theirs},
		{"of two as old the lower name has it", rival(100, "a"), theirs},
		{"and not the higher", rival(100, "z"), both(false)},
		{"other ports of the address that both hold are refused", func(w *world, p addr.Plan) {
			rival(101, "z")(w, p)
			w.packet.Port = 81
		}, only(oracle.Refused)},
		{"the loser's other ports are its own", func(w *world, p addr.Plan) {
			rival(101, "z")(w, p)
			w.cluster.Services[1].Ports = []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}, {Name: "http", Protocol: model.TCP, Port: 81}}
			w.packet.Port = 81
		}, theirs},
	})
}

func TestJudgeChangesNothing(t *testing.T) {
	w := plain(addr.IPv4())
	w.addService(model.Service{Name: model.Name{Namespace: "a", Name: "a"}, Created: 1})
	w.addSlice(model.EndpointSlice{Name: model.Name{Namespace: "a", Name: "a"}})
	oracle.Judge(w.cluster, w.config, w.pins, w.packet)
	if w.cluster.Services[0].Name.Name != "web" || w.cluster.Slices[0].Name.Name != "web-a" {
		t.Error("judging sorted the caller's facts")
	}
}
