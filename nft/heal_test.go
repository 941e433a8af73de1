package nft_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/nft"
	"onerule/test/netns"
	"onerule/test/rig"
)

// damages are what others, or another version of ours, may have left of our table. $F is
// the family, $V the chain with the version, $VIP a ClusterIP in use.
func damages() map[string]string {
	const otherVersion = "delete chain $F onerule $V\nadd chain $F onerule skeleton-0000\n"
	return map[string]string{
		"the table is gone":              "delete table $F onerule",
		"everything is gone":             "flush ruleset",
		"all rules are gone":             "flush table $F onerule",
		"a chain is empty":               "flush chain $F onerule balance-tcp",
		"a base chain is gone":           "flush chain $F onerule nat-prerouting\ndelete chain $F onerule nat-prerouting",
		"a map is empty":                 "flush map $F onerule service-ips",
		"a set of a count is empty":      "flush set $F onerule lb-tcp-3",
		"a range set is empty":           "flush set $F onerule service-cidrs",
		"an endpoint is gone":            "delete element $F onerule endpoints-tcp { $VIP . 80 . 1 }",
		"an endpoint too many":           "add element $F onerule endpoints-tcp { $VIP . 80 . 7 : $VIP . 1 }",
		"an endpoint far behind":         "add element $F onerule endpoints-tcp { $VIP . 80 . 99999999 : $VIP . 1 }",
		"a frontend in two counts":       "add element $F onerule no-endpoints { $VIP . tcp . 80 }",
		"a hairpin of two addresses":     "add element $F onerule hairpins { $VIP . $OTHER }",
		"a verdict without a chain":      "add element $F onerule service-ips { $VIP . tcp . 81 : drop }",
		"a rule exchanged":               "flush chain $F onerule mark-for-masquerade\nadd rule $F onerule mark-for-masquerade counter accept",
		"the seal is gone":               "delete chain $F onerule $SEAL",
		"a rule too many":                "add rule $F onerule owned drop",
		"a chain too many":               "add chain $F onerule foreign\nadd rule $F onerule foreign drop",
		"a base chain too many":          "add chain $F onerule foreign { type filter hook forward priority 0; policy drop; }",
		"a set too many":                 "add set $F onerule foreign { type inet_service; }\nadd element $F onerule foreign { 80 }",
		"a map too many":                 "add map $F onerule foreign { type inet_service : verdict; }\nadd element $F onerule foreign { 80 : drop }",
		"a map to a chain too many":      "add chain $F onerule foreign\nadd map $F onerule foreign { type inet_service : verdict; }\nadd element $F onerule foreign { 80 : goto foreign }",
		"a policy that drops":            "add chain $F onerule nat-prerouting { policy drop; }",
		"a dormant table":                "add table $F onerule { flags dormant; }",
		"another priority":               "flush chain $F onerule nat-prerouting\ndelete chain $F onerule nat-prerouting\nadd chain $F onerule nat-prerouting { type nat hook prerouting priority -90; }\nadd rule $F onerule nat-prerouting jump services",
		"another hook":                   "flush chain $F onerule nat-postrouting\ndelete chain $F onerule nat-postrouting\nadd chain $F onerule nat-postrouting { type nat hook input priority 90; }\nadd rule $F onerule nat-postrouting counter",
		"a base chain that is regular":   "flush chain $F onerule nat-prerouting\ndelete chain $F onerule nat-prerouting\nadd chain $F onerule nat-prerouting\nadd rule $F onerule nat-prerouting jump services",
		"a regular chain that is hooked": "flush chain $F onerule nat-prerouting\nflush chain $F onerule nat-output\nflush chain $F onerule services\ndelete chain $F onerule services\nadd chain $F onerule services { type nat hook input priority 100; }",
		"a count without its chain":      "flush chain $F onerule lb-tcp\nflush chain $F onerule lb-tcp-3\ndelete chain $F onerule lb-tcp-3",
		"a count without its set":        "flush chain $F onerule lb-tcp\ndelete set $F onerule lb-tcp-3",
		"a set of another type":          "flush chain $F onerule masquerading\ndelete set $F onerule hairpins\nadd set $F onerule hairpins { type inet_service; }",
		"a set with a timeout":           "flush chain $F onerule services\ndelete set $F onerule cluster-ips\nadd set $F onerule cluster-ips { type $A; flags timeout; timeout 1h; }",
		"a range set without ranges":     "flush chain $F onerule services\ndelete set $F onerule service-cidrs\nadd set $F onerule service-cidrs { type $A; }",
		"another version":                otherVersion,
		"a counter too many":             "add counter $F onerule foreign",
		"a counter that is in a map":     "add counter $F onerule foreign\nadd map $F onerule foreigners { type $A : counter; }\nadd element $F onerule foreigners { $VIP : \"foreign\" }",
		"a quota":                        "add quota $F onerule foreign { over 10 mbytes }",
		"a limit named like a counter":   "add limit $F onerule dropped-source { rate 10/second }",
		"a quota that is in a rule":      "add quota $F onerule foreign { over 10 mbytes }\nadd chain $F onerule foreign\nadd rule $F onerule foreign quota name foreign drop",
		"a quota that is in a map":       "add quota $F onerule foreign { over 10 mbytes }\nadd map $F onerule foreigners { type $A : quota; }\nadd element $F onerule foreigners { $VIP : \"foreign\" }",
		"a set in a rule":                "add chain $F onerule foreign\nadd rule $F onerule foreign tcp dport { 80, 443 } counter",
		"a map in a rule":                "add chain $F onerule foreign\nadd rule $F onerule foreign tcp dport vmap { 80 : drop, 443 : accept }",
		"a map in a rule to a chain":     "add chain $F onerule foreign\nadd chain $F onerule alien\nadd rule $F onerule foreign tcp dport vmap { 80 : goto alien, 443 : accept }",
		"a set in a rule of ours":        "add rule $F onerule services tcp dport { 80, 443 } counter",
		"a map in a rule of ours":        "add rule $F onerule services tcp dport vmap { 80 : drop, 443 : accept }",
		"a verdict for all keys":         "add element $F onerule service-ips { * : drop }",
		"a chain for all keys":           "add element $F onerule service-ips { * : goto refuse }",
		"all addresses":                  "add element $F onerule cluster-ips { * }",
		"all hairpins":                   "add element $F onerule hairpins { * }",
		"all sources":                    "add element $F onerule allowed-sources { * }",
		"all members":                    "add element $F onerule members-$ID { * }",
		"all of a count":                 "add element $F onerule lb-tcp-3 { * }",
		"an endpoint for all keys":       "add element $F onerule endpoints-tcp { * : $VIP . 1 }",
		"all keys and one too many":      "add element $F onerule cluster-ips { * }\nadd element $F onerule hairpins { $VIP . $OTHER }",
		"a jump became a goto":           "delete element $F onerule nodeport-sticky { tcp . 30080 }\nadd element $F onerule nodeport-sticky { tcp . 30080 : goto sticky-$ID }",
		"a goto became a jump":           "delete element $F onerule service-ips { $VIP . tcp . 80 }\nadd element $F onerule service-ips { $VIP . tcp . 80 : jump cluster-ip-tcp }",
		"a source too many":              "add element $F onerule allowed-sources { $VIP . tcp . 80 . $OTHER }",
		"the sources are gone":           "flush set $F onerule allowed-sources",
		"a member is gone":               "flush set $F onerule members-$ID",
		"a pin chain is empty":           "flush chain $F onerule pin-$ID-tcp-60-local",
		"a sticky verdict is gone":       "flush map $F onerule nodeport-local-sticky",
		"an affinity without its pins":   "flush chain $F onerule update-$ID-60\nflush chain $F onerule sticky-$ID\ndelete map $F onerule pins-port-$ID",
		"pins that are no map of ours":   "flush chain $F onerule update-$ID-60\nflush chain $F onerule sticky-$ID\ndelete map $F onerule pins-port-$ID\nadd map $F onerule pins-port-$ID { type $A : inet_service; }",
		"another version without a set":  "flush table $F onerule\ndelete set $F onerule no-endpoints\n" + otherVersion,
		"another version with a route that we lack": "add chain $F onerule elsewhere-tcp\nadd rule $F onerule elsewhere-tcp goto balance-tcp\n" +
			"add element $F onerule service-ips { $OTHER . tcp . 90 : goto elsewhere-tcp }\n" + otherVersion,
		"another version with another route for a frontend": "add chain $F onerule elsewhere-tcp\nadd rule $F onerule elsewhere-tcp goto balance-tcp\n" +
			"delete element $F onerule service-ips { $VIP . tcp . 80 }\nadd element $F onerule service-ips { $VIP . tcp . 80 : goto elsewhere-tcp }\n" + otherVersion,
	}
}

