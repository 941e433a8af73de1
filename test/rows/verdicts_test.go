package rows_test

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/rig"
)

// verdictTests are the rows about Services without usable endpoints, and about which
// endpoints are usable.
func verdictTests() map[string]func(*testing.T, *world) {
	return map[string]func(*testing.T, *world){
		"A3.1": testNoEndpoint, "A3.6": testRefusal, "A3.9": testEvicted,
		"A4.1": testTerminating, "A4.3": testNeitherReadyNorTerminating, "A4.4": testReadyWithoutServing,
		"R33": testReadyWithoutServing,
	}
}

// conditioned gives endpoints on their nodes with the same conditions.
func conditioned(p addr.Plan, conditions string, addrs ...netip.Addr) []string {
	var list []string
	for _, a := range addrs {
		list = append(list, endpoint(a, nodeOf(p, a), "conditions: {"+conditions+"}"))
	}
	return list
}

func webSliceOf(p addr.Plan, endpoints ...string) string {
	return slice(p, "web-1", "web", "", []string{webTarget, dnsTarget}, endpoints...)
}

func testNoEndpoint(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		for what, documents := range map[string][]string{
			"no slice":                 nil,
			"an empty slice":           {webSliceOf(p)},
			"an endpoint not ready":    {webSliceOf(p, conditioned(p, "ready: false, serving: false, terminating: false", p.Pod(1))...)},
			"one that serves no more":  {webSliceOf(p, conditioned(p, "ready: false, serving: false, terminating: true", p.Pod(1))...)},
			"a slice of another port":  {slice(p, "web-1", "web", "", []string{"other/TCP/8080", "web/UDP/8080"}, ready(p, p.Pod(1))...)},
			"one of another namespace": {strings.Replace(webSlice(p, p.Pod(1)), "metadata: {", "metadata: {namespace: other, ", 1)},
		} {
			t.Run(what, func(t *testing.T) {
				w.put(t, "web.yaml", append([]string{web(p)}, documents...)...)
				w.refused(t, p, at(p.VIP(0), model.TCP, 80), at(p.VIP(0), model.UDP, 80))
			})
		}
	})
}

func testRefusal(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", rig.Service("web", []netip.Addr{p.VIP(0)}, webPort, dnsPort, "s/SCTP/80"))
		before := resets(w.ruleset(t, p))
		// What is refused later than hosts.Lost is not refused for sees.
		w.refused(t, p, at(p.VIP(0), model.TCP, 80), at(p.VIP(0), model.UDP, 80))
		if p.VIP(0).Is6() && resets(w.ruleset(t, p))-before < 3 {
			t.Errorf("%d of 3 connects were refused by a reset", resets(w.ruleset(t, p))-before)
		}
		if element := fmt.Sprintf("%s . sctp . 80", p.VIP(0)); strings.Count(w.ruleset(t, p), element) != 2 {
			t.Errorf("%q is not both in service-ips and no-endpoints", element)
		}
		w.noAssociations(t)
		for _, client := range hosts.Clients(p) {
			seen, err := w.h.ProbeSCTP(at(p.VIP(0), model.SCTP, 80).from(client), netip.AddrPortFrom(p.Pod(1), 8080), hosts.Silence)
			if err != nil || seen.Verdict != hosts.Refused {
				t.Errorf("SCTP from %s: %s, %v, want refused", client.From, seen.Verdict, err)
			}
		}
	})
}

// resets counts what was refused by a reset.
func resets(ruleset string) int {
	n := 0
	if m := regexp.MustCompile(`counter packets (\d+) bytes \d+ reject with tcp reset`).FindStringSubmatch(ruleset); m != nil {
		_, _ = fmt.Sscan(m[1], &n) // digits
	}
	return n
}

func testEvicted(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", web(p), webSlice(p, p.Pod(1)))
		w.reached(t, p, at(p.VIP(0), model.TCP, 80), ports(8080, p.Pod(1))...)
		for _, slice := range []string{
			webSliceOf(p, conditioned(p, "ready: false, serving: false, terminating: false", p.Pod(1))...), // failed
			webSliceOf(p), // and deleted
		} {
			w.put(t, "web.yaml", web(p), slice)
			w.refused(t, p, at(p.VIP(0), model.TCP, 80), at(p.VIP(0), model.UDP, 80))
		}
	})
}

const leaving = "ready: false, serving: true, terminating: true"

func testTerminating(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		to := at(p.VIP(0), model.TCP, 80)
		w.put(t, "web.yaml", web(p), webSliceOf(p, append(ready(p, p.Pod(1)), conditioned(p, leaving, p.Pod(2), p.OtherPod(0))...)...))
		w.reached(t, p, to, ports(8080, p.Pod(1))...)
		gone := conditioned(p, "ready: false, serving: false, terminating: true", p.Pod(1))
		w.put(t, "web.yaml", web(p), webSliceOf(p, append(gone, conditioned(p, leaving, p.Pod(2), p.OtherPod(0))...)...))
		w.reached(t, p, to, ports(8080, p.Pod(2), p.OtherPod(0))...)
		// A ready one takes over, wherever it is.
		w.put(t, "web.yaml", web(p), webSliceOf(p, append(ready(p, p.OtherPod(1)), conditioned(p, leaving, p.Pod(2))...)...))
		w.reached(t, p, to, ports(8080, p.OtherPod(1))...)
	})
}

func testNeitherReadyNorTerminating(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		idle := conditioned(p, "ready: false, serving: true, terminating: false", p.Pod(1))
		w.put(t, "web.yaml", web(p), webSliceOf(p, idle...))
		w.refused(t, p, at(p.VIP(0), model.TCP, 80), at(p.VIP(0), model.UDP, 80))
		w.put(t, "web.yaml", web(p), webSliceOf(p, append(idle, conditioned(p, leaving, p.Pod(2))...)...))
		w.reached(t, p, at(p.VIP(0), model.TCP, 80), ports(8080, p.Pod(2))...)
	})
}

func testReadyWithoutServing(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		published := conditioned(p, "ready: true, serving: false, terminating: false", p.Pod(1))
		w.put(t, "web.yaml", web(p), webSliceOf(p, published...))
		w.reached(t, p, at(p.VIP(0), model.TCP, 80), ports(8080, p.Pod(1))...)
		w.reached(t, p, at(p.VIP(0), model.UDP, 80), ports(8080, p.Pod(1))...)
	})
}
