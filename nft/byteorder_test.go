package nft_test

import (
	"strings"
	"testing"

	"onerule/nft"
	"onerule/test/netns"
)

// No rule has the kernel turn the bytes of a single byte around. nft asks for that where a
// set of intervals is looked up by meta l4proto, and Linux 6.12.117 refuses it (operation
// not supported), which lets no table be loaded.
func TestNoRuleTurnsASingleByteAround(t *testing.T) {
	each(t, func(t *testing.T, family nft.Family) {
		ns := netns.New(t, "node")
		load(t, ns, program(t, ns, config(family)), world(family, 3, 2))
		listed := ns.Run(t, "nft", "--debug=netlink", "list", "table", family.String(), nft.TableName)
		if !strings.Contains(listed, "ct load protocol") {
			t.Fatalf("the expressions of guarded chains are not listed: %s", listed)
		}
		for line := range strings.Lines(listed) {
			if strings.Contains(line, "byteorder") && strings.Contains(line, ", 1) ]") {
				t.Errorf("there is %s", strings.TrimSpace(line))
			}
		}
	})
}
