package nft_test

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"onerule/nft"
	"onerule/nft/inspect"
	"onerule/test/netns"
)

func digests(t *testing.T, ns *netns.NS, family nft.Family) (chains map[string]string, seal string) {
	t.Helper()
	table := inspect.Table{Family: unix.NFPROTO_IPV4, Name: nft.TableName}
	if family == nft.IPv6 {
		table.Family = unix.NFPROTO_IPV6
	}
	chains = map[string]string{}
	do(t, ns, func() error {
		r, err := inspect.Open()
		if err != nil {
			return err
		}
		d, err := r.Digests(table)
		for name, h := range d {
			chains[name] = fmt.Sprintf("%x", h.Sum(nil))
		}
		seal = d.Seal()
		return errors.Join(err, r.Close())
	})
	return chains, seal
}

// differing gives the chains with other digests, sorted.
func differing(a, b map[string]string) []string {
	var list []string
	both := maps.Clone(a)
	maps.Copy(both, b)
	for name := range both {
		if a[name] != b[name] {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

// The same text gives the same digest, in a table that is there and in a new one,
// whatever its elements are, and another text another one.
func TestDigestIsThatOfTheText(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		want := world(family, 20, 3)
		sticky(want, family)
		load(t, ns, program(t, ns, config(family)), copyOf(want))
		before, all := digests(t, ns, family)
		if len(before) < 20 {
			t.Fatalf("digests of %d chains: %v", len(before), before)
		}
		ns.Run(t, "nft", "delete table "+family.String()+" onerule")
		if none, _ := digests(t, ns, family); len(none) != 0 {
			t.Errorf("without a table there are digests: %v", none)
		}
		more := copyOf(want)
		balance(more, web(family, 3), endpoints(family, 900, 3))
		load(t, ns, program(t, ns, config(family)), more)
		again, allAgain := digests(t, ns, family)
		if diff := cmp.Diff(before, again); diff != "" || all != allAgain {
			t.Errorf("in a new table (%s, was %s): %s", allAgain, all, diff)
		}

		other := config(family)
		other.MasqueradeBit = 20
		load(t, ns, program(t, ns, other), copyOf(want))
		changed, _ := digests(t, ns, family)
		if diff := cmp.Diff([]string{"mark-for-masquerade", "masquerading"}, differing(before, changed)); diff != "" {
			t.Errorf("another bit of the mark changes these chains (-want +got): %s", diff)
		}
		load(t, ns, program(t, ns, config(family)), copyOf(want))
		if _, back := digests(t, ns, family); back != all {
			t.Errorf("written over another text the digest is %s, want %s", back, all)
		}
	})
}

// Whichever rule is exchanged for another one, the digest of its chain is another one,
// and no other.
func TestDigestSeesEveryRuleExchanged(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		want := world(family, 20, 3)
		sticky(want, family)
		load(t, ns, program(t, ns, config(family)), want)
		before, all := digests(t, ns, family)
		rules := handles(t, ns, family)
		if len(rules) < len(before) {
			t.Fatalf("%d rules in %d chains", len(rules), len(before))
		}
		for _, r := range rules {
			ns.Run(t, "nft", "replace rule "+family.String()+" onerule "+r.chain+" handle "+r.handle+" meta mark 0x"+r.handle+" counter return")
			after, allAfter := digests(t, ns, family)
			if diff := cmp.Diff([]string{r.chain}, differing(before, after)); diff != "" {
				t.Errorf("rule %s of %s exchanged: chains with another digest (-want +got): %s", r.handle, r.chain, diff)
			}
			if allAfter == all {
				t.Errorf("rule %s of %s exchanged: the digest of all is as before", r.handle, r.chain)
			}
			before, all = after, allAfter
		}
		last := rules[len(rules)-1]
		ns.Run(t, "nft", "-f", file(t, "delete rule "+family.String()+" onerule "+last.chain+" handle "+last.handle+"\nadd rule "+family.String()+" onerule "+last.chain+" accept\n"))
		if after, _ := digests(t, ns, family); !slices.Equal([]string{last.chain}, differing(before, after)) {
			t.Error("a rule deleted and another one added is not seen")
		}
	})
}

// The order of rules is a part of what they say, as the limits between them are.
func TestDigestSeesOrderAndLimits(t *testing.T) {
	for name, chains := range map[string][2]string{
		"order":  {"tcp dport 1 accept; udp dport 1 drop", "udp dport 1 drop; tcp dport 1 accept"},
		"limits": {"tcp dport 1; counter accept", "tcp dport 1 counter; accept"},
		"name":   {"tcp dport 1 jump b", "tcp dport 1 jump c"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netns.New(t, "node")
			var got [2]string
			for i, rules := range chains {
				ns.Run(t, "nft", "table ip onerule { chain b { }; chain c { }; chain a { "+rules+"; }; }")
				_, got[i] = digests(t, ns, nft.IPv4)
				ns.Run(t, "nft", "delete table ip onerule")
			}
			if got[0] == got[1] {
				t.Errorf("%s and %s have the same digest", chains[0], chains[1])
			}
		})
	}
}

// What rules have counted is none of what they say.
func TestDigestLeavesOutWhatWasCounted(t *testing.T) {
	ns := netns.New(t, "node")
	s := nft.NewState()
	f := nft.Frontend{Addr: vip(nft.IPv4, 1), Protocol: 17, Port: 80}
	s.Addrs[nft.ClusterIPs][f.Addr] = true
	balance(s, f, nil)
	load(t, ns, program(t, ns, config(nft.IPv4)), s)
	ns.Run(t, "ip", "route", "add", "default", "dev", "lo")
	before, all := digests(t, ns, nft.IPv4)
	counted := regexp.MustCompile(`counter packets [1-9]`)
	refuse := func() string { return ns.Run(t, "nft", "list", "chain", "ip", "onerule", nft.RefuseChain) }
	if counted.MatchString(refuse()) {
		t.Fatal("a packet was counted before any was sent")
	}
	do(t, ns, func() error {
		conn, err := net.Dial("udp", "10.96.0.1:80")
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		// EPERM: what is refused on its way out fails at once, as it should.
		if _, err := conn.Write([]byte("x")); !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("a packet to a frontend without endpoints: %w", err)
		}
		return nil
	})
	if !counted.MatchString(refuse()) {
		t.Fatalf("the packet was not counted:\n%s", refuse())
	}
	after, allAfter := digests(t, ns, nft.IPv4)
	if diff := cmp.Diff(before, after); diff != "" || all != allAfter {
		t.Errorf("after a packet (%s, was %s): %s", allAfter, all, diff)
	}
}

type rule struct{ chain, handle string }

// handles gives the rules of our table.
func handles(t *testing.T, ns *netns.NS, family nft.Family) []rule {
	t.Helper()
	var list []rule
	chain := ""
	for line := range strings.Lines(ns.Run(t, "nft", "-a", "list", "table", family.String(), nft.TableName)) {
		f := strings.Fields(line)
		switch {
		case len(f) > 1 && f[0] == "chain":
			chain = f[1]
		case len(f) > 1 && f[0] != "table" && (f[0] == "set" || f[0] == "map" || f[0] == "counter" && f[2] == "{"):
			chain = ""
		case len(f) > 3 && chain != "" && f[len(f)-2] == "handle":
			list = append(list, rule{chain, f[len(f)-1]})
		}
	}
	return list
}
