package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"onerule/nft"
)

// A swept runs a cleaner in the time of a synctest bubble, and notes each pass as when
// it was, the family and the ports it was for.
type swept struct {
	*cleaner
	start   time.Time
	failing atomic.Bool
	passes  record[string]
}

// sweep runs a cleaner beside f, until f ends.
func sweep(t *testing.T, f func(*swept)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &swept{start: time.Now()}
		s.cleaner = newCleaner([]nft.Family{nft.IPv4, nft.IPv6}, func(nft.Family, int, time.Duration) {}, logr.Discard())
		s.pass = func(_ context.Context, family nft.Family, frontends marks) (int, error) {
			var ports []int
			for f := range frontends {
				ports = append(ports, int(f.Port))
			}
			slices.Sort(ports)
			s.passes.add(fmt.Sprint(time.Since(s.start), " ", family, " ", ports))
			if s.failing.Load() {
				return 0, errors.New("interrupted")
			}
			return 0, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.run(ctx)
		}()
		f(s)
		cancel()
		<-ended
	})
}

func (s *swept) came(ports ...uint16) {
	for _, p := range ports {
		s.add(nft.IPv4, marks{{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: 17, Port: p}: {untranslated: true}})
	}
	synctest.Wait()
}

func (s *swept) want(t *testing.T, passes ...string) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(passes, s.passes.all()); diff != "" {
		t.Errorf("passes (-want +got): %s", diff)
	}
}

func TestEachFrontendIsInTwoPasses(t *testing.T) {
	sweep(t, func(s *swept) {
		<-time.After(time.Minute)
		s.came(1)
		<-time.After(300 * time.Millisecond)
		s.came(2, 3)
		<-time.After(time.Hour)
		s.came(4)
		<-time.After(time.Hour)
		s.want(t, "1m0s ip [1]", "1m1s ip [1 2 3]", "1m2s ip [2 3]", "1h1m0.3s ip [4]", "1h1m1.3s ip [4]")
	})
}

// A frontend that comes in the second after the last pass still waits for its end.
func TestPassesAreASecondApart(t *testing.T) {
	sweep(t, func(s *swept) {
		s.came(1)
		<-time.After(1500 * time.Millisecond)
		s.came(2)
		<-time.After(time.Hour)
		s.want(t, "0s ip [1]", "1s ip [1]", "2s ip [2]", "3s ip [2]")
	})
}

// A stream of new frontends puts no second pass off.
func TestAStreamOfFrontendsStarvesNone(t *testing.T) {
	sweep(t, func(s *swept) {
		for i := range uint16(10) {
			s.came(i)
			<-time.After(300 * time.Millisecond)
		}
		<-time.After(time.Hour)
		s.want(t, "0s ip [0]", "1s ip [0 1 2 3]", "2s ip [1 2 3 4 5 6]", "3s ip [4 5 6 7 8 9]", "4s ip [7 8 9]")
	})
}

func TestAFailedPassIsRepeatedWithAllItWasFor(t *testing.T) {
	sweep(t, func(s *swept) {
		s.came(1)
		s.came(2)
		s.failing.Store(true)
		<-time.After(5 * time.Second)
		s.came(3)
		<-time.After(15 * time.Second)
		synctest.Wait()
		s.failing.Store(false)
		<-time.After(time.Hour)
		s.want(t, "0s ip [1]", "1s ip [1 2]", "11s ip [1 2 3]", "21s ip [1 2 3]")
	})
}

func TestOnlyFamiliesWithFrontendsArePassed(t *testing.T) {
	sweep(t, func(s *swept) {
		s.add(nft.IPv6, marks{{Addr: netip.MustParseAddr("fd00:96::1"), Protocol: 6, Port: 5}: {untranslated: true}})
		synctest.Wait()
		s.came(6)
		<-time.After(time.Hour)
		s.want(t, "0s ip6 [5]", "1s ip [6]", "1s ip6 [5]", "2s ip [6]")
	})
}

// Of the flows to a frontend those go that its packets must not follow any more.
func TestStaleFlows(t *testing.T) {
	vip, node, other := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.9")
	serves, left := netip.MustParseAddrPort("10.0.0.1:8080"), netip.MustParseAddrPort("10.0.0.2:8080")
	at := func(a netip.Addr, protocol uint8, port uint16) nft.Frontend {
		return nft.Frontend{Addr: a, Protocol: protocol, Port: port}
	}
	m := marks{
		at(vip, 17, 53):              {lasting: true, serving: []netip.AddrPort{serves}},
		at(vip, 17, 54):              {lasting: true}, // gone, or without endpoints
		at(vip, 6, 80):               {untranslated: true},
		at(netip.Addr{}, 17, 30053):  {lasting: true, serving: []netip.AddrPort{serves}},
		at(netip.Addr{}, 132, 30054): {untranslated: true, lasting: true},
	}
	host := map[netip.Addr]bool{node: true}
	for _, c := range []struct {
		name string
		flow nft.Flow
		want bool
	}{
		{"A12.1: to an endpoint that serves", nft.Flow{To: at(vip, 17, 53), Endpoint: serves, Translated: true}, false},
		{"A12.1: to one that left", nft.Flow{To: at(vip, 17, 53), Endpoint: left, Translated: true}, true},
		{"A12.2: to a frontend without endpoints", nft.Flow{To: at(vip, 17, 54), Endpoint: left, Translated: true}, true},
		{"A12.4: TCP to an endpoint that left", nft.Flow{To: at(vip, 6, 80), Endpoint: left, Translated: true}, false},
		{"R24: TCP from before its frontend", nft.Flow{To: at(vip, 6, 80), Endpoint: netip.AddrPortFrom(vip, 80)}, true},
		{"not translated, to a frontend that was one before", nft.Flow{To: at(vip, 17, 53), Endpoint: netip.AddrPortFrom(vip, 53)}, false},
		{"A12.3: a NodePort, to an endpoint that left", nft.Flow{To: at(node, 17, 30053), Endpoint: left, Translated: true}, true},
		{"A12.3: a NodePort, to one that serves", nft.Flow{To: at(node, 17, 30053), Endpoint: serves, Translated: true}, false},
		{"the same number at an address that is not the node's", nft.Flow{To: at(other, 17, 30053), Endpoint: left, Translated: true}, false},
		{"R23: SCTP to an endpoint that left", nft.Flow{To: at(node, 132, 30054), Endpoint: left, Translated: true}, true},
		{"another port", nft.Flow{To: at(vip, 17, 55), Endpoint: left, Translated: true}, false},
	} {
		if got := m.stale(c.flow, host); got != c.want {
			t.Errorf("%s: stale %v, want %v", c.name, got, c.want)
		}
	}
}

// What is newer about a frontend counts, but for the flows from before it.
func TestNewerMarksCount(t *testing.T) {
	f := nft.Frontend{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: 17, Port: 53}
	ep := netip.MustParseAddrPort("10.0.0.1:8080")
	m := marks{f: {untranslated: true, lasting: true}}
	m.add(marks{f: {lasting: true, serving: []netip.AddrPort{ep}}})
	if !m[f].untranslated || len(m[f].serving) != 1 {
		t.Errorf("got %+v", m[f])
	}
}
