package nft_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/nft"
	"onerule/test/netns"
)

// What netlink writes is what nft would write for the text of the same changes.
func TestNetlinkWritesWhatTheTextSays(t *testing.T) {
	r := seeded(t, 2)
	each(t, func(t *testing.T, family nft.Family) {
		byNetlink, byText := netns.New(t, "netlink"), netns.New(t, "text")
		p, q := program(t, byNetlink, config(family)), program(t, byText, config(family))
		load(t, byNetlink, p, everyCount(family))
		load(t, byText, q, everyCount(family))
		have := everyCount(family)
		for range 10 {
			want := nft.Settle(have, randomWorld(r, family))
			script := nft.Diff(have, want).Text(family)
			load(t, byText, q, onlyRules(have, want))
			byText.Run(t, "nft", "-f", file(t, script))
			load(t, byNetlink, p, want)
			if diff := cmp.Diff(sorted(listing(t, byText, family)), sorted(listing(t, byNetlink, family))); diff != "" {
				t.Fatalf("after\n%s\nthe tables differ (-text +netlink): %s", script, diff)
			}
			have = want
		}
	})
}

// onlyRules gives what has the elements of one state and the affinities of both.
func onlyRules(elements, rules nft.State) nft.State {
	s := copyOf(elements)
	maps.Copy(s.Affinities, rules.Affinities)
	return s
}

// everyCount uses all numbers of endpoints and affinities that randomWorld has, so that
// rules for them are in.
func everyCount(family nft.Family) nft.State {
	s := nft.NewState()
	for _, p := range nft.Protocols() {
		for n := range 7 {
			list := endpoints(family, 0, n)
			all := nft.Entry{External: true, Local: true}
			s.Set(nft.Frontend{Addr: vip(family, 100+n), Protocol: p.Number, Port: 80}, nft.Route{Entry: all, Endpoints: list, Local: list})
			all.NodePort = true
			s.Set(nft.Frontend{Protocol: p.Number, Port: uint16(31000 + n)}, nft.Route{Entry: all, Endpoints: list, Local: list})
		}
	}
	return s
}

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "script.nft")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// sorted splits a listing in elements and sorts them: the order within a set is the
// kernel's.
func sorted(listing string) []string {
	words := strings.FieldsFunc(listing, func(r rune) bool { return r == ',' || r == '\n' })
	var list []string
	for _, w := range words {
		w = strings.TrimPrefix(strings.Trim(w, " \t}"), "elements = { ")
		list = append(list, strings.TrimSpace(w))
	}
	// The rules for counts stand in the order of their use: compare as a set.
	seen := map[string]int{}
	for _, w := range list {
		seen[w]++
	}
	list = list[:0]
	for w, n := range seen {
		list = append(list, fmt.Sprintf("%s x%d", w, n))
	}
	slices.Sort(list)
	return list
}

// I6: a restart with unchanged input writes nothing, and another skeleton replaces
// the rules in one transaction and no element.
func TestI6RestartWritesNothing(t *testing.T) {
	r := seeded(t, 3)
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		want := randomWorld(r, family)
		load(t, ns, program(t, ns, config(family)), want)
		before := listing(t, ns, family)
		done := load(t, ns, program(t, ns, config(family)), shuffled(r, want))
		if done.Transactions != 0 || done.Listings == 0 {
			t.Errorf("a restart did %+v, want listings and nothing else", done)
		}
		if diff := cmp.Diff(before, listing(t, ns, family)); diff != "" {
			t.Errorf("a restart changed the table: %s", diff)
		}

		other := config(family)
		other.MasqueradeBit = 20
		done = load(t, ns, program(t, ns, other), want)
		if done.Transactions != 2 || done.Rulesets != 1 || done.Added+done.Deleted != 0 {
			t.Errorf("another skeleton did %+v, want one transaction of rules and one for their seal", done)
		}
		after := listing(t, ns, family)
		if !strings.Contains(after, "0x00100000") || strings.Contains(after, "0x00004000") {
			t.Errorf("the mark is not the new one:\n%s", after)
		}
		done = load(t, ns, program(t, ns, other), want)
		if done.Transactions != 0 {
			t.Errorf("a restart after that did %+v, want nothing", done)
		}
	})
}

