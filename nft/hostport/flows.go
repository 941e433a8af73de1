package hostport

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"onerule/nft/flows"
)

// deleteElsewhere deletes the UDP flows to claimed ports that somebody else answers, or
// nobody: they began before, and would not be translated as long as their clients send.
func deleteElsewhere(claims []Claim) error {
	claims = ofUDP(claims)
	if len(claims) == 0 {
		return nil
	}
	local, err := addresses()
	if err != nil {
		return err
	}
	return deleteFlows(claims, func(c Claim, to netip.Addr, answer netip.AddrPort) bool {
		here := to == c.HostIP || !c.HostIP.IsValid() && slices.Contains(local, to)
		return here && answer != c.Pod
	})
}

// deleteLeading deletes the UDP flows by these ports to the pod: another pod may have its
// address or take the port.
func deleteLeading(claims []Claim) error {
	return deleteFlows(ofUDP(claims), func(c Claim, _ netip.Addr, answer netip.AddrPort) bool { return answer == c.Pod })
}

func ofUDP(claims []Claim) []Claim {
	return slices.DeleteFunc(slices.Clone(claims), func(c Claim) bool { return c.Protocol != UDP })
}

// addresses gives those of the node.
func addresses() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses of the node: %w", err)
	}
	var list []netip.Addr
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			addr, _ := netip.AddrFromSlice(n.IP)
			list = append(list, addr.Unmap())
		}
	}
	return list, nil
}

// deleteFlows deletes those flows to the port of one of the claims that are stale for it.
func deleteFlows(claims []Claim, stale func(c Claim, to netip.Addr, answer netip.AddrPort) bool) error {
	for _, f := range families() {
		mine := slices.DeleteFunc(slices.Clone(claims), func(c Claim) bool { return familyOf(c).number != f.number })
		if len(mine) == 0 {
			continue
		}
		_, err := flows.Sweep(byte(f.number), flows.All, func(fl flows.Flow) (bool, error) {
			answer, err := fl.Answer()
			return slices.ContainsFunc(mine, func(c Claim) bool {
				return fl.Protocol == uint8(c.Protocol) && fl.To.Port() == c.HostPort && stale(c, fl.To.Addr(), answer)
			}), err
		})
		if err != nil {
			return fmt.Errorf("delete flows to host ports: %w", err)
		}
	}
	return nil
}
