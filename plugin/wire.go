package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A wire is the veth pair of an attachment: the node's end, and the pod's in its
// namespace.
type wire struct {
	key     key
	netns   *namespace
	sockets sockets
	mtu     int
	addrs   []netip.Addr
	hostMAC net.HardwareAddr
	podMAC  net.HardwareAddr
	routes  []podRoute // what configure installed in the pod
}

func (w *wire) families() []family { return familiesOf(w.addrs) }

func (w *wire) hasIPv6() bool { return slices.Contains(w.families(), ipv6) }

// A podRoute is an installed default route of the pod; table 0 is the main one.
type podRoute struct {
	family family
	table  int
}

// create makes both ends at once, the pod's in its namespace and by its name: no
// moment with a name or a MAC that udev could want to change.
func (w *wire) create() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = w.key.hostLink()
	attrs.MTU = w.mtu
	// Else the kernel makes one for each processor, and waits twice until nobody looks at
	// all but the first any more: those are the only ones that it uses.
	attrs.NumTxQueues, attrs.NumRxQueues = 1, 1
	attrs.HardwareAddr = w.hostMAC
	err := w.sockets.node.LinkAdd(&netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         w.key.ifName,
		PeerNamespace:    netlink.NsFd(w.netns.fd),
		PeerHardwareAddr: w.podMAC,
		PeerMTU:          uint32(w.mtu),
		PeerTxQLen:       -1,
	})
	if errors.Is(err, unix.EEXIST) {
		return failure(codeInterfaceExists, nil, "interface %s on the node, or %s in the pod, exists already and is another's", w.key.hostLink(), w.key.ifName)
	}
	if err != nil {
		return failure(codeWiring, err, "make veth %s for %s", w.key.hostLink(), w.key)
	}
	return nil
}

// ownLink finds one end and reads back what the other end's neighbour entries rely
// on.
func ownLink(h *netlink.Handle, name string, mac net.HardwareAddr) (netlink.Link, error) {
	link, err := h.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", name, err)
	}
	if got := link.Attrs().HardwareAddr; !bytes.Equal(got, mac) {
		return nil, fmt.Errorf("mac of %s is %s, %s was set", name, got, mac)
	}
	return link, nil
}

// configure makes the pair carry packets. The node's end is up first: the pod's
// has a carrier then, and its addresses are usable at once.
func (w *wire) configure(warn func(string, ...any)) error {
	name := w.key.hostLink()
	host, err := w.raiseHostEnd(name)
	if err != nil {
		return failure(codeWiring, err, "set up %s on the node", name)
	}
	for _, f := range w.families() {
		if err := enableForwarding(f, name, warn); err != nil {
			return failure(codeForwarding, err, "enable %s forwarding", f)
		}
	}
	if err := w.netns.do(w.configurePodEnd); err != nil {
		return failure(codeWiring, err, "set up %s in the pod", w.key.ifName)
	}
	if err := w.routeToPod(host.Attrs().Index); err != nil {
		return failure(codeWiring, err, "route to the pod by %s", name)
	}
	return nil
}

func (w *wire) raiseHostEnd(name string) (netlink.Link, error) {
	host, err := ownLink(w.sockets.node, name, w.hostMAC)
	if err != nil {
		return nil, err
	}
	if err := quietIPv6(name, w.hasIPv6()); err != nil {
		return nil, err
	}
	if err := w.sockets.node.LinkSetUp(host); err != nil {
		return nil, fmt.Errorf("set up: %w", err)
	}
	return host, nil
}

func (w *wire) configurePodEnd() error {
	link, err := ownLink(w.sockets.pod, w.key.ifName, w.podMAC)
	if err != nil {
		return err
	}
	if err := quietIPv6(w.key.ifName, w.hasIPv6()); err != nil {
		return err
	}
	if err := w.sockets.pod.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	if w.hasIPv6() {
		if err := addAddr(w.sockets.pod, link, linkLocal(w.podMAC)); err != nil {
			return err
		}
	}
	for _, a := range w.addrs {
		if err := addAddr(w.sockets.pod, link, netip.PrefixFrom(a, a.BitLen())); err != nil {
			return err
		}
	}
	return w.routeOut(link.Attrs().Index)
}

