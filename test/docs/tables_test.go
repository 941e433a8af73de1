package docs_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"onerule/nft"
	"onerule/nft/guard"
)

// Objects are what our tables have, in both families: names of tables, chains, sets and maps,
// counters.
type objects struct{ tables, chains, sets, counters map[string]bool }

// vxlan is the port of VXLAN unless a flag says another.
const vxlan = 8472

// ours gives all of them. Names with a number of endpoints are there for 1 to 3, those of a
// service port with session affinity with ID in the place of its number.
func ours(t *testing.T) objects {
	t.Helper()
	o := objects{map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}}
	for _, f := range []nft.Family{nft.IPv4, nft.IPv6} {
		o.services(f)
		o.tables[f.String()+" "+guard.TableName] = true
		o.text(guard.Text(f, vxlan))
	}
	o.text(readFile(t, filepath.Join(root, "nft", "hostport", "testdata", "tables.nft")))
	return o
}

// services adds the table of Services.
func (o objects) services(f nft.Family) {
	o.tables[f.String()+" "+nft.TableName] = true
	s := nft.NewSkeleton(nft.Config{Family: f, LocalhostNodePorts: true})
	for _, m := range nft.SlotMaps() {
		for _, p := range nft.Protocols() {
			s.Chains = append(s.Chains, nft.Counts(f, m, p.Number, []int{1, 2, 3})...)
			for n := range 3 {
				s.Sets = append(s.Sets, nft.CountSet(f, m, p.Number, n+1))
			}
		}
	}
	for _, p := range nft.Protocols() {
		a := nft.Affinity{ID: "ID", Protocol: p.Number, Seconds: 10800, Local: true}
		s.Chains, s.Sets = append(s.Chains, a.Chains(f)...), append(s.Sets, a.Sets(f)...)
	}
	for _, c := range s.Chains {
		o.chains[c.Name] = true
	}
	for _, set := range s.Sets {
		o.sets[set.Name] = true
	}
	for _, c := range s.Counters {
		o.counters[c.Name] = true
	}
	o.counters[nft.PinsFullPrefix+"ID"] = true
}

// text adds what stands in the words of nft.
func (o objects) text(text string) {
	kinds := map[string]map[string]bool{"table": o.tables, "chain": o.chains, "set": o.sets, "map": o.sets, "counter": o.counters}
	for _, found := range regexp.MustCompile(`(?m)^\s*(table|chain|set|map|counter) ([a-z0-9 -]+) \{`).FindAllStringSubmatch(text, -1) {
		kinds[found[1]][found[2]] = true
	}
	// Whose names end with a digest.
	o.chains["skeleton-…"], o.chains["rules-…"] = true, true
}

// has says whether anything has a name. One that ends with an ellipsis or a dash stands for
// those that begin so.
func (o objects) has(name string) bool {
	for _, names := range []map[string]bool{o.tables, o.chains, o.sets, o.counters} {
		if names[name] {
			return true
		}
		for full := range names {
			if strings.HasSuffix(name, "-") && strings.HasPrefix(full, name) {
				return true
			}
		}
	}
	return false
}

// wrong says what a line in the words of nft names that there is not.
func (o objects) wrong(text string) (wrong []string) {
	for _, kind := range []struct {
		pattern string
		known   map[string]bool
	}{
		{`@([a-z][\w-]+)`, o.sets},
		{`^chain ([\w-]+) \{`, o.chains},
		{`\b(?:goto|jump) ([a-z][\w-]+)`, o.chains},
		{`\bcounter name "([\w-]+)"`, o.counters},
		{`^(ip6? onerule[\w-]*)`, o.tables},
		{`^nft .*\btable (ip6? \S+)`, o.tables},
		{`^nft .*\b(?:map|set|element) (?:ip6? onerule )?([\w-]+)`, o.sets},
		{`^nft .*\bchain (?:ip6? onerule )?([\w-]+)`, o.chains},
	} {
		for _, found := range regexp.MustCompile(kind.pattern).FindAllStringSubmatch(text, -1) {
			if !kind.known[found[1]] {
				wrong = append(wrong, "the tables have no "+found[1])
			}
		}
	}
	return wrong
}

func TestLinesOfNftAreRead(t *testing.T) {
	o := ours(t)
	for text, want := range map[string]int{
		`ip daddr . meta l4proto . th dport vmap @service-ips`:           0,
		`ip daddr @cluster-ips goto owned`:                               0,
		`nft list map ip onerule service-ips`:                            0,
		`chain lb-tcp-2 {`:                                               0,
		`nft list table ip6 onerule-guard`:                               0,
		`ip daddr @cluster-addresses goto owner`:                         2,
		`counter name "refused-nothing" drop`:                            1,
		`nft get element ip onerule services '{ 10.96.0.1 . tcp . 80 }'`: 1,
		`nft list counters table ip one`:                                 1,
		`nft list counters table ip onerules`:                            1,
		`ip onerule-nat`:                                                 1,
		`chain nat-forward {`:                                            1,
	} {
		if got := o.wrong(text); len(got) != want {
			t.Errorf("%s: got %q, want %d faults", text, got, want)
		}
	}
	for name, want := range map[string]bool{"ip onerule": true, "sticky-ID": true, "lb-": true, "lb-tcp-3": true, "hostports-any": true, "rules-…": true, "lb-icmp": false, "xy-": false} {
		if got := o.has(name); got != want {
			t.Errorf("%s: got %t, want %t", name, got, want)
		}
	}
}

// counts says whether a counter has this reason.
func (o objects) counts(reason string) bool {
	return o.counters["refused-"+reason] || o.counters["dropped-"+reason] || o.counters[reason]
}
