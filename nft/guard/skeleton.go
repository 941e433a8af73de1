// Package guard is the table onerule-guard: what must see every packet, kept apart from
// the tables of Services, and the masquerade of pods that leave the cluster. Its rules are
// constant; which ranges are pods' is in sets.
package guard

import (
	"fmt"
	"slices"
	"strings"

	"onerule/nft"
)

// TableName is the name of the table in both families.
const TableName = "onerule-guard"

// PodLinks begins the names of the node's ends of pods' links, and ownDevices the names
// of devices of ours that begin like them and are no pod's: the rest of a pod's name is
// hexadecimal digits.
const (
	PodLinks   = "one"
	ownDevices = "onerule"
)

// tunnel is the device by which pods of nodes behind routers are reached. It has an address
// of this node's pod ranges: answers to any other one would not come back by it.
const tunnel = "vxlan-onerule"

// A Counter is a named counter, which counts packets that are dropped.
type Counter string

// The counters.
const (
	// Spoofed came from a pod with a source address that is not the pod's.
	Spoofed Counter = "spoofed"
	// RouterAdvertisements came from a pod, or redirects.
	RouterAdvertisements Counter = "router-advertisements"
	// DHCPServers are answers of DHCP servers in pods.
	DHCPServers Counter = "dhcp-servers"
	// Localnet is what came from elsewhere to or from loopback addresses, which the kernel
	// lets in only with route_localnet.
	Localnet Counter = "localnet"
	// Leaks would have left the cluster with a pod's address, since connection tracking
	// calls them invalid and translates nothing.
	Leaks Counter = "leaks"
	// VXLAN went to the port of VXLAN and was not sent by a node: what is inside would come
	// from whom the sender likes.
	VXLAN Counter = "vxlan"
)

// Counters lists the counters of a family.
func Counters(f nft.Family) []Counter {
	if f == nft.IPv6 {
		return []Counter{Spoofed, RouterAdvertisements, DHCPServers, Leaks, VXLAN}
	}
	return []Counter{Spoofed, DHCPServers, Localnet, Leaks, VXLAN}
}

func (c Counter) comment() string {
	return map[Counter]string{
		Spoofed:              "from a pod with an address that is not its own",
		RouterAdvertisements: "router advertisements and redirects from pods",
		DHCPServers:          "answers of DHCP servers in pods",
		Localnet:             "to or from loopback addresses, but not on this node",
		Leaks:                "invalid, with the address of a pod that leaves the cluster",
		VXLAN:                "to the port of VXLAN of a node, but not by a node",
	}[c]
}

// The interval sets.
const (
	podRanges     = "pod-ranges"
	clusterRanges = "cluster-ranges"
	clusterPods   = "cluster-pods"
)

// Priorities. Before connection tracking (-200): what is dropped makes no entry. Before the
// usual filters, with the address that is final. After the masquerade of Services (90), whose marked flows end the walk, and before that of others
// (100).
const (
	priorityRaw        = -310
	priorityFilter     = -10
	priorityMasquerade = 95
)

// A chain is a chain with its rules, in nft's words; hook is "" for a regular one.
type chain struct {
	name, comment string
	hook          string // with type and priority
	rules         []string
}

// chains gives them in loadable order.
func (v variant) chains() []chain {
	f := v.family
	return slices.Concat([]chain{v.fromPods(), clamp()}, v.tunnelled(), []chain{
		{
			name:    "prerouting",
			comment: "each packet that comes in, before connection tracking",
			hook:    hook("filter", "prerouting", priorityRaw),
			rules:   append([]string{fmt.Sprintf(`iifname "%s*" goto from-pods`, PodLinks)}, localnet(f)...),
		},
		{
			name:    "forward",
			comment: "each packet that is passed on",
			hook:    hook("filter", "forward", priorityFilter),
			rules: slices.Concat(
				[]string{fmt.Sprintf("ct state invalid %s %s drop", leaves(f), counting(Leaks))},
				v.tunnelledOn(),
				[]string{"tcp flags & (syn | rst) == syn jump clamp"},
			),
		},
		{
			name:    "postrouting",
			comment: "the first packet of each connection that leaves",
			hook:    hook("nat", "postrouting", priorityMasquerade),
			rules: []string{
				leaves(f) + " masquerade fully-random",
				fmt.Sprintf(`oifname %q %s saddr != @%s %s masquerade fully-random`, tunnel, f, podRanges, v.fromNode()),
			},
		},
	})
}

func hook(kind, hook string, priority int) string {
	return fmt.Sprintf("type %s hook %s priority %d; policy accept;", kind, hook, priority)
}

func counting(c Counter) string { return fmt.Sprintf("counter name %q", string(c)) }

// A variant is the table of a family, for a kernel that has the expression fib or not, and
// nodes that take VXLAN at a port or at none.
type variant struct {
	family     nft.Family
	withoutFib bool
	vxlan      int // 0: none
}

// fromNode matches what the node itself sends. No device brought that, which does not say
// that its address is the node's: only who forges one sees the difference.
func (v variant) fromNode() string {
	if v.withoutFib {
		return "iif 0"
	}
	return "fib saddr type local"
}

