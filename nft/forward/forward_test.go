package forward_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/nft/forward"
	"onerule/nft/guard"
	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/wired"
)

func barriers(t *testing.T, ns *netns.NS) (list []string) {
	t.Helper()
	err := ns.Do(func() error {
		found, err := forward.Barriers(guard.PodLinks)
		for _, b := range found {
			list = append(list, b.String())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func chain(family, rules string) string {
	return "table " + family + " fw { chain other { counter; }; chain closed { counter; drop; }; chain pods { iifname \"one*\" accept; oifname \"one*\" accept; }; " +
		"chain passing { type filter hook forward priority 0; " + rules + " }; }"
}

// What is said of each table is what happens to a packet between two pods.
func TestD14_WhatDropsForwardedPacketsIsNamed(t *testing.T) {
	w := wired.New(t, 2)
	p := addr.IPv4()
	at := netip.AddrPortFrom(p.Pod(1), 7)
	wired.Serve(t, w.Pods[1], "pod 1", at)
	const (
		byPolicy = "chain passing of table ip fw at the forward hook drops by its policy"
		byRule   = "chain passing of table ip fw at the forward hook drops by a rule for everything"
	)
	for _, c := range []struct{ name, rules, want string }{
		{"nothing", "", ""},
		{"a policy", chain("ip", "policy drop;"), byPolicy},
		{"a policy of both families", chain("inet", "policy drop;"), strings.Replace(byPolicy, "table ip ", "table inet ", 1)},
		{"a policy that accepts", chain("ip", "policy accept; counter;"), ""},
		{"a rule for everything", chain("ip", "policy accept; ct state established accept; drop;"), byRule},
		{"a refusal of everything", chain("ip", "policy accept; counter reject with icmp type admin-prohibited;"), byRule},
		{"a rule for others", chain("ip", "policy accept; iifname \"eth9\" drop; tcp dport 99 drop; meta mark 7 drop;"), ""},
		{"another chain", chain("ip", "policy accept; counter jump closed;"), byRule},
		{"another chain for good", chain("ip", "policy accept; goto closed;"), byRule},
		{"another chain that returns", chain("ip", "policy drop; jump other;"), byPolicy},
		{"another chain for good, and then the policy", chain("ip", "policy drop; goto other;"), byPolicy},
		{"another chain for others", chain("ip", "policy accept; iifname \"eth9\" jump closed;"), ""},
		{"a return before the drop", chain("ip", "policy accept; return; drop;"), ""},
		{"an accept of everything", chain("ip", "policy drop; counter accept;"), ""},
		{"an accept of pods' links", chain("ip", "policy drop; iifname \"one*\" accept; oifname \"one*\" accept;"), ""},
		{"an accept in another chain", chain("ip", "policy drop; jump pods;"), ""},
		{"an accept after the drop", chain("ip", "policy accept; drop; jump pods;"), byRule},
		{"an accept of other links", chain("ip", "policy drop; iifname \"eth0\" accept; oifname \"eth0\" accept;"), byPolicy},
		{"at another hook", "table ip fw { chain in { type filter hook input priority 0; policy drop; }; }", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.Node.Run(t, "nft", "flush ruleset; "+c.rules)
			t.Cleanup(func() { w.Node.Run(t, "nft", "flush ruleset") })
			check(t, w, at, c.want)
		})
	}
	t.Run("our own tables are nobody else's", func(t *testing.T) {
		w.Node.Run(t, "nft", "table ip onerule-guard { chain passing { type filter hook forward priority 0; policy drop; }; }")
		if list := barriers(t, w.Node); list != nil {
			t.Errorf("barriers %q", list)
		}
		w.Node.Run(t, "nft", "flush ruleset")
	})
	t.Run("iptables", func(t *testing.T) { throughIptables(t, w, at) })
}

func check(t *testing.T, w *wired.World, at netip.AddrPort, want string) {
	t.Helper()
	if diff := cmp.Diff(want, strings.Join(barriers(t, w.Node), "\n")); diff != "" {
		t.Errorf("barriers (-want +got):\n%s", diff)
	}
	if answer, err := wired.Ask(w.Pods[0], "udp", netip.AddrPort{}, at); (want == "") != (err == nil) {
		t.Errorf("a packet between pods: %q, %v", answer, err)
	}
}

func throughIptables(t *testing.T, w *wired.World, at netip.AddrPort) {
	const want = "chain FORWARD of table ip filter at the forward hook drops by its policy"
	iptables := func(args string) { w.Node.Run(t, "iptables-nft", strings.Fields(args)...) }
	iptables("-P FORWARD DROP")
	iptables("-N DOCKER-USER")
	iptables("-A FORWARD -j DOCKER-USER")
	iptables("-A FORWARD -m conntrack --ctstate RELATED -j ACCEPT")
	check(t, w, at, want)
	t.Run("with accepts", func(t *testing.T) {
		iptables("-I DOCKER-USER -i one+ -j ACCEPT")
		iptables("-I DOCKER-USER -o one+ -j ACCEPT")
		check(t, w, at, "")
	})
	t.Run("with a rule that rejects", func(t *testing.T) {
		iptables("-P FORWARD ACCEPT")
		iptables("-F")
		iptables("-A FORWARD -m comment --comment all -j REJECT")
		check(t, w, at, strings.Replace(want, "its policy", "a rule for everything", 1))
	})
}
