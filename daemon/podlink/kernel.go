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

// A look is what is not as it should be at a link.
type look struct {
	faults []fault
	// shadowed are addresses to which our route stands, and counts for nothing: another
	// route comes before it.
	shadowed []string
}

// A way is a route to one address.
type way struct {
	index int // of the device
	to    netip.Addr
}

// A kernel is the network namespace that it was opened in.
type kernel struct {
	handle  *netlink.Handle
	asks    *nl.SocketHandle
	sysctls string               // /proc/sys/net
	own     map[int]map[way]bool // our routes by family, where this pass had to list them
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
	if err := unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		h.Close()
		s.Close()
		return nil, fmt.Errorf("have the kernel look at what is asked for: %w", err)
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

// begin begins a pass: what was listed before may have changed.
func (k *kernel) begin() { k.own = map[int]map[way]bool{} }

// look compares a link with what the plugin made, in the order in which it can be made
// again: with a link that goes down, the kernel drops what is on it. It asks for each
// thing, and lists nothing as long as packets go by the link.
func (k *kernel) look(link netlink.Link, w wire) (look, error) {
	l := look{faults: k.linkFaults(link, w)}
	for _, a := range w.addrs {
		if err := k.lookAtWay(&l, link.Attrs().Index, a, w); err != nil {
			return look{}, err
		}
	}
	return l, nil
}

// linkFaults looks at a link itself.
func (k *kernel) linkFaults(link netlink.Link, w wire) (found []fault) {
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
	return found
}

// lookAtWay looks for the way to one address of a pod.
func (k *kernel) lookAtWay(l *look, index int, a netip.Addr, w wire) error {
	mac, err := k.neighbour(index, a)
	if err != nil {
		return err
	}
	if !bytes.Equal(mac, w.podMAC) {
		l.faults = append(l.faults, fault{"neighbour", fmt.Sprintf("neighbour %s on %s is %s instead of %s", a, w.link, orNone(mac), w.podMAC),
			func() error {
				return k.handle.NeighSet(&netlink.Neigh{LinkIndex: index, IP: a.AsSlice(), HardwareAddr: w.podMAC, State: netlink.NUD_PERMANENT})
			}})
	}
	if k.routed(index, a) {
		return nil
	}
	stands, err := k.stands(index, a)
	switch {
	case err != nil:
		return err
	case stands: // to write it again would change nothing, and the kernel would tell of it
		l.shadowed = append(l.shadowed, a.String())
	default:
		l.faults = append(l.faults, fault{"route", fmt.Sprintf("no route to %s by %s", a, w.link),
			func() error {
				return k.handle.RouteReplace(&netlink.Route{LinkIndex: index, Dst: whole(a), Scope: netlink.SCOPE_LINK, Protocol: protocol})
			}})
	}
	return nil
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

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// neighbour gives the MAC of a permanent entry, or none.
func (k *kernel) neighbour(index int, a netip.Addr) (net.HardwareAddr, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.asks}
	req.AddData(&netlink.Ndmsg{Family: uint8(familyOf(a)), Index: uint32(index)})
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

// stands says whether our own route to an address is there. What is asked for a route
// gives the one that counts, so ours are listed, once in a pass.
func (k *kernel) stands(index int, a netip.Addr) (bool, error) {
	family := familyOf(a)
	if k.own[family] == nil {
		own, err := k.ownRoutes(family)
		if err != nil {
			return false, fmt.Errorf("list routes to pods: %w", err)
		}
		k.own[family] = own
	}
	return k.own[family][way{index, a}], nil
}

// ownRoutes lists the routes to pods. A list that was interrupted is made again.
func (k *kernel) ownRoutes(family int) (map[way]bool, error) {
	var msgs [][]byte
	var err error
	for range 5 {
		req := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
		req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.asks}
		req.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(family), Table: unix.RT_TABLE_MAIN, Protocol: protocol}})
		if msgs, err = req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWROUTE); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	own := map[way]bool{}
	for _, m := range msgs {
		index, dst := routeOf(m)
		own[way{index, dst}] = true
	}
	return own, nil
}
