package plan_test

import (
	"fmt"
	"net/netip"
	"testing"

	"onerule/daemon/model"
	"onerule/daemon/plan"
)

func name(n string) model.Name { return model.Name{Namespace: "ns", Name: n} }

func service(n string, created int64, vip string, ports ...uint16) model.Change {
	s := &model.Service{Name: name(n), Created: created, ClusterIPs: []netip.Addr{addr(vip)}}
	for _, p := range ports {
		s.Ports = append(s.Ports, model.ServicePort{Name: fmt.Sprint("p", p), Protocol: model.TCP, Port: p})
	}
	return model.Change{Key: model.Key{Kind: model.KindService, Name: name(n)}, Service: s}
}

func endpointsOf(n, service string, port uint16, addrs ...string) model.Change {
	s := &model.EndpointSlice{Name: name(n), Service: service, Ports: []model.SlicePort{{Name: fmt.Sprint("p", port), Protocol: model.TCP, Port: 8080}}}
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, ready(a))
	}
	return model.Change{Key: model.Key{Kind: model.KindEndpointSlice, Name: name(n)}, EndpointSlice: s}
}

func gone(c model.Change) model.Change { return model.Change{Key: c.Key} }

func front(vip string, port uint16) plan.Frontend {
	return plan.Frontend{Addr: addr(vip), Protocol: model.TCP, Port: port}
}

func TestOnlyWhatChangesIsTouched(t *testing.T) {
	l := plan.NewLedger(plan.Config{NodeName: "n1"})
	l.Apply([]model.Change{service("a", 1, "10.96.0.1", 80, 81), endpointsOf("a-1", "a", 80, "10.0.0.1"), service("b", 1, "10.96.0.2", 80), endpointsOf("b-1", "b", 80, "10.0.0.1")})
	for _, c := range []struct {
		name   string
		change model.Change
		want   string
	}{
		{"the same again", endpointsOf("a-1", "a", 80, "10.0.0.1"), "map[] map[]"},
		{"another endpoint, that another Service uses no more", endpointsOf("a-1", "a", 80, "10.0.0.2"), "map[10.96.0.1:80 TCP:true] map[10.0.0.2:true]"},
		{"the last user of a local endpoint", endpointsOf("b-1", "b", 80), "map[10.96.0.2:80 TCP:true] map[10.0.0.1:true]"},
		{"a port less", service("a", 1, "10.96.0.1", 80), "map[10.96.0.1:81 TCP:true] map[]"},
		{"another ClusterIP", service("a", 1, "10.96.0.3", 80), "map[10.96.0.1:80 TCP:true 10.96.0.3:80 TCP:true] map[10.96.0.1:true 10.96.0.3:true]"},
		{"a slice that moves to another Service", endpointsOf("a-1", "b", 80, "10.0.0.2"), "map[10.96.0.2:80 TCP:true 10.96.0.3:80 TCP:true] map[]"},
		{"an unknown slice that goes", gone(endpointsOf("x", "a", 80)), "map[] map[]"},
		{"a Service that goes", gone(service("a", 1, "10.96.0.3", 80)), "map[10.96.0.3:80 TCP:true] map[10.96.0.3:true]"},
	} {
		k := l.Apply([]model.Change{c.change}).Touched
		if got := fmt.Sprint(k.Frontends, " ", k.Addrs); got != c.want {
			t.Errorf("%s: touched %s, want %s", c.name, got, c.want)
		}
	}
}

func TestServiceCIDRsAreMergedOverObjects(t *testing.T) {
	cidr := func(name string, cidrs ...string) model.Change {
		c := model.Change{Key: model.Key{Kind: model.KindServiceCIDR, Name: model.Name{Name: name}}, ServiceCIDR: &model.ServiceCIDR{Name: name}}
		for _, s := range cidrs {
			c.ServiceCIDR.CIDRs = append(c.ServiceCIDR.CIDRs, netip.MustParsePrefix(s))
		}
		return c
	}
	l := plan.NewLedger(plan.Config{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}})
	for _, c := range []struct {
		change  model.Change
		touched bool
		want    string
	}{
		{cidr("a", "10.96.0.0/16"), true, "[10.96.0.0/16] [10.244.0.0/16]"},
		{cidr("b", "10.96.0.0/16", "fd00::/112"), true, "[10.96.0.0/16 fd00::/112] [10.244.0.0/16]"},
		// F2: another object still has the range.
		{gone(cidr("a")), false, "[10.96.0.0/16 fd00::/112] [10.244.0.0/16]"},
		{gone(cidr("b")), true, "[] [10.244.0.0/16]"},
	} {
		touched := l.Apply([]model.Change{c.change}).Touched.Ranges
		out := l.Decide(plan.Keys{Ranges: true})
		if got := fmt.Sprint(out.ServiceCIDRs, out.PodCIDRs); got != c.want || touched != c.touched {
			t.Errorf("%v: got %s, touched %v, want %s, touched %v", c.change.Key, got, touched, c.want, c.touched)
		}
	}
}

func node(n, zone string, addrs ...string) model.Change {
	c := model.Change{Key: model.Key{Kind: model.KindNode, Name: model.Name{Name: n}}, Node: &model.Node{Name: n, Zone: zone}}
	for _, a := range addrs {
		c.Node.Addrs = append(c.Node.Addrs, addr(a))
	}
	return c
}

