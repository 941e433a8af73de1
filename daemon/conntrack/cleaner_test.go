package conntrack

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
	"golang.org/x/sys/unix"

	"onerule/nft"
	"onerule/nft/flows"
)

// A swept runs a cleaner in the time of a synctest bubble. The pass notes when it was and
// of which ports flows are stale, and whether it lists translated flows.
type swept struct {
	*Cleaner
	start   time.Time
	failing atomic.Bool
	during  func() // called in the midst of each pass
	passes  []string
	told    []Pass

	busy     atomic.Int32 // how many of the stale flows to endpoints the kernel does not let go
	protocol uint8        // of the flows
	silent   bool         // nobody has answered them
}

// beside runs a cleaner beside f, until f ends.
func beside(t *testing.T, cfg Config, f func(*swept)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &swept{start: time.Now(), during: func() {}, protocol: unix.IPPROTO_UDP}
		cfg.Family, cfg.Passed, cfg.Log = nft.IPv4, func(p Pass) { s.told = append(s.told, p) }, logr.Discard()
		s.Cleaner = New(cfg)
		s.pass = s.look
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.Run(ctx)
		}()
		f(s)
		cancel()
		<-ended
	})
}

// look is a pass over a table with a flow of each kind for each of 20 ports.
func (s *swept) look(_ context.Context, which flows.Which, stale func(flows.Flow) (bool, error)) (Pass, error) {
	s.during()
	var untranslated, left []int
	for port := range 20 {
		to := nft.Frontend{Addr: vip, Protocol: s.protocol, Port: uint16(port)}
		if gone, err := stale(flowTo(to, netip.AddrPortFrom(vip, uint16(port)))); err != nil {
			return Pass{}, err
		} else if gone {
			untranslated = append(untranslated, port)
		}
		translated := flowTo(to, endpointB)
		translated.Answered = !s.silent
		if gone, err := stale(translated); err != nil {
			return Pass{}, err
		} else if gone {
			left = append(left, port)
		}
	}
	s.passes = append(s.passes, fmt.Sprint(time.Since(s.start), " ", untranslated, " ", left, " [", which, "]"))
	if s.failing.Load() {
		return Pass{}, errors.New("interrupted")
	}
	busy := min(len(left), int(s.busy.Load()))
	return Pass{Untranslated: len(untranslated), Stale: len(left) - busy, Busy: busy}, nil
}

// came writes frontends that are new, served by endpoint B.
func (s *swept) came(ports ...uint16) {
	for _, p := range ports {
		s.Expect(nft.Frontend{Addr: vip, Protocol: unix.IPPROTO_UDP, Port: p}, Facts{Owned: true, New: true, Keep: []netip.AddrPort{endpointB}})
	}
	s.Written()
	synctest.Wait()
}

func (s *swept) want(t *testing.T, passes ...string) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(passes, s.passes); diff != "" {
		t.Errorf("passes (-want +got): %s", diff)
	}
}

func TestEachFrontendIsInTwoPasses(t *testing.T) {
	beside(t, Config{}, func(s *swept) {
		<-time.After(time.Minute)
		s.came(1)
		<-time.After(300 * time.Millisecond)
		s.came(2, 3)
		<-time.After(time.Hour)
		s.came(4)
		<-time.After(time.Hour)
		s.want(t, "1m0s [1] [] [all]", "1m1s [1 2 3] [] [all]", "1m2s [2 3] [] [all]",
			"1h1m0.3s [4] [] [all]", "1h1m1.3s [4] [] [all]")
		if len(s.told) != 5 || s.told[1].Untranslated != 3 || s.told[1].Err != nil {
			t.Errorf("told of passes %+v", s.told)
		}
	})
}

// A frontend that comes in the second after the last pass still waits for its end.
func TestPassesAreASecondApart(t *testing.T) {
	beside(t, Config{}, func(s *swept) {
		s.came(1)
		<-time.After(1500 * time.Millisecond)
		s.came(2)
		<-time.After(time.Hour)
		s.want(t, "0s [1] [] [all]", "1s [1] [] [all]", "2s [2] [] [all]", "3s [2] [] [all]")
	})
}

// A stream of new frontends puts no second pass off.
func TestAStreamOfFrontendsStarvesNone(t *testing.T) {
	beside(t, Config{}, func(s *swept) {
		for i := range uint16(10) {
			s.came(i)
			<-time.After(300 * time.Millisecond)
		}
		<-time.After(time.Hour)
		s.want(t, "0s [0] [] [all]", "1s [0 1 2 3] [] [all]", "2s [1 2 3 4 5 6] [] [all]", "3s [4 5 6 7 8 9] [] [all]", "4s [7 8 9] [] [all]")
	})
}

