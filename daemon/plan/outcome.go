package plan

import (
	"net/netip"
	"slices"

	"onerule/daemon/model"
)

// decision gives what the owner of a frontend decided for it: nil if it is nobody's.
func (l *Ledger) decision(f Frontend) *Decision {
	owner, ours := l.owners[f]
	if !ours {
		return nil
	}
	return l.plans[owner].decision(f)
}

func (s *Service) decision(f Frontend) *Decision {
	i, found := slices.BinarySearchFunc(s.Decisions, f, func(d Decision, f Frontend) int { return d.Frontend.Compare(f) })
	if !found {
		return nil
	}
	return &s.Decisions[i]
}

// Decide gives the outcome for some keys.
func (l *Ledger) Decide(k Keys) Outcome {
	out := newOutcome()
	for f := range k.Frontends {
		if d := l.decision(f); d != nil {
			out.Decisions[f] = *d
		}
	}
	for addr := range k.Addrs {
		u := l.addrs[addr]
		for _, of := range []struct {
			n   int
			set map[netip.Addr]bool
		}{{u.clusterIP, out.ClusterIPs}, {u.externalIP, out.ExternalIPs}, {u.hairpin, out.Hairpins}} {
			if of.n > 0 {
				of.set[addr] = true
			}
		}
	}
	for port := range k.Affinities {
		if p := l.plans[port.Service]; p != nil {
			if a, ours := p.Affinities[port]; ours {
				out.Affinities[port] = a
			}
		}
	}
	if k.Ranges {
		out.ServiceCIDRs = l.serviceCIDRs
		out.PodCIDRs = Merge(l.cfg.ClusterCIDRs)
	}
	return out
}

func newOutcome() Outcome {
	return Outcome{
		Decisions:   map[Frontend]Decision{},
		ClusterIPs:  map[netip.Addr]bool{},
		ExternalIPs: map[netip.Addr]bool{},
		Hairpins:    map[netip.Addr]bool{},
		Affinities:  map[ServicePort]Affinity{},
	}
}

// Owns says whether a frontend is any Service's.
func (l *Ledger) Owns(f Frontend) bool {
	_, owned := l.owners[f]
	return owned
}

// Owner gives the Service that a frontend is of, which must be one's.
func (l *Ledger) Owner(f Frontend) model.Name { return l.owners[f] }

// NodePorts names those of a family that Services have.
func (l *Ledger) NodePorts(family Family) Keys {
	k := NewKeys()
	for f := range l.owners {
		if !f.Addr.IsValid() && f.Family == family {
			k.Frontends[f] = true
		}
	}
	return k
}

// All names every outcome that there is.
func (l *Ledger) All() Keys {
	k := l.Of(func(model.Name) bool { return true })
	k.Ranges = true
	return k
}

// Of names the outcomes of the Services that match.
func (l *Ledger) Of(match func(model.Name) bool) Keys {
	k := NewKeys()
	for name, p := range l.plans {
		if !match(name) {
			continue
		}
		for _, d := range p.Decisions {
			k.Frontends[d.Frontend] = true
		}
		for _, list := range [][]netip.Addr{p.ClusterIPs, p.ExternalIPs, p.Hairpins} {
			for _, addr := range list {
				k.Addrs[addr] = true
			}
		}
		for port := range p.Affinities {
			k.Affinities[port] = true
		}
	}
	return k
}

// equal compares all that a decision says.
func (d Decision) equal(o Decision) bool {
	return d.Frontend == o.Frontend && d.Kind == o.Kind && d.Local == o.Local && d.Guarded == o.Guarded &&
		d.PortName == o.PortName && d.Affinity == o.Affinity && d.AffinitySeconds == o.AffinitySeconds && d.AffinityLocal == o.AffinityLocal &&
		slices.Equal(d.Endpoints, o.Endpoints) && slices.Equal(d.LocalEndpoints, o.LocalEndpoints) &&
		slices.Equal(d.Keep, o.Keep) && slices.Equal(d.Sources, o.Sources)
}

func (a Affinity) equal(o Affinity) bool {
	return a.Seconds == o.Seconds && a.Local == o.Local &&
		slices.Equal(a.Endpoints, o.Endpoints) && slices.Equal(a.LocalEndpoints, o.LocalEndpoints)
}