// fromPods judges what a pod sends. The look-up asks by which way the source is reached:
// the node has a route to each address of a pod by the pod's link, and no other route
// leads there. The kernel lets pass by itself what is sent without an address of one's
// own: DHCP requests, and duplicate address detection.
func (v variant) fromPods() chain {
	f := v.family
	c := chain{name: "from-pods", comment: "only with the addresses that are routed to the pod"}
	if f == nft.IPv6 {
		c.rules = append(c.rules,
			"icmpv6 type nd-router-advert "+counting(RouterAdvertisements)+" drop",
			"icmpv6 type nd-redirect "+counting(RouterAdvertisements)+" drop")
	}
	if v.withoutFib {
		c.comment = "with any address: this kernel can't look up routes"
		c.rules = append(c.rules, loopbackOf(f, "saddr")...)
	} else {
		c.rules = append(c.rules, fmt.Sprintf(`fib saddr . iif oif missing iifname != "%s*"%s %s drop`, ownDevices, unlessLinkLocal(f), counting(Spoofed)))
	}
	c.rules = append(c.rules, loopbackOf(f, "daddr")...)
	ports := "udp sport 67 udp dport 68"
	if f == nft.IPv6 {
		ports = "udp sport 547 udp dport 546"
	}
	c.rules = append(c.rules, ports+" "+counting(DHCPServers)+" drop")
	return c
}

// unlessLinkLocal leaves alone what goes no farther than the node, on a link with nobody
// else: a pod reports its multicast groups before the node's end has its link-local address.
func unlessLinkLocal(f nft.Family) string {
	if f == nft.IPv6 {
		return " ip6 saddr != fe80::/10"
	}
	return ""
}

// tunnelled keeps from this node's port of VXLAN what no node sends: a frame says by itself
// from which pod it comes, and the guard of that pod has not seen it. Addresses are looked
// at where they are final, since a Service may lead to the port, too. A pod of another node
// is known by its address: where it would have been masqueraded, its own node drops it.
func (v variant) tunnelled() []chain {
	if v.vxlan == 0 {
		return nil
	}
	drop := " " + counting(VXLAN) + " drop"
	return []chain{
		{
			name:    "to-vxlan",
			comment: "only from nodes, which no translation leads there",
			rules: []string{
				fmt.Sprintf(`iifname "%s*" iifname != "%s*"%s`, PodLinks, ownDevices, drop),
				"ct status dnat" + drop,
				fmt.Sprintf("%s saddr @%s%s", v.family, clusterPods, drop),
			},
		},
		{
			name:    "input",
			comment: "each packet to the node itself",
			hook:    hook("filter", "input", priorityFilter),
			rules:   []string{fmt.Sprintf("udp dport %d goto to-vxlan", v.vxlan)},
		},
	}
}

// tunnelledOn is the same for the ports of other nodes, of which not all addresses are
// known. Pods may use that port among themselves.
func (v variant) tunnelledOn() []string {
	if v.vxlan == 0 {
		return nil
	}
	return []string{fmt.Sprintf("udp dport %d %s daddr != @%s jump to-vxlan", v.vxlan, v.family, clusterPods)}
}

// localnet drops what the kernel drops too, unless somebody sets route_localnet. In IPv6
// nothing makes the kernel accept it. Of pods, the sources are looked at already.
func localnet(f nft.Family) []string {
	return append(loopbackOf(f, "daddr"), loopbackOf(f, "saddr")...)
}

func loopbackOf(f nft.Family, address string) []string {
	if f == nft.IPv6 {
		return nil
	}
	return []string{fmt.Sprintf(`ip %s 127.0.0.0/8 iifname != "lo" %s drop`, address, counting(Localnet))}
}

// leaves matches what goes from a pod of this node to what is not of the cluster.
func leaves(f nft.Family) string {
	return fmt.Sprintf("%[1]s saddr @%[2]s %[1]s daddr != @%[3]s", f, podRanges, clusterRanges)
}

// clamp lowers the segment size that a TCP connection of a pod begins with to what the
// routes both ways carry. Packets that are too large are told to the sender anyway, but
// that message may be filtered on its way.
func clamp() chain {
	c := chain{name: "clamp", comment: "the first packets of TCP connections, both ways"}
	for _, link := range []string{"iifname", "oifname"} {
		c.rules = append(c.rules, fmt.Sprintf(`%s "%s*" tcp option maxseg size set rt mtu`, link, PodLinks))
	}
	return c
}

// Text gives the table as nft would load it, without what is in the sets. Nodes take VXLAN
// at a UDP port, 0 for none.
func Text(f nft.Family, vxlan int) string { return variant{family: f, vxlan: vxlan}.text() }

// TextWithoutFib gives the table of a kernel that lacks the expression fib: it does not look
// at the addresses with which pods send.
func TextWithoutFib(f nft.Family, vxlan int) string {
	return variant{family: f, withoutFib: true, vxlan: vxlan}.text()
}

func (v variant) text() string {
	f := v.family
	var b strings.Builder
	fmt.Fprintf(&b, "table %s %s {\n", f, TableName)
	for _, c := range Counters(f) {
		fmt.Fprintf(&b, "\tcounter %s {\n\t\tcomment %q\n\t}\n", c, c.comment())
	}
	for _, s := range sets() {
		fmt.Fprintf(&b, "\tset %s {\n\t\ttype %s\n\t\tflags interval\n\t\tcomment %q\n\t}\n", s.name, addressType(f), s.comment)
	}
	for _, c := range v.chains() {
		fmt.Fprintf(&b, "\tchain %s {\n\t\tcomment %q\n", c.name, c.comment)
		if c.hook != "" {
			fmt.Fprintf(&b, "\t\t%s\n", c.hook)
		}
		for _, r := range c.rules {
			fmt.Fprintf(&b, "\t\t%s\n", r)
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// A set is one of ranges of addresses.
type set struct{ name, comment string }

func sets() []set {
	return []set{
		{podRanges, "pods of this node"},
		{clusterRanges, "what pods reach with their own address"},
		{clusterPods, "pods of all nodes"},
	}
}

func addressType(f nft.Family) string {
	if f == nft.IPv6 {
		return "ipv6_addr"
	}
	return "ipv4_addr"
}
