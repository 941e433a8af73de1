package daemon

import (
	"fmt"
	"net/netip"
	"slices"

	"onerule/daemon/inspect"
	"onerule/nft"
	"onerule/nft/forward"
	"onerule/nft/guard"
	"onerule/nft/hostport"
)

// besides looks at what other tables in the kernel do with a packet.
func (d *Daemon) besides(c inspect.Case, q inspect.Query) (b inspect.Besides, err error) {
	if b.HostPort, err = d.hostPort(c.Config.Family, c.Packet, c.Own); err != nil {
		return b, err
	}
	if d.network == nil { // whoever connects pods then knows what they may send, and accepts it
		return b, nil
	}
	if b.Spoofed, err = d.spoofed(c.Config.Family, c.Packet, q); err != nil {
		return b, err
	}
	barriers, err := forward.Barriers(guard.PodLinks)
	for _, one := range barriers {
		if one.Family == "inet" || one.Family == c.Config.Family.String() {
			b.Barriers = append(b.Barriers, one.String())
		}
	}
	return b, err
}

// hostPort finds the port of a pod that a packet goes to; nil: there is none.
func (d *Daemon) hostPort(family nft.Family, p nft.Packet, own []netip.Addr) (*inspect.HostPort, error) {
	if !p.Dst.IsLoopback() && !slices.Contains(own, p.Dst) {
		return nil, nil
	}
	to := netip.AddrPortFrom(p.Dst, p.Port)
	lead, found, err := hostport.Find(hostport.Packet{Protocol: hostport.Protocol(p.Protocol), From: p.Src, To: to, Local: p.Local})
	if err != nil {
		return nil, err
	}
	if found {
		return &inspect.HostPort{
			Pod: lead.Pod, Owner: lead.Owner, Table: fmt.Sprintf("%s %s", family, hostport.TableName),
			Map: lead.Map, Element: lead.Element, Itself: lead.Itself, Whole: lead.Whole,
		}, nil
	}
	if pod, fault, led := d.loopback.hostPort(to); led && p.Local && hostport.Protocol(p.Protocol) == hostport.TCP {
		return &inspect.HostPort{Pod: pod, Fault: fault}, nil
	}
	return nil, nil
}

// spoofed says whether the guard drops a packet for its source; nil: it does not. A packet
// with an address of this node's pods is one of a pod's, unless it is said to come in by
// another way.
func (d *Daemon) spoofed(family nft.Family, p nft.Packet, q inspect.Query) (*inspect.Spoofed, error) {
	linkLocal := p.Src.Is6() && p.Src.IsLinkLocalUnicast()
	if p.Local || linkLocal || d.cfg.WithoutFib {
		return nil, nil
	}
	by := interfaceTo(p.Src)
	s := inspect.Spoofed{Table: fmt.Sprintf("%s %s", family, guard.TableName), Nobody: d.network.OfPods(p.Src) && !guard.OfPod(by)}
	if q.In == "" && !s.Nobody || q.In != "" && (!guard.OfPod(q.In) || q.In == by) {
		return nil, nil
	}
	there, err := guard.There(family)
	if err != nil || !there {
		return nil, err
	}
	return &s, nil
}
