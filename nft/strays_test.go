package nft_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"onerule/nft"
	"onerule/test/netns"
)

// A set of ranges that is as it should be but for an element for all keys is not written
// anew.
func TestAnElementForAllKeysGoesFromRangesAlone(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		p, want := program(t, ns, config(family)), world(family, 2, 3)
		want.Ranges[nft.ServiceCIDRs] = ranges(family, 16, 2)
		load(t, ns, p, copyOf(want))
		healthy := sorted(listing(t, ns, family))
		for _, set := range []nft.RangeSet{nft.ServiceCIDRs, nft.PodCIDRs} {
			do(t, ns, func() error { return nft.AddForAllKeys(family, string(set)) })
		}
		done := load(t, ns, p, copyOf(want))
		if done.Transactions != 1 || done.Deleted != 2 || done.Added != 0 {
			t.Errorf("got %+v, want one transaction that deletes 2 elements", done)
		}
		if diff := cmp.Diff(healthy, sorted(listing(t, ns, family))); diff != "" {
			t.Errorf("the table is not as before (-before +after): %s", diff)
		}
	})
}

// What a load deletes in other ways than elements of ours is none of others' changes either.
func TestMonitorKnowsWhoDeletedWhatOthersLeft(t *testing.T) {
	ns := netns.New(t, "node")
	m := watch(t, ns)
	p, want := watched(t, ns, nft.IPv4, m), world(nft.IPv4, 2, 3)
	load(t, ns, p, copyOf(want))
	ns.Run(t, "nft", "add element ip onerule cluster-ips { * }; add quota ip onerule foreign { over 10 mbytes }")
	if len(told(t, m)) == 0 {
		t.Error("got nothing of the elements of others")
	}
	if done := load(t, ns, p, copyOf(want)); done.Deleted != 1 {
		t.Errorf("got %+v, want one element deleted", done)
	}
	nothing(t, m, "a load that deletes what others left")
}

// A table whose elements the kernel refuses to be put right is begun afresh in the end.
// Refusals between which a load went well are none in a row, and neither are those of the
// new table with those of the old one.
func TestATableThatRefusesDeletionsIsBegunAfresh(t *testing.T) {
	ns := netns.New(t, "node")
	p, want := program(t, ns, config(nft.IPv4)), world(nft.IPv4, 5, 3)
	load(t, ns, p, copyOf(want))
	healthy := sorted(listing(t, ns, nft.IPv4))
	stray := fmt.Sprintf("add element ip onerule hairpins { %s . %s }", vip(nft.IPv4, 1), vip(nft.IPv4, 2))
	refused := func(afresh ...int) {
		t.Helper()
		restore := p.Misdirect()
		defer restore()
		for try, n := range afresh {
			ns.Run(t, "nft", stray)
			err := ns.Do(func() error { return p.Load(t.Context(), copyOf(want), nft.NewKeys()) })
			if !errors.Is(err, unix.ENOENT) || p.Done().Afresh != n {
				t.Fatalf("try %d: %v, begun afresh %d times, want a refusal and %d", try+1, err, p.Done().Afresh, n)
			}
		}
	}
	refused(0, 0)
	load(t, ns, p, copyOf(want))
	refused(0, 0, 1, 1)
	load(t, ns, p, copyOf(want))
	if diff := cmp.Diff(healthy, sorted(listing(t, ns, nft.IPv4))); diff != "" {
		t.Errorf("the table is not as before (-before +after): %s", diff)
	}
}

// What tells nothing of the table never costs a gap.
func TestErrorsOfTheMachinePass(t *testing.T) {
	for err, want := range map[error]bool{
		unix.ENOMEM: true, unix.ENOBUFS: true, unix.EMFILE: true, unix.ENFILE: true, unix.EPERM: true,
		unix.EACCES: true, unix.EINTR: true, unix.EAGAIN: true, unix.EINVAL: false, unix.ENOENT: false, unix.EBUSY: false,
	} {
		if got := nft.Passes(fmt.Errorf("read: %w", err)); got != want {
			t.Errorf("%v: got %v, want %v", err, got, want)
		}
	}
}
