package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A checker compares an attachment with what ADD made. It repairs nothing and
// takes no lock. More routes and addresses than ours are no fault: chained plugins
// add them.
type checker struct {
	rec *record
	// pod is our interface in prevResult: a chained plugin may have changed its
	// MAC or MTU and said so there.
	pod   *types100.Interface
	addrs []netip.Addr
}

func (p Process) check(r request) error {
	b, err := parseBase(r.stdin)
	if err != nil {
		return err
	}
	prev, err := requirePrevResult(r.stdin)
	if err != nil {
		return err
	}
	netns, err := r.openNetns(func() error { return nil })
	if err != nil {
		return err
	}
	defer netns.close()
	s, err := p.findStore(b)
	if err != nil {
		return failure(types.ErrIOFailure, err, "state store")
	}
	if s == nil {
		return checkFailed(fmt.Errorf("no record of %s", r.key(b.network)))
	}
	defer s.close()
	c, err := s.newChecker(r.key(b.network), prev)
	if err != nil {
		return err
	}
	d, err := readTold(r.stdin)
	if err != nil {
		return err
	}
	if err := errors.Join(d.checkGuard(c.addrs), c.checkReservations(s), s.checkPorts(c.rec), s.checkAnswers(c.addrs)); err != nil {
		return checkFailed(err)
	}
	host, err := c.checkHost()
	if err != nil {
		return checkFailed(fmt.Errorf("on the node: %w", err))
	}
	if err := netns.do(func() error { return c.checkPod(host.Attrs().HardwareAddr) }); err != nil {
		return checkFailed(fmt.Errorf("in the pod: %w", err))
	}
	return nil
}

func checkFailed(err error) error {
	return failure(codeCheckFailed, err, "the attachment is not as it was made")
}

func requirePrevResult(stdin []byte) (*types100.Result, error) {
	var in input
	if err := json.Unmarshal(stdin, &in); err != nil {
		return nil, failure(types.ErrDecodingFailure, err, "decode the network configuration")
	}
	prev, err := parsePrevResult(&in.PluginConf)
	if err == nil && prev == nil {
		err = failure(types.ErrInvalidNetworkConfig, nil, "CHECK needs prevResult, and there is none")
	}
	return prev, err
}

// newChecker brings record and prevResult together.
func (s *store) newChecker(k key, prev *types100.Result) (*checker, error) {
	rec, err := s.peekRecord(k)
	if err != nil {
		return nil, checkFailed(err)
	}
	if rec == nil {
		return nil, checkFailed(fmt.Errorf("no record of %s", k))
	}
	c := &checker{rec: rec, addrs: rec.Addresses}
	at := -1
	for i, iface := range prev.Interfaces {
		if iface.Name == k.ifName && iface.Sandbox != "" {
			c.pod, at = iface, i
		}
	}
	if c.pod == nil {
		return nil, failure(types.ErrInvalidNetworkConfig, nil, "prevResult has no interface %s in a sandbox", k.ifName)
	}
	for _, ip := range prev.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok && ip.Interface != nil && *ip.Interface == at {
			c.addrs = appendNew(c.addrs, a.Unmap())
		}
	}
	return c, nil
}

func appendNew(addrs []netip.Addr, a netip.Addr) []netip.Addr {
	for _, have := range addrs {
		if have == a {
			return addrs
		}
	}
	return append(addrs[:len(addrs):len(addrs)], a)
}

func (c *checker) checkReservations(s *store) error {
	for _, a := range c.rec.Addresses {
		r, err := s.readReservation(a)
		switch {
		case err != nil:
			return err
		case r == nil:
			return fmt.Errorf("there is no reservation of %s", a)
		case !r.of(c.rec.key()):
			return fmt.Errorf("the reservation of %s belongs to %s/%s", a, r.Container, r.Interface)
		}
	}
	return nil
}

func (c *checker) checkHost() (netlink.Link, error) {
	name := c.rec.HostLink
	link, err := checkLink(name, c.rec.HostMAC, 0)
	if err != nil {
		return nil, err
	}
	if speaksIPv6(name) {
		if v, err := readSysctl(sysctlPath("ipv6/conf", name, "accept_ra")); err != nil || v != "0" {
			return nil, errors.Join(err, fmt.Errorf("accept_ra of %s is %s, not 0", name, v))
		}
	}
	for _, f := range familiesOf(c.rec.Addresses) {
		for _, path := range forwardingPaths(f, name) {
			if v, err := readSysctl(path); err != nil || v != "1" {
				return nil, errors.Join(err, fmt.Errorf("forwarding is off: %s is %s", path, v))
			}
		}
	}
	for _, a := range c.rec.Addresses {
		if err := checkHostRoute(a, link); err != nil {
			return nil, err
		}
		if err := checkNeighbour(link, a, c.pod.Mac); err != nil {
			return nil, err
		}
	}
	return link, nil
}

