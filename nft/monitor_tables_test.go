package nft_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/nft"
	"onerule/test/netns"
)

// Tables beside that of Services are watched as it is, each by itself.
func TestMonitorWatchesFurtherTables(t *testing.T) {
	ns := netns.New(t, "node")
	var m *nft.Monitor
	do(t, ns, func() (err error) {
		m, err = nft.OpenMonitor("guarding", "ports")
		return err
	})
	t.Cleanup(func() { _ = m.Close() })
	if alone, err := m.Listen(0); !alone || err != nil {
		t.Fatalf("listen: alone %t, %v", alone, err)
	}
	run(t, m)
	t.Run("one transaction over two of them", func(t *testing.T) {
		ns.Run(t, "nft", "add table ip guarding; add table ip6 ports; add table ip onerule")
		want := []nft.Foreign{
			{Table: "guarding", Family: nft.IPv4, Kind: nft.OtherChange, Count: 1, By: "nft"},
			{Table: "onerule", Family: nft.IPv4, Kind: nft.OtherChange, Count: 1, By: "nft"},
			{Table: "ports", Family: nft.IPv6, Kind: nft.OtherChange, Count: 1, By: "nft"},
		}
		if diff := cmp.Diff(want, told(t, m)); diff != "" {
			t.Errorf("told (-want +got): %s", diff)
		}
	})
	t.Run("a run of ours for one of them hides no change of another", func(t *testing.T) {
		ended := m.Of("guarding").Expect(nft.IPv4)
		ns.Run(t, "nft", "add chain ip guarding a")
		ns.Run(t, "nft", "delete table ip onerule")
		ended(true)
		want := []nft.Foreign{{Table: "onerule", Family: nft.IPv4, Kind: nft.TableDeleted, Count: 1, By: "nft"}}
		if diff := cmp.Diff(want, told(t, m)); diff != "" {
			t.Errorf("told (-want +got): %s", diff)
		}
		nothing(t, m, "our run")
	})
}

// Who looks for chains in the way is told of chains and rules of others, and of no element.
func TestMonitorTellsThatOthersHaveOtherRules(t *testing.T) {
	ns := netns.New(t, "node")
	m := watch(t, ns)
	p := watched(t, ns, nft.IPv4, m)
	poked := func() bool {
		within(t, 10*time.Second, m.Behind)
		select {
		case <-m.Elsewhere():
			return true
		default:
			return false
		}
	}
	for _, test := range []struct {
		name string
		do   func()
		want bool
	}{
		{"a load of ours", func() { load(t, ns, p, world(nft.IPv4, 10, 3)) }, false},
		{"a table", func() { ns.Run(t, "nft", "add table inet foreign") }, true},
		{"a chain", func() {
			ns.Run(t, "nft", "add chain inet foreign f { type filter hook forward priority 0; policy drop; }")
		}, true},
		{"a set", func() { ns.Run(t, "nft", "add set inet foreign s { type inet_service; }") }, true},
		{"an element", func() { ns.Run(t, "nft", "add element inet foreign s { 80 }") }, false},
		{"a rule", func() { ns.Run(t, "nft", "add rule inet foreign f accept") }, true},
		{"a change of our table", func() { ns.Run(t, "nft", "add counter ip onerule foreign") }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.do()
			if got := poked(); got != test.want {
				t.Errorf("told: %t, want %t", got, test.want)
			}
		})
	}
}
