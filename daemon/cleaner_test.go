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
		s.cleaner = newCleaner([]nft.Family{nft.IPv4, nft.IPv6}, func(nft.Family, int) {}, logr.Discard())
		s.pass = func(_ context.Context, family nft.Family, frontends map[nft.Frontend]bool) (int, error) {
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
		s.add(map[nft.Frontend]bool{{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: 17, Port: p}: true})
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
		s.add(map[nft.Frontend]bool{{Addr: netip.MustParseAddr("fd00:96::1"), Protocol: 6, Port: 5}: true})
		synctest.Wait()
		s.came(6)
		<-time.After(time.Hour)
		s.want(t, "0s ip6 [5]", "1s ip [6]", "1s ip6 [5]", "2s ip [6]")
	})
}
