package plan_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/model"
	"onerule/daemon/plan"
)

func TestTheOlderServiceKeepsAFrontend(t *testing.T) {
	old, young := service("b", 1, "10.96.0.1", 80, 81), service("a", 2, "10.96.0.1", 80)
	feed := []model.Change{old, young, endpointsOf("b-1", "b", 80, "10.0.0.1"), endpointsOf("a-1", "a", 80, "10.0.0.2")}
	for range 20 {
		rand.Shuffle(len(feed), func(i, j int) { feed[i], feed[j] = feed[j], feed[i] })
		l := plan.NewLedger(plan.Config{})
		var notes []model.Note
		for _, c := range feed {
			if n, ok := l.Apply([]model.Change{c}).Noted[name("a")]; ok {
				notes = n
			}
		}
		got := l.Decide(l.All()).Decisions[front("10.96.0.1", 80)].Endpoints
		if diff := cmp.Diff([]netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:8080")}, got, opts()); diff != "" {
			t.Fatalf("after %v (-want +got): %s", feed, diff)
		}
		if len(notes) != 1 || notes[0].Reason != model.ReasonDuplicateFrontend {
			t.Fatalf("got notes %v on the younger Service, want one on the duplicate", notes)
		}

		a := l.Apply([]model.Change{gone(old)})
		if notes, told := a.Noted[name("a")]; !told || len(notes) != 0 {
			t.Errorf("got notes %v on the heir, told %v, want to be told that there are none", notes, told)
		}
		want := plan.Keys{Frontends: map[plan.Frontend]bool{front("10.96.0.1", 80): true, front("10.96.0.1", 81): true}}
		if diff := cmp.Diff(want, a.Touched, opts()); diff != "" {
			t.Errorf("touched when the older one goes (-want +got): %s", diff)
		}
		out := l.Decide(a.Touched)
		to := []netip.AddrPort{netip.MustParseAddrPort("10.0.0.2:8080")}
		if diff := cmp.Diff(map[plan.Frontend]plan.Decision{front("10.96.0.1", 80): {Frontend: front("10.96.0.1", 80), PortName: "p80", Endpoints: to, Keep: to}}, out.Decisions, opts()); diff != "" {
			t.Errorf("decisions (-want +got): %s", diff)
		}
	}
}

// With three claimants, the losers inherit in order of age, whoever came first, and
// each is told who holds the frontend now.
func TestLosersInheritByAge(t *testing.T) {
	claims := []model.Change{service("a", 3, "10.96.0.1", 80), service("b", 1, "10.96.0.1", 80), service("c", 2, "10.96.0.1", 80)}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		w := newWorld(t)
		for _, i := range order {
			w.apply(claims[i])
		}
		w.want("all claim", "b", "a", "c")
		w.apply(gone(claims[1]))
		w.want("the oldest went", "c", "a")
		w.apply(service("a", 1, "10.96.0.1", 80))
		w.want("the youngest is made anew with an older date", "a", "c")
		w.apply(service("a", 5, "10.96.0.1", 80))
		w.want("and with a younger one", "c", "a")
	}
}

// Within a batch the facts are ahead of the claims: a comes while the owner b is to be
// made anew with a younger date, and must not get past c, which waits for longer.
func TestTheFactsOfABatchAreNotAheadOfItsClaims(t *testing.T) {
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		w := newWorld(t)
		w.apply(service("b", 1, "10.96.0.1", 80), service("c", 3, "10.96.0.1", 80))
		w.want("two claim", "b", "c")
		batch := []model.Change{service("a", 5, "10.96.0.1", 80), service("b", 9, "10.96.0.1", 80)}
		w.apply(batch[order[0]], batch[order[1]])
		w.want("a third comes, and the owner is made anew", "c", "a", "b")
	}
}

// serviceWith gives a Service that a change makes from service's.
func serviceWith(n string, created int64, vip string, change func(*model.Service)) model.Change {
	c := service(n, created, vip, 80)
	change(c.Service)
	return c
}

