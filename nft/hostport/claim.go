// Package hostport leads ports of the node to pods: one element of a map for each, in
// tables of its own whose rules are constant. Who holds which port stands in a folder of
// small files, one for each owner, so that a port is claimed without a daemon, and the
// tables can be filled again. It needs no nft.
package hostport

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A Protocol is an IANA number.
type Protocol uint8

// The protocols.
const (
	TCP  Protocol = unix.IPPROTO_TCP
	UDP  Protocol = unix.IPPROTO_UDP
	SCTP Protocol = unix.IPPROTO_SCTP
)

func protocols() []Protocol { return []Protocol{TCP, UDP, SCTP} }

// String gives the word for the protocol.
func (p Protocol) String() string {
	words := map[Protocol]string{TCP: "tcp", UDP: "udp", SCTP: "sctp"}
	if w, ok := words[p]; ok {
		return w
	}
	return fmt.Sprintf("protocol-%d", uint8(p))
}

// MarshalText gives the word for the protocol.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText takes the word in any case, and nothing for TCP.
func (p *Protocol) UnmarshalText(text []byte) error {
	word := strings.ToLower(string(text))
	for _, known := range protocols() {
		if word == known.String() {
			*p = known
			return nil
		}
	}
	if word != "" {
		return fmt.Errorf("unknown protocol %q", text)
	}
	*p = TCP
	return nil
}

// A Mapping is an entry of portMappings, as runtimes give it.
type Mapping struct {
	HostPort      int      `json:"hostPort"`
	ContainerPort int      `json:"containerPort"`
	Protocol      Protocol `json:"protocol"`
	HostIP        string   `json:"hostIP"`
}

// A Claim is one port of the node that leads to a pod.
type Claim struct {
	Protocol Protocol `json:"protocol"`
	// HostIP is the one address of the node that the port is taken at, or the zero value
	// for all of the pod's family but link-local ones.
	HostIP   netip.Addr     `json:"hostIP,omitzero"`
	HostPort uint16         `json:"hostPort"`
	Pod      netip.AddrPort `json:"pod"`
}