// routeOut gives the pod its default routes. Where the pod has some already, by
// another interface, they stand in a table of their own, and what comes from our
// addresses goes by it: answers leave by the interface that was asked.
func (w *wire) routeOut(link int) error {
	for _, f := range w.families() {
		if err := setNeighbour(w.sockets.pod, link, gateway(f), w.hostMAC); err != nil {
			return err
		}
		table := 0
		err := w.sockets.pod.RouteAdd(podDefaultRoute(f, link, table))
		if errors.Is(err, unix.EEXIST) {
			table = ownTable(link)
			err = w.routeOutBeside(f, link, table)
		}
		if err != nil {
			return fmt.Errorf("add %s default route: %w", f, err)
		}
		w.routes = append(w.routes, podRoute{f, table})
	}
	return nil
}

func (w *wire) routeOutBeside(f family, link, table int) error {
	if err := w.sockets.pod.RouteReplace(podDefaultRoute(f, link, table)); err != nil {
		return fmt.Errorf("table %d: %w", table, err)
	}
	for _, a := range w.addrs {
		if familyOf(a) != f {
			continue
		}
		if err := w.sockets.pod.RuleAdd(sourceRule(a, table)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("rule from %s: %w", a, err)
		}
	}
	return nil
}

// routeToPod gives the node its way to the pod. The IPv6 gateway address is real,
// unlike the IPv4 one: it answers neighbour solicitations of virtual machines
// inside pods, and is the node's source address where it has no other.
func (w *wire) routeToPod(link int) error {
	if w.hasIPv6() {
		dev := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: link}}
		if err := addAddr(w.sockets.node, dev, netip.PrefixFrom(gateway(ipv6), 64)); err != nil {
			return err
		}
	}
	for _, a := range w.addrs {
		if err := setNeighbour(w.sockets.node, link, a, w.podMAC); err != nil {
			return err
		}
		if err := w.sockets.node.RouteAdd(hostRoute(a, link)); err != nil {
			return fmt.Errorf("add route to %s: %w", a, err)
		}
	}
	return nil
}

func addAddr(h *netlink.Handle, link netlink.Link, p netip.Prefix) error {
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if familyOf(p.Addr()) == ipv6 {
		addr.Flags = unix.IFA_F_NODAD
	}
	if p.Addr().IsLinkLocalUnicast() {
		addr.Scope = unix.RT_SCOPE_LINK
	}
	if err := h.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("add address %s: %w", p, err)
	}
	return nil
}

// linkLocal gives the address that a MAC stands for by EUI-64 (RFC 4291).
func linkLocal(mac net.HardwareAddr) netip.Prefix {
	a := [16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]}
	return netip.PrefixFrom(netip.AddrFrom16(a), 64)
}

// unwire deletes the node's end: the pod's, the routes and the neighbours go with
// it. Gone already is fine.
func unwire(k key) error {
	link, err := netlink.LinkByName(k.hostLink())
	if err == nil {
		err = netlink.LinkDel(link)
	}
	var gone netlink.LinkNotFoundError
	if err == nil || errors.As(err, &gone) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return fmt.Errorf("delete %s: %w", k.hostLink(), err)
}

// removeRules takes the rules of an interface out of a pod that goes on without
// it; everything else in the pod goes with the link.
func removeRules(pod *namespace, addrs []netip.Addr) error {
	return pod.do(func() error {
		var errs []error
		for _, a := range addrs {
			if err := netlink.RuleDel(sourceRule(a, 0)); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("delete rule from %s: %w", a, err))
			}
		}
		return errors.Join(errs...)
	})
}
