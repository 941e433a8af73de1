package rows_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/oracle"
	"onerule/test/rig"
)

// The rows about NodePorts on loopback addresses, with one daemon: what it serves there
// is switched on, and off again at the end, while it runs.
func TestNodePortsOnLoopback(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "config.conf")
	write := written(t, file, true)
	const gate = "featureGates: {KubeProxyNFTablesLocalhostNodePorts: true}\n" // it changes nothing
	write(gate)
	w.begin(t, "--config", file)
	l := live{w, func(text string) { write(gate + text) }}
	l.row(t, "A7.1 not asked for, a port on loopback is the node's own", l.testOnlyTheNodes)
	l.change(t, `nodePortAddresses: ["0.0.0.0/0", "::/0"]`+"\n", "nodePortAddresses")
	l.row(t, "A7.3 all addresses do not stand for a loopback range", l.testOnlyTheNodes)
	l.row(t, "R142183 what is there is served once it is switched on", l.testSwitchedOn)
	for _, row := range []struct {
		name string
		test func(*testing.T, addr.Plan)
	}{
		{"A7.2 R15 TCP reaches a random endpoint, which sees the node", l.testLoopbackEndpoints},
		{"A7.4 policy Local leads to local endpoints only", l.testLoopbackLocal},
		{"F10 without a local one it leads to the same as the node's address", l.testLoopbackShortCircuit},
		{"A7.5 affinity pins the port", l.testLoopbackAffinity},
		{"A7.6 without an endpoint, and without the Service, listener and connections end", l.testLoopbackEnds},
		{"A7.7 a port that is taken is said, counted and tried again", l.testLoopbackTaken},
		{"A7.8 UDP and SCTP are refused at once and counted", l.testLoopbackRefused},
		{"A7.9 the node pulls from a registry", l.testLoopbackRegistry},
		{"R142183 another number closes the old one at once", l.testLoopbackRenumbered},
	} {
		l.row(t, row.name, func(t *testing.T) { each(t, row.test) })
	}
	l.row(t, "R142183 nothing is served any more once it is switched off", l.testSwitchedOff)
}

// row runs the test of a row and removes what it wrote.
func (l live) row(t *testing.T, name string, test func(*testing.T)) {
	t.Run(name, test)
	l.clear(t, name)
}

const loopbackRanges = `nodePortAddresses: ["127.0.0.0/8", "::1/128", "0.0.0.0/0", "::/0"]` + "\n"

func loopback(p addr.Plan) netip.Addr {
	if p.VIP(0).Is4() {
		return netip.MustParseAddr("127.0.0.1")
	}
	return netip.IPv6Loopback()
}

// onNode is a process of the node that leaves its address to the kernel.
func onNode() oracle.Packet { return oracle.Packet{From: oracle.Node} }

// onLoopback is one with a loopback address of its own.
func onLoopback(p addr.Plan) oracle.Packet { return oracle.Packet{From: oracle.Node, Src: loopback(p)} }

// localhost is the NodePort on a loopback address.
func localhost(p addr.Plan) place { return at(loopback(p), model.TCP, nodePort) }

// listening says whether the kernel has a TCP listener on the loopback address.
func (l live) listening(t *testing.T, p addr.Plan, port uint16) bool {
	t.Helper()
	to := netip.AddrPortFrom(loopback(p), port)
	return l.h.Node.Run(t, "ss", "-Htln", "src", to.String()) != ""
}

// listener waits until the loopback address is listened to, or is not, for a second.
func (l live) listener(t *testing.T, p addr.Plan, port uint16, want bool) {
	t.Helper()
	since := time.Now()
	rig.Eventually(t, fmt.Sprintf("port %d on loopback is listened to: %t", port, want), func() error {
		if l.listening(t, p, port) == want {
			return nil
		}
		return errors.New("it is otherwise")
	})
	if took := time.Since(since); took > time.Second {
		t.Errorf("port %d on loopback is listened to (%t) after %v only", port, want, took)
	}
}

// localhostMetric gives one of the metrics of loopback NodePorts, 0 if it has no sample.
func (l live) localhostMetric(name string, labels ...string) float64 {
	const prefix = "kubeproxy_nftables_localhost_nodeport_"
	if l.d.Metrics()[prefix+name] == nil {
		return 0
	}
	return l.d.Metric(prefix+name, labels...)
}

// tellsListeners waits until so many listeners of these labels are told.
func (l live) tellsListeners(t *testing.T, want float64, labels ...string) {
	t.Helper()
	rig.Eventually(t, fmt.Sprintf("%v listeners are told", want), func() error {
		if got := l.localhostMetric("listeners", labels...); got != want {
			return fmt.Errorf("%v are", got)
		}
		return nil
	})
}

