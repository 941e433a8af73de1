package plan

import (
	"maps"
	"net/netip"
	"slices"

	"onerule/daemon/model"
)

// A batch takes changes in together. It keeps what held before the first of them, so
// that what changes and changes back is not touched.
type batch struct {
	ledger *Ledger
	dirty  map[model.Name]bool
	ranges bool // ServiceCIDRs may be others

	// What held before, of what may be another one now.
	frontends map[Frontend]*Decision // nil: nobody's
	owners    map[Frontend]model.Name
	addrs     map[netip.Addr]uses
	checks    map[uint16]HealthCheck // the zero value: nobody's
	concerned map[model.Name]bool    // Services whose notes may be others

	applied Applied
}

func (l *Ledger) begin() *batch {
	return &batch{
		ledger:    l,
		dirty:     map[model.Name]bool{},
		frontends: map[Frontend]*Decision{},
		owners:    map[Frontend]model.Name{},
		addrs:     map[netip.Addr]uses{},
		checks:    map[uint16]HealthCheck{},
		concerned: map[model.Name]bool{},
		applied:   NewApplied(),
	}
}

// settle plans what is dirty again, and says what came out otherwise than before.
func (b *batch) settle() Applied {
	for _, name := range slices.SortedFunc(maps.Keys(b.dirty), model.Name.Compare) {
		b.replan(name)
	}
	l, touched := b.ledger, &b.applied.Touched
	for f, was := range b.frontends {
		is, moved := l.decision(f), b.owners[f] != l.owners[f] // what is counted for it is the owner's
		if moved || (was == nil) != (is == nil) || was != nil && !was.equal(*is) {
			touched.Frontends[f] = true
		}
	}
	for addr, was := range b.addrs {
		if !was.same(l.addrs[addr]) {
			touched.Addrs[addr] = true
		}
	}
	for port, was := range b.checks {
		b.applied.HealthChecks = b.applied.HealthChecks || was != l.healthCheck(port)
	}
	if b.ranges {
		touched.Ranges = l.mergeCIDRs() || touched.Ranges
	}
	b.note()
	return b.applied
}

// mergeCIDRs says whether the ranges of ClusterIPs are others now.
func (l *Ledger) mergeCIDRs() bool {
	var all []netip.Prefix
	for _, c := range l.cidrs {
		all = append(all, c.CIDRs...)
	}
	was := l.serviceCIDRs
	l.serviceCIDRs = Merge(all)
	return !slices.Equal(was, l.serviceCIDRs)
}

// replan plans one Service again.
func (b *batch) replan(name model.Name) {
	l := b.ledger
	was, planned := l.plans[name]
	old, now := was, &Service{}
	if !planned {
		old = &Service{}
	}
	if s := l.services[name]; s != nil {
		p := ForService(l.cfg, l.node, s, l.slicesOf(name))
		now = &p
	}
	b.remember(old, now)
	b.concerned[name] = true
	if old.claimsAs(*now) {
		l.setPlan(name, now)
	} else {
		b.reclaim(name, old, now)
	}
	b.count(old, now)
	touchAffinities(old.Affinities, now.Affinities, b.applied.Touched.Affinities)
	l.addNoLocal(old.NoLocal, now.NoLocal)
}

func (l *Ledger) setPlan(name model.Name, p *Service) {
	if l.services[name] == nil {
		delete(l.plans, name)
		return
	}
	l.plans[name] = p
}

// remember notes what holds before a plan changes, where that may matter.
func (b *batch) remember(old, now *Service) {
	l, moved := b.ledger, !old.claimsAs(*now)
	for i, d := range old.Decisions {
		if moved || !d.equal(now.Decisions[i]) {
			b.rememberFrontend(d.Frontend)
		}
	}
	if moved {
		for _, d := range now.Decisions {
			b.rememberFrontend(d.Frontend)
		}
	}
	for _, port := range []uint16{old.HealthCheckPort, now.HealthCheckPort} {
		if _, known := b.checks[port]; port != 0 && !known {
			b.checks[port] = l.healthCheck(port)
		}
	}
}

func (b *batch) rememberFrontend(f Frontend) {
	if _, known := b.frontends[f]; !known {
		b.frontends[f], b.owners[f] = b.ledger.decision(f), b.ledger.owners[f]
	}
}

// claimsAs says whether two plans of a Service claim the same, with the same right.
func (s Service) claimsAs(o Service) bool {
	return s.Created == o.Created && s.HealthCheckPort == o.HealthCheckPort &&
		slices.EqualFunc(s.Decisions, o.Decisions, func(a, b Decision) bool {
			return a.Frontend == b.Frontend && a.Kind == b.Kind
		})
}

// uses counts the Services that use an address, by what it is to them.
type uses struct{ clusterIP, externalIP, hairpin int }

// same says whether an address is in the same sets.
func (u uses) same(o uses) bool {
	return (u.clusterIP > 0) == (o.clusterIP > 0) && (u.externalIP > 0) == (o.externalIP > 0) && (u.hairpin > 0) == (o.hairpin > 0)
}

// count moves a Service's uses of addresses.
func (b *batch) count(old, now *Service) {
	for _, of := range []struct {
		old, now []netip.Addr
		n        func(*uses) *int
	}{
		{old.ClusterIPs, now.ClusterIPs, func(u *uses) *int { return &u.clusterIP }},
		{old.ExternalIPs, now.ExternalIPs, func(u *uses) *int { return &u.externalIP }},
		{old.Hairpins, now.Hairpins, func(u *uses) *int { return &u.hairpin }},
	} {
		if slices.Equal(of.old, of.now) {
			continue
		}
		for _, addr := range of.now {
			b.use(addr, of.n, 1)
		}
		for _, addr := range of.old {
			b.use(addr, of.n, -1)
		}
	}
}

func (b *batch) use(addr netip.Addr, n func(*uses) *int, by int) {
	u := b.ledger.addrs[addr]
	if _, known := b.addrs[addr]; !known {
		b.addrs[addr] = u
	}
	*n(&u) += by
	if b.ledger.addrs[addr] = u; u == (uses{}) {
		delete(b.ledger.addrs, addr)
	}
}

func touchAffinities(old, now map[ServicePort]Affinity, touched map[ServicePort]bool) {
	for port, a := range now {
		if was, ok := old[port]; !ok || !was.equal(a) {
			touched[port] = true
		}
	}
	for port := range old {
		if _, ok := now[port]; !ok {
			touched[port] = true
		}
	}
}
