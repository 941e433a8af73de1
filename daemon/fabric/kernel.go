package fabric

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"onerule/daemon/fabric/layout"
)

// protocol marks our routes, so that they can be told from others and from those that
// the plugin makes to single pods, of protocol 111.
const protocol = 112

// A kernel is the network namespace that it was opened in. It belongs to one goroutine,
// which must stay in that namespace: sysctls are those of its thread.
type kernel struct {
	handle   *netlink.Handle
	strict   *nl.SocketHandle // on which the kernel itself leaves out of a dump what is not asked for
	sysctls  string           // /proc/sys/net
	podLinks string           // with which names of links of pods begin
	device   int              // index of the VXLAN device, 0 if there is none
	former   int              // that of one that was deleted here: what is told of it is no news
	counts   Counts
	// sources are the addresses that routes to nodes prefer to send from.
	sources map[netip.Addr]bool
	// missed says that a link of a way went before it was looked up: nothing will be told of
	// it that is known to matter.
	missed bool
}

func openKernel(sysctls, podLinks string) (*kernel, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	k := &kernel{handle: h, strict: &nl.SocketHandle{Socket: s}, sysctls: sysctls, podLinks: podLinks}
	if err := unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		k.close()
		return nil, fmt.Errorf("ask for strict netlink requests: %w", err)
	}
	return k, nil
}

func (k *kernel) close() {
	k.handle.Close()
	k.strict.Close()
}

// dump asks for all of what a header and attributes describe. An interrupted dump is
// made again; what interrupts the fifth one is a change that is told, and read, next.
func (k *kernel) dump(request int, answer uint16, header nl.NetlinkRequestData, attrs ...*nl.RtAttr) ([][]byte, error) {
	var msgs [][]byte
	var err error
	for range 5 {
		req := nl.NewNetlinkRequest(request, unix.NLM_F_DUMP)
		req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.strict}
		req.AddData(header)
		for _, a := range attrs {
			req.AddData(a)
		}
		msgs, err = req.Execute(unix.NETLINK_ROUTE, answer)
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return msgs, err
		}
	}
	return msgs, nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// addrOf gives the address of some bytes of a message; not valid if they are none.
func addrOf(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

func macOf(b []byte) layout.MAC {
	var m layout.MAC
	copy(m[:], b)
	return m
}
