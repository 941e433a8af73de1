package plugin

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// setNeighbour makes a permanent entry: nothing is asked on the wire, so a MAC
// that was learned from an earlier owner of an address can't be wrong.
func setNeighbour(h *netlink.Handle, link int, a netip.Addr, mac net.HardwareAddr) error {
	err := h.NeighSet(&netlink.Neigh{LinkIndex: link, IP: a.AsSlice(), HardwareAddr: mac, State: netlink.NUD_PERMANENT})
	if err != nil {
		return fmt.Errorf("add neighbour %s: %w", a, err)
	}
	return nil
}

// getNeighbour gives nil for an address without an entry. The library only knows
// how to list; the kernel answers for one since 5.0.
func getNeighbour(link int, a netip.Addr) (*netlink.Neigh, error) { return getEntry(link, a, 0) }

// getAnswer is getNeighbour for an address that the node answers for.
func getAnswer(link int, a netip.Addr) (*netlink.Neigh, error) {
	return getEntry(link, a, netlink.NTF_PROXY)
}

func getEntry(link int, a netip.Addr, flags uint8) (*netlink.Neigh, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, unix.NLM_F_ACK)
	req.AddData(&netlink.Ndmsg{Family: uint8(netlinkFamily(familyOf(a))), Index: uint32(link), Flags: flags})
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, a.AsSlice()))
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get neighbour %s: %w", a, err)
	}
	if len(msgs) != 1 {
		return nil, fmt.Errorf("get neighbour %s: %d answers", a, len(msgs))
	}
	return netlink.NeighDeserialize(msgs[0])
}
