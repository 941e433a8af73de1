package main

import (
	"net/netip"
	"testing"
	"time"

	"onerule/test/netns"
)

// A median of ratios, not a ratio of medians: what slows a whole turn down is in both.
func TestTimingsAreComparedTurnByTurn(t *testing.T) {
	var a, b timings
	for turn, slow := range []time.Duration{1, 100, 1} {
		for _, d := range []time.Duration{2, 3, 90} {
			a.add(d * slow)
			b.add(d * slow * time.Duration(turn+1))
		}
		a.end()
		b.end()
	}
	if got := a.beside(&b); got != 2 {
		t.Errorf("got %v, want 2: the turns are 1, 2 and 3 times as fast", got)
	}
	if len(a.all) != 9 || len(a.turn) != 0 {
		t.Errorf("%d timings in all and %d of a turn that has ended", len(a.all), len(a.turn))
	}
}

func TestWhatIsAskedForIsTransferred(t *testing.T) {
	ns := netns.New(t, "node")
	answers, sink := netip.MustParseAddrPort("127.0.0.1:8080"), netip.MustParseAddrPort("127.0.0.1:8081")
	stop, err := serveAnswers(ns, answers)
	if err != nil {
		t.Fatal(err)
	}
	stopSink, err := serveSink(ns, sink)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stopSink)
	err = ns.Do(func() error {
		buf := make([]byte, 4096)
		for _, what := range []byte{askByte, askPayload} {
			if _, err := fetch(answers, what, buf); err != nil {
				return err
			}
		}
		_, err := transfer(sink, 1<<20)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	stop()
	if err := ns.Do(func() error { _, err := fetch(answers, askByte, make([]byte, 1)); return err }); err == nil {
		t.Error("who has stopped still answers")
	}
}