// Whoever claims a frontend second is told by which field, and by whom it is held, in
// either order of arrival.
func TestLosersAreToldWhatTheyLost(t *testing.T) {
	nodePort := func(s *model.Service) { s.Ports[0].NodePort = 30080 }
	external := func(a string) func(*model.Service) {
		return func(s *model.Service) { s.ExternalIPs = addrs(a) }
	}
	balanced := func(a string) func(*model.Service) {
		return func(s *model.Service) { s.LoadBalancerIPs = addrs(a) }
	}
	for _, c := range []struct {
		name       string
		one, other func(*model.Service)
		field      string
		frontend   string
	}{
		{"a NodePort", nodePort, func(s *model.Service) {
			s.Ports = append(s.Ports, model.ServicePort{Name: "admin", Protocol: model.TCP, Port: 81, NodePort: 30080})
		}, "spec.ports[1].nodePort", "NodePort 30080 TCP"},
		{"an external IP", external("198.51.100.1"), external("198.51.100.1"), "spec.externalIPs", "198.51.100.1:80 TCP"},
		{"a load balancer's", balanced("203.0.113.1"), balanced("203.0.113.1"), "status.loadBalancer.ingress", "203.0.113.1:80 TCP"},
		{"an external IP that is a load balancer's", balanced("203.0.113.1"), external("203.0.113.1"), "spec.externalIPs", "203.0.113.1:80 TCP"},
		{"an external IP that is a ClusterIP", func(*model.Service) {}, external("10.96.0.1"), "spec.externalIPs", "10.96.0.1:80 TCP"},
	} {
		t.Run(c.name, func(t *testing.T) {
			one, other := serviceWith("one", 1, "10.96.0.1", c.one), serviceWith("other", 2, "10.96.0.2", c.other)
			for _, order := range [][]model.Change{{one, other}, {other, one}} {
				w := newWorld(t)
				w.apply(order[0])
				w.apply(order[1])
				w.told("both came", map[model.Name][]model.Note{
					name("other"): {duplicate(c.field, c.frontend+" is held by Service ns/one")},
				})
				w.apply(gone(one))
				w.told("the holder went", map[model.Name][]model.Note{})
			}
		})
	}
}

// An external IP never takes another Service's ClusterIP, however old it is.
func TestAClusterIPComesBeforeAnExternalIP(t *testing.T) {
	thief := serviceWith("thief", 1, "10.96.0.9", func(s *model.Service) { s.ExternalIPs = addrs("10.96.0.1") })
	for _, order := range [][]model.Change{{thief, service("web", 9, "10.96.0.1", 80)}, {service("web", 9, "10.96.0.1", 80), thief}} {
		w := newWorld(t)
		w.apply(order[0])
		w.apply(order[1])
		f := front("10.96.0.1", 80)
		if d := w.outcome().Decisions[f]; d.Kind != plan.ClusterIP {
			t.Errorf("got %s, want that of the Service whose ClusterIP it is", wordsOf(d))
		}
		w.told("both came", map[model.Name][]model.Note{name("thief"): {duplicate("spec.externalIPs", "10.96.0.1:80 TCP is held by Service ns/web")}})
		// It is not the ClusterIP of a port that the Service lacks, either.
		w.apply(gone(service("web", 9, "10.96.0.1", 80)))
		if d := w.outcome().Decisions[f]; d.Kind != plan.ExternalIP {
			t.Errorf("got %s when the holder went, want the external IP's", wordsOf(d))
		}
	}
}

// A Service whose ClusterIP becomes an external IP of its own loses the right to it.
func TestAFrontendOfAnotherKindIsClaimedAnew(t *testing.T) {
	pair := func(vip, external string) model.Change {
		return serviceWith("pair", 5, vip, func(s *model.Service) { s.ExternalIPs = addrs(external) })
	}
	w := newWorld(t)
	w.apply(pair("10.96.0.1", "10.96.0.2"), serviceWith("old", 1, "10.96.0.9", func(s *model.Service) { s.ExternalIPs = addrs("10.96.0.1") }))
	w.told("it is a ClusterIP", map[model.Name][]model.Note{name("old"): {duplicate("spec.externalIPs", "10.96.0.1:80 TCP is held by Service ns/pair")}})
	w.apply(pair("10.96.0.2", "10.96.0.1"))
	w.told("it is an external IP of both", map[model.Name][]model.Note{name("pair"): {duplicate("spec.externalIPs", "10.96.0.1:80 TCP is held by Service ns/old")}})
}

// What a dual-stack Service loses in both families is told once.
func TestANodePortLostInBothFamiliesIsToldOnce(t *testing.T) {
	both := func(s *model.Service) {
		s.ClusterIPs = append(s.ClusterIPs, addr("fd00:96::"+s.Name.Name))
		s.Ports[0].NodePort = 30080
	}
	w := newWorld(t)
	w.apply(serviceWith("a", 1, "10.96.0.1", both), serviceWith("b", 2, "10.96.0.2", both))
	w.told("both came", map[model.Name][]model.Note{name("b"): {duplicate("spec.ports[0].nodePort", "NodePort 30080 TCP is held by Service ns/a")}})
}

