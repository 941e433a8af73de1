package oracle_test

import (
	"net/netip"
	"testing"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/oracle"
)

// A history is what happened before the packet of a row.
type history struct {
	w *world
	p addr.Plan
}

// sticky gives the full Service with session affinity.
func sticky(p addr.Plan) history {
	w := full(p)
	w.service().Affinity = 10800
	fromOutside(w, p)
	return history{w, p}
}

func here(p addr.Plan) netip.AddrPort  { return netip.AddrPortFrom(p.Pod(0), 8080) }
func there(p addr.Plan) netip.AddrPort { return netip.AddrPortFrom(p.OtherPod(0), 8080) }

// reach makes the client reach an endpoint, which must be possible, by a frontend.
func (h history) reach(t *testing.T, to func(*world, addr.Plan), endpoint netip.AddrPort) {
	t.Helper()
	to(h.w, h.p)
	h.possible(t, "on the way", endpoint)
	h.w.pins = oracle.After(h.w.cluster, h.w.config, h.w.pins, h.w.packet, endpoint)
}

// possible checks that the client may reach this endpoint, whatever else.
func (h history) possible(t *testing.T, when string, endpoint netip.AddrPort) {
	t.Helper()
	for _, a := range oracle.Judge(h.w.cluster, h.w.config, h.w.pins, h.w.packet).Arrivals {
		if a.Endpoint == endpoint {
			return
		}
	}
	t.Fatalf("%s: %+v cannot reach %s with pins %v", when, h.w.packet, endpoint, h.w.pins)
}

// reaches checks which endpoints the client may reach by a frontend now.
func (h history) reaches(t *testing.T, to func(*world, addr.Plan), endpoints ...netip.AddrPort) {
	t.Helper()
	to(h.w, h.p)
	got := oracle.Judge(h.w.cluster, h.w.config, h.w.pins, h.w.packet).Arrivals
	want := map[netip.AddrPort]bool{}
	for _, e := range endpoints {
		want[e] = true
	}
	for _, a := range got {
		if !want[a.Endpoint] {
			t.Errorf("%+v may reach %s, want one of %v", h.w.packet, a.Endpoint, endpoints)
		}
		delete(want, a.Endpoint)
	}
	for e := range want {
		t.Errorf("%+v cannot reach %s", h.w.packet, e)
	}
}

// change changes the objects.
func (h history) change(f func(w *world)) {
	f(h.w)
	h.w.pins = oracle.Prune(h.w.cluster, h.w.config, h.w.pins)
}

// A pinRow is a row about the full Service with session affinity.
type pinRow struct {
	name string
	test func(t *testing.T, h history, p addr.Plan)
}

func runPins(t *testing.T, rows []pinRow) {
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			for _, p := range addr.Both() {
				row.test(t, sticky(p), p)
			}
		})
	}
}

func TestPinsHold(t *testing.T) {
	runPins(t, []pinRow{
		{"A5.1: a client stays, whichever frontend it uses", func(t *testing.T, h history, p addr.Plan) {
			h.reach(t, toClusterIP, there(p))
			for _, to := range append(externals(), target{at: toClusterIP}) {
				h.reaches(t, to.at, there(p))
			}
		}},
		{"A5.1: another client does not", func(t *testing.T, h history, p addr.Plan) {
			h.reach(t, toNodePort, there(p))
			h.w.packet.Src = p.OtherNode()
			h.reaches(t, toNodePort, here(p), there(p))
		}},
		{"A5.2: another port of the Service is free", func(t *testing.T, h history, p addr.Plan) {
			h.reach(t, toClusterIP, there(p))
			h.change(func(w *world) {
				w.service().Ports = append(w.service().Ports, model.ServicePort{Name: "more", Protocol: model.TCP, Port: 81})
				w.cluster.Slices[0].Ports = append(w.cluster.Slices[0].Ports, model.SlicePort{Name: "more", Protocol: model.TCP, Port: 8080})
			})
			h.reaches(t, at(p.VIP(1), 81), here(p), there(p))
		}},
		{"A5.3: a pin keeps its endpoint", func(t *testing.T, h history, p addr.Plan) {
			h.reach(t, toClusterIP, there(p))
			h.reach(t, toNodePort, there(p))
			h.reaches(t, toClusterIP, there(p))
		}},
	})
}

