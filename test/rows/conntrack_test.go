package rows_test

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/netns"
	"onerule/test/oracle"
	"onerule/test/rig"
)

// conntrackTests are the rows about flows that began before a change.
func conntrackTests() map[string]func(*testing.T, *world) {
	return map[string]func(*testing.T, *world){
		"A12.5": testFlowsFollow, "R23": testAssociationsFollow, "R25": testResetRemoved,
		"R26": testOutOfWindow, "R29": testTwoAtOnce,
	}
}

// flowService is a Service of every kind of frontend, with another one beside it whose
// internal policy is Local. Each family has its own.
func flowService(p addr.Plan) []string {
	name := "name: web-" + nftFamily(p)
	return []string{
		strings.Replace(outsideService(p, ""), "name: web", name, 1),
		rawService("name: local-"+nftFamily(p), webSpec(p.VIP(1).String(), internalLocal)),
	}
}

// clusterService is what is left of it without what is reached from outside.
func clusterService(p addr.Plan) []string {
	return []string{rawService("name: web-"+nftFamily(p), webSpec(p.VIP(0).String(), "")), flowService(p)[1]}
}

// flowSlices are the slices of both, of endpoints in YAML that have this target port.
func flowSlices(p addr.Plan, port int, endpoints ...string) []string {
	targets := []string{fmt.Sprintf("web/TCP/%d", port), fmt.Sprintf("dns/UDP/%d", port)}
	return []string{
		slice(p, "web-"+nftFamily(p), "web-"+nftFamily(p), "", targets, endpoints...),
		slice(p, "local-"+nftFamily(p), "local-"+nftFamily(p), "", targets, endpoints...),
	}
}

// flowPlaces are where those Services are reached.
func flowPlaces(p addr.Plan, proto model.Protocol) []place {
	return append(externalPlaces(p, proto), at(p.VIP(0), proto, 80), at(p.VIP(1), proto, 80))
}

func externalPlaces(p addr.Plan, proto model.Protocol) []place {
	return []place{at(p.Node(), proto, nodePort), at(p.ExternalIP(0), proto, 80), at(p.BalancerIP(0), proto, 80)}
}

// A follower is a client that keeps its port, or its connection.
type follower struct {
	*hosts.Session
	plan addr.Plan
	to   place
	who  string
}

// flows are the clients of all these Services, of each kind and family, with those who
// send datagrams apart from those who hold connections.
type flows struct {
	w           *world
	senders     []follower
	connections []follower
}

// flowing writes the Services and slices of both families, and waits for them. It forgets
// no flow.
func (w *world) flowing(t *testing.T, documents func(addr.Plan) []string) {
	t.Helper()
	w.writeFlows(documents)
	w.settle(t)
}

func (w *world) writeFlows(documents func(addr.Plan) []string) {
	for _, p := range addr.Both() {
		w.write("flows-"+nftFamily(p)+".yaml", documents(p)...)
	}
}

func (w *world) flows(t *testing.T) flows {
	t.Helper()
	f := flows{w: w}
	for _, p := range addr.Both() {
		for _, client := range hosts.Clients(p) {
			for _, to := range flowPlaces(p, model.UDP) {
				f.senders = append(f.senders, follower{w.sender(t, to.from(client)), p, to, client.From.String()})
			}
			for _, to := range flowPlaces(p, model.TCP) {
				f.connections = append(f.connections, follower{w.connection(t, to.from(client)), p, to, client.From.String()})
			}
		}
	}
	return f
}

