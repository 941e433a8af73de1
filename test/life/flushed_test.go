package life_test

import (
	"bufio"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// flushed removes all rules of a node, as a tool of somebody may, while connections come
// and stay. With the last rule the kernel stops translating, also for connections that are
// open: one that carries something until the rules are back may be reset. One that is
// quiet meanwhile goes on, and so does every one that needs no translation.
func flushed(t *testing.T, w *world, a applications) {
	rules := func() []string {
		rules, err := w.rules("n1")
		if err != nil {
			t.Fatal(err)
		}
		return withoutNumbers(rules)
	}
	before := rules()
	if !strings.Contains(strings.Join(before, "\n"), w.virtual().String()) {
		t.Fatal("there are no rules to flush")
	}
	flows := w.flows(t, a)
	tr := w.run(t, flows)
	quiet := hush(t, flows)
	goOn(t, 2*time.Second)
	begun := time.Now()
	w.machines["n1"].Run(t, "nft", "flush", "ruleset")
	eventually(t, "the rules are back", 30*time.Second, func() error {
		if diff := cmp.Diff(before, rules()); diff != "" {
			return errWant("other rules than before", diff)
		}
		return nil
	})
	healed := time.Now()
	goOn(t, 5*time.Second)
	for f, c := range quiet {
		if err := echo(c, bufio.NewReader(c), 0); err != nil {
			t.Errorf("an open connection that was quiet was lost: %s: %v", f, err)
		}
	}
	tr.finish()
	t.Logf("the rules were back after %s at the latest; %d connections were quiet until then, and go on", healed.Sub(begun).Round(time.Millisecond), len(quiet))
	tr.judgeGap(t, begun, healed)
}

// hush opens a connection of each flow on which nothing is said.
func hush(t *testing.T, flows []flow) map[flow]*net.TCPConn {
	t.Helper()
	quiet := map[flow]*net.TCPConn{}
	for _, f := range flows {
		c, _, _, err := f.dial()
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		t.Cleanup(func() { _ = c.Close() })
		quiet[f] = c
	}
	return quiet
}

// judgeGap says what is wrong with what was lost outside of a gap, and prints the rest. A
// connect counts by when it began: a second before the gap it can still have been at work.
func (tr *traffic) judgeGap(t *testing.T, begun, healed time.Time) {
	t.Helper()
	for kind, s := range tr.seen {
		in := slices.DeleteFunc(slices.Clone(s.failures), func(f failure) bool {
			return f.begun.Before(begun.Add(-time.Second)) || f.begun.After(healed)
		})
		if len(in) < len(s.failures) {
			t.Errorf("%d of %d connects to a %s were lost although the rules were there", len(s.failures)-len(in), s.connects, kind)
		}
		if kind == podAddr && len(s.failures) > 0 {
			t.Errorf("a connect was lost that needs no rule: %s", s.failures[0])
		}
		t.Logf("%-9s %5d connects, %d lost while there were no rules", kind, s.connects, len(in))
	}
	reset := 0
	for _, o := range tr.open {
		if o.err == nil {
			continue
		}
		reset++
		if o.flow.kind == podAddr {
			t.Errorf("an open connection was lost that needs no rule: %s: %v", o.flow, o.err)
		}
	}
	t.Logf("open      %5d connections, %d of those that carried something meanwhile were reset", len(tr.open), reset)
}