// I5: whatever somebody did to the table, a load heals it, and the next one finds
// nothing to do.
func TestLoadHealsWhatOthersDid(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		want := world(family, 20, 3)
		want.Ranges[nft.ServiceCIDRs] = ranges(family, 16, 2)
		a := sticky(want, family)
		load(t, ns, program(t, ns, config(family)), copyOf(want))
		healthy := sorted(listing(t, ns, family))
		version := nft.NewSkeleton(config(family)).Version()
		words := strings.NewReplacer("$F", family.String(), "$VIP", vip(family, 3).String(), "$OTHER", vip(family, 4).String(),
			"$V", "skeleton-"+version, "$SEAL", sealOf(t, ns, family), "$A", addrType(family), "$ID", a.ID)
		for name, damage := range damages() {
			t.Run(name, func(t *testing.T) {
				ns.Run(t, "nft", "-f", file(t, words.Replace(damage)+"\n"))
				if cmp.Equal(healthy, sorted(tryListing(ns, family))) {
					t.Fatal("the damage left the table as it was")
				}
				load(t, ns, program(t, ns, config(family)), copyOf(want))
				if diff := cmp.Diff(healthy, sorted(tryListing(ns, family))); diff != "" {
					t.Errorf("the table is not as before (-before +after): %s", diff)
				}
				if done := load(t, ns, program(t, ns, config(family)), copyOf(want)); done.Transactions != 0 {
					t.Errorf("the next load did %+v, want nothing", done)
				}
			})
		}
	})
}

