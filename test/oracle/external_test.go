package oracle_test

import (
	"net/netip"
	"testing"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/oracle"
)

// A cell is a row about the full Service, with a client outside unless it says otherwise.
type cell struct {
	name   string
	change func(w *world, p addr.Plan)
	want   outcome
}

const untouched outcome = "untouched"

func cells(t *testing.T, list []cell) {
	for _, c := range list {
		t.Run(c.name, func(t *testing.T) {
			if c.want == untouched {
				untouchedCell(t, c.change)
				return
			}
			matrixCell(t, c.want, func(w *world, p addr.Plan) {
				fromOutside(w, p)
				c.change(w, p)
			})
		})
	}
}

func untouchedCell(t *testing.T, change func(w *world, p addr.Plan)) {
	t.Helper()
	for _, p := range addr.Both() {
		w := full(p)
		fromOutside(w, p)
		change(w, p)
		if got := oracle.Judge(w.cluster, w.config, nil, w.packet); got.Verdict != oracle.Untouched {
			t.Errorf("%s: %+v: got %s, want untouched", p.ServiceCIDR, w.packet, got.Verdict)
		}
	}
}

func toNodePort(w *world, p addr.Plan)   { at(p.Node(), nodePort)(w, p) }
func toExternalIP(w *world, p addr.Plan) { at(p.ExternalIP(0), 80)(w, p) }
func toBalancer(w *world, p addr.Plan)   { at(p.BalancerIP(0), 80)(w, p) }

func then(changes ...func(*world, addr.Plan)) func(*world, addr.Plan) {
	return func(w *world, p addr.Plan) {
		for _, c := range changes {
			c(w, p)
		}
	}
}

func loopback(p addr.Plan) netip.Addr {
	if p.Node().Is4() {
		return netip.MustParseAddr("127.0.0.1")
	}
	return netip.IPv6Loopback()
}

func TestNodePortAddresses(t *testing.T) {
	within := func(choose func(p addr.Plan) []netip.Prefix) func(*world, addr.Plan) {
		return func(w *world, p addr.Plan) { w.config.NodePortRanges = choose(p) }
	}
	uplink := within(func(p addr.Plan) []netip.Prefix { return []netip.Prefix{p.Between, p.Uplink} })
	between := within(func(p addr.Plan) []netip.Prefix { return []netip.Prefix{p.Between} })
	everything := within(func(p addr.Plan) []netip.Prefix { return []netip.Prefix{netip.PrefixFrom(p.Node(), 0)} })
	otherFamily := within(func(p addr.Plan) []netip.Prefix { return []netip.Prefix{other(p).Between} })
	loop := within(func(p addr.Plan) []netip.Prefix { return []netip.Prefix{netip.PrefixFrom(loopback(p), 32)} })
	toLoopback := func(w *world, p addr.Plan) {
		fromNode(w, p)
		w.packet.Src, w.packet.Dst, w.packet.Port = loopback(p), loopback(p), nodePort
		w.config.NodeAddrs = append(w.config.NodeAddrs, loopback(p))
	}
	cells(t, []cell{
		{"A6.4: an address in a range", then(toNodePort, uplink), bothReplaced},
		{"A6.4: an address outside the ranges", then(toNodePort, between), untouched},
		{"A6.5: no range of the family is all", then(toNodePort, otherFamily), bothReplaced},
		{"A6.6: all", then(toNodePort, everything), bothReplaced},
		{"A6.6: all is no address of others", then(toNodePort, everything, func(w *world, p addr.Plan) { w.packet.Dst = p.OtherNode() }), untouched},
		{"A6.7, A7.1: all is no loopback address", then(everything, toLoopback), untouched},
		{"A6.7, A7.1: nor where its range is given", then(loop, toLoopback), untouched},
		{"A6.3: a range of loopback addresses alone takes none", then(toNodePort, loop), untouched},
		{"a number that no Service has", then(toNodePort, func(w *world, _ addr.Plan) { w.packet.Port++ }), untouched},
		{"A6.11: the number in another protocol", then(toNodePort, func(w *world, _ addr.Plan) { w.packet.Protocol = model.UDP }), untouched},
		{"A1.21: without a NodePort", then(at(addr.IPv4().Node(), 0), func(w *world, p addr.Plan) {
			w.service().Ports[0].NodePort = 0
			w.packet.Dst = p.Node()
		}), untouched},
		{"A1.23: a Service without the family", then(toNodePort, func(w *world, p addr.Plan) {
			w.service().ClusterIPs = []netip.Addr{other(p).VIP(1)}
		}), untouched},
		{"at a ClusterIP it is a wrong port", then(toClusterIP, func(w *world, _ addr.Plan) { w.packet.Port = nodePort }), refusal},
	})
}