func checkLink(name, mac string, mtu int) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	attrs := link.Attrs()
	switch {
	case attrs.Flags&net.FlagUp == 0:
		return nil, fmt.Errorf("interface %s is down", name)
	case mac != "" && attrs.HardwareAddr.String() != mac:
		return nil, fmt.Errorf("interface %s has MAC %s, not %s", name, attrs.HardwareAddr, mac)
	case mtu != 0 && attrs.MTU != mtu:
		return nil, fmt.Errorf("interface %s has MTU %d, not %d", name, attrs.MTU, mtu)
	}
	return link, nil
}

// checkHostRoute asks which route a packet to the pod would take.
func checkHostRoute(a netip.Addr, link netlink.Link) error {
	r, ok := lookup(eachTime(), a, lookupOptions{})
	if !ok || r.Dst == nil || r.Dst.String() != ipNet(a).String() {
		return fmt.Errorf("no route to %s", a)
	}
	if r.LinkIndex != link.Attrs().Index {
		return fmt.Errorf("the route to %s leads to device %d, not to %s", a, r.LinkIndex, link.Attrs().Name)
	}
	return nil
}

func checkNeighbour(link netlink.Link, a netip.Addr, mac string) error {
	n, err := getNeighbour(link.Attrs().Index, a)
	switch {
	case err != nil:
		return err
	case n == nil:
		return fmt.Errorf("no neighbour %s on %s", a, link.Attrs().Name)
	case n.State&netlink.NUD_PERMANENT == 0:
		return fmt.Errorf("neighbour %s on %s is not permanent", a, link.Attrs().Name)
	case mac != "" && n.HardwareAddr.String() != mac:
		return fmt.Errorf("neighbour %s on %s has MAC %s, not %s", a, link.Attrs().Name, n.HardwareAddr, mac)
	}
	return nil
}

func (c *checker) checkPod(hostMAC net.HardwareAddr) error {
	mtu := c.pod.Mtu
	if mtu == 0 {
		mtu = c.rec.MTU
	}
	link, err := checkLink(c.rec.Interface, c.pod.Mac, mtu)
	if err != nil {
		return err
	}
	if err := c.checkAddresses(link); err != nil {
		return err
	}
	for _, a := range c.rec.Addresses {
		if err := checkDefaultRoute(a, link); err != nil {
			return err
		}
	}
	for _, f := range familiesOf(c.rec.Addresses) {
		if err := checkNeighbour(link, gateway(f), hostMAC.String()); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) checkAddresses(link netlink.Link) error {
	have := map[netip.Addr]int{}
	list, err := listAddresses(link)
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", link.Attrs().Name, err)
	}
	for _, l := range list {
		if a, ok := netip.AddrFromSlice(l.IP); ok {
			have[a.Unmap()] = l.Flags
		}
	}
	for _, a := range c.addrs {
		flags, ok := have[a]
		if !ok {
			return fmt.Errorf("address %s is not on %s", a, link.Attrs().Name)
		}
		if flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 {
			return fmt.Errorf("address %s on %s is not usable: duplicate detection", a, link.Attrs().Name)
		}
	}
	return nil
}

// checkDefaultRoute asks which route a packet from an address of ours would take
// by our interface: one lookup goes by the rules of a second interface as well.
func checkDefaultRoute(a netip.Addr, link netlink.Link) error {
	f := familyOf(a)
	r, ok := defaultRoute(eachTime(), f, lookupOptions{link: link.Attrs().Index, from: a})
	if !ok || !r.Gw.Equal(gateway(f).AsSlice()) {
		return fmt.Errorf("no %s default route by %s from %s", f, link.Attrs().Name, a)
	}
	return nil
}

// listAddresses asks again when the kernel says that a dump missed changes, a few
// times: then the last answer has to do.
func listAddresses(link netlink.Link) (got []netlink.Addr, err error) {
	for range 5 {
		got, err = netlink.AddrList(link, netlink.FAMILY_ALL) //nolint:forbidigo // no get for an IPv4 address, and a pod has few
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return got, err
		}
	}
	return got, nil
}