// sticky adds a service port with session affinity, at addresses and a NodePort, with
// source ranges and a Local policy.
func sticky(s nft.State, family nft.Family) nft.Affinity {
	a := nft.Affinity{ID: nft.AffinityID("ns/sticky/TCP"), Protocol: 6, Seconds: 60, Local: true}
	list := endpoints(family, 7000, 3)
	s.Pin(a, list, list[:1])
	r := nft.Route{Entry: nft.Entry{External: true, Local: true}, Endpoints: list, Local: list[:1], Affinity: a}
	s.Set(web(family, 5000), nft.Route{Endpoints: list, Affinity: a})
	r.NodePort = true
	s.Set(nft.Frontend{Protocol: 6, Port: 30080}, r)
	r.NodePort, r.Guarded, r.Sources = false, true, ranges(family, 16, 2)
	s.Set(web(family, 5001), r)
	return a
}

// sealOf gives the chain that says what the rules are.
func sealOf(t *testing.T, ns *netns.NS, family nft.Family) string {
	t.Helper()
	_, seal := digests(t, ns, family)
	return seal
}

func addrType(family nft.Family) string {
	if family == nft.IPv6 {
		return "ipv6_addr"
	}
	return "ipv4_addr"
}

// tryListing lists until two listings agree: the kernel tells an element twice while it
// makes the table of a set larger.
func tryListing(ns *netns.NS, family nft.Family) string {
	last := ""
	for range 10 {
		out, err := ns.Output("nft", "-s", "-y", "list", "table", family.String(), nft.TableName)
		if err != nil {
			out = "no table"
		}
		if out == last {
			break
		}
		last = out
	}
	return last
}

// I6: rules that gain a set write that set's elements and no others.
func TestI6RulesWithOneSetMoreWriteItsElementsOnly(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		want := world(family, 50, 3)
		for n := range 5 {
			balance(want, web(family, n), nil)
		}
		load(t, ns, program(t, ns, config(family)), copyOf(want))
		words := strings.NewReplacer("$F", family.String(), "$V", "skeleton-"+nft.NewSkeleton(config(family)).Version())
		ns.Run(t, "nft", "-f", file(t, words.Replace(damages()["another version without a set"])))
		done := load(t, ns, program(t, ns, config(family)), copyOf(want))
		if done.Added != 5 || done.Deleted != 0 || done.Rulesets != 1 || done.Afresh != 0 {
			t.Errorf("got %+v, want one ruleset and 5 elements", done)
		}
	})
}

