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

// newLoopback gives what serves NodePorts on loopback addresses.
func (d *Daemon) newLoopback() *localproxy.Proxy {
	log := d.cfg.Log
	return localproxy.New(localproxy.Config{
		Failed: func(at netip.AddrPort, err error, again bool) {
			d.metrics.LocalhostFailed(familyLabel(familyOf(at.Addr())))
			if !again {
				log.Error(err, "a NodePort on a loopback address is not served, trying again", "address", at)
			}
		},
		Served: func(at netip.AddrPort) {
			log.Info("a NodePort on a loopback address is served now", "address", at)
		},
		NotTaken: func(at netip.AddrPort, err error) {
			log.Error(err, "connections to a NodePort on a loopback address are not taken", "address", at)
		},
		Unanswered: func(at, endpoint netip.AddrPort, err error) {
			log.V(2).Info("an endpoint does not answer", "address", at, "endpoint", endpoint, "err", err)
		},
	})
}

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
	on, some := d.onLoopback(family), false
	for f := range keys.Frontends {
		if f.Addr.IsValid() || f.Family != plan.Family(family) {
			continue
		}
		_, ours := out.Decisions[f]
		some = true
		if f.Protocol != model.TCP {
			d.refuseOnLoopback(f, on && ours)
			continue
		}
		at := netip.AddrPortFrom(loopbackOf(family), f.Port)
		if s, ok := loopbackService(out.Decisions[f]); ok && on {
			d.loopback.Put(at, s)
			continue
		}
		d.loopback.Delete(at)
	}
	if some {
		d.tally.reject(slices.Collect(maps.Keys(d.rejects)))
		d.metrics.LocalhostListeners(familyLabel(family), d.loopback.Listening(family == nft.IPv6))
	}
}

// refuseOnLoopback has packets to a NodePort counted, or no longer.
func (d *Daemon) refuseOnLoopback(f plan.Frontend, refuse bool) {
	r := bpf.Reject{IPv6: f.Family == plan.IPv6, Protocol: uint8(f.Protocol), Port: f.Port}
	if refuse {
		d.rejects[r] = true
		return
	}
	delete(d.rejects, r)
}

// loopbackService gives what a NodePort leads to; nothing if there is no endpoint.
func loopbackService(d plan.Decision) (s localproxy.Service, ok bool) {
	s.Endpoints = d.Endpoints
	if d.Local {
		s.Endpoints = d.LocalEndpoints
	}
	if d.Affinity != (plan.ServicePort{}) {
		s.Affinity = time.Duration(d.AffinitySeconds) * time.Second
	}
	return s, len(s.Endpoints) > 0
}

// keepLoopback ends what a load does not know any more.
func (d *Daemon) keepLoopback(family nft.Family, out plan.Outcome) {
	d.loopback.Keep(func(at netip.AddrPort) bool {
		if familyOf(at.Addr()) != family {
			return true
		}
		_, ours := out.Decisions[plan.Frontend{Family: plan.Family(family), Protocol: model.TCP, Port: at.Port()}]
		return ours
	})
	maps.DeleteFunc(d.rejects, func(r bpf.Reject, _ bool) bool { return r.IPv6 == (family == nft.IPv6) })
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
