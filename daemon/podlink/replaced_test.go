package podlink_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/test/wired"
)

// A pod that goes and one that comes in the place of it, with the same container and
// interface, have links of one name. What the first one had is not put on the second one's.
func TestALinkOfTheSameNameIsAnotherPods(t *testing.T) {
	const link, sentinel = "one00000000000c", "oneffffffffffff"
	n := newNode(t)
	n.record(t, link, func(map[string]any) {})
	n.whole(t, link)
	n.record(t, sentinel, func(r map[string]any) { r["addresses"] = []string{"10.1.0.9"} })
	n.link(t, sentinel)
	n.keep(t)
	n.awaitUp(t, sentinel) // which is looked at last
	look := func() {
		n.run(t, "ip link set "+sentinel+" down")
		n.awaitUp(t, sentinel)
	}
	// At once, so that the Keeper does not look in between.
	n.record(t, link, func(r map[string]any) { r["created"], r["addresses"] = time.Now(), []string{"10.1.0.3"} })
	batch := filepath.Join(t.TempDir(), "batch")
	commands := strings.NewReplacer("LINK", link, "PEER", peer(link)).Replace(
		"link del LINK\nlink add LINK type veth peer name PEER\nlink set LINK address " + hostMAC + "\nlink set LINK up\nlink set PEER up\n")
	if err := os.WriteFile(batch, []byte(commands), 0o600); err != nil {
		t.Fatal(err)
	}
	n.run(t, "ip -batch "+batch)
	look()
	for _, command := range []string{"ip route show dev " + link, "ip neigh show nud permanent dev " + link} {
		if got := n.run(t, command); strings.Contains(got, "10.1.0.2") {
			t.Errorf("%s: %s", command, got)
		}
	}
	if got := append(n.noted(link), n.logged(link)...); got != nil {
		t.Errorf("put right is %q, want nothing", got)
	}
	// What the plugin does last: it would take a route that is there for another's.
	n.run(t, "ip route add 10.1.0.3 dev "+link+" proto 111 scope link")
	n.run(t, "ip neigh add 10.1.0.3 lladdr "+podMAC+" dev "+link+" nud permanent")
	look()
	n.run(t, "ip neigh del 10.1.0.3 dev "+link)
	wired.Eventually(t, func() error {
		want := []string{fmt.Sprintf("it is put right: neighbour 10.1.0.3 on %s is none instead of %s", link, podMAC)}
		if diff := cmp.Diff(want, n.noted(link)); diff != "" {
			return fmt.Errorf("counted (-want +got):\n%s", diff)
		}
		return nil
	})
}
