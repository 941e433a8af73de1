package nft

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/knftables"

	"onerule/test/netns"
)

// rulesOf gives the script that writes the rules of a configuration, over those that are
// there if flush is set.
func rulesOf(t *testing.T, c Config, flush bool) string {
	t.Helper()
	iface, err := knftables.New(knftables.Family(c.Family.String()), TableName)
	if err != nil {
		t.Fatal(err)
	}
	w := rulesetWriter{skeleton: NewSkeleton(c), nft: iface}
	o := w.all(variable{order: []count{{slots: finds()[0].slots, protocol: finds()[0].protocol, n: 3}}})
	tx := iface.NewTransaction()
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("rules for Services")})
	for _, chain := range o.chains {
		if flush && !strings.HasPrefix(chain.Name, versionPrefix) {
			tx.Flush(&knftables.Chain{Name: chain.Name})
		}
	}
	addObjects(tx, o)
	return tx.String()
}

// more are objects that the first script adds besides, and the second one deletes.
func more(verb string, f Family) string {
	var b strings.Builder
	for _, object := range []struct{ noun, name, is string }{
		{"chain", "extra", `{ comment "of no use" ; }`}, {"chain", "base", "{ type nat hook input priority 5 ; }"},
		{"set", "extra-set", "{ type inet_service ; flags interval ; }"}, {"map", "extra-map", "{ type mark : verdict ; }"},
		{"counter", "extra-counter", ""},
	} {
		if verb == "delete" {
			object.is = ""
		}
		fmt.Fprintf(&b, "%s %s %s %s %s %s\n", verb, object.noun, f, TableName, object.name, object.is)
	}
	return b.String()
}

// What nft makes in a namespace of its own and what it makes in place is the same: into an
// empty table, over one that is there, and in place of it.
func TestR4ApartDoesWhatNftDoes(t *testing.T) {
	netns.Privileged(t)
	for _, family := range []Family{IPv4, IPv6} {
		t.Run(family.String(), func(t *testing.T) {
			usual, apartly := netns.New(t, "usual"), netns.New(t, "apart")
			first := Config{Family: family, MasqueradeBit: 14, Detector: DetectCIDR}
			second := Config{Family: family, MasqueradeBit: 3, MasqueradeAll: true, Detector: DetectInterface, PodInterface: "veth*"}
			table := fmt.Sprintf("table %s %s\n", family, TableName)
			for _, step := range []struct{ name, script string }{
				{"into no table", rulesOf(t, first, false) + more("add", family)},
				{"over what is there", more("delete", family) + rulesOf(t, second, true) + fmt.Sprintf("add chain %s %s base\n", family, TableName)},
				{"in place of it", "add " + table + "delete " + table + rulesOf(t, first, false)},
			} {
				run := func(ns *netns.NS, do func() error) (string, string) {
					t.Helper()
					if err := ns.Do(do); err != nil {
						t.Fatalf("%s: %v", step.name, err)
					}
					var k inKernel
					if err := ns.Do(func() (err error) { k, err = readTable(family); return err }); err != nil {
						t.Fatal(err)
					}
					return ns.Run(t, "nft", "-s", "list", "ruleset"), k.seal
				}
				want, digest := run(usual, func() error { return script(step.script) })
				got, gotDigest := run(apartly, func() error { return apart(t.Context(), family, step.script) })
				if diff := cmp.Diff(want, got); diff != "" || len(want) < 1000 {
					t.Errorf("%s (-nft +apart):\n%s", step.name, diff)
				}
				if digest != gotDigest {
					t.Errorf("%s: the rules have another digest", step.name)
				}
			}
		})
	}
}

// script runs nft in the network namespace of the calling thread.
func script(text string) error {
	nft := exec.Command("nft", "-f", "-")
	nft.Stdin = strings.NewReader(text)
	if out, err := nft.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

func TestR4OnlyASignalIsADeath(t *testing.T) {
	for command, want := range map[string]bool{"kill -SEGV $$": true, "exit 1": false, "exit 0": false} {
		err := exec.Command("sh", "-c", command).Run()
		if got := died(nftError{err}); got != want {
			t.Errorf("%s: died %t, want %t", command, got, want)
		}
	}
	if _, err := commands("add table\n"); err == nil {
		t.Error("half a command is taken")
	}
}
