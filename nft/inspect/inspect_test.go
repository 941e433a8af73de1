package inspect_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"testing"

	"golang.org/x/sys/unix"

	"onerule/nft/inspect"
	"onerule/test/netns"
)

const rules = `table ip one {
	counter c { }
	set s { type ipv4_addr; flags interval; }
	map m { type inet_service : verdict; }
	chain regular { ip saddr @s counter name c accept; counter drop; }
	chain base { type filter hook forward priority -5; policy drop; tcp dport { 80, 81 } jump regular; }
}
table ip two { chain base { type filter hook forward priority 7; tcp dport vmap @m; }; map m { type inet_service : verdict; }; }
table ip6 one { chain base { type nat hook output priority 0; }; }`

func with(t *testing.T, ns *netns.NS, f func(*inspect.Reader) error) {
	t.Helper()
	err := ns.Do(func() error {
		r, err := inspect.Open()
		if err != nil {
			return err
		}
		return errors.Join(f(r), r.Close())
	})
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, ns *netns.NS, source string) (c inspect.Contents) {
	t.Helper()
	with(t, ns, func(r *inspect.Reader) (err error) {
		c, err = r.Read(inspect.Table{Family: unix.NFPROTO_IPV4, Name: "one"}, source)
		return err
	})
	return c
}

func TestASealIsOfWhatTheTableIs(t *testing.T) {
	ns := netns.New(t, "node")
	if c := read(t, ns, "a"); c.There || c.Sealed() {
		t.Errorf("no table: %+v", c)
	}
	ns.Run(t, "nft", rules)
	first := read(t, ns, "a")
	if !first.There || first.Sealed() || first.Seal == "" {
		t.Fatalf("a table without a seal: %+v", first)
	}
	if read(t, ns, "b").Seal == first.Seal {
		t.Error("another source has the same seal")
	}
	ns.Run(t, "nft", "add chain ip one "+first.Seal)
	if c := read(t, ns, "a"); !c.Sealed() || c.Seal != first.Seal {
		t.Errorf("sealed: %+v", c)
	}
	for _, same := range []string{
		"add element ip one s { 10.0.0.0/8 }",
		"add element ip one m { 80 : accept }",
		"add table ip three { chain x { }; }",
		"add chain ip two regular",
		"insert rule ip two base drop",
	} {
		ns.Run(t, "nft", same)
		if c := read(t, ns, "a"); !c.Sealed() {
			t.Errorf("%s broke the seal", same)
		}
	}
	for _, other := range []string{
		"add rule ip one regular drop",
		"flush chain ip one regular; add rule ip one regular ip saddr @s counter name c accept; add rule ip one regular counter accept",
		"delete map ip one m",
		"add set ip one more { type ipv4_addr; }",
		"add counter ip one d",
		"add quota ip one c { over 10 mbytes }",
		"add chain ip one more",
		"chain ip one base { policy accept; }",
		"add table ip one { flags dormant; }",
		"add chain ip one rules-0123",
	} {
		ns.Run(t, "nft", "flush ruleset; "+rules)
		ns.Run(t, "nft", "add chain ip one "+first.Seal)
		if c := read(t, ns, "a"); !c.Sealed() {
			t.Fatal("the same rules have another seal")
		}
		ns.Run(t, "nft", other)
		if c := read(t, ns, "a"); c.Sealed() {
			t.Errorf("%s left the seal whole", other)
		}
	}
}

func TestChainsAndRulesAsTheyAre(t *testing.T) {
	ns := netns.New(t, "node")
	ns.Run(t, "nft", rules)
	with(t, ns, func(r *inspect.Reader) error {
		chains, err := r.Chains(unix.NFPROTO_UNSPEC)
		if err != nil {
			return err
		}
		found := map[inspect.Chain]bool{}
		for _, c := range chains {
			found[c] = true
		}
		for _, want := range []inspect.Chain{
			{Family: unix.NFPROTO_IPV4, Table: "one", Name: "regular"},
			{Family: unix.NFPROTO_IPV4, Table: "one", Name: "base", Base: true, Type: "filter", Hook: unix.NF_INET_FORWARD, Priority: -5},
			{Family: unix.NFPROTO_IPV4, Table: "two", Name: "base", Base: true, Type: "filter", Hook: unix.NF_INET_FORWARD, Priority: 7, Policy: 1},
			{Family: unix.NFPROTO_IPV6, Table: "one", Name: "base", Base: true, Type: "nat", Hook: unix.NF_INET_LOCAL_OUT, Policy: 1},
		} {
			if !found[want] {
				t.Errorf("no chain %+v in %+v", want, chains)
			}
		}
		list, err := r.Rules(inspect.Table{Family: unix.NFPROTO_IPV4, Name: "one"})
		if err != nil {
			return err
		}
		if len(list) != 3 || list[0].Chain != "regular" || list[2].Chain != "base" {
			t.Errorf("rules %+v", list)
		}
		steps, err := list[1].Steps()
		if len(steps) != 2 || steps[0].Name != "counter" || steps[1].Name != "immediate" {
			t.Errorf("steps %+v", steps)
		}
		return err
	})
}

