package plugin_test

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"onerule/test/netns"
	"onerule/test/wired"
)

const dnsPort = 53

// Nodes of Ubuntu and Fedora have a resolver at an address of their own in 127.0.0.0/8.
func TestHostPortsBesideTheNodesResolver(t *testing.T) {
	n := newNode(t)
	resolver := netip.MustParseAddrPort("127.0.0.53:53")
	wired.Serve(t, n.NS, "resolver", resolver)
	pod := netns.New(t, "dns")
	c := add("dns", "eth0", pod, n.withPorts(nil, bothProtocols(dnsPort)...))
	n.added(t, c)
	wired.Serve(t, pod, "dns", netip.AddrPortFrom(netip.Addr{}, podPort))
	for f, at := range nodeAddrs() {
		t.Run("C58: the pod is reached at "+at.String(), func(t *testing.T) {
			hears(t, n.outside, netip.AddrPortFrom(at, dnsPort), "dns saw "+outAddrs()[f].String())
			hears(t, n.NS, netip.AddrPortFrom(at, dnsPort), "dns saw "+at.String())
		})
	}
	t.Run("C58: and the resolver by processes of the node", func(t *testing.T) { hears(t, n.NS, resolver, "resolver saw 127.0.0.1") })
	n.succeed(t, c.as("DEL"))
	n.clean(t)
	t.Run("D24: a process at the node's address is named", func(t *testing.T) {
		wired.Serve(t, n.NS, "server", netip.AddrPortFrom(nodeAddrs()[0], dnsPort))
		n.fail(t, c, 109, fmt.Sprintf("hostPort tcp 53 is taken by process plugin.test (%d)", os.Getpid()))
		n.clean(t)
	})
}

// A pod gets an address from each set of ranges; its ports lead to the first of each family.
func TestHostPortsWithSeveralRangesOfAFamily(t *testing.T) {
	n := newNode(t)
	ranges := [][]object{{{"subnet": podRange4}}, {{"subnet": "10.2.0.0/24"}}, {{"subnet": podRange6}}, {{"subnet": "fd00:2::/112"}}}
	pod := netns.New(t, "pod")
	c := add("c1", "eth0", pod, n.withPorts(object{"ipam": object{"ranges": ranges}}, bothProtocols(hostPort)...))
	addrs := addresses(t, n.added(t, c))
	if len(addrs) != len(ranges) {
		t.Fatalf("got %s, want an address from each set", addrs)
	}
	for f, first := range []netip.Addr{addrs[0], addrs[2]} {
		wired.Serve(t, pod, "first", netip.AddrPortFrom(first, podPort))
		t.Run("C58: from outside to "+first.String(), func(t *testing.T) {
			hears(t, n.outside, netip.AddrPortFrom(nodeAddrs()[f], hostPort), "first saw "+outAddrs()[f].String())
		})
		t.Run("C58, D34: from the pod itself to "+first.String(), func(t *testing.T) {
			got, err := wired.Ask(pod, "tcp", netip.AddrPortFrom(first, 0), netip.AddrPortFrom(nodeAddrs()[f], hostPort))
			if want := "first saw " + nodeAddrs()[f].String(); err != nil || got != want {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
		})
	}
	n.succeed(t, n.checkOf(t, c))
	n.succeed(t, c.as("DEL"))
	n.clean(t)
}
