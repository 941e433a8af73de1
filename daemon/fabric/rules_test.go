package fabric_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"onerule/test/wired"
)

// rules gives the rules of a node, with who made them.
func (h *host) rules(t *testing.T, family string) string {
	t.Helper()
	return h.ns.Run(t, "ip", "-d", family, "rule", "show")
}

// Whatever routes there are: without a rule that leads to the main table, none counts.
func TestD11_RulesArePutRight(t *testing.T) {
	w := newWorld(t)
	w.start(t, config())
	a := w.nodes[0]
	kernels := map[string]string{"-4": a.rules(t, "-4"), "-6": a.rules(t, "-6")}
	routes := a.holds(t)
	var repairs wired.Repairs
	for _, test := range []struct{ name, family, command string }{
		{"D11 all IPv4 rules", "-4", "ip -4 rule flush"},
		{"D11 all IPv6 rules", "-6", "ip -6 rule flush"},
		{"D11 the IPv4 rule of the main table", "-4", "ip -4 rule del pref 32766"},
		{"D11 the IPv6 rule of the main table", "-6", "ip -6 rule del pref 32766"},
	} {
		t.Run(test.name, func(t *testing.T) {
			repairs.Try(t, test.name, func() {
				a.told()
				f := strings.Fields(test.command)
				a.ns.Run(t, f[0], f[1:]...)
				wired.Eventually(t, func() error {
					if got := a.rules(t, test.family); got != kernels[test.family] {
						return fmt.Errorf("got\n%s\nwant\n%s", got, kernels[test.family])
					}
					return nil
				})
				for _, to := range slices.Concat(w.nodes[1].podAddrs(), w.nodes[2].podAddrs()) {
					wired.Eventually(t, func() error { _, err := ask(a.pod, to, 1450, 100*time.Millisecond); return err })
				}
			})
			if got := a.changed(); !slices.Contains(got, "rule") {
				t.Errorf("told were %q, want rule", got)
			}
			a.healed(t, routes)
		})
	}
	repairs.Tell(t)
	a.quiet(t)
	if got := a.wrong(); len(got) > 0 {
		t.Errorf("problems are %v, want none", got)
	}
}

// Rules of others are theirs, and so is where the one of the main table stands among them.
func TestRulesOfOthersStay(t *testing.T) {
	w := newWorld(t)
	a := w.nodes[0]
	a.start(t, config(), w.list())
	for _, family := range []string{"-4", "-6"} {
		for _, rule := range []string{"pref 50 lookup main suppress_prefixlength 0", "pref 60 fwmark 7 lookup main", "pref 70 lookup main"} {
			a.ns.Run(t, "ip", append([]string{family, "rule", "add"}, strings.Fields(rule)...)...)
		}
		a.ns.Run(t, "ip", family, "rule", "del", "pref", "32766")
		before := a.rules(t, family)
		a.quiet(t)
		if got := a.rules(t, family); got != before {
			t.Errorf("got\n%s\nwant\n%s", got, before)
		}
		if got := a.changed(); len(got) > 0 {
			t.Errorf("told were %q, want nothing", got)
		}
		a.ns.Run(t, "ip", family, "rule", "del", "pref", "70")
		want := before[:strings.Index(before, "70:")] + "32766:"
		wired.Eventually(t, func() error {
			if got := a.rules(t, family); !strings.HasPrefix(got, want) {
				return fmt.Errorf("got\n%s\nwant\n%s", got, want)
			}
			return nil
		})
		a.told()
	}
}

// While this node is not known, nothing is written; then what is missing is no news.
func TestRulesThatAreMissingAtTheStart(t *testing.T) {
	w := newWorld(t)
	a := w.nodes[0]
	kernels := a.rules(t, "-4") + a.rules(t, "-6")
	a.ns.Run(t, "ip", "-4", "rule", "flush")
	a.ns.Run(t, "ip", "-6", "rule", "flush")
	a.start(t, config(), nil)
	a.quiet(t)
	if got := a.rules(t, "-4") + a.rules(t, "-6"); strings.Contains(got, "main") {
		t.Errorf("got\n%s", got)
	}
	a.fabric.Set("a", w.list())
	a.settle(t)
	if got := a.rules(t, "-4") + a.rules(t, "-6"); got != kernels {
		t.Errorf("got\n%s\nwant\n%s", got, kernels)
	}
	if got := a.changed(); len(got) > 0 {
		t.Errorf("told were %q, want nothing", got)
	}
}
