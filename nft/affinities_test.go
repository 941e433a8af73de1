package nft_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"onerule/nft"
	"onerule/test/netns"
)

// manySticky gives a state of so many service ports with session affinity, each with one
// endpoint, the names of their chains that pin, sorted, and the keys of all.
func manySticky(family nft.Family, n int) (s nft.State, chains []string, keys nft.Keys) {
	s, keys = nft.NewState(), nft.NewKeys()
	for i := range n {
		a := nft.Affinity{ID: nft.AffinityID(fmt.Sprint("ns/sticky/TCP", i)), Protocol: 6, Seconds: 10800}
		s.Pin(a, endpoints(family, i, 1), nil)
		chains = append(chains, fmt.Sprintf("pin-%s-tcp-10800", a.ID))
		keys.Affinities[a.ID] = true
	}
	slices.Sort(chains)
	return s, chains, keys
}

// One run of nft for all would take longer than nft may, and all the next ones too. With a
// part of them for each, every one ends in time.
func TestManyAffinitiesAreWrittenInParts(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		want, _, _ := manySticky(family, 1000)
		// The table, five parts, and the hooks.
		if done := load(t, ns, program(t, ns, config(family)), copyOf(want)); done.Rulesets != 7 || done.Added != 1000 {
			t.Errorf("a first load did %+v, want 7 rulesets and 1000 elements", done)
		}
		healthy := sorted(listing(t, ns, family))
		if done := load(t, ns, program(t, ns, config(family)), copyOf(want)); done.Transactions != 0 {
			t.Errorf("a restart did %+v, want nothing", done)
		}
		ns.Run(t, "nft", "delete", "chain", family.String(), nft.TableName, sealOf(t, ns, family))
		if done := load(t, ns, program(t, ns, config(family)), copyOf(want)); done.Rulesets != 5 || done.Added+done.Deleted != 0 {
			t.Errorf("a load over rules without a seal did %+v, want 5 rulesets and no elements", done)
		}
		if got := sorted(listing(t, ns, family)); !slices.Equal(got, healthy) {
			t.Error("rules that were written over are not as before")
		}
	})
}

// A run that fails takes nothing from those before it: the next load has less to do.
func TestAffinitiesStayWhereALaterPartFails(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		p := program(t, ns, config(family))
		load(t, ns, p, nft.NewState())
		want, chains, keys := manySticky(family, 1000)
		inTheWay := "members-" + strings.Split(chains[500], "-")[1]
		ns.Run(t, "nft", "add", "set", family.String(), nft.TableName, inTheWay, "{ type inet_service; }")
		do(t, ns, func() error {
			if err := p.Update(context.Background(), keys, copyOf(want)); err == nil {
				t.Error("rules were written with a set of another type in their way")
			}
			return nil
		})
		if got := strings.Count(listing(t, ns, family), "chain pin-") - hooked; got != 400 {
			t.Errorf("got %d affinities after the third part failed, want the 400 of those before", got)
		}
		ns.Run(t, "nft", "delete", "set", family.String(), nft.TableName, inTheWay)
		// Two parts that are there, written over for want of a seal, and three more.
		if done := load(t, ns, p, copyOf(want)); done.Rulesets != 5 || done.Added != 1000 {
			t.Errorf("the next load did %+v, want 5 rulesets and 1000 elements", done)
		}
		if done := load(t, ns, program(t, ns, config(family)), want); done.Transactions != 0 {
			t.Errorf("a restart did %+v, want nothing", done)
		}
	})
}

// hooked is the number of chains of the skeleton that are named like those that pin.
const hooked = 2
