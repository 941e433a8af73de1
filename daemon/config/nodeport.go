package config

import (
	"fmt"
	"net/netip"
	"slices"
)

// NodePortAddresses say at which of the node's addresses NodePorts are served.
type NodePortAddresses struct {
	// Primary, All and Localhost are the keywords that were given.
	Primary, All, Localhost bool
	// CIDRs are masked, in the order given.
	CIDRs []netip.Prefix
	// unset says that nothing was given, and All is the default.
	unset bool
}

// Ranges gives the ranges of a family that hold the addresses. All addresses are the
// range /0, alone. The primary address is only known where it is not a loopback
// address; a family without any range is not restricted, even if the other one is.
// Where ranges have loopback addresses, those are for Loopback only.
func (n NodePortAddresses) Ranges(f Family, node NodeIPs) []netip.Prefix {
	ranges := n.given(f, node)
	all := netip.PrefixFrom(f.unspecified(), 0)
	if len(ranges) == 0 || slices.Contains(ranges, all) {
		return []netip.Prefix{all}
	}
	return ranges
}

// given gives the ranges of a family that are asked for.
func (n NodePortAddresses) given(f Family, node NodeIPs) []netip.Prefix {
	ranges := ofFamily(f, n.CIDRs)
	if a := node.Of(f); n.Primary && a.IsValid() && !a.IsLoopback() {
		ranges = append(ranges, netip.PrefixFrom(a, f.bits()))
	}
	if n.All {
		ranges = append(ranges, netip.PrefixFrom(f.unspecified(), 0))
	}
	if n.Localhost {
		ranges = append(ranges, loopback(f))
	}
	return ranges
}

// Loopback says whether loopback addresses of a family are asked for in so many
// words: the keyword localhost or a range of them. All addresses are not enough.
func (n NodePortAddresses) Loopback(f Family) bool {
	return n.Localhost || slices.ContainsFunc(ofFamily(f, n.CIDRs), func(p netip.Prefix) bool { return p.Addr().IsLoopback() })
}

func loopback(f Family) netip.Prefix {
	if f == IPv6 {
		return netip.PrefixFrom(netip.IPv6Loopback(), 128)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
}

// NodePortWarnings says in lines to be logged where NodePorts are open at more
// addresses than one may think. podCIDRs are those of the Node object.
func (s Settings) NodePortWarnings(node NodeIPs, podCIDRs []netip.Prefix) []string {
	n := s.NodePortAddresses
	if n.unset {
		return []string{"nodePortAddresses is not set: NodePorts are open at all addresses of the node; the keyword primary restricts them"}
	}
	primary, other := node.Primary, node.Primary.other()
	hasPrimary, hasOther := len(n.given(primary, node)) > 0, len(n.given(other, node)) > 0
	switch {
	case hasPrimary && !hasOther && s.dualStack(podCIDRs):
		return []string{openAt(other)}
	case !hasPrimary:
		return []string{openAt(primary)}
	}
	return nil
}

func openAt(f Family) string {
	return fmt.Sprintf("nodePortAddresses has no address of %s: NodePorts are open at all %s addresses of the node", f, f)
}

// dualStack says whether ranges of both families are configured.
func (s Settings) dualStack(podCIDRs []netip.Prefix) bool {
	for _, ranges := range [][]netip.Prefix{s.ClusterCIDRs, podCIDRs} {
		if len(ofFamily(IPv4, ranges)) > 0 && len(ofFamily(IPv6, ranges)) > 0 {
			return true
		}
	}
	return false
}
