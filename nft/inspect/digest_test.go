package inspect_test

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"onerule/nft/dump"
	"onerule/nft/inspect"
)

// rule gives one of these expressions, each with its data.
func rule(chain string, expressions ...[2]string) inspect.Rule {
	r := inspect.Rule{Table: "one", Chain: chain}
	for _, e := range expressions {
		r.Expressions = append(r.Expressions, dump.Nest(unix.NFTA_LIST_ELEM, slices.Concat(
			dump.Name(unix.NFTA_EXPR_NAME, e[0]), dump.Nest(unix.NFTA_EXPR_DATA, []byte(e[1]))))...)
	}
	return r
}

func sealOf(t *testing.T, rules ...inspect.Rule) string {
	t.Helper()
	d := inspect.Digests{}
	for _, r := range rules {
		if err := d.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	return d.Seal()
}

// A seal of other digests costs that all rules of a node are written again: it only changes
// on purpose.
func TestTheSealOfRulesIsThatOfEarlierVersions(t *testing.T) {
	a := rule("a", [2]string{"meta", "iifname"}, [2]string{"counter", "7 packets"})
	b := rule("b", [2]string{"lookup", "set"})
	for _, c := range []struct {
		name  string
		rules []inspect.Rule
		want  string
	}{
		{"no rules", nil, "rules-e3b0c44298fc1c14"},
		{"two chains", []inspect.Rule{a, b}, "rules-6501a31aa0cc24cc"},
		{"two chains, mixed", []inspect.Rule{b, a}, "rules-6501a31aa0cc24cc"},
		{"more was counted", []inspect.Rule{rule("a", [2]string{"meta", "iifname"}, [2]string{"counter", "8 packets"}), b}, "rules-6501a31aa0cc24cc"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := sealOf(t, c.rules...); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
	if sealOf(t, rule("a", [2]string{"ab", "c"})) == sealOf(t, rule("a", [2]string{"a", "bc"})) {
		t.Error("what stands where is not told apart")
	}
	if sealOf(t, a, b, b) == sealOf(t, a, b) || sealOf(t, a, a, b) == sealOf(t, b, a, b) {
		t.Error("other rules have the same seal")
	}
}
