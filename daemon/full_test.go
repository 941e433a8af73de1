package daemon

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/model"
	"onerule/daemon/plan"
	"onerule/nft"
)

// What was counted before the first reading is history, and what comes after is told once
// in a while, however often it is read.
func TestF6FullPinsAreToldNowAndThen(t *testing.T) {
	p := newFullPins()
	now := time.Unix(1000, 0)
	web, dns := pinMap{nft.IPv4, "web"}, pinMap{nft.IPv6, "dns"}
	for _, step := range []struct {
		name   string
		after  time.Duration
		family nft.Family
		named  map[string]uint64
		more   bool
		want   map[pinMap]uint64
	}{
		{"history", 0, nft.IPv4, map[string]uint64{"pins-full-web": 7, "refused-no-endpoints": 3}, false, map[pinMap]uint64{}},
		{"nothing new", 1, nft.IPv4, map[string]uint64{"pins-full-web": 7, "refused-no-endpoints": 9}, false, map[pinMap]uint64{}},
		{"two more", 1, nft.IPv4, map[string]uint64{"pins-full-web": 9}, true, map[pinMap]uint64{web: 2}},
		{"more, soon after", fullAgain / 2, nft.IPv4, map[string]uint64{"pins-full-web": 12}, true, map[pinMap]uint64{}},
		{"more, later: since it was told", fullAgain / 2, nft.IPv4, map[string]uint64{"pins-full-web": 13}, true, map[pinMap]uint64{web: 4}},
		{"the other family, first", 1, nft.IPv6, map[string]uint64{}, false, map[pinMap]uint64{}},
		{"one that came since", 1, nft.IPv6, map[string]uint64{"pins-full-dns": 1}, true, map[pinMap]uint64{dns: 1}},
		{"a counter that began anew", fullAgain, nft.IPv4, map[string]uint64{"pins-full-web": 5}, true, map[pinMap]uint64{web: 5}},
		{"one that is gone", 1, nft.IPv4, map[string]uint64{}, false, map[pinMap]uint64{}},
		{"and comes again", 1, nft.IPv4, map[string]uint64{"pins-full-web": 1}, true, map[pinMap]uint64{web: 1}},
	} {
		now = now.Add(step.after)
		if more := p.counts(step.family, step.named); more != step.more {
			t.Errorf("%s: more %t, want %t", step.name, more, step.more)
		}
		if diff := cmp.Diff(step.want, p.take(now), cmp.AllowUnexported(pinMap{})); diff != "" {
			t.Errorf("%s: to be told (-want +got): %s", step.name, diff)
		}
	}
}

// A scrape and the ticker may read at the same time: what they find is counted once, also
// where the one that has read first comes last.
func TestF6ReadersOfCountersDoNotOvertakeEachOther(t *testing.T) {
	const readers, each = 4, 2000
	p := newFullPins()
	var kernel atomic.Uint64
	read := func(nft.Family) (map[string]uint64, error) {
		now := kernel.Add(1)
		runtime.Gosched() // so that another one may read meanwhile
		return map[string]uint64{nft.PinsFullPrefix + "web": now}, nil
	}
	if _, more, err := p.read(nft.IPv4, read); more || err != nil {
		t.Fatalf("history: more %t, %v", more, err)
	}
	var all sync.WaitGroup
	for range readers {
		all.Go(func() { // ends after so many readings
			for range each {
				if _, _, err := p.read(nft.IPv4, read); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	want := map[pinMap]uint64{{nft.IPv4, "web"}: readers * each}
	if diff := cmp.Diff(want, p.take(time.Unix(1000, 0)), cmp.AllowUnexported(pinMap{})); diff != "" {
		t.Errorf("to be told (-want +got): %s", diff)
	}
}

func TestF6TheEventOfFullPinsSaysWhereAndHowMany(t *testing.T) {
	port := plan.ServicePort{Service: model.Name{Namespace: "shop", Name: "web"}, Port: "http", Protocol: model.TCP, Family: plan.IPv6}
	want := Event{
		Object: model.Key{Kind: model.KindService, Name: port.Service}, Reason: "SessionAffinityFull",
		Note: `node n1: 5 connections to port "http" (TCP, IPv6) are of clients that session affinity has no room for: they are balanced without it`,
	}
	if diff := cmp.Diff(want, fullEvent("n1", port, 5)); diff != "" {
		t.Errorf("event (-want +got): %s", diff)
	}
}
