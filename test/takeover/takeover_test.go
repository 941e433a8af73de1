// Package takeover_test runs a real kube-proxy, whose place the real daemon takes under
// real packets: connections that are open stay open, and none that begins fails.
package takeover_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"onerule/test/rig"
)

// afterwards is how long traffic goes on after what matters has happened.
const afterwards = 2 * time.Second

// Also k/k#119265.
func TestA14_11R109286TheDaemonTakesOverFromKubeProxy(t *testing.T) {
	w := newWorld(t)
	for _, m := range modes() {
		for _, beside := range []bool{true, false} {
			name := m.name + ", which has ended"
			if beside {
				name = m.name + ", which ends afterwards"
			}
			t.Run(name, func(t *testing.T) { w.testTakeOver(t, m, beside) })
		}
	}
	for _, m := range modes()[:2] {
		t.Run(m.name+", which goes on writing", func(t *testing.T) { w.testBeside(t, m) })
		t.Run(m.name+", removed with nothing in its place", func(t *testing.T) { w.testWithout(t, m) })
	}
}

func (w *world) testTakeOver(t *testing.T, m mode, beside bool) {
	t.Cleanup(func() { w.clear(t) })
	theirs := w.run(t, m, "1h")
	open := w.open(t)
	clients := w.begin(t.Context())
	if !beside {
		theirs.kill()
	}
	ours := w.daemon(t)
	ours.Run()
	ours.AwaitHealthy()
	w.gone(t)
	theirs.kill()
	await(t, afterwards)
	clients.finish().judge(t)
	if err := open.alive(); err != nil {
		t.Errorf("what was open before: %v", err)
	}
	w.clean(t)
}

// clean checks, by what people would look at, that only kubelet's chains are left:
// kube-proxy makes one of these, too, and leaves it to it.
func (w *world) clean(t *testing.T) {
	t.Helper()
	text := w.h.Node.Run(t, "nft", "list", "ruleset")
	for _, save := range []string{"iptables-legacy-save", "ip6tables-legacy-save"} {
		text += w.h.Node.Run(t, save)
	}
	names := regexp.MustCompile(`KUBE-[A-Z0-9-]+|table ip6? kube-proxy`).FindAllString(text, -1)
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "KUBE-FIREWALL" })
	if len(names) > 0 {
		t.Errorf("left: %s", strings.Join(names, ", "))
	}
}

// gone waits until the daemon has removed what kube-proxy left.
func (w *world) gone(t *testing.T) {
	t.Helper()
	rig.Eventually(t, "the daemon removes what kube-proxy left", func() error {
		if l := w.left(t); !l.Empty() {
			return errors.New(l.String())
		}
		return nil
	})
}

// A kube-proxy that nobody ends writes its rules again, which is found, and disturbs
// nobody: what was decided first stands.
func (w *world) testBeside(t *testing.T, m mode) {
	t.Cleanup(func() { w.clear(t) })
	theirs := w.run(t, m, "1s")
	open := w.open(t)
	clients := w.begin(t.Context())
	ours := w.daemon(t)
	ours.Run()
	ours.AwaitHealthy()
	for range 3 {
		w.remove(t)
		w.touch(t)
		rig.Eventually(t, "kube-proxy writes again", func() error {
			if l := w.left(t); !strings.Contains(l.String(), m.trace) {
				return fmt.Errorf("found %s, want %s", l, m.trace)
			}
			return nil
		})
	}
	await(t, afterwards)
	theirs.kill()
	clients.finish().judge(t)
	if err := open.alive(); err != nil {
		t.Errorf("what was open before: %v", err)
	}
}

// The same with no rules of ours must fail, or the tests above prove nothing. What is
// open stays open here, too: its translation stands in conntrack.
func (w *world) testWithout(t *testing.T, m mode) {
	t.Cleanup(func() { w.clear(t) })
	theirs := w.run(t, m, "1h")
	open := w.open(t)
	theirs.kill()
	// Without a rule of somebody's the kernel unhooks conntrack together with the tables.
	w.h.Node.Run(t, "nft", `
		table ip keep { chain c { type nat hook prerouting priority -100; }; chain o { type filter hook output priority 0; ct state new; }; }
		table ip6 keep { chain c { type nat hook prerouting priority -100; }; chain o { type filter hook output priority 0; ct state new; }; }`)
	w.remove(t)
	clients := w.begin(t.Context())
	await(t, time.Second)
	if r := clients.finish(); r.failures != r.connects {
		t.Errorf("%d of %d connects failed, want all", r.failures, r.connects)
	}
	if err := open.alive(); err != nil {
		t.Errorf("what was open before: %v", err)
	}
}

// await lets time pass in which nothing is to happen.
func await(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-t.Context().Done():
	case <-time.After(d):
	}
}