// The answer is the stack's own: a refusal where nobody listens, and whoever does has
// the port.
func (l live) testOnlyTheNodes(t *testing.T) {
	each(t, func(t *testing.T, p addr.Plan) {
		l.put(t, "web.yaml", outsideService(p, ""), webSlice(p, here(p)))
		l.sees(t, onNode(), at(p.Node(), model.TCP, nodePort), reaches(true, here(p)))
		if l.listening(t, p, nodePort) {
			t.Error("the port is listened to")
		}
		for _, proto := range []model.Protocol{model.TCP, model.UDP} {
			l.sees(t, onNode(), at(loopback(p), proto, nodePort), oracle.Outcome{Verdict: oracle.Refused})
		}
		own := netip.AddrPortFrom(loopback(p), nodePort)
		t.Run("somebody listens", func(t *testing.T) {
			l.h.ServeOn(t, l.h.Node, own)
			for _, proto := range []model.Protocol{model.TCP, model.UDP} {
				l.sees(t, onLoopback(p), at(loopback(p), proto, nodePort), oracle.Outcome{Verdict: oracle.Untouched})
			}
		})
	})
	for name := range l.d.Metrics() {
		if strings.Contains(name, "localhost_nodeport") {
			t.Errorf("there is a metric %s", name)
		}
	}
}

func (l live) testSwitchedOn(t *testing.T) {
	for _, p := range addr.Both() {
		l.put(t, familyOf(p)+".yaml", named(p, "web-"+strings.ToLower(familyOf(p)), p.VIP(0), nodePort)...)
	}
	l.change(t, loopbackRanges, "nodePortAddresses")
	each(t, func(t *testing.T, p addr.Plan) {
		l.listener(t, p, nodePort, true)
		l.sees(t, onNode(), localhost(p), reaches(true, here(p)))
		l.tellsListeners(t, 1, "ip_family", familyOf(p))
	})
	if n := l.said("oneruled begins"); n != 1 {
		t.Errorf("the daemon has begun %d times, want once", n)
	}
}

func (l live) testSwitchedOff(t *testing.T) {
	var open []*hosts.Session
	for _, p := range addr.Both() {
		l.put(t, familyOf(p)+".yaml", named(p, "web-"+strings.ToLower(familyOf(p)), p.VIP(0), nodePort)...)
		l.listener(t, p, nodePort, true)
		open = append(open, l.openOn(t, p))
	}
	l.change(t, `nodePortAddresses: ["0.0.0.0/0", "::/0"]`+"\n", "nodePortAddresses")
	each(t, func(t *testing.T, p addr.Plan) {
		l.listener(t, p, nodePort, false)
		l.sees(t, onNode(), localhost(p), oracle.Outcome{Verdict: oracle.Refused})
		l.sees(t, onNode(), at(p.Node(), model.TCP, nodePort), reaches(true, here(p)))
	})
	for _, s := range open {
		if s.Alive() == nil {
			t.Errorf("the connection to %s is still carried", s.Endpoint)
		}
	}
}

// named is the Service of one family under a name of its own, with one endpoint.
func named(p addr.Plan, name string, vip netip.Addr, number uint16) []string {
	spec := fmt.Sprintf("type: NodePort, clusterIP: %q, clusterIPs: [%q], "+
		"ports: [{name: web, protocol: TCP, port: 80, nodePort: %d}]", vip, vip, number)
	return []string{rawService("name: "+name, spec), slice(p, name+"-1", name, "", []string{webTarget}, ready(p, here(p))...)}
}