// I6: a version that sealed the rules in another way costs that the rules are written once.
func TestI6RulesUnderASealOfAnotherVersionAreWrittenOnce(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		want := world(family, 50, 3)
		sticky(want, family)
		load(t, ns, program(t, ns, config(family)), copyOf(want))
		healthy := sorted(listing(t, ns, family))
		words := strings.NewReplacer("$F", family.String(), "$SEAL", sealOf(t, ns, family))
		ns.Run(t, "nft", "-f", file(t, words.Replace("delete chain $F onerule $SEAL\nadd chain $F onerule rules-0123456789abcdef\n")))
		done := load(t, ns, program(t, ns, config(family)), copyOf(want))
		if done.Transactions != 2 || done.Rulesets != 1 || done.Added+done.Deleted != 0 || done.Afresh != 0 {
			t.Errorf("got %+v, want one transaction of rules and one for their seal", done)
		}
		if diff := cmp.Diff(healthy, sorted(listing(t, ns, family))); diff != "" {
			t.Errorf("the table is not as before (-before +after): %s", diff)
		}
		if done := load(t, ns, program(t, ns, config(family)), copyOf(want)); done.Transactions != 0 {
			t.Errorf("the next load did %+v, want nothing", done)
		}
	})
}

// Numbers of endpoints that many frontends have come first, also if that came about
// little by little.
func TestFrequentCountsAreTriedFirst(t *testing.T) {
	ns := netns.New(t, "node")
	p := program(t, ns, config(nft.IPv4))
	load(t, ns, p, world(nft.IPv4, 1, 3))
	for n := 1; n < 30; n++ {
		want := nft.NewState()
		balance(want, web(nft.IPv4, n), endpoints(nft.IPv4, n, 1+n/25))
		update(t, ns, p, frontends(web(nft.IPv4, n)), want)
	}
	if got := rulesFor(t, ns); got != "3 1 2" {
		t.Fatalf("got rules for %q, want them in the order of their coming", got)
	}
	retire(t, ns, p, 0, 0)
	if got := rulesFor(t, ns); got != "1 2 3" {
		t.Errorf("got rules for %q, want the most frequent number first", got)
	}
	before := p.Done()
	retire(t, ns, p, 0, 0)
	if p.Done() != before {
		t.Errorf("did %+v although the order is right", p.Done())
	}
	if done := load(t, ns, program(t, ns, config(nft.IPv4)), everythingOf(30)); done.Transactions != 0 {
		t.Errorf("a restart did %+v, want nothing", done)
	}
}

func everythingOf(n int) nft.State {
	s := world(nft.IPv4, 1, 3)
	for i := 1; i < n; i++ {
		balance(s, web(nft.IPv4, i), endpoints(nft.IPv4, i, 1+i/25))
	}
	return s
}

// Large content goes in whole: it does not fit into one message.
func TestLargeContentGoesInWhole(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		want := world(family, 3, 3)
		balance(want, web(family, 1), endpoints(family, 0, 5000))
		for i := range 500 {
			balance(want, nft.Frontend{Addr: vip(family, 2), Protocol: 6, Port: uint16(1000 + i)}, endpoints(family, 100*i, 100))
		}
		var list []netip.Prefix
		for i := range 3000 {
			list = append(list, netip.PrefixFrom(vip(family, 4*i), vip(family, 0).BitLen()))
		}
		want.Ranges[nft.ServiceCIDRs] = list
		done := load(t, ns, program(t, ns, config(family)), copyOf(want))
		if size := 5000 + 500*100 + 2*3 + 2*503 + 3 + 2*3000; done.Added != size {
			t.Errorf("wrote %d elements, want %d", done.Added, size)
		}
		if done := load(t, ns, program(t, ns, config(family)), copyOf(want)); done.Transactions != 0 {
			t.Errorf("a restart did %+v, want nothing", done)
		}
	})
}

