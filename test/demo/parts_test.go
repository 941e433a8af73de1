package main

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestScreenCountsClaims(t *testing.T) {
	for _, c := range []struct {
		name  string
		holds []bool
		want  bool
		says  string
	}{
		{"all hold", []bool{true, true}, true, "All 2 claims held"},
		{"one does not", []bool{true, false}, false, "1 of 2 claims did not hold"},
		{"none was made", nil, false, "0 of 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			s := newScreen(&out, false)
			for _, holds := range c.holds {
				s.claim(holds, "it is so")
			}
			if got := s.end(); got != c.want || !strings.Contains(out.String(), c.says) {
				t.Errorf("got %v, want %v and %q:\n%s", got, c.want, c.says, out.String())
			}
		})
	}
}

func TestScreenUsesColourOnlyWhereWanted(t *testing.T) {
	shown := func(colour bool) string {
		var out bytes.Buffer
		s := newScreen(&out, colour)
		s.title("name", "text")
		s.scene("headline")
		s.say("words")
		s.file("name", "text\n")
		s.table([]string{"head"}, []string{"cell"})
		s.bar("pod", 1, 2)
		s.progress(1, 2)
		s.progress(2, 2)
		s.claim(true, "so")
		s.claim(false, "not so")
		s.end()
		return out.String()
	}
	if strings.ContainsAny(shown(false), "\x1b\r") {
		t.Error("colour where none is wanted")
	}
	if !strings.Contains(shown(true), "\x1b[") {
		t.Error("no colour on a terminal")
	}
}

func TestBars(t *testing.T) {
	for _, c := range []struct{ n, of, want int }{{0, 200, 0}, {100, 200, barWidth / 2}, {200, 200, barWidth}, {300, 200, barWidth}, {0, 0, 0}} {
		var out bytes.Buffer
		newScreen(&out, false).bar("pod-a", c.n, c.of)
		if got := strings.Count(out.String(), "█"); got != c.want {
			t.Errorf("%d of %d: %d filled, want %d", c.n, c.of, got, c.want)
		}
		if got := strings.Count(out.String(), "█") + strings.Count(out.String(), "░"); got != barWidth {
			t.Errorf("%d of %d: %d wide, want %d", c.n, c.of, got, barWidth)
		}
	}
}

func TestLinesBreakBetweenWords(t *testing.T) {
	if diff := cmp.Diff([]string{"one two", "three", "extraordinary"}, wrap("one two three extraordinary", 8)); diff != "" {
		t.Error(diff)
	}
	long := "    " + strings.Repeat("word ", 30)
	for i, l := range hang(long) {
		if want := "    " + strings.Repeat("    ", min(i, 1)) + "word"; len(l) > fileWidth || !strings.HasPrefix(l, want) {
			t.Errorf("got %q", l)
		}
	}
}

