package invariants_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"onerule/test/netns"
)

// nftScript runs nft with a script, in the namespace of the calling thread.
func nftScript(text string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

// conntrackHas says whether conntrack of a namespace holds a flow of a protocol whose
// original destination is dst.
func conntrackHas(ns *netns.NS, proto string, dst netip.Addr) (found bool, err error) {
	number := map[string]uint8{"TCP": unix.IPPROTO_TCP, "UDP": unix.IPPROTO_UDP}[proto]
	family := netlink.InetFamily(unix.AF_INET)
	if dst.Is6() {
		family = unix.AF_INET6
	}
	err = ns.Do(func() error {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		for _, f := range flows {
			to, _ := netip.AddrFromSlice(f.Forward.DstIP)
			found = found || f.Forward.Protocol == number && to.Unmap() == dst
		}
		return err
	})
	return found, err
}
