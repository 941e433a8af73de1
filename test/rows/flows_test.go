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
	"onerule/test/oracle"
)

// flowTests are the rows about who reaches which endpoint, and as whom.
func flowTests() map[string]func(*testing.T, *world) {
	return map[string]func(*testing.T, *world){
		"A2": testMatrix, "A2.1": testNoDetector, "A2.2": testMasqueradeAll, "A2.3": testNoDetectorMasqueradeAll,
		"A2.4": testHairpin(model.TCP), "A2.5": testPodKeepsAddress, "A2.6": testRandomPorts,
		"A2.7": testMark, "A2.8": testSpread, "A2.10": testNode, "A2.11": testHostNetwork,
		"R28": testMarkAtEitherEnd, "D34": testHairpin(model.UDP),
	}
}

// The Service of the matrix has an endpoint on this node and one on the other.
func matrixService(p addr.Plan, policy string) []string {
	return []string{rawService("name: web", webSpec(p.VIP(0).String(), policy)), webSlice(p, p.Pod(1), p.OtherPod(0))}
}

// matrix checks that every client reaches both endpoints, masqueraded or not as said
// for pod, node and outside.
func (w *world) matrix(t *testing.T, p addr.Plan, masqueraded [3]bool) {
	t.Helper()
	for _, client := range hosts.Clients(p) {
		want := oracle.Outcome{Verdict: oracle.Reached}
		for _, e := range ports(8080, p.Pod(1), p.OtherPod(0)) {
			want.Arrivals = append(want.Arrivals, oracle.Arrival{Endpoint: e, Masqueraded: masqueraded[client.From]})
		}
		w.sees(t, client, at(p.VIP(0), model.TCP, 80), want)
		w.sees(t, client, at(p.VIP(0), model.UDP, 80), want)
	}
}

func testMatrix(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		for policy, fields := range map[string]string{
			"both policies Cluster":       "",
			"externalTrafficPolicy Local": ", type: NodePort, externalTrafficPolicy: Local",
		} {
			t.Run(policy, func(t *testing.T) {
				w.put(t, "web.yaml", matrixService(p, fields)...)
				w.matrix(t, p, [3]bool{oracle.Pod: false, oracle.Node: true, oracle.Outside: true})
			})
		}
	})
}

func testNoDetector(t *testing.T, w *world) {
	w.restart(t)
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", matrixService(p, "")...)
		w.matrix(t, p, [3]bool{})
	})
	t.Run("a range of one family tells nobody of the other apart", func(t *testing.T) {
		p4, p6 := addr.IPv4(), addr.IPv6()
		w.restart(t, "--cluster-cidr", p4.ClusterCIDR.String())
		w.put(t, "web.yaml", matrixService(p4, "")...)
		w.matrix(t, p4, [3]bool{oracle.Node: true, oracle.Outside: true})
		w.put(t, "web.yaml", matrixService(p6, "")...)
		w.matrix(t, p6, [3]bool{})
	})
}

func testMasqueradeAll(t *testing.T, w *world) {
	w.restart(t, detectBoth("--masquerade-all")...)
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", matrixService(p, "")...)
		w.matrix(t, p, [3]bool{true, true, true})
	})
}

func testNoDetectorMasqueradeAll(t *testing.T, w *world) {
	w.restart(t, "--masquerade-all")
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", matrixService(p, "")...)
		w.matrix(t, p, [3]bool{true, true, true})
	})
}

// A pod reaches itself and another pod of its Service. Only the way to itself is
// masqueraded.
func testHairpin(proto model.Protocol) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		each(t, func(t *testing.T, p addr.Plan) {
			w.put(t, "web.yaml", web(p), webSlice(p, p.Pod(1), p.Pod(2), p.OtherPod(0)))
			itself := oracle.Packet{From: oracle.Pod, Src: p.Pod(1)}
			want := w.arriving(itself, ports(8080, p.Pod(2), p.OtherPod(0))...)
			want.Arrivals = append(want.Arrivals, hairpin(ports(8080, p.Pod(1))...).Arrivals...)
			w.sees(t, itself, at(p.VIP(0), proto, 80), want)
		})
	}
}

func testPodKeepsAddress(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", matrixService(p, "")...)
		for i := range pods {
			if i == 1 {
				continue // the endpoint itself
			}
			pod := oracle.Packet{From: oracle.Pod, Src: p.Pod(i)}
			w.sees(t, pod, at(p.VIP(0), model.TCP, 80), w.arriving(pod, ports(8080, p.Pod(1), p.OtherPod(0))...))
		}
	})
}

func testRandomPorts(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		rules := regexp.MustCompile(`(?m)[^-]\bmasquerade( .*)?$`).FindAllStringSubmatch(w.ruleset(t, p), -1)
		if len(rules) == 0 {
			t.Error("no rule masquerades")
		}
		for _, m := range rules {
			if !strings.HasPrefix(m[1], " fully-random") {
				t.Errorf("a rule says %q", m[0])
			}
		}
		w.put(t, "web.yaml", web(p), webSlice(p, p.Pod(1)))
		for _, proto := range []model.Protocol{model.TCP, model.UDP} {
			const flows = 20
			kept := 0
			for range flows {
				seen, err := w.h.Probe(at(p.VIP(0), proto, 80).from(oracle.Packet{From: oracle.Outside, Src: p.Outside()}), hosts.Patience)
				if err != nil || seen.Verdict != hosts.Answered {
					t.Fatalf("%s, %v", seen, err)
				}
				if seen.Peer.Port() == seen.Local.Port() {
					kept++
				}
			}
			// By chance 1 in 60,000 keeps its port. Without the flag all do.
			if kept > 1 {
				t.Errorf("%d of %d masqueraded %s flows kept their port", kept, flows, proto)
			}
		}
	})
}