func TestAPortWithTheNodePortOfAnotherPortIsTold(t *testing.T) {
	w := newWorld(t)
	w.apply(serviceWith("a", 1, "10.96.0.1", func(s *model.Service) {
		s.Ports = []model.ServicePort{
			{Name: "p80", Protocol: model.TCP, Port: 80, NodePort: 30080},
			{Name: "p81", Protocol: model.TCP, Port: 81, NodePort: 30080},
			{Name: "p80", Protocol: model.UDP, Port: 80, NodePort: 30080}, // A6.11: another protocol
			{Name: "p82", Protocol: model.TCP, Port: 82},
			{Name: "p83", Protocol: model.TCP, Port: 83},
		}
	}), endpointsOf("a-1", "a", 80, "10.0.0.1"), endpointsOf("a-2", "a", 81, "10.0.0.2"))
	w.told("it came", map[model.Name][]model.Note{name("a"): {duplicate("spec.ports[1].nodePort", "NodePort 30080 TCP is that of spec.ports[0] already")}})
	for i := range 40 { // enough for a sort that may exchange what is equal
		w.apply(serviceWith("a", 1, "10.96.0.1", func(s *model.Service) {
			for j := range i {
				s.Ports = append(s.Ports, model.ServicePort{Name: "x", Protocol: model.TCP, Port: uint16(1000 + j), NodePort: 30080})
			}
			s.Ports[0].NodePort = 30080
		}))
	}
	got := wordsOf(w.outcome().Decisions[plan.Frontend{Family: plan.IPv4, Protocol: model.TCP, Port: 30080}])
	if want := "v4 node NodePort 30080 TCP [1]"; got != want {
		t.Errorf("got %s, want %s: the first port keeps it", got, want)
	}
}

// checked gives a Service with a healthCheckNodePort.
func checked(n string, created int64, vip string, port uint16) model.Change {
	return serviceWith(n, created, vip, func(s *model.Service) { s.ExternalLocal, s.HealthCheckNodePort = true, port })
}

func TestTheOlderServiceKeepsAHealthCheckPort(t *testing.T) {
	held := []model.Note{duplicate("spec.healthCheckNodePort", "32000 is held by Service ns/a")}
	a, b := checked("a", 1, "10.96.0.1", 32000), checked("b", 2, "10.96.0.2", 32000)
	here := endpointsOf("b-1", "b", 80, "10.0.0.1", "10.0.0.2")
	for _, order := range [][]model.Change{{a, b, here}, {here, b, a}} {
		w := newWorld(t)
		for _, c := range order {
			w.apply(c)
		}
		w.told("both came", map[model.Name][]model.Note{name("b"): held})
		w.checks("both came", map[uint16]plan.HealthCheck{32000: {Service: name("a")}})
		w.apply(endpointsOf("a-1", "a", 80, "10.0.0.1"))
		w.checks("one is ready", map[uint16]plan.HealthCheck{32000: {Service: name("a"), Endpoints: 1}})
		w.apply(checked("a", 1, "10.96.0.1", 32001))
		w.told("the holder moved", map[model.Name][]model.Note{})
		w.checks("the holder moved", map[uint16]plan.HealthCheck{32000: {Service: name("b"), Endpoints: 2}, 32001: {Service: name("a"), Endpoints: 1}})
		w.apply(service("a", 1, "10.96.0.1", 80), gone(b))
		w.checks("one asks for none and the other went", map[uint16]plan.HealthCheck{})
	}
}

func (w *world) checks(when string, want map[uint16]plan.HealthCheck) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.l.HealthChecks()); diff != "" {
		w.t.Errorf("%s: health checks (-want +got): %s", when, diff)
	}
}

// R36: a NodePort takes what is asked on a healthCheckNodePort of the same number.
func TestR36AHealthCheckPortThatIsANodePortIsTold(t *testing.T) {
	taken := map[model.Name][]model.Note{name("a"): {duplicate("spec.healthCheckNodePort", "NodePort 32000 TCP is held by Service ns/b, which gets what is asked there")}}
	a := checked("a", 1, "10.96.0.1", 32000)
	nodePort := func(p model.Protocol, port uint16) model.Change {
		return serviceWith("b", 2, "10.96.0.2", func(s *model.Service) { s.Ports[0].Protocol, s.Ports[0].NodePort = p, port })
	}
	for _, order := range [][]model.Change{{a, nodePort(model.TCP, 32000)}, {nodePort(model.TCP, 32000), a}} {
		w := newWorld(t)
		w.apply(order[0])
		w.apply(order[1])
		w.told("both came", taken)
		w.apply(nodePort(model.UDP, 32000))
		w.told("the NodePort is UDP's", map[model.Name][]model.Note{})
		w.apply(nodePort(model.TCP, 32000))
		w.told("it is TCP's again", taken)
		w.apply(nodePort(model.TCP, 32001))
		w.told("it is another number", map[model.Name][]model.Note{})
	}
}