// I5: a steady state writes what changed and lists nothing; a failed write makes the
// state unknown, and the next load finds it again.
func TestI5UpdatesListNothingAndFailuresAreHealed(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		p := program(t, ns, config(family))
		f := web(family, 3)
		want := world(family, 20, 3)
		if err := p.Update(context.Background(), frontends(f), want); !errors.Is(err, nft.ErrUnknown) {
			t.Errorf("an update before the first load gives %v, want %v", err, nft.ErrUnknown)
		}
		load(t, ns, p, copyOf(want))

		balance(want, f, endpoints(family, 500, 3))
		done := update(t, ns, p, frontends(f), want)
		if want := (nft.Operations{Transactions: 1, Added: 3, Deleted: 3}); done != want {
			t.Errorf("an update did %+v, want %+v", done, want)
		}
		if done := update(t, ns, p, frontends(f), want); done != (nft.Operations{}) {
			t.Errorf("the same update again did %+v, want nothing", done)
		}

		ns.Run(t, "nft", "flush", "map", family.String(), "onerule", "endpoints-tcp")
		balance(want, f, endpoints(family, 600, 2))
		do(t, ns, func() error {
			if err := p.Update(context.Background(), frontends(f), want); err == nil {
				t.Error("an update that deletes what is not there succeeded")
			}
			return nil
		})
		if p.Known() {
			t.Error("the state counts as known after a failed write")
		}
		load(t, ns, p, want)
		if got := elements(t, ns, family, "set", "lb-tcp-2"); got != fmt.Sprintf("%s . 80", f.Addr) {
			t.Errorf("got frontends with two endpoints %q", got)
		}
	})
}

// I1: chains, rules and sets do not depend on the number of Services or endpoints.
func TestI1RulesDoNotDependOnServices(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		var shapes []string
		for _, services := range []int{10, 5000} {
			ns := netns.New(t, "node")
			load(t, ns, program(t, ns, config(family)), world(family, services, 3))
			// --terse leaves elements out: what remains is all that is no element.
			shapes = append(shapes, ns.Run(t, "nft", "-s", "-y", "--terse", "list", "ruleset"))
			if got := strings.Count(elements(t, ns, family, "map", "service-ips"), ":"); family == nft.IPv4 && got != services {
				t.Errorf("got %d frontends, want %d", got, services)
			}
		}
		if diff := cmp.Diff(shapes[0], shapes[1]); diff != "" {
			t.Errorf("tables at 10 and 5,000 services differ in more than elements: %s", diff)
		}
	})
}

// Rules for a number of endpoints come with its first use, and go some time after its
// last.
func TestRulesForCountsComeAndGo(t *testing.T) {
	ns := netns.New(t, "node")
	p := program(t, ns, config(nft.IPv4))
	want := world(nft.IPv4, 5, 3)
	load(t, ns, p, copyOf(want))
	f := web(nft.IPv4, 0)
	balance(want, f, endpoints(nft.IPv4, 0, 4))
	if done := update(t, ns, p, frontends(f), want); done.Rulesets != 1 {
		t.Errorf("the first use of a number did %+v, want one ruleset", done)
	}
	if got := elements(t, ns, nft.IPv4, "set", "lb-tcp-4"); got != "10.96.0.0 . 80" {
		t.Errorf("got frontends with four endpoints %q", got)
	}
	if got := rulesFor(t, ns); got != "3 4" {
		t.Errorf("got rules for %q, want the most frequent number first", got)
	}
	balance(want, f, endpoints(nft.IPv4, 0, 3))
	if done := update(t, ns, p, frontends(f), want); done.Rulesets != 0 {
		t.Errorf("the last use of a number did %+v, want no ruleset", done)
	}
	for _, c := range []struct {
		after time.Duration
		want  int
		rules string
	}{{0, 0, "3 4"}, {59 * time.Second, 0, "3 4"}, {60 * time.Second, 1, "3"}, {time.Hour, 0, "3"}} {
		if n := retire(t, ns, p, c.after, time.Minute); n != c.want {
			t.Errorf("after %s %d numbers went, want %d", c.after, n, c.want)
		}
		if got := rulesFor(t, ns); got != c.rules {
			t.Errorf("after %s: got rules for %q, want %q", c.after, got, c.rules)
		}
	}
	balance(want, f, endpoints(nft.IPv4, 0, 4))
	if done := update(t, ns, p, frontends(f), want); done.Rulesets != 1 {
		t.Errorf("the first use after that did %+v, want one ruleset", done)
	}
}

