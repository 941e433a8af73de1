package daemon

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"onerule/bpf"
	"onerule/daemon/config"
	"onerule/daemon/model"
	"onerule/daemon/plan"
	"onerule/localproxy"
	"onerule/nft"
)

// onLoopback says whether NodePorts of a family are asked for on loopback addresses.
func (d *Daemon) onLoopback(family nft.Family) bool {
	return d.settings.NodePortAddresses.Loopback(config.Family(family))
}

// spellLoopback refuses there what is not taken: all that is not TCP.
func (d *Daemon) spellLoopback(family nft.Family, want nft.State) {
	if !d.onLoopback(family) {
		return
	}
	for f := range want.Routes[nft.ServiceNodePorts] {
		if f.Protocol != uint8(model.TCP) {
			want.RefuseOnLoopback(f)
		}
	}
}

// serveLoopback takes there what is: the NodePorts of TCP that keys name.
func (d *Daemon) serveLoopback(family nft.Family, keys plan.Keys, out plan.Outcome) {
	if d.putLoopback(family, keys, out) {
		d.tellRefused()
	}
}

// loadLoopback is serveLoopback for all that there is. Rules that refuse what is not taken
// come and go with a load, too.
func (d *Daemon) loadLoopback(family nft.Family, all plan.Keys, out plan.Outcome) {
	d.localhost.Store(d.servesLocalhost())
	d.loopback.keep(func(at netip.AddrPort) bool {
		if familyOf(at.Addr()) != family {
			return true
		}
		_, ours := out.Decisions[plan.Frontend{Family: plan.Family(family), Protocol: model.TCP, Port: at.Port()}]
		return ours
	})
	maps.DeleteFunc(d.rejects, func(r bpf.Reject, _ bool) bool { return r.IPv6 == (family == nft.IPv6) })
	d.putLoopback(family, all, out)
	d.tellRefused()
}

// servesLocalhost says whether there is something to tell of loopback addresses.
func (d *Daemon) servesLocalhost() bool {
	return d.onLoopback(nft.IPv4) || d.onLoopback(nft.IPv6)
}

// putLoopback serves the NodePorts that keys name, and says whether others are refused
// than before.
func (d *Daemon) putLoopback(family nft.Family, keys plan.Keys, out plan.Outcome) (changed bool) {
	on := d.onLoopback(family)
	for f := range keys.Frontends {
		if f.Addr.IsValid() || f.Family != plan.Family(family) {
			continue
		}
		_, ours := out.Decisions[f]
		if f.Protocol != model.TCP {
			changed = d.refuseOnLoopback(f, on && ours) || changed
			continue
		}
		at := netip.AddrPortFrom(loopbackOf(family), f.Port)
		if !on || !ours {
			d.loopback.leave(at)
			continue
		}
		s, answers := loopbackService(out.Decisions[f])
		d.loopback.take(at, s, answers)
	}
	return changed
}

// tellRefused has refusals counted as they are now, once those of all families are known:
// what is not told counts no more, also of a daemon before this one.
func (d *Daemon) tellRefused() {
	for _, family := range d.cfg.Families {
		if !d.programs[family].Known() {
			return
		}
	}
	d.tally.reject(slices.Collect(maps.Keys(d.rejects)))
}

// refuseOnLoopback has packets to a NodePort counted, or no longer, and says whether that
// is a change.
func (d *Daemon) refuseOnLoopback(f plan.Frontend, refuse bool) bool {
	r := bpf.Reject{IPv6: f.Family == plan.IPv6, Protocol: uint8(f.Protocol), Port: f.Port}
	if d.rejects[r] == refuse {
		return false
	}
	if refuse {
		d.rejects[r] = true
	} else {
		delete(d.rejects, r)
	}
	return true
}

// loopbackService gives what a NodePort leads to; nothing if there is no endpoint. With
// policy Local these are the local ones; where there is none, processes of the node reach
// the others by its own address, so they do here.
func loopbackService(d plan.Decision) (s localproxy.Service, ok bool) {
	s.Endpoints = d.Endpoints
	if d.Local && len(d.LocalEndpoints) > 0 {
		s.Endpoints = d.LocalEndpoints
	}
	if d.Affinity != (plan.ServicePort{}) {
		s.Affinity = time.Duration(d.AffinitySeconds) * time.Second
	}
	return s, len(s.Endpoints) > 0
}

func familyOf(a netip.Addr) nft.Family {
	if a.Is4() {
		return nft.IPv4
	}
	return nft.IPv6
}

func loopbackOf(family nft.Family) netip.Addr {
	if family == nft.IPv6 {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}
