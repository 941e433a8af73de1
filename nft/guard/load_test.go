package guard_test

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/nft"
	"onerule/nft/guard"
	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/wired"
)

func set(t *testing.T, ns *netns.NS, p *guard.Program, want guard.Ranges) {
	t.Helper()
	wired.Do(t, ns, func() error { return p.Set(want) })
}

func listing(t *testing.T, ns *netns.NS, f nft.Family) string {
	t.Helper()
	return ns.Run(t, "nft", "list", "table", f.String(), guard.TableName)
}

func TestARestartWritesNothing(t *testing.T) {
	each(t, func(t *testing.T, f nft.Family, p addr.Plan) {
		ns := netns.New(t, "node")
		if found := load(t, ns, open(t, ns, f), ranges(p)); !found.Table {
			t.Errorf("the first load found %+v", found)
		}
		program := open(t, ns, f)
		n := wired.Commits(t, ns, func() {
			if found := load(t, ns, program, ranges(p)); !found.Nothing() {
				t.Errorf("the second load found %+v", found)
			}
			set(t, ns, program, ranges(p))
		})
		if n != 0 {
			t.Errorf("%d transactions, want none", n)
		}
	})
}

func TestRangesAreMergedAndWrittenInOneTransaction(t *testing.T) {
	prefixes := func(words string) (list []netip.Prefix) {
		for _, w := range strings.Fields(words) {
			list = append(list, netip.MustParsePrefix(w))
		}
		return list
	}
	for _, c := range []struct {
		name, pods, cluster string
		family              nft.Family
		want                string // of cluster-ranges
	}{
		{"none", "", "", nft.IPv4, ""},
		{"overlapping ones", "", "10.0.0.0/8 10.1.0.0/16 10.0.0.0/8", nft.IPv4, "10.0.0.0/8"},
		{"adjacent ones", "", "10.1.1.0/24 10.1.0.0/24 10.1.2.0/23", nft.IPv4, "10.1.0.0/22"},
		{"pods of this node", "10.1.1.0/24", "10.1.4.0/24", nft.IPv4, "10.1.1.0/24, 10.1.4.0/24"},
		{"bits behind the mask", "", "10.1.1.7/24", nft.IPv4, "10.1.1.0/24"},
		{"up to the last address", "", "240.0.0.0/4 10.0.0.0/8", nft.IPv4, "10.0.0.0/8, 240.0.0.0/4"},
		{"everything", "", "0.0.0.0/0 10.0.0.0/8", nft.IPv4, "0.0.0.0/0"},
		{"both families", "fd00:1::/64", "10.1.0.0/16 fd00:1:0:1::/64", nft.IPv6, "fd00:1::/63"},
		{"single addresses", "", "10.1.0.1/32 10.1.0.3/32", nft.IPv4, "10.1.0.1, 10.1.0.3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := netns.New(t, "node")
			program := open(t, ns, c.family)
			load(t, ns, program, guard.Ranges{})
			want := guard.Ranges{Pods: prefixes(c.pods), Cluster: prefixes(c.cluster)}
			if n := wired.Commits(t, ns, func() { set(t, ns, program, want) }); n > 1 {
				t.Errorf("%d transactions, want one", n)
			}
			out := ns.Run(t, "nft", "list", "set", c.family.String(), guard.TableName, "cluster-ranges")
			_, got, _ := strings.Cut(out, "elements = {")
			got, _, _ = strings.Cut(got, "}")
			if diff := cmp.Diff(c.want, strings.Join(strings.Fields(got), " ")); diff != "" {
				t.Errorf("elements (-want +got):\n%s", diff)
			}
			if found := load(t, ns, open(t, ns, c.family), want); !found.Nothing() {
				t.Errorf("read back: %+v", found)
			}
		})
	}
}

func TestManyRangesFitIntoATransaction(t *testing.T) {
	each(t, func(t *testing.T, f nft.Family, p addr.Plan) {
		ns := netns.New(t, "node")
		program := open(t, ns, f)
		load(t, ns, program, guard.Ranges{})
		var want guard.Ranges
		for i := range 5000 { // every second one of a plan for 10,000 nodes
			a := addr.Nth(netip.MustParsePrefix("10.0.0.0/8"), i*512)
			bits := 24
			if f == nft.IPv6 {
				a, bits = addr.Nth(p.ClusterCIDR, i*512), 120
			}
			want.Cluster = append(want.Cluster, netip.PrefixFrom(a, bits))
		}
		if n := wired.Commits(t, ns, func() { set(t, ns, program, want) }); n != 1 {
			t.Errorf("%d transactions, want one", n)
		}
		if found := load(t, ns, open(t, ns, f), want); !found.Nothing() {
			t.Errorf("read back: %+v", found)
		}
		t.Run("also in the first load", func(t *testing.T) {
			fresh := netns.New(t, "node")
			load(t, fresh, open(t, fresh, f), want)
			if found := load(t, fresh, open(t, fresh, f), want); !found.Nothing() {
				t.Errorf("read back: %+v", found)
			}
		})
	})
}