func TestOneObjectIsAskedForByItsName(t *testing.T) {
	ns := netns.New(t, "node")
	ns.Run(t, "nft", rules)
	ns.Run(t, "nft", "add element ip one m { 80 : accept }")
	with(t, ns, func(r *inspect.Reader) error {
		for name, want := range map[string]bool{"base": true, "nothing": false} {
			one := inspect.Table{Family: unix.NFPROTO_IPV4, Name: "one"}
			if c, there, err := r.Chain(one, name); err != nil || there != want || c.Base != want {
				t.Errorf("chain %s: %+v, %v, %v", name, c, there, err)
			}
		}
		for _, c := range []struct {
			table, set string
			port       byte
			want       bool
		}{{"one", "m", 80, true}, {"one", "m", 81, false}, {"two", "m", 80, false}, {"one", "n", 80, false}, {"three", "m", 80, false}} {
			key := []byte{0, c.port}
			got, there, err := r.Element(inspect.Table{Family: unix.NFPROTO_IPV4, Name: c.table}, c.set, key)
			if err != nil || there != c.want || there && !bytes.Equal(got.Key, key) {
				t.Errorf("element %+v: %+v, %v, %v", c, got, there, err)
			}
		}
		return nil
	})
}

func TestObjectsOfOneNameAreToldApartByTheirType(t *testing.T) {
	ns := netns.New(t, "node")
	ns.Run(t, "nft", rules)
	ns.Run(t, "nft", "add quota ip one c { over 10 mbytes }; add limit ip one l { rate 10/second }; add counter ip two d")
	one := inspect.Table{Family: unix.NFPROTO_IPV4, Name: "one"}
	with(t, ns, func(r *inspect.Reader) error {
		list, err := r.Objects(one)
		if err != nil {
			return err
		}
		got := map[inspect.Object]bool{}
		for _, o := range list {
			got[o] = true
		}
		want := map[inspect.Object]bool{
			{Name: "c", Type: unix.NFT_OBJECT_COUNTER}: true, {Name: "c", Type: unix.NFT_OBJECT_QUOTA}: true, {Name: "l", Type: unix.NFT_OBJECT_LIMIT}: true,
		}
		if !maps.Equal(got, want) {
			t.Errorf("got %+v, want %+v", list, want)
		}
		counters, err := r.Counters(one)
		if want := map[string]uint64{"c": 0}; !maps.Equal(counters, want) {
			t.Errorf("got counters %v, want %v", counters, want)
		}
		return err
	})
}

func TestElementsAsTheyAre(t *testing.T) {
	ns := netns.New(t, "node")
	ns.Run(t, "nft", rules)
	ns.Run(t, "nft", "add element ip one m { 80 : jump regular, 81 : goto regular, 82 : drop, * : accept }")
	with(t, ns, func(r *inspect.Reader) error {
		got := map[string]bool{}
		err := r.EachElement(inspect.Table{Family: unix.NFPROTO_IPV4, Name: "one"}, "m", func(e inspect.Element) error {
			got[fmt.Sprintf("%v %d %q %t", e.Key, e.Verdict, e.Chain, e.CatchAll)] = true
			return nil
		})
		want := map[string]bool{`[0 80] -3 "regular" false`: true, `[0 81] -4 "regular" false`: true, `[0 82] 0 "" false`: true, `[] 1 "" true`: true}
		if !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		return err
	})
}

func TestAListingIsBegunAgainIfSomebodyWrites(t *testing.T) {
	ns := netns.New(t, "node")
	with(t, ns, func(r *inspect.Reader) error {
		writes := 2
		n := 0
		err := r.Whole(func() error {
			if n++; n <= writes {
				_, err := ns.Output("nft", "add table ip x; delete table ip x")
				return err
			}
			return nil
		})
		if n != writes+1 {
			t.Errorf("listed %d times, want %d", n, writes+1)
		}
		if err != nil {
			return err
		}
		err = r.Whole(func() error {
			_, err := ns.Output("nft", "add table ip x; delete table ip x")
			return err
		})
		if !errors.Is(err, inspect.ErrBusy) {
			t.Errorf("error %v though others never stopped", err)
		}
		return nil
	})
}
