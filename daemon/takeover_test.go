package daemon

import (
	"strings"
	"testing"

	"onerule/test/netns"
)

// What a kube-proxy has left is removed and nobody is told; one that writes its rules
// again runs beside, which is an event about the node each time.
func TestAKubeProxyThatRunsBesideIsTold(t *testing.T) {
	ns := netns.New(t, "node")
	d := newDaemon(t, ns)
	var told []Event
	d.cfg.Event = func(e Event) { told = append(told, e) }
	look := func(again bool) (found bool) {
		t.Helper()
		if err := ns.Do(func() error { found = d.removeLeftovers(t.Context(), again); return nil }); err != nil {
			t.Fatal(err)
		}
		return found
	}
	write := func() { ns.Run(t, "nft", "add table ip kube-proxy; add table ip6 kube-proxy") }
	if look(true) || len(told) > 0 {
		t.Errorf("told %v of a node without kube-proxy", told)
	}
	write()
	if !look(false) || len(told) > 0 {
		t.Errorf("told %v of what one has left, or not removed", told)
	}
	for times := 1; times <= 2; times++ {
		write()
		if !look(true) || len(told) != times {
			t.Fatalf("told %v, want an event each time that it writes again: %d", told, times)
		}
		e := told[times-1]
		if e.Object != d.nodeKey() || e.Reason != "KubeProxyRunsBeside" || !strings.Contains(e.Note, "table ip kube-proxy") {
			t.Errorf("got event %+v, want one about the node that names the tables", e)
		}
	}
	if out := ns.Run(t, "nft", "list", "tables"); strings.Contains(out, "kube-proxy") {
		t.Errorf("its tables are there: %s", out)
	}
}
