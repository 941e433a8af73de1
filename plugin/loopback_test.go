package plugin_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"onerule/test/netns"
	"onerule/test/rig"
	"onerule/test/wired"
)

// anotherPort is a port of the node at loopback addresses only.
const anotherPort = hostPort + 1

func loopbacks() [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
}

// podNetwork runs the daemon on the node, with what the plugin has claimed; NodePorts are
// asked for on loopback addresses.
func (n *node) podNetwork(t *testing.T) *rig.Daemon {
	t.Helper()
	d := rig.New(t, n.NS, "--pod-network", "--cni-state", n.dataDir, "--network-status-file", n.statusFile(),
		"--cluster-cidr", podRange4+","+podRange6, "--nodeport-addresses", "0.0.0.0/0,::/0,127.0.0.0/8,::1/128")
	d.Write("node.yaml", fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s}\nspec: {podCIDRs: [%q, %q]}\n"+
		"status: {addresses: [{type: InternalIP, address: %q}, {type: InternalIP, address: %q}]}\n",
		rig.NodeName, podRange4, podRange6, nodeAddr4, nodeAddr6))
	d.Run()
	d.AwaitHealthy()
	return d
}

// nodePort gives a Service whose NodePort is hostPort.
func nodePort() string {
	vips := serviceAddrs()
	s := rig.Service("web", vips[:], fmt.Sprintf("s/TCP/%d", hostPort))
	s = strings.Replace(s, "spec:\n", "spec:\n  type: NodePort\n", 1)
	return strings.Replace(s, fmt.Sprintf("port: %d}", hostPort), fmt.Sprintf("port: %[1]d, nodePort: %[1]d}", hostPort), 1)
}

// onLoopback waits until a TCP port at the loopback addresses of the node answers processes
// of the node so; without want it answers nobody. The answer is by family.
func (n *node) onLoopback(t *testing.T, port uint16, want func(family int) string) {
	t.Helper()
	for f, at := range loopbacks() {
		n.awaits(t, netip.Addr{}, netip.AddrPortFrom(at, port), want(f))
	}
}

func (n *node) awaits(t *testing.T, from netip.Addr, to netip.AddrPort, want string) {
	t.Helper()
	rig.Eventually(t, fmt.Sprintf("answer of %s", to), func() error {
		got, err := wired.Ask(n.NS, "tcp", netip.AddrPortFrom(from, 0), to)
		if got != want || (err == nil) != (want != "") {
			return fmt.Errorf("it is %q, %w, want %q", got, err, want)
		}
		return nil
	})
}

// by gives the answer of a pod that sees the node.
func by(pod string) func(int) string {
	return func(f int) string { return pod + " saw " + nodeAddrs()[f].String() }
}

func nobody(int) string { return "" }

