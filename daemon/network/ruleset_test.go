package network_test

import (
	"os"
	"strings"
	"testing"
)

// All rules that the daemon of a node makes. Those of host ports stand in
// nft/hostport/testdata.
func TestWhatOurRulesDoNot(t *testing.T) {
	a := single(t)
	rules := a.ns.Run(t, "nft", "list", "ruleset")
	for _, table := range []string{"table ip onerule {", "table ip6 onerule {", "table ip onerule-guard {", "table ip6 onerule-guard {"} {
		if !strings.Contains(rules, table) {
			t.Errorf("%s is not there: this shows nothing of it", table)
		}
	}
	for word, why := range map[string]string{
		"flowtable":       "D31: new rules would not hold for offloaded connections",
		"flow add":        "D31: new rules would not hold for offloaded connections",
		"queue":           "D37: packets would wait for a program",
		"route_localnet ": "it is never needed",
	} {
		if strings.Contains(rules, word) {
			t.Errorf("the rules have %q: %s", word, why)
		}
	}
	t.Run("the status is for root alone", func(t *testing.T) {
		info, err := os.Stat(a.status)
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%v: got %v", err, info.Mode())
		}
	})
}
