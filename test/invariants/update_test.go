package invariants_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/test/netns"
	"onerule/test/rig"
)

// The pod of another version comes before the old one ends, on the same addresses, and the
// kernel has room for the programs of one.
func TestAnUpdateTakesAddressesAndCountersOver(t *testing.T) {
	ns := netns.New(t, "node")
	first := rig.Start(t, ns)
	counts := first.Series("onerule_bpf_enabled")
	if len(counts) == 0 {
		t.Fatal("the first does not say whether it counts")
	}
	second := rig.New(t, ns)
	second.Run()
	rig.Eventually(t, "the second waits", func() error {
		if !strings.Contains(second.Log(), waits) {
			return fmt.Errorf("it says %q", second.Log())
		}
		return nil
	})
	first.Stop()
	second.AwaitHealthy()
	rig.Eventually(t, "it counts as the first did", func() error {
		if diff := cmp.Diff(counts, second.Series("onerule_bpf_enabled")); diff != "" {
			return fmt.Errorf("(-first +second):\n%s", diff)
		}
		return nil
	})
	for _, fault := range []string{"cannot answer", "is not counted"} {
		if strings.Contains(second.Log(), fault) {
			t.Errorf("%q is said: %s", fault, second.Log())
		}
	}
}
