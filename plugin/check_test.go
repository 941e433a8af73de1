package plugin_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"onerule/test/netns"
)

// checkOf makes the CHECK of an attachment by its cached result, as a runtime
// does: here, from what the record and the kernel say.
func (n *node) checkOf(t testing.TB, c call) call {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(n.dataDir, "pods", "attachments", c.container+":"+c.ifName+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var rec struct {
		HostLink, HostMAC, PodMAC string
		MTU                       int
		Addresses                 []string
	}
	if err := json.Unmarshal(b, &rec); err != nil {
		t.Fatal(err)
	}
	var ips []object
	for _, a := range rec.Addresses {
		bits := "/32"
		if strings.Contains(a, ":") {
			bits = "/128"
		}
		ips = append(ips, object{"address": a + bits, "interface": 1})
	}
	return n.checkWith(c, object{"cniVersion": "1.1.0", "ips": ips, "interfaces": []object{
		{"name": rec.HostLink, "mac": rec.HostMAC, "mtu": rec.MTU},
		{"name": c.ifName, "mac": rec.PodMAC, "mtu": rec.MTU, "sandbox": c.netns},
	}})
}

func (n *node) checkWith(c call, prev any) call {
	c.stdin = n.config("1.1.0", object{"prevResult": prev})
	return c.as("CHECK")
}

// A checkCase is a change after an ADD, by shell lines on the node and in the pod;
// $host is the node's link, $state the directory of the network.
type checkCase struct {
	name, onNode, inPod string
	what                string // that CHECK names; empty: it passes
}

func checkCases() []checkCase {
	return []checkCase{
		{name: "nothing is wrong"},
		{name: "more routes and addresses in the pod", inPod: "ip addr add 198.51.100.7/24 dev eth0; ip route add 203.0.113.0/24 dev eth0; ip -6 route add 2001:db8:5::/64 dev eth0"},
		{name: "more routes on the node", onNode: "ip route add 203.0.113.0/24 dev $host"},
		{name: "the pod's interface is gone", inPod: "ip link set eth0 name other", what: "eth0"},
		{name: "the pair is gone", inPod: "ip link del eth0", what: "interface one"},
		{name: "the pod's interface is down", inPod: "ip link set eth0 down", what: "eth0 is down"},
		{name: "the pod's interface has another MAC", inPod: "ip link set eth0 address 02:00:00:00:00:99", what: "02:00:00:00:00:99"},
		{name: "the pod's interface has another MTU", inPod: "ip link set eth0 mtu 1300", what: "MTU 1300"},
		{name: "the IPv4 address is gone", inPod: "ip addr del 10.1.0.2/32 dev eth0; ip route add default via 169.254.1.1 dev eth0 onlink", what: "address 10.1.0.2"},
		{name: "the IPv6 address is gone", inPod: "ip addr del fd00:1::2/128 dev eth0", what: "address fd00:1::2"},
		{name: "the IPv4 default route is gone", inPod: "ip route del default", what: "no IPv4 default route"},
		{name: "the IPv6 default route is gone", inPod: "ip -6 route del default", what: "no IPv6 default route"},
		{name: "the default route leads elsewhere", inPod: "ip link add x type veth peer name y; ip link set x up; ip route replace default dev x", what: "no IPv4 default route"},
		{name: "the pod's IPv4 neighbour is gone", inPod: "ip neigh del 169.254.1.1 dev eth0", what: "neighbour 169.254.1.1"},
		{name: "the pod's IPv6 neighbour is not permanent", inPod: "ip neigh replace fe80::1 dev eth0 lladdr 02:00:00:00:00:99 nud reachable", what: "neighbour fe80::1"},
		{name: "the node's end is gone", onNode: "ip link set $host down; ip link set $host name other", what: "interface one"},
		{name: "the node's end is down", onNode: "ip link set $host down", what: "is down"},
		{name: "the node's end has another MAC", onNode: "ip link set $host address 02:00:00:00:00:99", what: "02:00:00:00:00:99"},
		{name: "the node's IPv4 route is gone", onNode: "ip route del 10.1.0.2", what: "no route to 10.1.0.2"},
		{name: "the node's IPv6 route is gone", onNode: "ip -6 route del fd00:1::2", what: "no route to fd00:1::2"},
		{name: "the node's IPv4 route leads elsewhere", onNode: "ip route replace 10.1.0.2 dev uplink", what: "route to 10.1.0.2"},
		{name: "the node's IPv6 route leads elsewhere", onNode: "ip -6 route replace fd00:1::2 dev uplink", what: "route to fd00:1::2"},
		{name: "the node's neighbour is gone", onNode: "ip neigh del 10.1.0.2 dev $host", what: "neighbour 10.1.0.2"},
		{name: "the node's neighbour has another MAC", onNode: "ip neigh replace fd00:1::2 dev $host lladdr 02:00:00:00:00:99 nud permanent", what: "neighbour fd00:1::2"},
		{name: "IPv4 forwarding is off", onNode: "sysctl -qw net.ipv4.ip_forward=0", what: "ip_forward"},
		{name: "IPv6 forwarding is off", onNode: "sysctl -qw net.ipv6.conf.all.forwarding=0", what: "all/forwarding"},
		{name: "forwarding of the link is off", onNode: "echo 0 >/proc/sys/net/ipv4/conf/$host/forwarding", what: "forwarding is off"},
		{name: "the node listens to advertisements", onNode: "echo 1 >/proc/sys/net/ipv6/conf/$host/accept_ra", what: "accept_ra"},
		{name: "the reservation is gone", onNode: "rm $state/addresses/10.1.0.2", what: "reservation of 10.1.0.2"},
		{name: "the reservation is another's", onNode: `printf 'c9\r\neth0' >$state/addresses/fd00:1::2`, what: "c9"},
		{name: "the record is gone", onNode: "rm $state/attachments/*", what: "no record"},
		{name: "the record is truncated", onNode: "truncate -s 20 $state/attachments/*", what: "no readable record"},
	}
}

func (tc checkCase) spoil(t *testing.T, n *node, pod *netns.NS, host string) {
	t.Helper()
	env := "host=" + host + " state=" + filepath.Join(n.dataDir, "pods") + "; set -e; "
	if tc.onNode != "" {
		n.Run(t, "sh", "-c", env+tc.onNode)
	}
	if tc.inPod != "" {
		pod.Run(t, "sh", "-c", env+tc.inPod)
	}
}

func TestCheck(t *testing.T) {
	for _, tc := range checkCases() {
		t.Run("C44: "+tc.name, func(t *testing.T) {
			n := newNode(t)
			pod := netns.New(t, "pod")
			c := add("c1", "eth0", pod, n.config("1.1.0", nil))
			a := n.succeed(t, c)
			var prev struct{ Interfaces []struct{ Name string } }
			if err := json.Unmarshal([]byte(a.stdout), &prev); err != nil {
				t.Fatal(err)
			}
			check := n.checkWith(c, json.RawMessage(a.stdout))
			n.succeed(t, check)
			tc.spoil(t, n, pod, prev.Interfaces[0].Name)
			if tc.what == "" {
				n.succeed(t, check)
			} else {
				n.fail(t, check, 106, tc.what)
			}
			n.succeed(t, c.as("DEL"))
		})
	}
}

func TestCheckOfASecondInterface(t *testing.T) {
	for name, spoil := range map[string]string{
		"the rule is gone":  "ip rule del priority 11100",
		"the route is gone": "ip -6 route flush table $((111000000 + $(cat /sys/class/net/net1/ifindex)))",
	} {
		t.Run("C44: "+name, func(t *testing.T) {
			n := newNode(t)
			pod := netns.New(t, "pod")
			n.added(t, add("c1", "eth0", pod, n.config("1.1.0", nil)))
			c := add("c1", "net1", pod, n.config("1.1.0", nil))
			n.added(t, c)
			n.succeed(t, n.checkOf(t, c))
			pod.Run(t, "unshare", "-m", "sh", "-ec", "mount -t sysfs sysfs /sys; "+spoil)
			n.fail(t, n.checkOf(t, c), 106, "default route by net1")
		})
	}
}

func TestCheckNeedsItsInput(t *testing.T) {
	n := newNode(t)
	pod := netns.New(t, "pod")
	c := add("c1", "eth0", pod, n.config("1.1.0", nil))
	n.added(t, c)
	t.Run("C43: prevResult is required", func(t *testing.T) { n.fail(t, c.as("CHECK"), 7, "prevResult") })
	t.Run("C43: prevResult must hold the interface", func(t *testing.T) {
		n.fail(t, n.checkWith(c, object{"cniVersion": "1.1.0", "interfaces": []object{{"name": "eth7", "sandbox": "/x"}}}), 7, "eth0")
	})
	t.Run("C43: an address that only prevResult has", func(t *testing.T) {
		check := n.checkWith(c, object{"cniVersion": "1.1.0", "interfaces": []object{{"name": "eth0", "sandbox": "/x"}},
			"ips": []object{{"address": "10.1.0.99/32", "interface": 0}}})
		n.fail(t, check, 106, "10.1.0.99")
	})
	t.Run("C43: a MAC and an MTU that a chained plugin changed and said so", func(t *testing.T) {
		pod.Run(t, "ip", "link", "set", "eth0", "mtu", "1400")
		check := n.checkWith(c, object{"cniVersion": "1.1.0", "interfaces": []object{{"name": "eth0", "sandbox": "/x", "mtu": 1400}}})
		n.succeed(t, check)
	})
	t.Run("C4: no namespace", func(t *testing.T) {
		check := n.checkOf(t, c)
		check.netns = ""
		n.fail(t, check, 4, "CNI_NETNS")
	})
	t.Run("C43: a namespace that is gone", func(t *testing.T) {
		check := n.checkOf(t, c)
		check.netns = "/nowhere"
		n.fail(t, check, 8, "/nowhere")
	})
}
