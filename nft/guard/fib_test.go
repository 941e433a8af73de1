package guard_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/nft"
	"onerule/nft/guard"
	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/wired"
)

// withoutFib makes a program for a kernel that lacks the expression.
func withoutFib(t *testing.T, ns *netns.NS, f nft.Family) *guard.Program {
	t.Helper()
	p := open(t, ns, f)
	p.WithoutFib()
	return p
}

// What the table of a kernel without fib does is what the other one does, but for the
// addresses of pods, at which it does not look. Also there nothing comes from a loopback
// address.
func TestWithoutFibAllButTheAddressesOfPodsIsGuarded(t *testing.T) {
	each(t, func(t *testing.T, f nft.Family, p addr.Plan) {
		w := wired.New(t, 1)
		program := withoutFib(t, w.Node, f)
		load(t, w.Node, program, ranges(p))
		if rules := listing(t, w.Node, f); strings.Contains(rules, "fib") {
			t.Errorf("the kernel has\n%s", rules)
		}
		passed := observe(t, w.Node)
		for _, s := range sendings(f, p) {
			switch {
			case strings.Contains(s.name, "loopback"):
				s.dropped = guard.Localnet
			case s.dropped == guard.Spoofed:
				s.dropped = ""
			}
			t.Run(s.name, func(t *testing.T) {
				before, counted := passed(s.packet), dropped(t, w.Node, program)[s.dropped]
				wired.Send(t, w.Pods[0], "eth0", nil, s.packet)
				wired.Eventually(t, func() error {
					got, now := passed(s.packet), dropped(t, w.Node, program)[s.dropped]
					if s.dropped == "" && got != before+1 || s.dropped != "" && (now != counted+1 || got != before) {
						return fmt.Errorf("%d passed, %d before; %q counts %d, %d before", got, before, s.dropped, now, counted)
					}
					return nil
				})
			})
		}
	})
}

func TestWithoutFibTheTableIsWhatItsTextSays(t *testing.T) {
	each(t, func(t *testing.T, f nft.Family, p addr.Plan) {
		ns := netns.New(t, "node")
		want, err := os.ReadFile("testdata/" + f.String() + "-without-fib.nft")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), guard.TextWithoutFib(f, vxlanPort)); diff != "" {
			t.Errorf("text (-want +got):\n%s", diff)
		}
		load(t, ns, withoutFib(t, ns, f), ranges(p))
		if found := load(t, ns, withoutFib(t, ns, f), ranges(p)); !found.Nothing() {
			t.Errorf("a restart found %v", found)
		}
		if found := load(t, ns, open(t, ns, f), ranges(p)); !found.Rules {
			t.Errorf("a kernel that has it now found %v, want other rules", found)
		}
	})
}

// What the node sends from an address of its uplink to a pod behind VXLAN gets the address
// that answers come back to; what it passes on keeps its own.
func TestWhatTheNodeSendsByVXLANGetsAnAddressOfTheDevice(t *testing.T) {
	for name, open := range map[string]func(*testing.T, *netns.NS, nft.Family) *guard.Program{"with fib": open, "without fib": withoutFib} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, f nft.Family, p addr.Plan) {
				w := wired.New(t, 0)
				behind := netns.New(t, "pod behind VXLAN")
				netns.Wire(t, w.Node, "vxlan-onerule", behind, "eth0")
				bits := p.Node().BitLen()
				first, pod := p.NodePods.Addr(), p.OtherPod(0)
				w.Node.Addr(t, "vxlan-onerule", netip.PrefixFrom(first, bits).String())
				behind.Addr(t, "eth0", netip.PrefixFrom(pod, bits).String())
				w.Node.Run(t, "ip", "route", "add", pod.String(), "dev", "vxlan-onerule")
				for _, to := range []netip.Addr{first, p.Outside()} {
					behind.Run(t, "ip", "route", "add", to.String(), "dev", "eth0")
				}
				w.Node.Run(t, "ip", "neigh", "add", pod.String(), "lladdr", wired.MAC(t, behind, "eth0").String(), "dev", "vxlan-onerule")
				for _, to := range []netip.Addr{first, p.Outside()} {
					behind.Run(t, "ip", "neigh", "add", to.String(), "lladdr", wired.MAC(t, w.Node, "vxlan-onerule").String(), "dev", "eth0")
				}
				w.Outside.Run(t, "ip", "addr", "del", netip.PrefixFrom(pod, bits).String(), "dev", "lo")
				w.Outside.Run(t, "ip", "route", "add", pod.String(), "via", p.Node().String())
				wired.Serve(t, behind, "pod", netip.AddrPortFrom(pod, port))
				load(t, w.Node, open(t, w.Node, f), ranges(p))
				for _, c := range []struct {
					from *netns.NS
					a    netip.Addr
					want netip.Addr
				}{{w.Node, p.Node(), first}, {w.Node, first, first}, {w.Outside, p.Outside(), p.Outside()}} {
					got, err := wired.Ask(c.from, "udp", netip.AddrPortFrom(c.a, 0), netip.AddrPortFrom(pod, port))
					if want := "pod saw " + c.want.String(); err != nil || got != want {
						t.Errorf("from %s of %s: %q, %v, want %q", c.a, c.from.Name(), got, err, want)
					}
				}
			})
		})
	}
}
