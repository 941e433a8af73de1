package network

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/fabric/layout"
	"onerule/nft"
	"onerule/nft/hostport"
	"onerule/test/netns"
)

// What Probe finds is passed in: this kernel has the expression.
func TestAKernelWithoutFibHasAGuardAndIsToldOf(t *testing.T) {
	ns := netns.New(t, "node")
	l := &listener{}
	n := l.reporter("a").network
	n.cfg.WithoutFib, n.cfg.Families = true, []nft.Family{nft.IPv4, nft.IPv6}
	n.cfg.Settings.CNIState = t.TempDir()
	n.cfg.HostPorts = func([]hostport.Claim) {}
	n.fabric.Set("a", []layout.Node{{Name: "a", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.1.0/24")}}})
	err := ns.Do(func() error {
		monitor, err := nft.OpenMonitor(Tables()...)
		if err != nil {
			return err
		}
		defer func() { _ = monitor.Close() }()
		tables, err := openTables(n, monitor)
		if err != nil {
			return err
		}
		defer tables.close()
		tables.due = true
		return tables.bring(context.Background())
	})
	if err != nil {
		t.Fatal(err)
	}
	rules := ns.Run(t, "nft", "list", "ruleset")
	for _, want := range []string{"table ip onerule-guard", "table ip6 onerule-guard", "10.1.1.0/24", "masquerade"} {
		if !strings.Contains(rules, want) {
			t.Errorf("no %q in\n%s", want, rules)
		}
	}
	if strings.Contains(rules, "fib") {
		t.Errorf("the kernel is to have none:\n%s", rules)
	}
	const line = "the kernel lacks the expression fib of nftables: the guard does not look at the addresses with which pods send"
	if diff := cmp.Diff([]string{"a GuardDegraded: " + line}, l.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if len(l.lines) < 1 || !strings.Contains(l.lines[0], line) {
		t.Errorf("lines %q", l.lines)
	}
	if diff := cmp.Diff([]string{line}, n.lacks()); diff != "" {
		t.Errorf("degraded (-want +got):\n%s", diff)
	}
}