func TestD13_WhatOthersChangeIsPutRight(t *testing.T) {
	for _, c := range []struct {
		name, change string // %s is the table
		found        guard.Repair
	}{
		{"the ruleset flushed", "flush ruleset", guard.Repair{Table: true}},
		{"the table deleted", "delete table %s", guard.Repair{Table: true}},
		{"its rules flushed", "flush table %s", guard.Repair{Rules: true}},
		{"a chain flushed", "flush chain %s from-pods", guard.Repair{Rules: true}},
		{"a rule added", "insert rule %s from-pods accept", guard.Repair{Rules: true}},
		{"a chain added", "add chain %s other { type filter hook input priority 0; policy drop; }", guard.Repair{Rules: true}},
		{"a policy changed", "chain %s forward { policy drop; }", guard.Repair{Rules: true}},
		{"the table put to sleep", "add table %s { flags dormant; }", guard.Repair{Rules: true}},
		{"a set flushed", "flush set %s pod-ranges", guard.Repair{Ranges: true}},
		{"the set of all pods flushed", "flush set %s cluster-pods", guard.Repair{Ranges: true}},
		{"a range added", "add element %s cluster-ranges { FIRST }", guard.Repair{Ranges: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			each(t, func(t *testing.T, f nft.Family, p addr.Plan) {
				ns := netns.New(t, "node")
				program := open(t, ns, f)
				load(t, ns, program, ranges(p))
				want := listing(t, ns, f)
				change := strings.ReplaceAll(c.change, "%s", f.String()+" "+guard.TableName)
				ns.Run(t, "nft", strings.ReplaceAll(change, "FIRST", p.External.Addr().String()))
				program.Doubt()
				if err := program.Set(ranges(p)); !errors.Is(err, nft.ErrUnknown) {
					t.Errorf("set in doubt: %v", err)
				}
				if found := load(t, ns, program, ranges(p)); found != c.found || found.String() == "" {
					t.Errorf("found %+v %q, want %+v", found, found, c.found)
				}
				if diff := cmp.Diff(want, listing(t, ns, f)); diff != "" {
					t.Errorf("afterwards (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// What nft lists it takes back, and it is the text that we send.
func TestTheTableIsWhatItsTextSays(t *testing.T) {
	each(t, func(t *testing.T, f nft.Family, p addr.Plan) {
		ns := netns.New(t, "node")
		want, err := os.ReadFile("testdata/" + f.String() + ".nft")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), guard.Text(f, vxlanPort)); diff != "" {
			t.Errorf("text (-want +got):\n%s", diff)
		}
		load(t, ns, open(t, ns, f), ranges(p))
		saved := listing(t, ns, f)
		ns.Run(t, "nft", "flush ruleset")
		ns.Run(t, "nft", saved)
		if diff := cmp.Diff(saved, listing(t, ns, f)); diff != "" {
			t.Errorf("loaded again (-want +got):\n%s", diff)
		}
		t.Run("and is missed when it goes", func(t *testing.T) {
			program := open(t, ns, f)
			wired.Do(t, ns, func() error { return program.Remove() })
			if out := ns.Run(t, "nft", "list", "tables"); strings.Contains(out, guard.TableName) {
				t.Errorf("after Remove: %s", out)
			}
			if n := len(dropped(t, ns, program)); n != 0 {
				t.Errorf("%d counters of no table", n)
			}
		})
		t.Run("D43 masquerade takes ports at random", func(t *testing.T) {
			if strings.Count(saved, "masquerade") != 2 || strings.Count(saved, " masquerade fully-random") != 2 {
				t.Errorf("masquerade:\n%s", saved)
			}
		})
	})
}

var _ guard.Watcher = nft.TableMonitor{}

// A watched records which commits the program says are its own.
type watched struct {
	ports  map[uint32]bool
	ended  []bool
	inside int
}

func (w *watched) Own(port uint32) func() {
	w.ports[port] = true
	return func() { delete(w.ports, port) }
}

func (w *watched) Expect(nft.Family) func(bool) {
	w.inside++
	return func(committed bool) { w.inside--; w.ended = append(w.ended, committed) }
}

func TestWatchersKnowEachCommit(t *testing.T) {
	ns := netns.New(t, "node")
	p := addr.IPv4()
	program := open(t, ns, nft.IPv4)
	w := &watched{ports: map[uint32]bool{}}
	program.WatchedBy(w)
	if len(w.ports) != 1 {
		t.Errorf("%d ports, want one", len(w.ports))
	}
	load(t, ns, program, ranges(p))
	load(t, ns, program, ranges(p))
	if diff := cmp.Diff([]bool{true}, w.ended); diff != "" || w.inside != 0 {
		t.Errorf("runs of nft (-want +got):\n%s, %d not ended", diff, w.inside)
	}
	ns.Run(t, "nft", "flush ruleset")
	if err := ns.Do(func() error { return program.Set(guard.Ranges{}) }); err == nil || program.Known() {
		t.Errorf("set without a table: %v, known %v", err, program.Known())
	}
	if len(w.ports) != 1 {
		t.Errorf("%d ports after an error, want one", len(w.ports))
	}
	load(t, ns, program, ranges(p))
	if err := program.Close(); err != nil || len(w.ports) != 0 {
		t.Errorf("close: %v, %d ports left", err, len(w.ports))
	}
	if diff := cmp.Diff([]string{"onerule-guard"}, guard.Names()); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}