func TestUndefinedPortsOfExternalAddresses(t *testing.T) {
	wrong := func(w *world, _ addr.Plan) { w.packet.Port = 81 }
	echo := func(w *world, p addr.Plan) {
		w.packet.Protocol = oracle.ICMP
		if p.Node().Is6() {
			w.packet.Protocol = oracle.ICMPv6
		}
	}
	ownAddress := at(netip.Addr{}, 81)
	atNode := func(w *world, p addr.Plan) {
		ownAddress(w, p)
		w.packet.Dst = p.Node()
	}
	cells(t, []cell{
		{"another port of an external IP", then(toExternalIP, wrong), refusal},
		{"an echo to an external IP", then(toExternalIP, echo), refusal},
		{"another port of a load balancer IP", then(toBalancer, wrong), refusal},
		{"an echo to a load balancer IP", then(toBalancer, echo), refusal},
		{"another port of an external IP that the node has", atNode, untouched},
		{"an echo to an external IP that the node has", then(atNode, echo), untouched},
		{"a wrong port of a load balancer IP is refused to those outside the ranges, too", then(toBalancer, wrong, ranges(func(p addr.Plan) []netip.Prefix {
			return []netip.Prefix{p.Between}
		})), refusal},
		{"an address that no Service has", func(w *world, p addr.Plan) { at(p.ExternalIP(1), 80)(w, p) }, untouched},
		{"A1.22: external IPs switched off", then(toExternalIP, func(w *world, _ addr.Plan) { w.config.WithoutExternalIPs = true }), untouched},
		{"A1.22: load balancer IPs stay then", then(toBalancer, func(w *world, _ addr.Plan) { w.config.WithoutExternalIPs = true }), bothReplaced},
		{"A1.23: an external IP of a Service without the family", then(toExternalIP, func(w *world, p addr.Plan) {
			w.service().ClusterIPs = []netip.Addr{other(p).VIP(1)}
		}), untouched},
	})
}

func ranges(choose func(p addr.Plan) []netip.Prefix) func(*world, addr.Plan) {
	return func(w *world, p addr.Plan) { w.service().SourceRanges = choose(p) }
}

func one(choose func(p addr.Plan) netip.Prefix) func(*world, addr.Plan) {
	return ranges(func(p addr.Plan) []netip.Prefix { return []netip.Prefix{choose(p)} })
}

func TestSourceRanges(t *testing.T) {
	between := one(func(p addr.Plan) netip.Prefix { return p.Between })
	looped := func(w *world, p addr.Plan) { w.packet.Src = p.BalancerIP(0) }
	cells(t, []cell{
		{"A8.1: a source in a range", then(toBalancer, one(func(p addr.Plan) netip.Prefix { return p.Uplink })), bothReplaced},
		{"A8.1: a source outside", then(toBalancer, between), silence},
		{"A8.1: also where nobody serves", then(toBalancer, between, func(w *world, _ addr.Plan) { w.cluster.Slices = nil }), silence},
		{"A8.1: one of several", then(toBalancer, ranges(func(p addr.Plan) []netip.Prefix {
			return []netip.Prefix{p.Between, p.Uplink, netip.PrefixFrom(p.Outside(), p.Outside().BitLen())}
		})), bothReplaced},
		{"A8.2: everything is all", then(toBalancer, ranges(func(p addr.Plan) []netip.Prefix {
			return []netip.Prefix{p.Between, netip.PrefixFrom(p.Node(), 0)}
		})), bothReplaced},
		{"A8.2: everything of the other family is not", then(toBalancer, ranges(func(p addr.Plan) []netip.Prefix {
			return []netip.Prefix{p.Between, netip.PrefixFrom(other(p).Node(), 0)}
		})), silence},
		{"A8.3: a pod outside", then(fromPod, toBalancer, between), silence},
		{"A8.3: a pod in a range", then(fromPod, toBalancer, one(func(p addr.Plan) netip.Prefix { return p.ClusterCIDR })), bothReplaced},
		{"A8.3: the node outside", then(fromNode, toBalancer, between), silence},
		{"A8.3: the node in a range", then(fromNode, toBalancer, one(func(p addr.Plan) netip.Prefix { return p.Uplink })), bothReplaced},
		{"A8.4: the balancer itself, with the node let in", then(toBalancer, looped, one(func(p addr.Plan) netip.Prefix { return p.Uplink })), bothReplaced},
		{"A8.4: the balancer itself, with the node not let in", then(toBalancer, looped, between), silence},
		{"A8.4: the balancer itself, with no Node object", then(toBalancer, looped, one(func(p addr.Plan) netip.Prefix { return p.Uplink }), func(w *world, _ addr.Plan) {
			w.cluster.Node = nil
		}), silence},
		{"A8.4: another balancer, with the node let in", then(toBalancer, one(func(p addr.Plan) netip.Prefix { return p.Uplink }), func(w *world, p addr.Plan) {
			w.packet.Src = p.BalancerIP(1)
		}), silence},
		{"A8.5: ranges of the other family only", then(toBalancer, one(func(p addr.Plan) netip.Prefix { return other(p).Between })), bothReplaced},
		{"A8.6: the ClusterIP", then(toClusterIP, between), bothReplaced},
		{"A8.6: the external IP", then(toExternalIP, between), bothReplaced},
		{"A6.10, A8.6: the NodePort", then(toNodePort, between), bothReplaced},
		{"A8.6: a load balancer IP that is listed as external IP, too", then(toBalancer, between, func(w *world, p addr.Plan) {
			w.service().ExternalIPs = []netip.Addr{p.BalancerIP(0)}
		}), silence},
		{"A8.7: another Service at another port", then(between, func(w *world, p addr.Plan) {
			s := rival(w, p, "other", 200)
			s.LoadBalancerIPs = []netip.Addr{p.BalancerIP(0)}
			s.Ports[0].Port = 81
			w.addService(s)
			at(p.BalancerIP(0), 81)(w, p)
		}), elseReplaced},
	})
}

