package layout

import (
	"fmt"
	"net/netip"
	"slices"
)

const (
	ipForward  = "ipv4/ip_forward"
	ip6Forward = "ipv6/conf/all/forwarding"

	// What VXLAN puts before a packet: the inner Ethernet header, its own, that of UDP,
	// and that of IP.
	overheadIPv4 = 14 + 8 + 8 + 20
	overheadIPv6 = 14 + 8 + 8 + 40

	// leastIPv6 is the least MTU that IPv6 has.
	leastIPv6 = 1280
	maxMTU    = 65535
)

// Plan decides what the kernel should hold. Problems are those of single nodes, beside
// those that Admit found.
func Plan(m Members, f Facts, c Config) (State, []Problem) {
	p := planner{members: m, facts: f, config: c, state: NewState()}
	p.local = underlay(m.Self.Addrs)
	for _, cidr := range m.Self.PodCIDRs {
		// What pods there are have narrower routes; an address that none has is refused
		// here, and does not leave by the default route.
		if cidr.Addr().Is4() || f.IPv6 {
			p.refuse(cidr)
		}
	}
	for _, n := range m.Peers {
		p.peer(n)
	}
	p.device()
	p.settings()
	return p.state, p.problems
}

type planner struct {
	members  Members
	facts    Facts
	config   Config
	local    netip.Addr // not valid: no VXLAN
	mtu      int        // of the VXLAN device; 0: none is needed
	state    State
	problems []Problem
}

// underlay gives the address of a node that VXLAN packets are sent from and to: the
// IPv4 one if there is one. A device has one family only, so all nodes must choose
// alike.
func underlay(addrs []netip.Addr) netip.Addr {
	if i := slices.IndexFunc(addrs, netip.Addr.Is4); i >= 0 {
		return addrs[i]
	}
	if len(addrs) > 0 {
		return addrs[0]
	}
	return netip.Addr{}
}

func (p *planner) problem(n Node, format string, args ...any) {
	p.problems = append(p.problems, Problem{n.Name, fmt.Sprintf(format, args...)})
}

func (p *planner) route(r Route) {
	r = r.placed()
	p.state.Routes[r.Place] = r
}

// way routes to a range of a peer. What the kernel has refused is that peer's fault alone.
func (p *planner) way(n Node, r Route) {
	why, refused := p.facts.Refused[r.placed()]
	if !refused {
		p.route(r)
		return
	}
	p.problem(n, "the kernel refuses the route %s: %s", r, why)
	p.refuse(r.Dst)
}

func (p *planner) refuse(dst netip.Prefix) { p.route(Route{Place: Place{Dst: dst}}) }

// peer routes to the pods of another node. A range that can't be reached is refused,
// unless the network's own routers are to know the way.
func (p *planner) peer(n Node) {
	for _, a := range n.Addrs {
		if p.facts.Ways[a].Local {
			p.problem(n, "address %s is this node's", a)
			n.Addrs = slices.DeleteFunc(slices.Clone(n.Addrs), func(b netip.Addr) bool { return a == b })
		}
	}
	for _, cidr := range n.PodCIDRs {
		if !cidr.Addr().Is4() && !p.facts.IPv6 {
			continue
		}
		switch {
		case p.direct(n, cidr) || p.config.Encapsulation == Never:
		case !p.encapsulate(n, cidr):
			p.refuse(cidr)
		}
	}
}

// direct routes by the peer's address, if it is on a layer 2 of this node.
func (p *planner) direct(n Node, cidr netip.Prefix) bool {
	if p.config.Encapsulation == Always {
		return false
	}
	for _, a := range n.Addrs {
		way, known := p.facts.Ways[a]
		if a.Is4() == cidr.Addr().Is4() && known && !way.Gateway && p.facts.Links[way.Link].Resolves {
			p.way(n, Route{Place: Place{Dst: cidr}, Via: a, Link: way.Link, MTU: way.MTU})
			return true
		}
	}
	return false
}