// A4.12: the zone of the node is followed at once, by the Services that have hints.
func TestAnotherZoneOfTheNodeMovesWhatHasHints(t *testing.T) {
	w := newWorld(t)
	parts := endpointsOf("a-1", "a", 80)
	parts.EndpointSlice.Endpoints = []model.Endpoint{hinted(on("n2", "10.0.0.1"), "", "z1"), hinted(on("n2", "10.0.0.2"), "", "z2")}
	w.apply(service("a", 1, "10.96.0.1", 80), parts, service("b", 1, "10.96.0.2", 80), endpointsOf("b-1", "b", 80, "10.0.0.3"))
	for _, c := range []struct {
		name   string
		change model.Change
		want   string
	}{
		{"no Node", gone(node("n1", "")), "[1 2]"},
		{"a zone", node("n1", "z1"), "[1]"},
		{"another zone", node("n1", "z2"), "[2]"},
		{"another node's", node("n2", "z1"), "[2]"},
		{"a zone without endpoints", node("n1", "z3"), "[1 2]"},
		{"a zone again", node("n1", "z1"), "[1]"},
		{"no zone", node("n1", ""), "[1 2]"},
		{"and again", node("n1", "z1"), "[1]"},
		{"the Node went", gone(node("n1", "")), "[1 2]"},
	} {
		w.apply(c.change) // which touches a's frontend, if it is another one, and never b's
		if got := short(w.outcome().Decisions[front("10.96.0.1", 80)].Endpoints); got != c.want {
			t.Errorf("%s: got endpoints %s, want %s", c.name, got, c.want)
		}
	}
}

// A8.4: addresses of the node are followed at once, by the Services that are guarded.
func TestAnotherAddressOfTheNodeMovesWhatIsGuarded(t *testing.T) {
	w := newWorld(t)
	guarded := service("a", 1, "10.96.0.1", 80)
	guarded.Service.LoadBalancerIPs, guarded.Service.SourceRanges = addrs("203.0.113.1"), ranges("192.0.2.0/24")
	w.apply(guarded)
	for _, c := range []struct{ addr, want string }{
		{"192.0.3.1", "[192.0.2.0/24]"}, {"192.0.2.1", "[192.0.2.0/24 203.0.113.1/32]"}, {"192.0.2.2", "[192.0.2.0/24 203.0.113.1/32]"}, {"192.0.3.1", "[192.0.2.0/24]"},
	} {
		w.apply(node("n1", "", c.addr))
		if got := fmt.Sprint(w.outcome().Decisions[front("203.0.113.1", 80)].Sources); got != c.want {
			t.Errorf("with the node's address %s: got sources %s, want %s", c.addr, got, c.want)
		}
	}
}

func TestReconfiguringPlansEverythingAgain(t *testing.T) {
	w := newWorld(t)
	s := service("a", 1, "10.96.0.1", 80)
	s.Service.ExternalIPs = addrs("198.51.100.1")
	w.apply(s, service("b", 1, "10.96.0.2", 80))
	external := front("198.51.100.1", 80)
	for _, c := range []struct {
		name string
		cfg  plan.Config
		held bool
		pods string
	}{
		{"without external IPs", plan.Config{NodeName: "n1", WithoutExternalIPs: true}, false, "[]"},
		{"and with ranges of pods", plan.Config{NodeName: "n1", WithoutExternalIPs: true, ClusterCIDRs: ranges("10.244.0.0/17", "10.244.128.0/17")}, false, "[10.244.0.0/16]"},
		{"with the same ranges and external IPs", plan.Config{NodeName: "n1", ClusterCIDRs: ranges("10.244.0.0/16")}, true, "[10.244.0.0/16]"},
	} {
		w.did(c.name, func() plan.Applied { return w.l.Reconfigure(c.cfg) })
		out := w.outcome()
		if _, held := out.Decisions[external]; held != c.held || out.ExternalIPs[external.Addr] != c.held {
			t.Errorf("%s: external IP held %v, its address %v, want %v", c.name, held, out.ExternalIPs[external.Addr], c.held)
		}
		if got := fmt.Sprint(out.PodCIDRs); got != c.pods {
			t.Errorf("%s: got pod ranges %s, want %s", c.name, got, c.pods)
		}
	}
}

// A11: the sums follow what comes and goes, by family and kind of traffic.
func TestNoLocalIsSummedOverServices(t *testing.T) {
	l := plan.NewLedger(plan.Config{NodeName: "n1"})
	local := func(n, vip string) model.Change {
		c := service(n, 1, vip, 80)
		c.Service.InternalLocal, c.Service.ExternalLocal, c.Service.Ports[0].NodePort = true, true, 30080
		return c
	}
	far := func(n string) model.Change {
		c := endpointsOf(n+"-1", n, 80)
		c.EndpointSlice.Endpoints = []model.Endpoint{on("n2", "10.0.0.1"), on("n2", "fd00::1")}
		return c
	}
	for _, c := range []struct {
		name   string
		change model.Change
		v4, v6 int
	}{
		{"a Service without endpoints", local("a", "10.96.0.1"), 0, 0},
		{"endpoints elsewhere", far("a"), 1, 0},
		{"the same again", far("a"), 1, 0},
		{"another one's", far("b"), 1, 0},
		{"the other one", local("b", "10.96.0.2"), 2, 0},
		{"one of IPv6", local("b", "fd00:96::2"), 1, 1},
		{"an endpoint here", endpointsOf("a-1", "a", 80, "10.0.0.1"), 0, 1},
		{"the other one goes", gone(local("b", "10.96.0.2")), 0, 0},
	} {
		l.Apply([]model.Change{c.change})
		v4, v6 := plan.NoLocal{Internal: c.v4, External: c.v4}, plan.NoLocal{Internal: c.v6, External: c.v6}
		if got := l.NoLocal(plan.IPv4); got != v4 {
			t.Errorf("%s: got %+v of IPv4, want %+v", c.name, got, v4)
		}
		if got := l.NoLocal(plan.IPv6); got != v6 {
			t.Errorf("%s: got %+v of IPv6, want %+v", c.name, got, v6)
		}
	}
}
