package guard_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"onerule/nft"
	"onerule/nft/guard"
	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/rig"
	"onerule/test/wired"
)

// The real plugin makes two interfaces in one pod. Nothing of what the pod's kernel sends by
// itself meanwhile is taken for spoofed, nor what goes out by either.
func TestTheSecondInterfaceOfAPodIsItsOwn(t *testing.T) {
	w := wired.New(t, 0)
	pod := netns.New(t, "pod")
	programs := map[nft.Family]*guard.Program{}
	for _, f := range families() {
		programs[f] = open(t, w.Node, f)
		load(t, w.Node, programs[f], ranges(plan(f)))
	}
	config := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"pods","type":"onerule","mtu":1500,"dataDir":%q,"ipam":{"ranges":[[{"subnet":%q}],[{"subnet":%q}]]}}`,
		t.TempDir(), addr.IPv4().NodePods, netip.PrefixFrom(addr.IPv6().NodePods.Addr(), 112))
	binary := rig.Binary(t, "onerule", "onerule/plugin/onerule")
	for _, dev := range []string{"eth0", "net1"} {
		cmd := exec.Command(binary)
		cmd.Stdin = strings.NewReader(config)
		cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=c", "CNI_IFNAME=" + dev, "CNI_NETNS=" + pod.Path(), "CNI_PATH=/opt/cni/bin"}
		out, err := []byte(nil), error(nil)
		wired.Do(t, w.Node, func() error { out, err = cmd.CombinedOutput(); return nil })
		if err != nil {
			t.Fatalf("ADD of %s: %v: %s", dev, err, out)
		}
	}
	each(t, func(t *testing.T, f nft.Family, p addr.Plan) {
		wired.Serve(t, w.Outside, "other pod", netip.AddrPortFrom(p.OtherPod(0), port))
		for _, dev := range []string{"eth0", "net1"} {
			a := global(t, pod, dev, f)
			want := "other pod saw " + a.String()
			wired.Eventually(t, func() error { // the first packet may wait for a busy machine
				got, err := wired.Ask(pod, "udp", netip.AddrPortFrom(a, 0), netip.AddrPortFrom(p.OtherPod(0), port))
				if err != nil || got != want {
					return fmt.Errorf("from %s: %q, %w, want %q", dev, got, err, want)
				}
				return nil
			})
		}
		for c, n := range dropped(t, w.Node, programs[f]) {
			if n != 0 {
				t.Errorf("%s counts %d", c, n)
			}
		}
	})
}

// global gives the address of a device that is for others.
func global(t *testing.T, ns *netns.NS, dev string, f nft.Family) netip.Addr {
	t.Helper()
	flag := "-4"
	if f == nft.IPv6 {
		flag = "-6"
	}
	for _, word := range strings.Fields(ns.Run(t, "ip", flag, "-br", "addr", "show", "dev", dev)) {
		if p, err := netip.ParsePrefix(word); err == nil && !p.Addr().IsLinkLocalUnicast() {
			return p.Addr()
		}
	}
	t.Fatalf("%s has no address", dev)
	return netip.Addr{}
}
