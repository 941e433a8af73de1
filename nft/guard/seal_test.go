package guard_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/nft"
	"onerule/nft/guard"
	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/wired"
)

// A version that sealed the table in another way costs that it is written once, as a whole.
func TestATableUnderASealOfAnotherVersionIsWrittenOnce(t *testing.T) {
	each(t, func(t *testing.T, f nft.Family, p addr.Plan) {
		ns := netns.New(t, "node")
		load(t, ns, open(t, ns, f), ranges(p))
		healthy := listing(t, ns, f)
		seal := regexp.MustCompile("rules-[0-9a-f]{16}").FindString(healthy)
		table := f.String() + " " + guard.TableName
		ns.Run(t, "nft", "delete chain "+table+" "+seal+"; add chain "+table+" rules-0123456789abcdef")
		n := wired.Commits(t, ns, func() {
			if found := load(t, ns, open(t, ns, f), ranges(p)); found != (guard.Repair{Rules: true}) {
				t.Errorf("the load found %+v", found)
			}
		})
		if n != 2 {
			t.Errorf("%d transactions, want one of the table and one of its seal", n)
		}
		if diff := cmp.Diff(healthy, listing(t, ns, f)); diff != "" || !strings.Contains(healthy, seal) {
			t.Errorf("the table is not as before (-before +after): %s", diff)
		}
		if found := load(t, ns, open(t, ns, f), ranges(p)); !found.Nothing() {
			t.Errorf("the next load found %+v", found)
		}
	})
}