func TestAFailedPassIsRepeatedWithAllItWasFor(t *testing.T) {
	beside(t, Config{}, func(s *swept) {
		s.came(1)
		s.came(2)
		s.failing.Store(true)
		<-time.After(5 * time.Second)
		s.came(3)
		<-time.After(15 * time.Second)
		synctest.Wait()
		s.failing.Store(false)
		<-time.After(time.Hour)
		s.want(t, "0s [1] [] [all]", "1s [1 2] [] [all]", "11s [1 2 3] [] [all]", "21s [1 2 3] [] [all]")
		if s.told[1].Err == nil {
			t.Error("nobody was told of the failure")
		}
	})
}

// Stale flows that the kernel does not let go are looked at from time to time until it does.
// What else comes does not wait for that, and what has come since counts.
func TestFlowsThatAreBusyAreLookedAtAgain(t *testing.T) {
	at := func(port uint16) nft.Frontend { return nft.Frontend{Addr: vip, Protocol: unix.IPPROTO_UDP, Port: port} }
	keep := func(endpoint netip.AddrPort) Facts { return Facts{Owned: true, Keep: []netip.AddrPort{endpoint}} }
	beside(t, Config{}, func(s *swept) {
		s.busy.Store(1)
		s.Expect(at(1), keep(endpointA))
		s.Expect(at(2), keep(endpointA))
		s.Written()
		<-time.After(5 * time.Second)
		s.Expect(at(2), keep(endpointB)) // whose flows are stale no more
		s.Expect(at(3), keep(endpointA))
		s.Written()
		<-time.After(10 * time.Second)
		s.busy.Store(0)
		<-time.After(time.Hour)
		s.want(t, "0s [] [1 2] [all]", "1s [] [1 2] [all]", "5s [] [3] [all]", "6s [] [3] [all]",
			"10s [] [1 3] [all]", "20s [] [1 3] [all]")
		if p := s.told[4]; p.Busy != 1 || p.Stale != 1 || p.Err != nil {
			t.Errorf("told of %+v, want one stale flow that is busy, and no error", p)
		}
	})
	beside(t, Config{}, func(s *swept) { // a pass that is due falls into the second after another one
		s.busy.Store(1)
		s.Expect(at(1), keep(endpointA))
		s.Written()
		<-time.After(9500 * time.Millisecond)
		s.busy.Store(0)
		s.came(2)
		<-time.After(time.Hour)
		s.want(t, "0s [] [1] [all]", "1s [] [1] [all]", "9.5s [2] [] [all]", "10.5s [2] [1] [all]")
	})
}

// R10: what a write that failed was to be followed by is done after the one that succeeds,
// also where that one does not mention it.
func TestAWriteThatFailedLosesNothing(t *testing.T) {
	udp := func(port uint16) nft.Frontend { return nft.Frontend{Addr: vip, Protocol: 17, Port: port} }
	b := []netip.AddrPort{endpointB}
	beside(t, Config{}, func(s *swept) {
		s.Expect(udp(1), Facts{Owned: true, New: true, Keep: b}) // the write fails
		s.Expect(udp(2), Facts{})                                // this one, too
		<-time.After(time.Hour)
		s.want(t)
		s.Expect(udp(1), Facts{Owned: true, Keep: b}) // thought not to be new any more
		s.Expect(udp(3), Facts{Owned: true})
		s.Written()
		<-time.After(time.Hour)
		s.want(t, "1h0m0s [1] [2 3] [all]", "1h0m1s [1] [2 3] [all]")
	})
}

// An endpoint that comes while a pass runs with older facts keeps its flows, from before
// the write on: they can exist as soon as the kernel has it.
func TestAPassKnowsWhatIsExpectedMeanwhile(t *testing.T) {
	f := nft.Frontend{Addr: vip, Protocol: 17, Port: 1}
	gone := nft.Frontend{Addr: vip, Protocol: 17, Port: 2}
	beside(t, Config{}, func(s *swept) {
		s.during = func() {
			s.Expect(f, Facts{Owned: true, Keep: []netip.AddrPort{endpointB}})
			s.Expect(gone, Facts{})
		}
		s.Expect(f, Facts{Owned: true, New: true})
		s.Expect(gone, Facts{Owned: true, New: true, Keep: []netip.AddrPort{endpointB}})
		s.Written()
		<-time.After(time.Minute)
		// Without Written, what is expected keeps flows and deletes none.
		s.want(t, "0s [1] [] [all]", "1s [1] [] [all]")
		s.during = func() {}
		s.Written()
		<-time.After(time.Minute)
		s.want(t, "0s [1] [] [all]", "1s [1] [] [all]", "1m0s [] [2] [all]", "1m1s [] [2] [all]")
	})
}

