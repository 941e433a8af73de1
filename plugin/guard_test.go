package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"onerule/nft"
	"onerule/nft/guard"
	"onerule/test/netns"
)

// guarded loads the tables of the guard, as the daemon does.
func (n *node) guarded(t *testing.T) {
	t.Helper()
	ranges := guard.Ranges{Pods: []netip.Prefix{netip.MustParsePrefix(podRange4), netip.MustParsePrefix(podRange6)}}
	for _, f := range []nft.Family{nft.IPv4, nft.IPv6} {
		if err := n.Do(func() error {
			g, err := guard.Open(f)
			if err != nil {
				return err
			}
			_, err = g.Load(context.Background(), ranges)
			return errors.Join(err, g.Close())
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func (n *node) daemonServed(t *testing.T, at time.Time, served bool) {
	t.Helper()
	text := fmt.Sprintf(`{"time":%q,"conditions":null,"served":%t}`, at.UTC().Format(time.RFC3339Nano), served)
	if err := os.WriteFile(n.statusFile(), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Once a daemon has brought in the tables that keep pods from sending with others'
// addresses, they have to stand, also after its end.
func TestTheGuardHasToStand(t *testing.T) {
	n := newNode(t)
	pod := add("c1", "eth0", netns.New(t, "pod"), n.config("1.1.0", nil))
	n.added(t, pod)
	check, status := n.checkOf(t, pod), statusOf(n, podRange4, podRange6)
	longAgo, now := time.Now().Add(-5*time.Minute), time.Now()
	for _, tc := range []struct {
		name   string
		at     time.Time
		served bool
	}{{"a daemon that has not brought it in", now, false}, {"a daemon of an earlier boot", now.AddDate(-5, 0, 0), true}} {
		t.Run("C44, C47: it may be missing with "+tc.name, func(t *testing.T) {
			n.daemonServed(t, tc.at, tc.served)
			n.succeed(t, check)
			for range softLimit + 1 {
				n.succeed(t, status)
			}
		})
	}
	n.guarded(t)
	for _, tc := range []struct{ name, spoil, what string }{
		{"the IPv4 table is gone", "nft delete table ip " + guard.TableName, "IPv4 table " + guard.TableName},
		{"the IPv6 table is gone", "nft delete table ip6 " + guard.TableName, "IPv6 table " + guard.TableName},
		{"all tables are gone", "nft flush ruleset", "IPv4 table " + guard.TableName},
		{"a table is dormant", "nft add table ip " + guard.TableName + " '{ flags dormant; }'", "dormant"},
	} {
		for when, at := range map[string]time.Time{"whose daemon lives": now, "whose daemon is gone": longAgo} {
			t.Run("C44, C47: "+tc.name+", on a node "+when, func(t *testing.T) {
				n.guarded(t)
				n.daemonServed(t, at, true)
				n.succeed(t, check)
				n.succeed(t, status)
				n.Run(t, "sh", "-c", tc.spoil)
				n.fail(t, check, 106, tc.what)
				n.softly(t, status, 51, tc.what)
			})
		}
	}
	t.Run("C47: nothing is said where no pod is", func(t *testing.T) {
		n.succeed(t, pod.as("DEL"))
		n.daemonServed(t, now, true)
		n.succeed(t, status)
	})
}
