package podlink

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// protocol marks the routes to pods.
const protocol = 111

// A fault is a difference between a link and what its record says, and what mends it.
type fault struct {
	kind string // a word for changes by others
	note string
	mend func() error
}

// A kernel is the network namespace that it was opened in.
type kernel struct {
	handle  *netlink.Handle
	asks    *nl.SocketHandle
	sysctls string // /proc/sys/net
}

func openKernel(sysctls string) (*kernel, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	return &kernel{handle: h, asks: &nl.SocketHandle{Socket: s}, sysctls: sysctls}, nil
}

func (k *kernel) close() {
	k.handle.Close()
	k.asks.Close()
}

// find gives nil for a link that is gone.
func (k *kernel) find(name string) (netlink.Link, error) {
	link, err := k.handle.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", name, err)
	}
	return link, nil
}

// faults compares a link with what the plugin made, in the order in which it can be made
// again: with a link that goes down, the kernel drops what is on it. It asks for each
// thing, and lists nothing.
func (k *kernel) faults(link netlink.Link, w wire) ([]fault, error) {
	var found []fault
	at := link.Attrs()
	if !bytes.Equal(at.HardwareAddr, w.mac) {
		found = append(found, fault{"link", fmt.Sprintf("MAC of %s is %s instead of %s", w.link, at.HardwareAddr, w.mac),
			func() error { return k.handle.LinkSetHardwareAddr(link, w.mac) }})
	}
	if w.speaksIPv6() {
		found = append(found, k.settings(w.link)...)
	}
	if at.Flags&net.FlagUp == 0 {
		found = append(found, fault{"link", w.link + " is down", func() error { return k.handle.LinkSetUp(link) }})
	}
	if w.speaksIPv6() && !k.hasGateway(at.Index) {
		found = append(found, fault{"address", fmt.Sprintf("address %s of %s is gone", gateway(), w.link),
			func() error { return k.addGateway(link) }})
	}
	for _, a := range w.addrs {
		more, err := k.wayFaults(at.Index, a, w)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	return found, nil
}

// wayFaults looks for the way to one address of a pod.
func (k *kernel) wayFaults(index int, a netip.Addr, w wire) (found []fault, err error) {
	mac, err := k.neighbour(index, a)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(mac, w.podMAC) {
		found = append(found, fault{"neighbour", fmt.Sprintf("neighbour %s on %s is %s instead of %s", a, w.link, orNone(mac), w.podMAC),
			func() error {
				return k.handle.NeighSet(&netlink.Neigh{LinkIndex: index, IP: a.AsSlice(), HardwareAddr: w.podMAC, State: netlink.NUD_PERMANENT})
			}})
	}
	if !k.routed(index, a) {
		found = append(found, fault{"route", fmt.Sprintf("no route to %s by %s", a, w.link),
			func() error {
				return k.handle.RouteReplace(&netlink.Route{LinkIndex: index, Dst: whole(a), Scope: netlink.SCOPE_LINK, Protocol: protocol})
			}})
	}
	return found, nil
}

func orNone(mac net.HardwareAddr) string {
	if len(mac) == 0 {
		return "none"
	}
	return mac.String()
}

func whole(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// gateway is where pods send IPv6 to.
func gateway() netip.Addr { return netip.MustParseAddr("fe80::1") }

// settings looks at those without which the link's IPv6 is unsafe, or none. A link that is
// gone has none.
func (k *kernel) settings(link string) (found []fault) {
	for _, s := range []struct{ name, kind string }{{"accept_ra", "accept_ra"}, {"disable_ipv6", "sysctl"}} {
		path := filepath.Join(k.sysctls, "ipv6/conf", link, s.name)
		b, err := os.ReadFile(path)
		got := strings.TrimSpace(string(b))
		if err != nil || got == "0" {
			continue
		}
		found = append(found, fault{s.kind, fmt.Sprintf("%s of %s is %s instead of 0", s.name, link, got), func() error {
			if err := os.WriteFile(path, []byte("0"), 0o644); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		}})
	}
	return found
}

// hasGateway asks for one address. What can't be asked for is not there: making it says
// why.
func (k *kernel) hasGateway(index int) bool {
	req := nl.NewNetlinkRequest(unix.RTM_GETADDR, 0)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.asks}
	header := nl.NewIfAddrmsg(unix.AF_INET6)
	header.Index = uint32(index)
	req.AddData(header)
	req.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, gateway().AsSlice()))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR)
	return err == nil && len(msgs) == 1
}

// addGateway adds the address without looking for duplicates: nobody else is on the link.
func (k *kernel) addGateway(link netlink.Link) error {
	err := k.handle.AddrAdd(link, &netlink.Addr{
		IPNet: &net.IPNet{IP: gateway().AsSlice(), Mask: net.CIDRMask(64, 128)},
		Flags: unix.IFA_F_NODAD, Scope: unix.RT_SCOPE_LINK,
	})
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// neighbour gives the MAC of a permanent entry, or none.
func (k *kernel) neighbour(index int, a netip.Addr) (net.HardwareAddr, error) {
	family := unix.AF_INET
	if a.Is6() {
		family = unix.AF_INET6
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.asks}
	req.AddData(&netlink.Ndmsg{Family: uint8(family), Index: uint32(index)})
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, a.AsSlice()))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || err == nil && len(msgs) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask for neighbour %s: %w", a, err)
	}
	n, err := netlink.NeighDeserialize(msgs[0])
	if err != nil {
		return nil, fmt.Errorf("read neighbour %s: %w", a, err)
	}
	if n.State&netlink.NUD_PERMANENT == 0 {
		return nil, nil
	}
	return n.HardwareAddr, nil
}

// routed says whether what goes to an address goes by a device, by a route to it alone.
func (k *kernel) routed(index int, a netip.Addr) bool {
	routes, err := k.handle.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || len(routes) != 1 || routes[0].Dst == nil {
		return false
	}
	ones, _ := routes[0].Dst.Mask.Size()
	return ones == a.BitLen() && routes[0].LinkIndex == index
}