// Loopback gives the loopback address at which a proxy on the node has to listen for those
// who come from one: the kernel translates only what comes from other addresses. A proxy
// takes TCP only, so the port of another protocol has none.
func (c Claim) Loopback() (at netip.AddrPort, ok bool) {
	address := c.HostIP
	switch {
	case address.IsValid():
	case c.is6():
		address = netip.IPv6Loopback()
	default:
		address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.AddrPortFrom(address, c.HostPort), c.Protocol == TCP && address.IsLoopback()
}

// String says what is claimed.
func (c Claim) String() string {
	at := ""
	if c.HostIP.IsValid() {
		at = " at " + c.HostIP.String()
	}
	return fmt.Sprintf("hostPort %s %d%s", c.Protocol, c.HostPort, at)
}

func (c Claim) is6() bool { return c.Pod.Addr().Is6() }

// check says what is wrong with a claim that did not come from a mapping.
func (c Claim) check() error {
	pod := c.Pod.Addr()
	switch {
	case c.Protocol != TCP && c.Protocol != UDP && c.Protocol != SCTP:
		return fmt.Errorf("%s: %s has no ports", c, c.Protocol)
	case c.HostPort == 0 || c.Pod.Port() == 0 || !plain(pod):
		return fmt.Errorf("%s to %s: an address or a port is missing", c, c.Pod)
	case c.HostIP.IsValid() && (!plain(c.HostIP) || c.HostIP.Is6() != pod.Is6()):
		return fmt.Errorf("%s to %s: the addresses are of two families", c, c.Pod)
	}
	return nil
}

// plain says whether an address is one that stands in packets.
func plain(a netip.Addr) bool { return a.IsValid() && !a.Is4In6() && a.Zone() == "" }

// overlaps says whether a packet could be for both. One at all addresses overlaps those
// at loopback ones too, as for the scheduler.
func (c Claim) overlaps(d Claim) bool {
	return c.Protocol == d.Protocol && c.HostPort == d.HostPort && c.is6() == d.is6() &&
		(!c.HostIP.IsValid() || !d.HostIP.IsValid() || c.HostIP == d.HostIP)
}

// clashes says whether who listens at an address, or at all of a family, is in the way: what
// was theirs would be the pod's. So it is not at addresses that nothing is translated to, but
// for the one where the proxy has to listen. Loopback addresses are among them, though what
// comes there from the node's own is translated: who listens there is there for the others.
func (c Claim) clashes(a netip.Addr) bool {
	proxy, ok := c.Loopback()
	switch {
	case a.Is6() != c.is6():
		return false
	case a.IsUnspecified(), ok && a == proxy.Addr():
		return true
	case c.HostIP.IsValid():
		return a == c.HostIP
	}
	return !a.IsLoopback() && !a.IsMulticast() && (a.Is4() || !a.IsLinkLocalUnicast())
}

// samePort says whether both are the same but for the pod.
func (c Claim) samePort(d Claim) bool {
	return c.Protocol == d.Protocol && c.HostPort == d.HostPort && c.HostIP == d.HostIP && c.is6() == d.is6()
}

// Claims gives what mappings mean for a pod with these addresses: a claim for the first one
// of each family that the mapping is for, none for a mapping without a port of the host.
func Claims(mappings []Mapping, pod []netip.Addr) ([]Claim, error) {
	var list []Claim
	for _, m := range mappings {
		if m.HostPort == 0 {
			continue
		}
		claims, err := m.claims(pod)
		if err != nil {
			return nil, fmt.Errorf("portMappings entry for port %d: %w", m.HostPort, err)
		}
		for _, c := range claims {
			if slices.ContainsFunc(list, c.overlaps) {
				return nil, fmt.Errorf("portMappings: %s stands there twice", c)
			}
			list = append(list, c)
		}
	}
	return list, nil
}

func (m Mapping) claims(pod []netip.Addr) ([]Claim, error) {
	for _, port := range []int{m.HostPort, m.ContainerPort} {
		if port < 1 || port > 65535 {
			return nil, fmt.Errorf("port %d is not between 1 and 65535", port)
		}
	}
	base := Claim{Protocol: m.Protocol, HostPort: uint16(m.HostPort)}
	if base.Protocol == 0 {
		base.Protocol = TCP
	}
	var wanted netip.Addr
	if m.HostIP != "" {
		var err error
		if wanted, err = netip.ParseAddr(m.HostIP); err != nil || wanted.Zone() != "" {
			return nil, fmt.Errorf("hostIP %q is no address", m.HostIP)
		}
		wanted = wanted.Unmap()
	}
	if err := base.at(wanted); err != nil {
		return nil, err
	}
	var list []Claim
	for _, a := range firstOfEach(pod) {
		if !wanted.IsValid() || wanted.Is6() == a.Is6() {
			c := base
			c.Pod = netip.AddrPortFrom(a, uint16(m.ContainerPort))
			list = append(list, c)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("the pod has no address of the family of hostIP %s", wanted)
	}
	return list, nil
}

// firstOfEach gives the first address of each family: a port leads to one address, and a pod
// has several of a family where its network has several sets of ranges.
func firstOfEach(pod []netip.Addr) (list []netip.Addr) {
	for _, a := range pod {
		if !slices.ContainsFunc(list, func(b netip.Addr) bool { return a.Is6() == b.Is6() }) {
			list = append(list, a)
		}
	}
	return list
}

// at takes an address for the claim. The unspecified one stands for all.
func (c *Claim) at(a netip.Addr) error {
	switch {
	case !a.IsValid() || a.IsUnspecified():
		return nil
	case a.IsMulticast() || a.IsLinkLocalUnicast():
		return fmt.Errorf("hostIP %s can't be an address of the node for others", a)
	case a.IsLoopback() && c.Protocol != TCP:
		return fmt.Errorf("hostIP %s: only TCP is served at loopback addresses", a) // see Loopback
	}
	c.HostIP = a
	return nil
}

// A TakenError says that a port is held already.
type TakenError struct {
	Claim Claim
	// Owner holds it by a claim; it is empty if By is not another pod.
	Owner string
	By    string
	// passing says that it may be a proxy of the pod before, which lets go of it soon.
	passing bool
}

// Error names the port and who holds it.
func (e *TakenError) Error() string { return fmt.Sprintf("%s is taken by %s", e.Claim, e.By) }