// Processes of the node reach host ports at loopback addresses: by the rules from the
// node's own addresses, by the daemon from loopback ones.
func TestR40HostPortsOnLoopbackAddresses(t *testing.T) {
	n := newNode(t)
	d := n.podNetwork(t)
	holder, holderNS, _ := n.published(t, "holder")
	local := netns.New(t, "local")
	n.added(t, add("local", "eth0", local, n.withPorts(nil,
		object{"hostPort": anotherPort, "containerPort": podPort, "hostIP": "127.0.0.1"},
		object{"hostPort": anotherPort, "containerPort": podPort, "hostIP": "::1"})))
	wired.Serve(t, local, "local", netip.AddrPortFrom(netip.Addr{}, podPort))

	t.Run("C58: a port at all addresses, from a loopback one", func(t *testing.T) { n.onLoopback(t, hostPort, by("holder")) })
	t.Run("C58: a port at a loopback address, from there", func(t *testing.T) { n.onLoopback(t, anotherPort, by("local")) })
	for f, family := range []string{"IPv4", "IPv6"} {
		node, loopback := nodeAddrs()[f], loopbacks()[f]
		t.Run("C58: both from the node's address, "+family, func(t *testing.T) {
			n.awaits(t, node, netip.AddrPortFrom(loopback, hostPort), by("holder")(f))
			n.awaits(t, node, netip.AddrPortFrom(loopback, anotherPort), by("local")(f))
		})
		t.Run("C58: UDP from the node's address only, "+family, func(t *testing.T) {
			got, err := wired.Ask(n.NS, "udp", netip.AddrPortFrom(node, 0), netip.AddrPortFrom(loopback, hostPort))
			if err != nil || got != by("holder")(f) {
				t.Errorf("%q, %v", got, err)
			}
			if got, err := wired.Ask(n.NS, "udp", netip.AddrPort{}, netip.AddrPortFrom(loopback, hostPort)); err == nil {
				t.Errorf("%q answers from a loopback address", got)
			}
		})
		t.Run("C58: a port at a loopback address is nowhere else, "+family, func(t *testing.T) {
			for _, from := range []*netns.NS{n.NS, n.outside, holderNS} {
				hears(t, from, netip.AddrPortFrom(node, anotherPort), "")
			}
		})
	}
	t.Run("A7.1 they do not count as NodePorts", func(t *testing.T) {
		if got := d.Metric("kubeproxy_nftables_localhost_nodeport_listeners"); got != 0 {
			t.Errorf("%v listeners are counted", got)
		}
	})
	t.Run("R40 a NodePort of the same number is first", func(t *testing.T) { n.testNodePortFirst(t, d) })
	t.Run("a daemon that begins again serves them", func(t *testing.T) { n.testDaemonAgain(t, d) })
	t.Run("D24 the next pod has the port at once", func(t *testing.T) {
		n.succeed(t, holder.as("DEL"))
		next, _, _ := n.published(t, "next")
		n.onLoopback(t, hostPort, by("next"))
		n.succeed(t, next.as("DEL"))
	})
	t.Run("D3 and nobody when its pod is gone", func(t *testing.T) {
		rig.Eventually(t, "nobody listens", func() error {
			if out := n.Run(t, "ss", "-Htln", "sport", "=", fmt.Sprint(hostPort)); out != "" {
				return errors.New(out)
			}
			return nil
		})
		n.onLoopback(t, hostPort, nobody)
		n.onLoopback(t, anotherPort, by("local"))
	})
}

// testNodePortFirst has a Service come whose NodePort is a host port, lose its endpoint, and
// go.
func (n *node) testNodePortFirst(t *testing.T, d *rig.Daemon) {
	pod := netns.New(t, "endpoint")
	addrs := addresses(t, n.added(t, add("endpoint", "eth0", pod, n.config("1.1.0", nil))))
	wired.Serve(t, pod, "endpoint", netip.AddrPortFrom(netip.Addr{}, podPort))
	docs := []string{nodePort()}
	for f, a := range addrs {
		docs = append(docs, rig.Slice(fmt.Sprint("web-", f), "web", []netip.Addr{a}, fmt.Sprintf("s/TCP/%d", podPort)))
	}
	d.Write("web.yaml", docs...)
	n.onLoopback(t, hostPort, by("endpoint"))
	rig.Eventually(t, "the NodePort's listeners are counted", func() error {
		if got := d.Metric("kubeproxy_nftables_localhost_nodeport_listeners"); got != 2 {
			return fmt.Errorf("%v are, want 2", got)
		}
		return nil
	})
	n.onLoopback(t, anotherPort, by("local"))
	d.Write("web.yaml", nodePort())
	n.onLoopback(t, hostPort, nobody)
	for f, a := range nodeAddrs() { // as at the node's address
		n.awaits(t, netip.Addr{}, netip.AddrPortFrom(a, hostPort), nobody(f))
	}
	d.Remove("web.yaml")
	n.onLoopback(t, hostPort, by("holder"))
}

// testDaemonAgain stops the daemon, has somebody take a port meanwhile, and begins again.
func (n *node) testDaemonAgain(t *testing.T, d *rig.Daemon) {
	d.Stop()
	n.onLoopback(t, hostPort, nobody)
	for f, at := range nodeAddrs() {
		n.awaits(t, at, netip.AddrPortFrom(loopbacks()[f], hostPort), by("holder")(f))
	}
	var other net.Listener
	if err := n.Do(func() (err error) {
		other, err = net.Listen("tcp", netip.AddrPortFrom(loopbacks()[0], hostPort).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	d.Run()
	d.AwaitHealthy()
	n.onLoopback(t, anotherPort, by("local"))
	rig.Eventually(t, "that somebody has the port is said", func() error {
		if !strings.Contains(d.Log(), "a host port on a loopback address is not served") {
			return errors.New("it is not")
		}
		return nil
	})
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	// It is tried again after a while, and when host ports change.
	c := add("passing", "eth0", netns.New(t, "passing"), n.withPorts(nil, bothProtocols(anotherPort+1)...))
	n.added(t, c)
	n.onLoopback(t, hostPort, by("holder"))
	n.succeed(t, c.as("DEL"))
}