// A table of somebody else marks every packet before us, and counts behind us which
// marks came through unharmed. It clears our bit from what it sets.
func foreignMark(family string, mark uint32) string {
	table := family + " marks"
	text := fmt.Sprintf("add table %s\ndelete table %s\nadd table %s\n", table, table, table)
	for _, name := range []string{"kept", "changed"} {
		text += fmt.Sprintf("add counter %s %s\n", table, name)
	}
	for _, hook := range []string{"prerouting", "output"} {
		text += fmt.Sprintf("add chain %s %s { type filter hook %s priority -150; }\n", table, hook, hook)
		text += fmt.Sprintf("add rule %s %s ct state new meta mark set %#x\n", table, hook, mark)
	}
	text += fmt.Sprintf("add chain %s postrouting { type filter hook postrouting priority 200; }\n", table)
	text += fmt.Sprintf("add rule %s postrouting ct state new ct status dnat meta mark %#x counter name kept\n", table, mark)
	return text + fmt.Sprintf("add rule %s postrouting ct state new ct status dnat meta mark != %#x counter name changed\n", table, mark)
}

func testMark(t *testing.T, w *world) { w.marked(t, 14) }

func testMarkAtEitherEnd(t *testing.T, w *world) {
	for _, bit := range []int{0, 31} {
		t.Run(fmt.Sprintf("bit %d", bit), func(t *testing.T) {
			w.restart(t, detectBoth("--masquerade-bit", fmt.Sprint(bit))...)
			w.marked(t, bit)
		})
	}
}

// marked checks that all other bits survive, on masqueraded flows and on others.
func (w *world) marked(t *testing.T, bit int) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", matrixService(p, "")...)
		rule := fmt.Sprintf("mark set mark or %#x", uint32(1)<<bit)
		if text := w.ruleset(t, p); !strings.Contains(strings.ReplaceAll(text, "meta mark", "mark"), rule) && !strings.Contains(text, fmt.Sprintf("| 0x%08x", uint32(1)<<bit)) {
			t.Errorf("no rule says %q:\n%s", rule, text)
		}
		script(t, w.h.Node, foreignMark(nftFamily(p), ^(uint32(1)<<bit)))
		w.matrix(t, p, [3]bool{oracle.Node: true, oracle.Outside: true})
		counters := w.h.Node.Run(t, "nft", "list", "counters", "table", nftFamily(p), "marks")
		script(t, w.h.Node, fmt.Sprintf("delete table %s marks\n", nftFamily(p)))
		found := regexp.MustCompile(`counter (kept|changed) \{\s*packets (\d+)`).FindAllStringSubmatch(counters, -1)
		if len(found) != 2 {
			t.Fatalf("no counters in %s", counters)
		}
		for _, c := range found {
			if (c[1] == "changed") != (c[2] == "0") {
				t.Errorf("%s packets left with their mark %s", c[2], c[1])
			}
		}
	})
}

func testSpread(t *testing.T, w *world) {
	const connects = 400
	each(t, func(t *testing.T, p addr.Plan) {
		all := []netip.Addr{p.Pod(1), p.Pod(2), p.OtherPod(0)}
		for n := 1; n <= len(all); n++ {
			w.put(t, "web.yaml", web(p), webSlice(p, all[:n]...))
			reached := map[netip.AddrPort]int{}
			for range connects {
				seen, err := w.h.Probe(at(p.VIP(0), model.TCP, 80).from(hosts.Clients(p)[0]), hosts.Patience)
				if err != nil || seen.Verdict != hosts.Answered {
					t.Fatalf("%s, %v", seen, err)
				}
				reached[seen.Endpoint]++
			}
			// Within a third of the even share: more than 6 standard deviations for 2,
			// 4.7 for 3.
			share := connects / n
			for _, e := range ports(8080, all[:n]...) {
				if got := reached[e]; got < share*2/3 || got > share*4/3+1 {
					t.Errorf("%s has %d of %d connections, want about %d", e, got, connects, share)
				}
			}
			if len(reached) != n {
				t.Errorf("reached %v, want %d endpoints", reached, n)
			}
		}
	})
}

func testNode(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", web(p), webSlice(p, p.Pod(1), p.OtherPod(0), p.Node()))
		// The zero address: the kernel chooses.
		for _, src := range []netip.Addr{{}, p.Node(), p.NodeBetween(), p.PodGateway(0)} {
			client := oracle.Packet{From: oracle.Node, Src: src}
			for _, proto := range []model.Protocol{model.TCP, model.UDP} {
				want := w.arriving(client, ports(8080, p.Pod(1), p.OtherPod(0), p.Node())...)
				for i := range want.Arrivals {
					// The node's end of a pod's link is in the pods' range: a pod's, for the rules.
					want.Arrivals[i].Masqueraded = !p.ClusterCIDR.Contains(src)
				}
				w.sees(t, client, at(p.VIP(0), proto, 80), want)
			}
		}
	})
}

func testHostNetwork(t *testing.T, w *world) {
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", web(p), webSlice(p, p.Node()))
		w.reached(t, p, at(p.VIP(0), model.TCP, 80), ports(8080, p.Node())...)
		w.reached(t, p, at(p.VIP(0), model.UDP, 80), ports(8080, p.Node())...)
	})
}