// encapsulate routes by VXLAN.
func (p *planner) encapsulate(n Node, cidr netip.Prefix) bool {
	remote := p.remote(n)
	switch {
	case len(n.Addrs) == 0:
		return false // which was said
	case !p.local.IsValid():
		return false // said of this node
	case !remote.IsValid():
		p.problem(n, "has no address of the family of %s, from which VXLAN packets are sent: there is no way to %s", p.local, cidr)
		return false
	}
	way, known := p.facts.Ways[remote]
	if !known {
		p.problem(n, "no route leads to its address %s: there is no way to %s", remote, cidr)
		return false
	}
	mtu := p.pathMTU(way) - overhead(remote)
	if !cidr.Addr().Is4() && mtu < leastIPv6 {
		p.problem(n, "packets to it can have %d bytes, IPv6 needs %d: there is no way to %s", mtu, leastIPv6, cidr)
		return false
	}
	via, mac := deviceAddr(cidr), DeviceMAC(n.Name)
	p.state.Entries[mac] = remote
	p.state.Neighbours[via] = mac
	p.way(n, Route{Place: Place{Dst: cidr}, Via: via, MTU: mtu})
	p.mtu = max(p.mtu, mtu)
	return true
}

func (p *planner) remote(n Node) netip.Addr {
	for _, a := range n.Addrs {
		if a.Is4() == p.local.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

func overhead(a netip.Addr) int {
	if a.Is4() {
		return overheadIPv4
	}
	return overheadIPv6
}

// pathMTU gives how long packets can be on a way.
func (p *planner) pathMTU(w Way) int {
	if w.MTU > 0 {
		return min(w.MTU, maxMTU)
	}
	return min(p.facts.Links[w.Link].MTU, maxMTU)
}

// device decides on the VXLAN device, once all peers are known.
func (p *planner) device() {
	if p.mtu == 0 {
		return
	}
	p.state.Device = &Device{
		MAC:             DeviceMAC(p.members.Self.Name),
		MTU:             p.mtu,
		Up:              true,
		ChecksumOffload: p.config.ChecksumOffload,
		Local:           p.local,
		VNI:             p.config.VNI,
		Port:            p.config.Port,
	}
	for _, cidr := range p.members.Self.PodCIDRs {
		if p.speaks(cidr.Addr()) && !cidr.IsSingleIP() {
			p.state.Addresses[deviceAddr(cidr)] = true
		}
	}
}

func (p *planner) speaks(a netip.Addr) bool {
	return a.Is4() || p.facts.IPv6 && (p.mtu == 0 || p.mtu >= leastIPv6)
}

// settings decides on sysctls. A packet is forwarded if the device that it came by
// forwards, and so does the machine.
func (p *planner) settings() {
	set := p.state.Settings
	for _, cidr := range p.members.Self.PodCIDRs {
		family, machine := "ipv4", ipForward
		if !cidr.Addr().Is4() {
			if !p.facts.IPv6 {
				continue
			}
			family, machine = "ipv6", ip6Forward
			for _, index := range p.facts.Advertised {
				set["ipv6/conf/"+p.facts.Links[index].Name+"/accept_ra"] = "2"
			}
		}
		set[machine] = "1"
		for _, dev := range p.carriers(cidr.Addr()) {
			set[family+"/conf/"+dev+"/forwarding"] = "1"
		}
	}
	if p.state.Device == nil {
		return
	}
	// Of this and conf/all the highest number counts: 2 (loose) can't be made strict by
	// conf/all, as 0 can. Ways between nodes may differ in the two directions.
	set["ipv4/conf/"+DeviceName+"/rp_filter"] = "2"
	if p.facts.IPv6 && p.mtu >= leastIPv6 {
		set["ipv6/conf/"+DeviceName+"/accept_ra"] = "0"
		set["ipv6/conf/"+DeviceName+"/disable_ipv6"] = "0"
	}
}

// carriers gives the devices that packets of pods come by.
func (p *planner) carriers(a netip.Addr) []string {
	devs := slices.Clone(p.facts.PodLinks)
	for _, way := range p.facts.Ways {
		if link, ok := p.facts.Links[way.Link]; ok {
			devs = append(devs, link.Name)
		}
	}
	for _, index := range p.facts.Uplinks {
		devs = append(devs, p.facts.Links[index].Name)
	}
	if p.state.Device != nil && p.speaks(a) {
		devs = append(devs, DeviceName)
	}
	slices.Sort(devs)
	return slices.Compact(devs)
}