// R20: no look at the table where no flow can be stale, and none at translated flows where
// only others can.
func TestPassesAreMadeOnlyForWhatCanBeStale(t *testing.T) {
	tcp := nft.Frontend{Addr: vip, Protocol: unix.IPPROTO_TCP, Port: 1}
	beside(t, Config{}, func(s *swept) {
		s.Expect(tcp, Facts{Owned: true, Keep: []netip.AddrPort{endpointA}})
		s.Expect(nft.Frontend{Addr: vip, Protocol: unix.IPPROTO_TCP, Port: 2}, Facts{})
		s.Written()
		s.Written()
		<-time.After(time.Hour)
		s.want(t)
		s.Expect(tcp, Facts{Owned: true, New: true})
		s.Written()
		<-time.After(time.Hour)
		s.want(t, "1h0m0s [] [] [without DNAT]", "1h0m1s [] [] [without DNAT]")
	})
}

// Unanswered flows are looked for now and then, in passes of their own: twice after a change,
// however many come, and once more after one that had found new ones or failed.
func TestPassesForUnansweredFlows(t *testing.T) {
	at := func(protocol uint8, port uint16) nft.Frontend {
		return nft.Frontend{Addr: vip, Protocol: protocol, Port: port}
	}
	gone := Facts{Owned: true, Keep: []netip.AddrPort{endpointA}}
	beside(t, Config{Unanswered: true}, func(s *swept) {
		s.Expect(at(unix.IPPROTO_UDP, 1), gone)
		s.Expect(at(unix.IPPROTO_UDP, 2), Facts{})
		s.Expect(at(unix.IPPROTO_TCP, 1), Facts{Owned: true, New: true, Keep: gone.Keep}) // of a load
		s.Written()
		<-time.After(time.Hour)
		s.want(t)
		for range 20 { // as many as a rollout has, within 10 s
			s.Expect(at(unix.IPPROTO_TCP, 50), gone) // which has no flows
			s.Written()
			<-time.After(time.Second / 2)
		}
		<-time.After(time.Hour)
		s.want(t, "1h0m0s [] [] [unanswered]", "1h0m5s [] [] [unanswered]", "1h0m10s [] [] [unanswered]", "1h0m15s [] [] [unanswered]")
	})
	beside(t, Config{Unanswered: true}, func(s *swept) {
		s.protocol, s.silent = unix.IPPROTO_TCP, true
		s.Expect(at(unix.IPPROTO_TCP, 1), gone)
		s.Written()
		<-time.After(6 * time.Second)
		s.failing.Store(true) // though it has found what is stale
		s.Expect(at(unix.IPPROTO_TCP, 2), gone)
		s.Written()
		<-time.After(6 * time.Second)
		s.failing.Store(false)
		<-time.After(time.Hour)
		s.want(t, "0s [] [] [unanswered]", "5s [] [1] [unanswered]", "10s [] [] [unanswered]", "20s [] [2] [unanswered]")
	})
}

// Whoever writes does not wait for a pass, and many can at once.
func TestWritersDoNotWaitForPasses(t *testing.T) {
	beside(t, Config{}, func(s *swept) {
		release := make(chan struct{})
		s.during = func() { <-release }
		s.came(1)
		done := make(chan struct{})
		for i := range uint16(4) {
			go func() {
				for port := range uint16(4) {
					s.Expect(nft.Frontend{Addr: vip, Protocol: 17, Port: 4*i + port}, Facts{Owned: true, New: true, Keep: []netip.AddrPort{endpointB}})
					s.Written()
				}
				s.SetNodePortAddrs([]netip.Addr{node})
				done <- struct{}{}
			}()
		}
		for range 4 {
			<-done
		}
		close(release)
		<-time.After(time.Hour)
		all := fmt.Sprint(slices.Collect(func(yield func(int) bool) {
			for i := 0; i < 16 && yield(i); i++ {
			}
		}))
		s.want(t, "0s [1] [] [all]", "1s "+all+" [] [all]", "2s "+all+" [] [all]")
	})
}

// What a pass takes for stale it leaves if newer facts say otherwise, written or not.
func TestFactsOfAPassGiveWayToNewerOnes(t *testing.T) {
	at := map[string]nft.Frontend{
		"an address":             {Addr: vip, Protocol: 17, Port: 53},
		"a NodePort":             {Protocol: 17, Port: 53},
		"an address of the node": {Addr: node, Protocol: 17, Port: 53},
	}
	for name, f := range at {
		for _, written := range []bool{false, true} {
			c := New(Config{Family: nft.IPv4, Log: logr.Discard()})
			c.Expect(f, Facts{Owned: true})
			c.Written()
			all := view{c.take()}
			c.Expect(f, Facts{Owned: true, Keep: []netip.AddrPort{endpointB}})
			if written {
				c.Written()
			}
			to := nft.Frontend{Addr: node, Protocol: 17, Port: 53}
			if f.Addr == vip {
				to.Addr = vip
			}
			for endpoint, want := range map[netip.AddrPort]bool{endpointA: true, endpointB: false} {
				got, err := c.stale(all, map[netip.Addr]bool{node: true}, flowTo(to, endpoint))
				if got != want || err != nil {
					t.Errorf("%s, written %v, to %s: stale %v (%v), want %v", name, written, endpoint, got, err, want)
				}
			}
		}
	}
}
