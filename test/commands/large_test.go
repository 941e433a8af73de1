package commands_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"onerule/daemon/inspect"
	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/oracle"
	"onerule/test/rig"
)

// Of a large cluster: nobody is behind its endpoints.
const (
	largeServices = 1000
	largeEach     = 50
	largeAll      = largeServices * largeEach
)

func largeVIP(i int) netip.Addr { return addr.Nth(addr.IPv4().ServiceCIDR, 1000+i) }

func largeEndpoint(i, j int) netip.Addr {
	return addr.Nth(netip.MustParsePrefix("10.128.0.0/9"), 1+i*largeEach+j)
}

// large gives lists of the Services of a large cluster and their endpoints, as JSON, which
// is read faster than YAML.
func large(t *testing.T, from, to int) (services, slices string) {
	t.Helper()
	type object = map[string]any
	var some, parts []object
	for i := from; i < to; i++ {
		name := largeName(i)
		some = append(some, object{
			"metadata": object{"name": name, "namespace": "default"},
			"spec": object{
				"clusterIP": largeVIP(i), "clusterIPs": []any{largeVIP(i)}, "ipFamilies": []string{"IPv4"},
				"ports": []object{{"name": "http", "protocol": "TCP", "port": 80}},
			},
		})
		var endpoints []object
		for j := range largeEach {
			endpoints = append(endpoints, object{"addresses": []any{largeEndpoint(i, j)}, "nodeName": addr.OtherNodeName, "conditions": object{"ready": true}})
		}
		parts = append(parts, object{
			"metadata":    object{"name": name, "namespace": "default", "labels": object{"kubernetes.io/service-name": name}},
			"addressType": "IPv4", "ports": []object{{"name": "http", "protocol": "TCP", "port": target}}, "endpoints": endpoints,
		})
	}
	list := func(version, kind string, items []object) string {
		text, err := json.Marshal(object{"apiVersion": version, "kind": kind, "items": items})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	return list("v1", "ServiceList", some), list("discovery.k8s.io/v1", "EndpointSliceList", parts)
}

func largeName(i int) string { return fmt.Sprintf("large-%04d", i) }

// With 50,000 endpoints the commands answer, what they print and what the daemon holds for
// it is bounded, and no question keeps a change or a connection waiting.
func TestCommandsWith50000Endpoints(t *testing.T) {
	w := &world{h: hosts.New(t, 2, target), bin: rig.Binary(t, "oneruled", "onerule/daemon/oneruled"), socket: socketPath(t)}
	w.d = rig.New(t, w.h.Node, "--cluster-cidr", ranges(), "--socket", w.socket)
	w.d.Write("cidrs.yaml", rig.ServiceCIDR("kubernetes", addr.IPv4().ServiceCIDR, addr.IPv6().ServiceCIDR))
	w.d.Write("web.yaml", plan()[0].documents(0)...)
	for from := 0; from < largeServices; from += largeServices / 4 {
		services, slices := large(t, from, from+largeServices/4)
		w.d.Write(fmt.Sprintf("services-%d.json", from), services)
		w.d.Write(fmt.Sprintf("slices-%d.json", from), slices)
	}
	w.d.Run()
	w.d.AwaitHealthy()
	rig.Eventually(t, "all endpoints are counted", func() error {
		h, err := w.client().Hits(t.Context())
		if err == nil && len(h.Hits) < largeAll {
			err = fmt.Errorf("%d are", len(h.Hits))
		}
		return err
	})
	t.Run("status", func(t *testing.T) { w.largeStatus(t) })
	t.Run("services", func(t *testing.T) { w.largeList(t) })
	t.Run("top", func(t *testing.T) { w.largeTop(t) })
	t.Run("explain", func(t *testing.T) { w.largeExplain(t) })
	t.Run("diff", func(t *testing.T) { w.largeDiff(t) })
	t.Run("changes and connections while all are asked", func(t *testing.T) { w.asked(t) })
	t.Run("changes and connections while nobody reads the answers", func(t *testing.T) { w.unread(t) })
}

func (w *world) largeStatus(t *testing.T) {
	s, err := w.client().Status(t.Context())
	if err != nil || s.Services != largeServices+1 || len(s.Degraded) > 0 || len(s.Tables) != 2 {
		t.Fatalf("got %+v, %v, want %d Services and nothing degraded", s, err, largeServices+1)
	}
	for _, set := range s.Tables[0].Sets {
		if set.Name == "endpoints-tcp" && set.Elements < largeAll {
			t.Errorf("%s has %d elements, want %d at least", set.Name, set.Elements, largeAll)
		}
	}
	if s.Tables[0].Elements < largeAll {
		t.Errorf("%d elements, want %d at least", s.Tables[0].Elements, largeAll)
	}
	if text := w.ask(t, 0, "status"); strings.Count(text, "\n") > 40 {
		t.Errorf("the status is as long as what it is about:\n%s", text)
	}
}

func (w *world) largeList(t *testing.T) {
	text := w.ask(t, 0, "services")
	if lines := strings.Count(text, "\n"); lines != 1+largeServices+16 {
		t.Errorf("%d lines, want a head, one for each of %d Services, and 16 of web", lines, largeServices)
	}
	text = w.ask(t, 0, "services", "--limit", "7")
	if lines := strings.Count(text, "\n"); lines != 1+7+1 || !strings.Contains(text, "default/"+largeName(6)) || !strings.Contains(text, "... and more than these 7 Services: --limit 0 shows all\n") {
		t.Errorf("%d lines, want a head, 7 Services, and that there are more:\n%s", lines, text)
	}
	if text = w.ask(t, 0, "services", "web", "--limit", "1"); strings.Contains(text, "... and more") {
		t.Errorf("there are no more of this name:\n%s", text)
	}
	text = w.ask(t, 0, "services", largeName(999))
	if got := strings.Count(text, fmt.Sprintf(":%d ", target)); got != largeEach || !strings.Contains(text, netip.AddrPortFrom(largeEndpoint(999, largeEach-1), target).String()) {
		t.Errorf("%d endpoints, want %d:\n%s", got, largeEach, text)
	}
	var list []inspect.Service
	if err := json.Unmarshal([]byte(w.ask(t, 0, "services", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	if got := endpointsIn(list[:largeServices]); got != largeAll {
		t.Errorf("JSON has %d endpoints, want %d", got, largeAll)
	}
}

func endpointsIn(list []inspect.Service) int {
	n := 0
	for _, s := range list {
		n += len(s.Frontends[0].Endpoints)
	}
	return n
}

func (w *world) largeTop(t *testing.T) {
	w.connect(t, 10)
	var r inspect.Reading
	if err := json.Unmarshal([]byte(w.ask(t, 0, "top", "-o", "json", "--every", "100ms", "--sort", "total")), &r); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, s := range r.Services {
		n += len(s.Endpoints)
	}
	if n < largeAll || r.Services[0].Service != "web" || r.Services[0].Total != 10 {
		t.Errorf("%d endpoints of %d Services, the first one is %+v; want %d at least, and web with 10 connections", n, len(r.Services), r.Services[0], largeAll)
	}
	text := w.ask(t, 0, "top", "-n", "1", "--every", "100ms", "--sort", "total", "--limit", "5", "--services")
	if lines := strings.Count(text, "\n"); lines != 2+5 || !strings.Contains(text, "default/web ") {
		t.Errorf("%d lines, want two of head and 5 Services:\n%s", lines, text)
	}
}

func (w *world) largeExplain(t *testing.T) {
	to := oracle.Packet{From: oracle.Pod, Src: addr.IPv4().Pod(0), Dst: largeVIP(500), Protocol: model.TCP, Port: 80}
	e := w.explain(t, to)
	if e.Service != "default/"+largeName(500) || len(e.Reached) != largeEach || len(e.Wrong)+len(e.Differs) > 0 {
		t.Errorf("got %+v, want %d endpoints and no fault", e, largeEach)
	}
	if e = w.explain(t, local(addr.IPv4(), model.TCP, 22)); e.Verdict != "passes" {
		t.Errorf("got %+v, want that it passes", e)
	}
}

func (w *world) largeDiff(t *testing.T) {
	if text := w.ask(t, 0, "diff"); text != "table ip onerule: nothing to change\ntable ip6 onerule: nothing to change\n" {
		t.Errorf("got %d bytes, want nothing to change: %.300s", len(text), text)
	}
	r := w.run(t, "diff", "--manifests", t.TempDir(), "--cluster-cidr", ranges(), "--hostname-override", rig.NodeName)
	if lines := strings.Count(r.out, "\n"); r.code != 2 || lines > 2100 || !strings.Contains(r.out, " elements to delete") || !strings.Contains(r.out, " more elements\n") {
		t.Errorf("exit code %d, %d lines; want the number of elements, and not all of them: %.300s%s", r.code, lines, r.out, r.errs)
	}
}

// asked asks all there is, again and again, while changes come and connections are made.
func (w *world) asked(t *testing.T) {
	before := w.d.Metric("process_resident_memory_bytes")
	var askers sync.WaitGroup
	var answers, wrong atomic.Int64
	stop := make(chan struct{})
	for _, question := range []func() bool{
		func() bool {
			s, err := w.client().Status(t.Context())
			return err == nil && s.Services == largeServices+1
		},
		func() bool {
			n := 0
			err := w.client().Services(t.Context(), "", func(s inspect.Service) error { n += len(s.Frontends[0].Endpoints); return nil })
			return err == nil && n >= largeAll
		},
		func() bool { h, err := w.client().Hits(t.Context()); return err == nil && len(h.Hits) >= largeAll },
		func() bool { d, err := w.client().Diff(t.Context()); return err == nil && len(d.Tables) == 2 },
	} {
		askers.Go(func() { // ends when it is told to
			for n := 0; ; n++ {
				select {
				case <-stop:
					if n > 0 { // each at least once
						return
					}
				default:
				}
				if answers.Add(1); !question() {
					wrong.Add(1)
				}
			}
		})
	}
	w.changes(t, 10)
	close(stop)
	askers.Wait()
	if wrong.Load() > 0 {
		t.Errorf("%d of %d answers are wrong", wrong.Load(), answers.Load())
	}
	after := w.d.Metric("process_resident_memory_bytes")
	t.Logf("%d answers; the daemon has %.0f MB, before %.0f MB", answers.Load(), after/1e6, before/1e6)
	if most := before + 150e6; after > most {
		t.Errorf("the daemon has %.0f MB, want %.0f at most", after/1e6, most/1e6)
	}
}

// changes exchanges the endpoint of web, and waits each time until connections go there.
func (w *world) changes(t *testing.T, n int) {
	t.Helper()
	p := addr.IPv4()
	packet := oracle.Packet{From: oracle.Pod, Src: p.Pod(0), Dst: p.VIP(0), Protocol: model.TCP, Port: 80}
	for i := range n {
		web := plan()[0]
		web.endpoints = []endpoint{{here: true, pod: 1, ready: true}}
		want := p.Pod(1)
		if i%2 == 1 {
			web.endpoints = []endpoint{{pod: 0, ready: true}}
			want = p.OtherPod(0)
		}
		w.d.Write("web.yaml", web.documents(0)...)
		rig.Eventually(t, fmt.Sprintf("connections go to %s", want), func() error {
			seen, err := w.h.Probe(packet, hosts.Patience)
			if err != nil || seen.Verdict != hosts.Answered {
				t.Errorf("change %d: a connection got %v, %v, want an answer", i, seen, err)
			}
			if seen.Endpoint.Addr() != want {
				return fmt.Errorf("one goes to %s", seen.Endpoint)
			}
			return nil
		})
	}
}

// unread asks for more than the daemon answers at once, and reads nothing.
func (w *world) unread(t *testing.T) {
	for range 8 {
		conn, err := net.Dial("unix", w.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := fmt.Fprint(conn, "GET /v1/services HTTP/1.1\r\nHost: oneruled\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	w.changes(t, 4)
}
