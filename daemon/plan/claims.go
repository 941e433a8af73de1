package plan

import (
	"cmp"
	"slices"

	"onerule/daemon/model"
)

// reclaim makes a Service claim what its new plan does instead of what the old one did.
func (b *batch) reclaim(name model.Name, old, now *Service) {
	l := b.ledger
	for _, d := range old.Decisions {
		was := l.owners[d.Frontend]
		l.release(d.Frontend, name)
		b.concern(d.Frontend, was)
	}
	l.releaseCheck(old.HealthCheckPort, name)
	l.setPlan(name, now)
	for _, d := range now.Decisions {
		was := l.owners[d.Frontend]
		l.claim(d.Frontend, name)
		b.concern(d.Frontend, was)
	}
	l.claimCheck(now.HealthCheckPort, name)
	for _, port := range []uint16{old.HealthCheckPort, now.HealthCheckPort} {
		for _, n := range l.checks[port] {
			b.concerned[n] = true
		}
	}
}

// concern marks the Services that are told who holds a frontend, if that is another one
// than before.
func (b *batch) concern(f Frontend, was model.Name) {
	l := b.ledger
	if l.owners[f] == was {
		return
	}
	b.concerned[l.owners[f]] = true
	for _, n := range l.losers[f] {
		b.concerned[n] = true
	}
	for _, n := range l.checks[f.Port] { // which a NodePort of that number shadows
		b.concerned[n] = true
	}
}

// claim gives a frontend to a Service unless one that comes before it holds it. So the
// order in which objects arrive decides nothing, and all nodes agree.
func (l *Ledger) claim(f Frontend, name model.Name) {
	holder, held := l.owners[f]
	if !held {
		l.owners[f] = name
		return
	}
	before := func(x, y model.Name) int { return l.before(f, x, y) }
	loser := name
	if before(name, holder) < 0 {
		l.owners[f] = name
		loser = holder
	}
	at, _ := slices.BinarySearchFunc(l.losers[f], loser, before)
	l.losers[f] = slices.Insert(l.losers[f], at, loser)
}

// release takes a Service's claim back. The next in order inherits the frontend.
func (l *Ledger) release(f Frontend, name model.Name) {
	losers := l.losers[f]
	switch {
	case l.owners[f] != name:
		losers = without(losers, name)
	case len(losers) == 0:
		delete(l.owners, f)
	default:
		l.owners[f] = losers[0]
		losers = slices.Delete(losers, 0, 1)
	}
	if len(losers) == 0 {
		delete(l.losers, f)
		return
	}
	l.losers[f] = losers
}

func without(names []model.Name, name model.Name) []model.Name {
	return slices.DeleteFunc(names, func(n model.Name) bool { return n == name })
}

// before says who comes first: a ClusterIP before an external IP, since whoever may
// write Services must not take another one's traffic; then the older one; then the lower
// name. It compares the plans, not the facts: in a batch the facts are ahead of the
// claims of the Services that are planned later, and owners and losers would be in no
// order.
func (l *Ledger) before(f Frontend, x, y model.Name) int {
	return cmp.Or(cmp.Compare(l.plans[x].rank(f), l.plans[y].rank(f)), l.older(x, y))
}

func (l *Ledger) older(x, y model.Name) int {
	return cmp.Or(cmp.Compare(l.plans[x].Created, l.plans[y].Created), x.Compare(y))
}

func (s *Service) rank(f Frontend) int {
	if d := s.decision(f); d != nil && d.Kind == ClusterIP {
		return 0
	}
	return 1
}

// claimCheck and releaseCheck are the same for a healthCheckNodePort, if it is one.
func (l *Ledger) claimCheck(port uint16, name model.Name) {
	if port == 0 {
		return
	}
	at, _ := slices.BinarySearchFunc(l.checks[port], name, l.older)
	l.checks[port] = slices.Insert(l.checks[port], at, name)
}

func (l *Ledger) releaseCheck(port uint16, name model.Name) {
	if l.checks[port] = without(l.checks[port], name); len(l.checks[port]) == 0 {
		delete(l.checks, port)
	}
}

// healthCheck gives what is told on a port: the zero value if it is nobody's.
func (l *Ledger) healthCheck(port uint16) HealthCheck {
	if holders := l.checks[port]; len(holders) > 0 {
		return l.plans[holders[0]].HealthCheck
	}
	return HealthCheck{}
}

// HealthChecks gives what is told on each healthCheckNodePort, in a map of the caller's.
// It costs what there is of them: ask when Applied says that something changed.
func (l *Ledger) HealthChecks() map[uint16]HealthCheck {
	checks := make(map[uint16]HealthCheck, len(l.checks))
	for port := range l.checks {
		checks[port] = l.healthCheck(port)
	}
	return checks
}