func TestTally(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	failed := errors.New("refused")
	one, two := newTally(), newTally()
	one.add(answer{pod: "pod-a", seen: a, took: time.Second})
	two.add(answer{pod: "pod-a", seen: b, took: 2 * time.Second, lost: true})
	two.add(answer{err: failed, took: 3 * time.Second})
	if !one.flawless() || two.flawless() {
		t.Errorf("flawless: got %v and %v, want only the first", one.flawless(), two.flawless())
	}
	one.merge(two)
	want := tally{
		requests: 3, failed: 1, lost: 1, first: failed,
		pods: map[string]int{"pod-a": 2}, seen: map[netip.Addr]int{a: 1, b: 1}, slowest: 3 * time.Second,
	}
	if diff := cmp.Diff(want, one, cmp.AllowUnexported(tally{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(errors.Is)); diff != "" {
		t.Error(diff)
	}
	none := newTally()
	if none.flawless() {
		t.Error("no requests at all are not flawless")
	}
}

func TestOperations(t *testing.T) {
	const page = `# HELP onerule_nft_operations_total Operations.
onerule_nft_operations_total{ip_family="IPv4",operation="add"} 3
onerule_nft_operations_total{ip_family="IPv6",operation="add"} 4
onerule_nft_operations_total{ip_family="IPv4",operation="delete"} 0
onerule_nft_operations_total{ip_family="IPv4",operation="ruleset"} 1
onerule_elements{set="cluster-ips"} 9
`
	got, err := operations(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"add": 7, "delete": 0, "ruleset": 1}, got); diff != "" {
		t.Error(diff)
	}
	for name, page := range map[string]string{
		"no such metric": strings.ReplaceAll(page, "nft_operations", "operations"),
		"no number":      strings.Replace(page, "} 3", "} many", 1),
		"no operation":   strings.Replace(page, "operation=", "kind=", 1),
	} {
		if _, err := operations(page); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

const listing = `table ip onerule {
	comment "rules for Services"
	set cluster-ips {
		type ipv4_addr
		comment "ClusterIPs in use"
		elements = { 10.96.0.1, 10.96.0.2,
			     10.96.0.3 }
	}

	chain balance-tcp {
		comment "one of the endpoints"
		jump lb-tcp
		ip daddr . tcp dport drop
	}

	chain balance-udp {
		comment "one of the endpoints"
		jump lb-udp
		ip daddr . udp dport drop
	}

	chain balance-sctp {
		jump lb-sctp
	}

	chain lb-tcp {
	}

	chain nat-output {
		type nat hook output priority -110; policy accept;
		jump services
	}
}
`

func TestShorten(t *testing.T) {
	const want = `set cluster-ips   3 elements   ClusterIPs in use   
# one of the endpoints
chain balance-tcp, balance-udp {
    jump lb-tcp
    ip daddr . tcp dport drop
}
chain balance-sctp {
    jump lb-sctp
}
chain nat-output {
    type nat hook output priority -110; policy accept;
    jump services
}
chains without rules: lb-tcp
`
	if diff := cmp.Diff(want, shorten(listing, map[string]int{"cluster-ips": 3})); diff != "" {
		t.Error(diff)
	}
}

func TestParseSizes(t *testing.T) {
	got, err := parseSizes([]byte(`{"nftables": [{"metainfo": {}}, {"table": {"name": "onerule"}},
		{"set": {"name": "cluster-ips", "elem": ["10.96.0.1", {"elem": {"val": "10.96.0.2"}}]}},
		{"set": {"name": "hairpins"}},
		{"map": {"name": "service-ips", "elem": [[{"concat": []}, {"goto": {}}]]}},
		{"chain": {"name": "services"}},
		{"rule": {"chain": "services", "handle": 1}}, {"rule": {"chain": "services", "handle": 2}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := sizes{rules: 2, chains: 1, sets: map[string]int{"cluster-ips": 2, "hairpins": 0, "service-ips": 1}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(sizes{})); diff != "" {
		t.Error(diff)
	}
	if got.elements() != 3 {
		t.Errorf("got %d elements, want 3", got.elements())
	}
	if _, err := parseSizes([]byte("table ip onerule")); err == nil {
		t.Error("no error for text")
	}
}

// TestKubeProxyLayout holds the computation to what nft listed of the IPv4 table of a
// running kube-proxy v1.37.2, anonymous maps included.
func TestKubeProxyLayout(t *testing.T) {
	for _, c := range []struct {
		name                string
		services, endpoints int
		affinity            bool
		want                layout
	}{
		{"no endpoints at all", 1, 0, false, layout{22, 15, 8}},
		{"1 Service of 2", 1, 2, false, layout{23, 16, 9}},
		{"10 Services of 1", 10, 1, false, layout{32, 25, 8}},
		{"1,001 Services of 2", 1001, 2, false, layout{1023, 1016, 1009}},
		{"3 Services of 2 with affinity", 3, 2, true, layout{43, 24, 17}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := kubeProxyFixed().plus(kubeProxyPort(c.endpoints, c.affinity), c.services); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}