func (w *world) connection(t *testing.T, packet oracle.Packet) *hosts.Session {
	t.Helper()
	s, err := w.h.Open(packet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// reach waits until all senders are answered by an endpoint of their family.
func (f flows) reach(t *testing.T, port uint16, endpoint func(addr.Plan) netip.Addr) {
	t.Helper()
	rig.Eventually(t, "all senders are answered", func() error {
		return f.answered(port, endpoint)
	})
}

func (f flows) answered(port uint16, endpoint func(addr.Plan) netip.Addr) error {
	for _, s := range f.senders {
		want := netip.AddrPortFrom(endpoint(s.plan), port)
		seen, err := s.Ask()
		if err == nil && seen.Endpoint != want {
			err = fmt.Errorf("answered by %s", seen.Endpoint)
		}
		if err != nil {
			return fmt.Errorf("from %s to %s port %d: %w, want an answer of %s", s.who, s.to.addr, s.to.port, err, want)
		}
	}
	return nil
}

// refused says who is not. Each may ask twice: the kernel sends 50 refusals at once and
// 1,000 a second, and is silent beyond that.
func (f flows) refused() error {
	for _, s := range f.senders {
		_, err := s.Ask()
		if !errors.Is(err, unix.ECONNREFUSED) {
			_, err = s.Ask()
		}
		if err == nil {
			err = errors.New("answered")
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("from %s to %s port %d: %w, want a refusal", s.who, s.to.addr, s.to.port, err)
		}
	}
	return nil
}

// unanswered fails if any sender is answered whose place is among these.
func (f flows) unanswered(t *testing.T, places func(addr.Plan, model.Protocol) []place) {
	t.Helper()
	var asked sync.WaitGroup
	for _, s := range f.senders {
		if !s.at(places) {
			continue
		}
		asked.Go(func() {
			if seen, err := s.Ask(); err == nil {
				t.Errorf("from %s to %s port %d: answered by %s", s.who, s.to.addr, s.to.port, seen.Endpoint)
			}
		})
	}
	asked.Wait()
}

func (s follower) at(places func(addr.Plan, model.Protocol) []place) bool {
	for _, to := range places(s.plan, s.to.protocol) {
		if to == s.to {
			return true
		}
	}
	return false
}

// alive checks that all connections still carry bytes.
func (f flows) alive(t *testing.T) {
	t.Helper()
	for _, c := range f.connections {
		if err := c.Alive(); err != nil {
			t.Errorf("from %s to %s port %d TCP: %v", c.who, c.to.addr, c.to.port, err)
		}
	}
}

// reset waits until all clients that hold connections were told that these are over.
func (f flows) reset(t *testing.T) {
	t.Helper()
	for _, c := range f.connections {
		rig.Eventually(t, "the connection is reset", func() error {
			err := c.Alive()
			if errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
				return nil
			}
			if err == nil {
				err = errors.New("it is alive")
			}
			return fmt.Errorf("from %s to %s port %d TCP: %w, want a reset", c.who, c.to.addr, c.to.port, err)
		})
	}
}

// translated counts the UDP flows of the node to these places that are translated.
func (w *world) translated(t *testing.T, places func(addr.Plan, model.Protocol) []place) (n int) {
	t.Helper()
	to := map[netip.AddrPort]bool{}
	for _, p := range addr.Both() {
		for _, place := range places(p, model.UDP) {
			to[netip.AddrPortFrom(place.addr, place.port)] = true
		}
	}
	err := w.h.Node.Do(func() error {
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			list, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				return err
			}
			for _, f := range list {
				dst, _ := netip.AddrFromSlice(f.Forward.DstIP)
				if f.Forward.Protocol == unix.IPPROTO_UDP && to[netip.AddrPortFrom(dst.Unmap(), f.Forward.DstPort)] && !f.Reverse.SrcIP.Equal(f.Forward.DstIP) {
					n++
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// passed runs a change and waits until conntrack of both families was looked through
// twice after it.
func (w *world) passed(t *testing.T, change func()) {
	t.Helper()
	before := w.conntrackPasses(t)
	change()
	rig.Eventually(t, "conntrack is looked through", func() error {
		for family, n := range w.conntrackPasses(t) {
			if n < before[family]+2 {
				return fmt.Errorf("%d passes of %s, before %d", n, family, before[family])
			}
		}
		return nil
	})
}

func (w *world) conntrackPasses(t *testing.T) map[string]int {
	t.Helper()
	_, body, err := w.d.Get(10249, "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{"IPv4": 0, "IPv6": 0}
	for _, m := range regexp.MustCompile(`kubeproxy_conntrack_reconciler_sync_duration_seconds_count\{ip_family="(IPv[46])"\} (\d+)`).FindAllStringSubmatch(body, -1) {
		var n int
		_, _ = fmt.Sscan(m[2], &n) // digits
		counts[m[1]] = n
	}
	return counts
}

func pod(i int) func(addr.Plan) netip.Addr {
	return func(p addr.Plan) netip.Addr { return p.Pod(i) }
}

// testFlowsFollow takes clients that keep their ports through the life of a Service.
func testFlowsFollow(t *testing.T, w *world) {
	w.serves(t, 8080, readyPod(1))
	w.h.Forget(t)
	f := w.flows(t)
	f.reach(t, 8080, pod(1))
	f.followEndpoints(t)
	f.followConditions(t)
	f.followToTheEnd(t)
}

// serves writes the Services with these endpoints.
func (w *world) serves(t *testing.T, port int, endpoints func(addr.Plan) []string) {
	t.Helper()
	w.flowing(t, func(p addr.Plan) []string { return append(flowService(p), flowSlices(p, port, endpoints(p)...)...) })
}

func readyPod(i int) func(addr.Plan) []string {
	return func(p addr.Plan) []string { return ready(p, p.Pod(i)) }
}

func (f flows) followEndpoints(t *testing.T) {
	w := f.w
	t.Run("A12.1, A12.5, R19: the pod is replaced", func(t *testing.T) {
		w.serves(t, 8080, readyPod(2))
		f.reach(t, 8080, pod(2))
	})
	t.Run("A12.5: the target port is another one", func(t *testing.T) {
		w.serves(t, 8081, readyPod(2))
		f.reach(t, 8081, pod(2))
	})
}

func (f flows) followConditions(t *testing.T) {
	w := f.w
	t.Run("A12.1: one that terminates keeps its flows while it serves", func(t *testing.T) {
		w.passed(t, func() {
			w.serves(t, 8081, func(p addr.Plan) []string { return append(ready(p, p.Pod(1)), conditioned(p, leaving, p.Pod(2))...) })
		})
		if err := f.answered(8081, pod(2)); err != nil {
			t.Error(err)
		}
		w.serves(t, 8081, func(p addr.Plan) []string {
			return append(ready(p, p.Pod(1)), conditioned(p, "ready: false, serving: false, terminating: true", p.Pod(2))...)
		})
		f.reach(t, 8081, pod(1))
	})
	t.Run("R33: one that is published although it is not ready keeps its flows", func(t *testing.T) {
		w.passed(t, func() {
			w.serves(t, 8081, func(p addr.Plan) []string {
				return append(ready(p, p.Pod(2)), conditioned(p, "ready: true, serving: false, terminating: false", p.Pod(1))...)
			})
		})
		if err := f.answered(8081, pod(1)); err != nil {
			t.Error(err)
		}
	})
	t.Run("A12.2, A12.3, R18: scaled to zero", func(t *testing.T) {
		w.serves(t, 8081, func(addr.Plan) []string { return nil })
		rig.Eventually(t, "all senders are refused", f.refused)
		w.unheard(t, w.h.Pods[1], func() {
			if err := f.refused(); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("A12.5: the pod is not ready, and then it is", func(t *testing.T) {
		w.serves(t, 8081, func(p addr.Plan) []string {
			return conditioned(p, "ready: false, serving: false, terminating: false", p.Pod(1))
		})
		if err := f.refused(); err != nil {
			t.Error(err)
		}
		w.serves(t, 8081, readyPod(1))
		f.reach(t, 8081, pod(1))
	})
}

func (f flows) followToTheEnd(t *testing.T) {
	w := f.w
	t.Run("R19: replaced while the daemon is down", func(t *testing.T) {
		w.without(t, func() {
			w.writeFlows(func(p addr.Plan) []string {
				return append(flowService(p), flowSlices(p, 8080, ready(p, p.Pod(2))...)...)
			})
		})
		f.reach(t, 8080, pod(2))
	})
	t.Run("F8: frontends go while the daemon is down", func(t *testing.T) {
		w.without(t, func() {
			w.writeFlows(func(p addr.Plan) []string {
				return append(clusterService(p), flowSlices(p, 8080, ready(p, p.Pod(2))...)...)
			})
		})
		w.noneTranslated(t, externalPlaces)
		f.unanswered(t, externalPlaces)
		f.alive(t)
	})
	t.Run("F8, A12.4: the Service goes and its slice stays", func(t *testing.T) {
		w.flowing(t, func(p addr.Plan) []string { return flowSlices(p, 8080, ready(p, p.Pod(2))...) })
		w.noneTranslated(t, flowPlaces)
		f.unanswered(t, flowPlaces)
		f.alive(t)
	})
}

// without runs f while no daemon does, and starts it again.
func (w *world) without(t *testing.T, f func()) {
	t.Helper()
	w.d.Stop()
	f()
	w.d.Run()
	w.d.AwaitHealthy()
	w.settle(t)
}

func (w *world) noneTranslated(t *testing.T, places func(addr.Plan, model.Protocol) []place) {
	t.Helper()
	rig.Eventually(t, "no flow is translated", func() error {
		if n := w.translated(t, places); n > 0 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
}

// unheard checks that a host gets no datagram for its ports while f runs.
func (w *world) unheard(t *testing.T, ns *netns.NS, f func()) {
	t.Helper()
	ns.Run(t, "nft", `table inet heard { counter datagrams { }; chain in { type filter hook input priority 0; udp dport { 8080, 8081 } counter name datagrams; }; }`)
	f()
	if out := ns.Run(t, "nft", "list", "counter", "inet", "heard", "datagrams"); !strings.Contains(out, "packets 0 ") {
		t.Errorf("the pod got datagrams: %s", out)
	}
	ns.Run(t, "nft", "delete", "table", "inet", "heard")
}

// testAssociationsFollow tries an association again and again from the same port.
func testAssociationsFollow(t *testing.T, w *world) {
	w.noAssociations(t)
	w.h.Node.Sysctl(t, "net.netfilter.nf_conntrack_sctp_timeout_cookie_wait", "300") // no flow ends by itself
	each(t, func(t *testing.T, p addr.Plan) {
		spec := fmt.Sprintf("type: NodePort, clusterIP: %q, clusterIPs: [%q], ports: [{name: s, protocol: SCTP, port: 80, nodePort: %d}]", p.VIP(0), p.VIP(0), nodePort)
		for step, endpoint := range []netip.Addr{p.Pod(1), p.OtherPod(0), p.Pod(1)} {
			w.write("sctp.yaml", rawService("name: web", spec), slice(p, "web-1", "web", "", []string{"s/SCTP/8080"}, ready(p, endpoint)...))
			w.settle(t)
			if step == 0 {
				w.h.Forget(t)
			}
			for _, client := range hosts.Clients(p) {
				for _, to := range []place{at(p.VIP(0), model.SCTP, 80), at(p.Node(), model.SCTP, nodePort)} {
					rig.Eventually(t, fmt.Sprintf("from %s to %s: it arrives at %s", client.From, to.addr, endpoint), func() error {
						seen, err := w.h.ProbeSCTP(to.from(client), netip.AddrPortFrom(endpoint, 8080), hosts.Silence)
						if err == nil && seen.Verdict != hosts.Answered {
							err = errors.New(seen.String())
						}
						return err
					})
				}
			}
		}
		w.remove(t, "sctp.yaml")
	})
}

// testResetRemoved: by default connections outlive their endpoint's slice, see A12.5. With
// the option those to endpoints that are in none end, whether there is another one or not.
func testResetRemoved(t *testing.T, w *world) {
	w.restart(t, detectBoth("--reset-removed-endpoints")...)
	w.serves(t, 8080, readyPod(1))
	w.h.Forget(t)
	f := w.flows(t)
	t.Run("R25: it terminates", func(t *testing.T) {
		w.passed(t, func() {
			w.serves(t, 8080, func(p addr.Plan) []string {
				return append(ready(p, p.Pod(2)), conditioned(p, "ready: false, serving: false, terminating: true", p.Pod(1))...)
			})
		})
		f.alive(t)
	})
	t.Run("R25: it is gone, and another one serves", func(t *testing.T) {
		w.serves(t, 8080, readyPod(2))
		f.reset(t)
	})
	f = w.flows(t)
	t.Run("R25: it is gone, and none serves", func(t *testing.T) {
		w.serves(t, 8080, func(addr.Plan) []string { return nil })
		f.reset(t)
	})
}