// retire runs the tick, some time after the first one.
func retire(t *testing.T, ns *netns.NS, p *nft.Program, after, linger time.Duration) (n int) {
	t.Helper()
	do(t, ns, func() (err error) {
		n, err = p.Retire(context.Background(), time.Unix(1, 0).Add(after), linger)
		return err
	})
	return n
}

func rulesFor(t *testing.T, ns *netns.NS) string {
	t.Helper()
	var counts []string
	for line := range strings.Lines(ns.Run(t, "nft", "list", "chain", "ip", "onerule", "lb-tcp")) {
		if _, n, ok := strings.Cut(strings.TrimSpace(line), "goto lb-tcp-"); ok {
			counts = append(counts, n)
		}
	}
	return strings.Join(counts, " ")
}

// People save rulesets with nft list ruleset: what it prints must load again.
func TestListedRulesetLoadsAgain(t *testing.T) {
	r := seeded(t, 4)
	ns, other := netns.New(t, "node"), netns.New(t, "other")
	for _, family := range families() {
		p := program(t, ns, config(family))
		load(t, ns, p, everyCount(family))
		load(t, ns, p, randomWorld(r, family))
	}
	saved := ns.Run(t, "nft", "list", "ruleset")
	other.Run(t, "nft", "-f", file(t, saved))
	if diff := cmp.Diff(sorted(saved), sorted(other.Run(t, "nft", "list", "ruleset"))); diff != "" {
		t.Errorf("the ruleset that was loaded again differs (-saved +loaded): %s", diff)
	}
}

// On a cold start what the cluster itself needs is served before the rest is in, and
// every transaction is bounded.
func TestColdStartIsBounded(t *testing.T) {
	ns := netns.New(t, "node")
	p := program(t, ns, config(nft.IPv4))
	want := world(nft.IPv4, 5000, 10)
	ctx := context.Background()
	before := p.Done()
	do(t, ns, func() error { return p.Load(ctx, want, frontends(web(nft.IPv4, 4242))) })
	done := p.Done()
	elements := done.Added - before.Added
	if elements != 5000*13 {
		t.Errorf("got %d elements, want %d", elements, 5000*13)
	}
	// Three runs of nft (rules, counts, hooks), one transaction for what comes first,
	// the rest in transactions of 8,000, and the seal.
	if done.Rulesets != 3 || done.Transactions != 3+1+10+1 {
		t.Errorf("got %+v, want 3 rulesets in 15 transactions", done)
	}
	if got := len(ns.Run(t, "nft", "list", "chain", "ip", "onerule", "nat-prerouting")); got == 0 {
		t.Error("the base chain is not there")
	}
}

func TestRangesAreReadAsTheyWereWritten(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		bits := 32
		if family == nft.IPv6 {
			bits = 128
		}
		all := netip.PrefixFrom(ranges(family, 16, 1)[0].Addr(), 0).Masked()
		for _, list := range [][]netip.Prefix{
			{all}, ranges(family, 16, 1), ranges(family, 16, 5),
			{netip.PrefixFrom(vip(family, 1), bits)},
			{netip.PrefixFrom(vip(family, 1), bits), netip.PrefixFrom(vip(family, 2), bits-1)},
			nil,
		} {
			s := nft.NewState()
			if list != nil {
				s.Ranges[nft.ServiceCIDRs] = list
			}
			load(t, ns, program(t, ns, config(family)), s)
			if done := load(t, ns, program(t, ns, config(family)), s); done.Transactions != 0 {
				t.Errorf("%v: a restart did %+v, want nothing", list, done)
			}
		}
	})
}