// openOn opens a connection on the loopback address.
func (l live) openOn(t *testing.T, p addr.Plan) *hosts.Session {
	t.Helper()
	s, err := l.h.Open(localhost(p).from(onNode()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func (l live) testLoopbackEndpoints(t *testing.T, p addr.Plan) {
	l.put(t, "web.yaml", outsideService(p, ""), webSlice(p, here(p), there(p)))
	l.listener(t, p, nodePort, true)
	l.sees(t, onNode(), localhost(p), reaches(true, here(p), there(p)))
	l.tellsListeners(t, 1, "ip_family", familyOf(p))
	l.tellsListeners(t, 1)
	s := l.openOn(t, p)
	l.world.write("web.yaml", outsideService(p, ""), webSlice(p, p.Pod(2)))
	rig.Eventually(t, "connections go to the endpoint that came", func() error {
		if e := l.visit(t, onNode(), localhost(p)).Endpoint.Addr(); e != p.Pod(2) {
			return fmt.Errorf("one goes to %s", e)
		}
		return nil
	})
	if err := s.Alive(); err != nil {
		t.Errorf("a connection that was open when endpoints changed: %v", err)
	}
	l.loopbackStaysLocal(t)
}

// loopbackStaysLocal checks that the host's network has no way to its loopback addresses.
func (l live) loopbackStaysLocal(t *testing.T) {
	t.Helper()
	for _, dev := range []string{"all", "default", "uplink", "pod0"} {
		if out := l.h.Node.Run(t, "sysctl", "-n", "net.ipv4.conf."+dev+".route_localnet"); strings.TrimSpace(out) != "0" {
			t.Errorf("route_localnet of %s is %s", dev, out)
		}
	}
}

func (l live) testLoopbackLocal(t *testing.T, p addr.Plan) {
	l.put(t, "web.yaml", outsideService(p, externalLocal), webSlice(p, here(p), there(p)))
	l.listener(t, p, nodePort, true)
	l.sees(t, onNode(), localhost(p), reaches(true, here(p)))
	l.put(t, "web.yaml", outsideService(p, externalLocal), webSlice(p, p.Pod(2), there(p)))
	l.sees(t, onNode(), localhost(p), reaches(true, p.Pod(2)))
	l.put(t, "web.yaml", outsideService(p, ""), webSlice(p, p.Pod(2), there(p)))
	l.sees(t, onNode(), localhost(p), reaches(true, p.Pod(2), there(p)))
}

func (l live) testLoopbackShortCircuit(t *testing.T, p addr.Plan) {
	l.put(t, "web.yaml", outsideService(p, externalLocal), webSlice(p, there(p)))
	l.listener(t, p, nodePort, true)
	for _, to := range []place{localhost(p), at(p.Node(), model.TCP, nodePort)} {
		l.sees(t, onNode(), to, reaches(true, there(p)))
	}
}

func (l live) testLoopbackAffinity(t *testing.T, p addr.Plan) {
	slice := webSlice(p, three(p)...)
	l.put(t, "web.yaml", outsideService(p, sticky(1000)), slice)
	l.listener(t, p, nodePort, true)
	// The probability that it is by chance is that of three().
	pinned := l.home(t, onNode(), localhost(p))
	var others []netip.Addr
	for _, a := range three(p) {
		if a != pinned {
			others = append(others, a)
		}
	}
	t.Run("an endpoint that comes does not matter, one that leaves does", func(t *testing.T) {
		l.put(t, "web.yaml", outsideService(p, sticky(1000)), webSlice(p, others[0], pinned))
		if again := l.home(t, onNode(), localhost(p)); again != pinned {
			t.Errorf("the pin went from %s to %s while its endpoint stayed", pinned, again)
		}
		l.put(t, "web.yaml", outsideService(p, sticky(1000)), webSlice(p, others...))
		if left := l.home(t, onNode(), localhost(p)); left == pinned {
			t.Errorf("the pin is to %s, which left", left)
		}
	})
	if p.VIP(0).Is4() { // time is the same in both families
		t.Run("each connection renews it", func(t *testing.T) { l.testLoopbackTimeout(t, p, slice) })
	}
	t.Run("without affinity all are used", func(t *testing.T) {
		l.put(t, "web.yaml", outsideService(p, ""), slice)
		l.sees(t, onNode(), localhost(p), reaches(true, three(p)...))
	})
}

// testLoopbackTimeout connects for longer than the timeout, and then lets it go by: of
// several pins that begin anew one is to another endpoint.
func (l live) testLoopbackTimeout(t *testing.T, p addr.Plan, slice string) {
	l.put(t, "web.yaml", outsideService(p, sticky(1)), slice)
	first := l.visit(t, onNode(), localhost(p)).Endpoint.Addr()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for began, last := time.Now(), time.Now(); time.Since(began) < 1500*time.Millisecond; <-tick.C {
		e, pause := l.visit(t, onNode(), localhost(p)).Endpoint.Addr(), time.Since(last)
		if last = time.Now(); e == first {
			continue
		}
		if pause < 900*time.Millisecond { // a busy machine may let it end
			t.Fatalf("%v after the last connection the pin went from %s to %s", pause, first, e)
		}
		first = e
	}
	rig.Eventually(t, "a pin ends", func() error {
		<-time.After(1100 * time.Millisecond)
		if e := l.visit(t, onNode(), localhost(p)).Endpoint.Addr(); e == first {
			return fmt.Errorf("it is to %s again", e) // once in three times
		}
		return nil
	})
}

func (l live) testLoopbackEnds(t *testing.T, p addr.Plan) {
	for name, end := range map[string]func(){
		"no endpoint": func() { l.world.write("web.yaml", outsideService(p, ""), webSlice(p)) },
		"no Service":  func() { l.world.write("web.yaml", webSlice(p, here(p))) },
		"no NodePort": func() { l.world.write("web.yaml", web(p), webSlice(p, here(p))) },
	} {
		t.Run(name, func(t *testing.T) {
			l.put(t, "web.yaml", outsideService(p, ""), webSlice(p, here(p)))
			l.listener(t, p, nodePort, true)
			s := l.openOn(t, p)
			if err := s.Alive(); err != nil {
				t.Fatal(err)
			}
			end()
			l.listener(t, p, nodePort, false)
			l.sees(t, onNode(), localhost(p), oracle.Outcome{Verdict: oracle.Refused})
			if err := s.Alive(); !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
				t.Errorf("the connection that was open: %v, want a reset", err)
			}
			l.tellsListeners(t, 0)
		})
	}
}

func (l live) testLoopbackTaken(t *testing.T, p addr.Plan) {
	const other = nodePort + 1
	failures := func() float64 { return l.localhostMetric("listener_creation_failures_total", "ip_family", familyOf(p)) }
	told := func() (notServed, served int) {
		to := netip.AddrPortFrom(loopback(p), nodePort).String()
		return l.said("is not served", to), l.said("is served now", to)
	}
	before, free := failures(), l.take(t, p)
	l.put(t, "web.yaml", outsideService(p, ""), webSlice(p, here(p)))
	l.put(t, "other.yaml", named(p, "other", p.VIP(1), other)...)
	l.listener(t, p, other, true)
	l.sees(t, onNode(), at(loopback(p), model.TCP, other), reaches(true, here(p)))
	rig.Eventually(t, "the failure is counted and said", func() error {
		if notServed, _ := told(); failures() <= before || notServed == 0 {
			return fmt.Errorf("counted %v, said %d times", failures()-before, notServed)
		}
		return nil
	})
	l.tellsListeners(t, 1, "ip_family", familyOf(p))
	free()
	if !p.VIP(0).Is4() { // a change does not wait for the next time, as IPv4 does
		l.world.write("web.yaml", outsideService(p, ""), webSlice(p, p.Pod(2)))
	}
	n := 0
	rig.Eventually(t, "the port is tried again", func() error {
		if n++; n%50 == 0 { // what others do does not put it off
			l.world.write("other.yaml", named(p, "other", p.VIP(1), uint16(other+n/50%2))...)
		}
		if _, served := told(); served == 0 {
			return errors.New("that is not said")
		}
		return nil
	})
	l.tellsListeners(t, 2, "ip_family", familyOf(p))
	if notServed, _ := told(); notServed != 1 {
		t.Errorf("that it is not served is said %d times, want once", notServed)
	}
}

// take has somebody else have the port until free is called.
func (l live) take(t *testing.T, p addr.Plan) (free func()) {
	t.Helper()
	var taken net.Listener
	err := l.h.Node.Do(func() (err error) {
		taken, err = net.Listen("tcp", netip.AddrPortFrom(loopback(p), nodePort).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	return func() { _ = taken.Close() }
}

func (l live) testLoopbackRefused(t *testing.T, p addr.Plan) {
	spec := strings.Replace(outsideService(p, ""), "ports: [", fmt.Sprintf("ports: [{name: sctp, protocol: SCTP, port: 80, nodePort: %d}, ", nodePort), 1)
	l.put(t, "web.yaml", spec, slice(p, "web-1", "web", "", []string{webTarget, dnsTarget, "sctp/SCTP/8080"}, ready(p, here(p))...))
	l.h.ServeOn(t, l.h.Node, netip.AddrPortFrom(loopback(p), nodePort+1)) // which is not meant
	rejected := func(protocol string) float64 {
		return l.localhostMetric("rejected_packets_total", "ip_family", familyOf(p), "protocol", protocol)
	}
	l.sees(t, onNode(), at(loopback(p), model.UDP, nodePort), oracle.Outcome{Verdict: oracle.Refused})
	l.sees(t, onLoopback(p), at(loopback(p), model.UDP, nodePort+1), oracle.Outcome{Verdict: oracle.Untouched})
	before, sctp := rejected("UDP"), rejected("SCTP")
	if before < 1 {
		t.Errorf("%v packets of UDP were refused, want one at least", before)
	}
	for range 3 {
		l.sees(t, onNode(), at(loopback(p), model.UDP, nodePort), oracle.Outcome{Verdict: oracle.Refused})
	}
	if got := rejected("UDP") - before; got < 3 || got > 6 { // each is tried twice on a busy machine
		t.Errorf("of UDP %v more packets were refused, want 3", got)
	}
	if seen, err := l.h.ProbeSCTP(at(loopback(p), model.SCTP, nodePort).from(onLoopback(p)), netip.AddrPortFrom(here(p), 8080), hosts.Silence); err != nil || seen.Verdict != hosts.Refused {
		t.Errorf("SCTP is %s, %v, want it refused", seen, err)
	}
	if got := rejected("SCTP") - sctp; got != 1 {
		t.Errorf("of SCTP %v more packets were refused, want 1", got)
	}
	if got := rejected("TCP"); got != 0 {
		t.Errorf("of TCP %v packets were refused", got)
	}
	l.remove(t, "web.yaml")
	l.sees(t, onNode(), at(loopback(p), model.UDP, nodePort), oracle.Outcome{Verdict: oracle.Refused})
	if got := rejected("UDP"); got != 0 {
		t.Errorf("without the Service there are still %v packets", got)
	}
}

// testLoopbackRegistry is what a container runtime does: it asks a registry on
// localhost for a manifest and a blob. The runtime itself is not part of it.
func (l live) testLoopbackRegistry(t *testing.T, p addr.Plan) {
	const target = 5000
	blob := strings.Repeat("layer ", 200_000)
	registry := http.NewServeMux()
	registry.HandleFunc("GET /v2/{$}", func(http.ResponseWriter, *http.Request) {})
	registry.HandleFunc("GET /v2/app/manifests/latest", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"schemaVersion":2}`) })
	registry.HandleFunc("GET /v2/app/blobs/sha256:0", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, blob) })
	l.serveHTTP(t, netip.AddrPortFrom(there(p), target), registry)
	spec := fmt.Sprintf("type: NodePort, clusterIP: %q, clusterIPs: [%q], ports: [{name: web, protocol: TCP, port: 5000, nodePort: %d}]", p.VIP(0), p.VIP(0), nodePort)
	l.put(t, "registry.yaml", rawService("name: registry", spec), slice(p, "registry-1", "registry", "", []string{fmt.Sprintf("web/TCP/%d", target)}, ready(p, there(p))...))
	l.listener(t, p, nodePort, true)
	client := l.clientOnNode()
	for path, want := range map[string]string{"/v2/": "", "/v2/app/manifests/latest": `{"schemaVersion":2}`, "/v2/app/blobs/sha256:0": blob} {
		resp, err := client.Get("http://" + netip.AddrPortFrom(loopback(p), nodePort).String() + path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || string(got) != want {
			t.Errorf("%s: %s, %d bytes, %v, want %d bytes", path, resp.Status, len(got), err, len(want))
		}
	}
}

// serveHTTP serves at an address of the hosts until the test ends.
func (l live) serveHTTP(t *testing.T, at netip.AddrPort, h http.Handler) {
	t.Helper()
	var listener net.Listener
	err := l.h.At(at.Addr()).Do(func() (err error) {
		listener, err = net.Listen("tcp", at.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	t.Cleanup(func() { _ = server.Close() })
	go func() { _ = server.Serve(listener) }() // ends with the server
}

// clientOnNode gives a client whose connections are the node's.
func (l live) clientOnNode() *http.Client {
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (c net.Conn, err error) {
			err = l.h.Node.Do(func() error {
				c, err = (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, address)
				return err
			})
			return c, err
		},
	}}
}

func (l live) testLoopbackRenumbered(t *testing.T, p addr.Plan) {
	const other = nodePort + 7
	l.put(t, "web.yaml", outsideService(p, ""), webSlice(p, here(p)))
	l.listener(t, p, nodePort, true)
	s := l.openOn(t, p)
	l.world.write("web.yaml", strings.ReplaceAll(outsideService(p, ""), fmt.Sprint(nodePort), fmt.Sprint(other)), webSlice(p, here(p)))
	l.listener(t, p, nodePort, false)
	l.listener(t, p, other, true)
	l.sees(t, onNode(), localhost(p), oracle.Outcome{Verdict: oracle.Refused})
	l.sees(t, onNode(), at(loopback(p), model.TCP, other), reaches(true, here(p)))
	if s.Alive() == nil {
		t.Error("a connection to the old number is still carried")
	}
}
