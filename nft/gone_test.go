package nft_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/nft"
	"onerule/test/netns"
)

// What a load found and deleted is told once, also if the load failed after that.
func TestFrontendsThatALoadDeletesAreTold(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		stays := nft.Frontend{Addr: vip(family, 1), Protocol: 17, Port: 53}
		goes := nft.Frontend{Addr: vip(family, 2), Protocol: 17, Port: 53}
		one, two := endpoint(family, 1), endpoint(family, 2)
		before := nft.NewState()
		balance(before, stays, []netip.AddrPort{one})
		balance(before, goes, []netip.AddrPort{one})
		load(t, ns, program(t, ns, config(family)), before)

		p := program(t, ns, config(family))
		tell := func(when string, want ...nft.Frontend) {
			t.Helper()
			if diff := cmp.Diff(want, p.Gone(), cmp.Comparer(func(a, b nft.Frontend) bool { return a == b })); diff != "" {
				t.Errorf("%s: gone (-want +got): %s", when, diff)
			}
		}
		now := nft.NewState()
		balance(now, stays, []netip.AddrPort{one, two}) // which needs a rule, and so nft
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		do(t, ns, func() error {
			if err := p.Load(ctx, now, nft.NewKeys()); err == nil {
				return errors.New("a load went well that could not run nft")
			}
			return nil
		})
		tell("after a load that failed", goes)
		load(t, ns, p, now)
		tell("after the next one", goes) // it was there still
		load(t, ns, p, now)
		tell("after another one")
	})
}