// rival gives another Service, whose only endpoint is the one elsewhere.
func rival(w *world, p addr.Plan, name string, created int64) model.Service {
	w.addSlice(model.EndpointSlice{
		Name: model.Name{Namespace: "default", Name: name + "-a"}, Service: name,
		Ports:     w.cluster.Slices[0].Ports,
		Endpoints: []model.Endpoint{*w.endpoint(1)},
	})
	return model.Service{
		Name: model.Name{Namespace: "default", Name: name}, Created: created,
		ClusterIPs: []netip.Addr{p.VIP(7)},
		Ports:      []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}},
	}
}

func TestClaims(t *testing.T) {
	against := func(created int64, name string, change func(s *model.Service, p addr.Plan)) func(*world, addr.Plan) {
		return func(w *world, p addr.Plan) {
			s := rival(w, p, name, created)
			change(&s, p)
			w.addService(s)
		}
	}
	clusterIP := func(s *model.Service, p addr.Plan) { s.ClusterIPs = []netip.Addr{p.ExternalIP(0)} }
	external := func(a func(p addr.Plan) netip.Addr) func(s *model.Service, p addr.Plan) {
		return func(s *model.Service, p addr.Plan) { s.ExternalIPs = []netip.Addr{a(p)} }
	}
	ofClusterIP := external(func(p addr.Plan) netip.Addr { return p.VIP(1) })
	ofBalancer := external(func(p addr.Plan) netip.Addr { return p.BalancerIP(0) })
	number := func(s *model.Service, _ addr.Plan) { s.Ports[0].NodePort = nodePort }
	ofNode := func(s *model.Service, p addr.Plan) {
		s.ExternalIPs = []netip.Addr{p.NodeBetween()}
		s.Ports[0].Port = nodePort
	}
	cells(t, []cell{
		{"a ClusterIP beats an older external IP", then(toExternalIP, against(200, "other", clusterIP)), elseReplaced},
		{"an older external IP does not take a ClusterIP", then(toClusterIP, against(1, "other", ofClusterIP)), bothReplaced},
		{"an older external IP takes a load balancer IP", then(toBalancer, against(1, "other", ofBalancer)), elseReplaced},
		{"a younger one does not", then(toBalancer, against(200, "other", ofBalancer)), bothReplaced},
		{"of two as old the lower name has it", then(toBalancer, against(100, "a", ofBalancer)), elseReplaced},
		{"an older Service takes a NodePort", then(toNodePort, against(1, "other", number)), elseReplaced},
		{"a younger one does not take it", then(toNodePort, against(200, "other", number)), bothReplaced},
		{"an external IP of the node beats a NodePort there", then(toNodePort, func(w *world, p addr.Plan) {
			against(200, "other", ofNode)(w, p)
			w.packet.Dst = p.NodeBetween()
		}), elseReplaced},
		{"and leaves it the other addresses", then(toNodePort, against(200, "other", ofNode)), bothReplaced},
		{"within a Service a ClusterIP is no external IP", then(toClusterIP, func(w *world, p addr.Plan) {
			w.service().InternalLocal = true
			w.service().ExternalIPs = []netip.Addr{p.VIP(1)}
			w.service().LoadBalancerIPs = []netip.Addr{p.VIP(1)}
			one(func(p addr.Plan) netip.Prefix { return p.Between })(w, p)
		}), hereReplaced},
	})
}