func TestPinsEnd(t *testing.T) {
	runPins(t, []pinRow{
		{"A5.4: an endpoint that leaves frees its clients, and no others", func(t *testing.T, h history, p addr.Plan) {
			h.reach(t, toClusterIP, there(p))
			h.w.packet.Src = p.OtherNode()
			h.reach(t, toClusterIP, here(p))
			h.change(func(w *world) { w.endpoint(1).Ready = false })
			h.change(func(w *world) { w.endpoint(1).Ready = true })
			h.reaches(t, toClusterIP, here(p))
			h.w.packet.Src = p.Outside()
			h.reaches(t, toClusterIP, here(p), there(p))
		}},
		{"A5.4: an endpoint that is hinted away frees its clients", func(t *testing.T, h history, p addr.Plan) {
			h.reach(t, toClusterIP, there(p))
			h.change(func(w *world) { hints(zones("here"), zones("there"))(w, p) })
			h.reaches(t, toClusterIP, here(p))
		}},
		{"A5.5: without affinity nobody is held", func(t *testing.T, h history, p addr.Plan) {
			h.reach(t, toClusterIP, there(p))
			h.change(func(w *world) { w.service().Affinity = 0 })
			h.reaches(t, toClusterIP, here(p), there(p))
			h.change(func(w *world) { w.service().Affinity = 10800 })
			h.reaches(t, toClusterIP, here(p), there(p))
		}},
		{"A5.3: another timeout keeps the pins", func(t *testing.T, h history, p addr.Plan) {
			h.reach(t, toClusterIP, there(p))
			h.change(func(w *world) { w.service().Affinity = 60 })
			h.reaches(t, toClusterIP, there(p))
		}},
	})
}

func TestPinsOfLocalFrontends(t *testing.T) {
	runPins(t, []pinRow{
		{"A5.6: a Local frontend gives a client of one elsewhere an endpoint here, and both stay", func(t *testing.T, h history, p addr.Plan) {
			h.w.service().ExternalLocal = true
			h.reach(t, toClusterIP, there(p))
			h.reaches(t, toNodePort, here(p))
			h.reach(t, toNodePort, here(p))
			h.reaches(t, toClusterIP, there(p))
			h.reaches(t, toNodePort, here(p))
		}},
		{"A5.6: an endpoint here is kept by Local frontends and others", func(t *testing.T, h history, p addr.Plan) {
			h.w.service().ExternalLocal = true
			h.w.cluster.Slices[0].Endpoints = append(h.w.cluster.Slices[0].Endpoints, model.Endpoint{Addr: p.Pod(2), Node: addr.NodeName, Ready: true, Serving: true})
			h.reaches(t, toNodePort, here(p), netip.AddrPortFrom(p.Pod(2), 8080))
			h.reach(t, toNodePort, here(p))
			h.reaches(t, toNodePort, here(p))
			h.reaches(t, toClusterIP, here(p))
		}},
		{"A5.6: what Local frontends chose by themselves is not for the others", func(t *testing.T, h history, p addr.Plan) {
			h.w.service().ExternalLocal = true
			hints(zones("there"), zones("here"))(h.w, p)
			h.reach(t, toNodePort, here(p))
			h.reaches(t, toClusterIP, there(p))
			h.reaches(t, toNodePort, here(p))
			h.change(func(w *world) { hints(nil, nil)(w, p) })
			h.reaches(t, toClusterIP, here(p), there(p))
		}},
		{"pins to endpoints here end with the policy Local", func(t *testing.T, h history, p addr.Plan) {
			h.w.service().ExternalLocal = true
			h.w.cluster.Slices[0].Endpoints = append(h.w.cluster.Slices[0].Endpoints, model.Endpoint{Addr: p.Pod(2), Node: addr.NodeName, Ready: true, Serving: true})
			h.reach(t, toClusterIP, there(p))
			h.reach(t, toNodePort, here(p))
			h.change(func(w *world) { w.service().ExternalLocal = false })
			h.change(func(w *world) { w.service().ExternalLocal = true })
			h.reaches(t, toNodePort, here(p), netip.AddrPortFrom(p.Pod(2), 8080))
			h.reaches(t, toClusterIP, there(p))
		}},
		{"pins are for the policy that there is", func(t *testing.T, h history, p addr.Plan) {
			h.w.service().InternalLocal, h.w.service().ExternalIPs, h.w.service().LoadBalancerIPs, h.w.service().Ports[0].NodePort = true, nil, nil, 0
			h.reach(t, toClusterIP, here(p))
			h.change(func(w *world) { w.service().InternalLocal = false })
			h.reaches(t, toClusterIP, here(p), there(p))
		}},
	})
}

func TestPinsOfClients(t *testing.T) {
	runPins(t, []pinRow{
		{"A5.6: each family by itself", func(t *testing.T, h history, p addr.Plan) {
			h.reach(t, toClusterIP, there(p))
			hit, ok := oracle.Find(h.w.cluster, h.w.config, h.w.packet)
			if !ok {
				t.Fatal("no Service answers")
			}
			hit.IPv6 = !hit.IPv6
			if to, pinned := hit.Pinned(h.w.pins, h.w.packet.Src); pinned {
				t.Errorf("pinned to %s in the other family", to)
			}
		}},
		{"A5.7: the node's own clients are held by the address that they send from", func(t *testing.T, h history, p addr.Plan) {
			fromNode(h.w, p)
			h.reach(t, toNodePort, there(p))
			h.reaches(t, toNodePort, there(p))
			h.w.packet.Src = p.NodeBetween()
			h.reaches(t, toNodePort, here(p), there(p))
		}},
		{"without affinity nothing is pinned", func(t *testing.T, h history, p addr.Plan) {
			h.w.service().Affinity = 0
			h.reach(t, toClusterIP, there(p))
			if len(h.w.pins) > 0 {
				t.Errorf("got pins %v", h.w.pins)
			}
		}},
	})
}
