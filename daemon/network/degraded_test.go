package network

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"onerule/daemon/config"
	"onerule/daemon/fabric/layout"
	"onerule/install"
	"onerule/nft/forward"
)

// What is said of others is tested with a real daemon, in told_test.go.
func TestDegradedNamesAllThatIsAmiss(t *testing.T) {
	n := New(Config{Node: "a", WithoutFib: true, Event: func(Event) {}, Log: logr.Discard()})
	n.keeper = &install.Keeper{}
	n.seen = seen{
		barriers: []forward.Barrier{{Family: "ip", Table: "filter", Chain: "FORWARD"}}, localnet: []string{"eth0"},
		failing: errors.New("no nft"), full: []string{"the table of IPv4 neighbours is full"},
	}
	n.problems = []layout.Problem{{Node: "z", Detail: "no address"}}
	n.first = []string{"05-other.conflist comes first"}
	want := []string{
		"the kernel lacks the expression fib", "pods are not served yet, and the list of plugins is not published",
		"chain FORWARD of table ip filter", "routes between nodes: the nodes are not known yet", "tables of the pod network: no nft",
		"something is wrong with node z: no address", "route_localnet is set on eth0", "the table of IPv4 neighbours is full", "05-other.conflist comes first",
	}
	got := n.Degraded()
	for i, line := range got {
		if i < len(want) && strings.HasPrefix(line, want[i]) {
			got[i] = want[i]
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestANodeWithoutPodRangesIsSaidToBe(t *testing.T) {
	n := New(Config{Node: "a", Settings: config.PodNetwork{}, Event: func(Event) {}, Log: logr.Discard()})
	n.fabric.Set("a", []layout.Node{{Name: "a"}})
	if got := n.Degraded(); len(got) == 0 || got[0] != "pods are not served yet: node a has no pod ranges (spec.podCIDRs)" {
		t.Errorf("got %q", got)
	}
}
