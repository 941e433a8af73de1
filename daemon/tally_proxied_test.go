package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"

	"onerule/daemon/model"
	"onerule/daemon/plan"
	"onerule/test/rig"
)

// nodePortOf gives NodePort 30080 of TCP in a family, and where it is on loopback.
func nodePortOf(family plan.Family) (plan.Frontend, netip.AddrPort) {
	f := plan.Frontend{Family: family, Protocol: model.TCP, Port: 30080}
	return f, netip.AddrPortFrom(loopbackOf(familyOf(nobody(family).Addr())), f.Port)
}

// gives has an endpoint given so many connections by the daemon.
func gives(of *tally, at, endpoint netip.AddrPort, n int) {
	for range n {
		of.gave(at, endpoint)
	}
}

// What the daemon gives an endpoint is added to what the kernel counts for it, and goes
// where that goes.
func TestConnectionsByTheDaemonAreAddedToThoseOfTheKernel(t *testing.T) {
	eachFamily(t, func(t *testing.T, family plan.Family) {
		of := newTally(newCounters(t, 0), logr.Discard())
		f, at := nodePortOf(family)
		e := backends(family, 0, 3)
		check := func(when string, want map[string]uint64) {
			t.Helper()
			if diff := cmp.Diff(want, hitsOf(t, of)); diff != "" {
				t.Errorf("%s (-want +got): %s", when, diff)
			}
		}
		of.load(family, frontends{f: countedFor("web", family, e[:2])})
		gives(of, at, e[0], 1)
		check("before the load is brought in", map[string]uint64{})
		of.all(t)
		check("loaded", map[string]uint64{"web " + e[0].String(): 1, "web " + e[1].String(): 0})
		hit(t, of, f, e[0], 5)
		gives(of, at, e[0], 2)
		gives(of, at, e[1], 3)
		check("both count", map[string]uint64{"web " + e[0].String(): 8, "web " + e[1].String(): 3})

		gives(of, at, e[0], 1)
		of.change(frontends{f: countedFor("web", family, e[1:])})
		gives(of, at, e[0], 1) // that was on its way
		check("one has left", map[string]uint64{"web ": 10, "web " + e[1].String(): 3, "web " + e[2].String(): 0})
	})
}

// They come to the kernel's counts by themselves, also later ones.
func TestConnectionsByTheDaemonAreCountedUnasked(t *testing.T) {
	of := newTally(newCounters(t, 0), logr.Discard())
	f, at := nodePortOf(plan.IPv4)
	e := backends(plan.IPv4, 0, 1)
	of.load(plan.IPv4, frontends{f: countedFor("web", plan.IPv4, e)})
	of.all(t)
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { of.run(ctx) })
	defer work.Wait()
	defer cancel()
	for want := uint64(1); want <= 3; want++ {
		of.gave(at, e[0])
		rig.Eventually(t, "the kernel has them", func() error {
			read, err := of.read() // and nothing that waits
			if err != nil {
				return err
			}
			var sum uint64
			for _, n := range read {
				sum += n
			}
			if sum != want {
				return fmt.Errorf("the kernel has %d connections, want %d", sum, want)
			}
			return nil
		})
	}
}

// They are there for the next daemon, also those of an endpoint that left meanwhile.
func TestConnectionsByTheDaemonOutliveIt(t *testing.T) {
	c := newCounters(t, 0)
	f, at := nodePortOf(plan.IPv4)
	e := backends(plan.IPv4, 0, 3)
	before := newTally(c, logr.Discard())
	before.load(plan.IPv4, frontends{f: countedFor("web", plan.IPv4, e[:2])})
	before.all(t)
	gives(before, at, e[0], 2)
	gives(before, at, e[1], 3)
	before.all(t)

	after := newTally(c, logr.Discard())
	after.load(plan.IPv4, frontends{f: countedFor("web", plan.IPv4, e[1:])})
	after.all(t)
	if diff := cmp.Diff(map[string]uint64{"web ": 2, "web " + e[1].String(): 3, "web " + e[2].String(): 0}, hitsOf(t, after)); diff != "" {
		t.Errorf("(-want +got): %s", diff)
	}
	gives(after, at, e[1], 1)
	after.change(frontends{f: countedFor("heir", plan.IPv4, e[1:])})
	gives(after, at, e[1], 7)
	if diff := cmp.Diff(map[string]uint64{"heir " + e[1].String(): 7, "heir " + e[2].String(): 0}, hitsOf(t, after)); diff != "" {
		t.Errorf("another Service's (-want +got): %s", diff)
	}
	after.load(plan.IPv4, frontends{})
	after.all(t)
	gives(after, at, e[1], 1)
	after.all(t)
	if n := keysIn(t, c); n != 0 || len(hitsOf(t, after)) > 0 {
		t.Errorf("%d keys are left when nobody has the NodePort", n)
	}
}

// In a map that is full they wait for room.
func TestConnectionsByTheDaemonWaitForRoom(t *testing.T) {
	said := 0
	of := newTally(newCounters(t, 3), funcr.New(func(_, _ string) { said++ }, funcr.Options{}))
	f, at := nodePortOf(plan.IPv4)
	e := backends(plan.IPv4, 0, 3)
	of.change(frontends{f: countedFor("web", plan.IPv4, e[:1]), vipOf(plan.IPv4, 1): countedFor("other", plan.IPv4, e[:2])})
	for range 2 {
		gives(of, at, e[0], 2)
		of.all(t)
	}
	if !of.isFull() || said != 1 {
		t.Errorf("full: %t, said %d times", of.isFull(), said)
	}
	of.change(frontends{vipOf(plan.IPv4, 1): {}})
	of.all(t)
	if diff := cmp.Diff(map[string]uint64{"web " + e[0].String(): 4}, hitsOf(t, of)); diff != "" || of.isFull() {
		t.Errorf("full %t with room (-want +got): %s", of.isFull(), diff)
	}
}