// What the kernel refuses is told in one line, whatever the number of messages.
func TestAFailedTransactionIsToldInOneLine(t *testing.T) {
	ns := netns.New(t, "node")
	p := program(t, ns, config(nft.IPv4))
	load(t, ns, p, world(nft.IPv4, 2, 3))
	ns.Run(t, "nft", "delete", "table", "ip", "onerule")
	keys, want := nft.NewKeys(), nft.NewState()
	for n := range 3000 {
		keys.Frontends[web(nft.IPv4, n)] = true
		balance(want, web(nft.IPv4, n), endpoints(nft.IPv4, n, 3))
	}
	err := ns.Do(func() error { return p.Update(t.Context(), keys, want) })
	if err == nil || fmt.Sprint(err) != "write elements of table ip onerule: netlink receive: no such file or directory" {
		t.Errorf("got %q", fmt.Sprint(err))
	}
	load(t, ns, p, world(nft.IPv4, 2, 3))
}

// What cannot be written over, and does not show beforehand, goes in the end.
func TestATableThatRefusesOurRulesIsBegunAfresh(t *testing.T) {
	ns := netns.New(t, "node")
	want := world(nft.IPv4, 20, 3)
	load(t, ns, program(t, ns, config(nft.IPv4)), copyOf(want))
	healthy := sorted(listing(t, ns, nft.IPv4))
	ns.Run(t, "nft", "-f", file(t, "flush chain ip onerule services\ndelete set ip onerule cluster-ips\nadd set ip onerule cluster-ips { type mark; }\n"))
	p := program(t, ns, config(nft.IPv4))
	for try := 1; ; try++ {
		err := ns.Do(func() error { return p.Load(t.Context(), copyOf(want), nft.NewKeys()) })
		if (err == nil) != (try == 3) {
			t.Fatalf("try %d: %v, want two refusals and then a new table", try, err)
		}
		if err == nil {
			break
		}
	}
	if n := p.Done().Afresh; n != 1 {
		t.Errorf("began afresh %d times, want once", n)
	}
	if diff := cmp.Diff(healthy, sorted(listing(t, ns, nft.IPv4))); diff != "" {
		t.Errorf("the table is not as before (-before +after): %s", diff)
	}
}

// A chain that stands in a rule of others' is deleted with it.
func TestAChainThatStandsInARuleIsHealed(t *testing.T) {
	ns := netns.New(t, "node")
	p, want := program(t, ns, config(nft.IPv4)), world(nft.IPv4, 2, 3)
	load(t, ns, p, copyOf(want))
	healthy := sorted(listing(t, ns, nft.IPv4))
	ns.Run(t, "sh", "-c", "printf 'add chain ip onerule foreign\nadd rule ip onerule foreign tcp dport 80 jump { counter; }\n' | nft -f -")
	load(t, ns, p, copyOf(want))
	if diff := cmp.Diff(healthy, sorted(listing(t, ns, nft.IPv4))); diff != "" || p.Unfinished() != nil {
		t.Errorf("unfinished %v; the table is not as before (-before +after): %s", p.Unfinished(), diff)
	}
}

// A load that can't delete what others left has brought all in: only that is tried again.
func TestALoadThatCanNotTidyIsDoneAndSaysSo(t *testing.T) {
	ns, keeps := netns.New(t, "node"), rig.KeepsForeign(t)
	p, want := program(t, ns, config(nft.IPv4)), world(nft.IPv4, 2, 3)
	load(t, ns, p, copyOf(want))
	healthy := sorted(listing(t, ns, nft.IPv4))
	ns.Run(t, "nft", "add", "chain", "ip", "onerule", "foreign")
	if err := os.WriteFile(keeps, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	load(t, ns, p, copyOf(want))
	if err := p.Unfinished(); err == nil || !p.Known() {
		t.Errorf("a load that leaves a chain of others: unfinished %v, known %v, want an error, and that it is", err, p.Known())
	}
	finish := func() error { return ns.Do(func() error { return p.Finish(t.Context()) }) }
	if err := finish(); err == nil || p.Unfinished() == nil || !p.Known() {
		t.Errorf("one that still can't: %v, unfinished %v, known %v", err, p.Unfinished(), p.Known())
	}
	if err := os.Remove(keeps); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(finish(), p.Unfinished()); err != nil {
		t.Errorf("one that can: %v", err)
	}
	if diff := cmp.Diff(healthy, sorted(listing(t, ns, nft.IPv4))); diff != "" || !p.Known() {
		t.Errorf("known %v, want it; the table is not as before (-before +after): %s", p.Known(), diff)
	}
}
