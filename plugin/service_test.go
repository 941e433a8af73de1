package plugin_test

import (
	"fmt"
	"net/netip"
	"testing"

	"onerule/test/netns"
	"onerule/test/rig"
	"onerule/test/wired"
)

// serviceAddrs are ClusterIPs, of port hostPort.
func serviceAddrs() [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr("10.96.0.9"), netip.MustParseAddr("fd00:96::9")}
}

// serve runs the daemon on the node with a Service whose endpoint answers by the name of
// its pod.
func (n *node) serve(t *testing.T, endpoint string) (*rig.Daemon, *netns.NS, []netip.Addr) {
	t.Helper()
	pod := netns.New(t, endpoint)
	addrs := addresses(t, n.added(t, add(endpoint, "eth0", pod, n.config("1.1.0", nil))))
	wired.Serve(t, pod, endpoint, netip.AddrPortFrom(netip.Addr{}, podPort))
	d := rig.New(t, n.NS, "--cluster-cidr", podRange4+","+podRange6)
	vips := serviceAddrs()
	ports := []string{fmt.Sprintf("s/TCP/%d", hostPort), fmt.Sprintf("d/UDP/%d", hostPort)}
	docs := []string{rig.Service("web", vips[:], ports...)}
	for f, a := range addrs {
		n.outside.Route(t, netip.PrefixFrom(vips[f], a.BitLen()).String(), nodeAddrs()[f].String())
		docs = append(docs, rig.Slice(fmt.Sprint("web-", f), "web", []netip.Addr{a}, fmt.Sprintf("s/TCP/%d", podPort), fmt.Sprintf("d/UDP/%d", podPort)))
	}
	d.Write("web.yaml", docs...)
	d.Run()
	d.AwaitHealthy()
	return d, pod, addrs
}

// A pod has the host port that is also a Service's port, and each keeps its own traffic.
func TestR40ServicesAndHostPortsOfOneNumber(t *testing.T) {
	n := newNode(t)
	d, endpoint, endpointAddrs := n.serve(t, "endpoint")
	_, holder, addrs := n.published(t, "holder")
	both := func(t *testing.T, f int) {
		t.Helper()
		out, at, vip := outAddrs()[f].String(), nodeAddrs()[f], netip.AddrPortFrom(serviceAddrs()[f], hostPort)
		node := netip.AddrPortFrom(at, hostPort)
		hears(t, n.outside, node, "holder saw "+out)
		hears(t, endpoint, node, "holder saw "+endpointAddrs[f].String())
		hears(t, n.NS, node, "holder saw "+at.String())
		for _, from := range []*netns.NS{n.NS, n.outside} { // not of the cluster: masqueraded
			hears(t, from, vip, "endpoint saw "+at.String())
		}
		hears(t, holder, vip, "endpoint saw "+addrs[f].String())
	}
	for f, family := range []string{"IPv4", "IPv6"} {
		t.Run("the ClusterIP is the Service's and the node's address the pod's, "+family, func(t *testing.T) { both(t, f) })
		t.Run("also when the ClusterIP is an address of the node, as others leave them, "+family, func(t *testing.T) {
			vip := serviceAddrs()[f]
			n.Addr(t, "lo", netip.PrefixFrom(vip, vip.BitLen()).String())
			hears(t, holder, netip.AddrPortFrom(vip, hostPort), "endpoint saw "+addrs[f].String())
			n.Run(t, "ip", "addr", "del", netip.PrefixFrom(vip, vip.BitLen()).String(), "dev", "lo")
		})
	}
	t.Run("and the ClusterIP of a Service that is gone is nobody's", func(t *testing.T) {
		d.Remove("web.yaml")
		rig.Eventually(t, "the Service is gone", func() error {
			if got, err := wired.Ask(holder, "udp", netip.AddrPort{}, netip.AddrPortFrom(serviceAddrs()[0], hostPort)); err == nil {
				return fmt.Errorf("%q answered", got)
			}
			return nil
		})
		for f := range serviceAddrs() {
			hears(t, holder, netip.AddrPortFrom(serviceAddrs()[f], hostPort), "")
			hears(t, n.outside, netip.AddrPortFrom(nodeAddrs()[f], hostPort), "holder saw "+outAddrs()[f].String())
		}
	})
}
