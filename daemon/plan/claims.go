package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"onerule/daemon/model"
)

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
	l.losers[f] = append(l.losers[f], loser)
	slices.SortFunc(l.losers[f], before)
}

// release takes a Service's claim back. The next in order inherits the frontend.
func (l *Ledger) release(f Frontend, name model.Name) {
	losers := l.losers[f]
	switch {
	case l.owners[f] != name:
		losers = slices.DeleteFunc(losers, func(n model.Name) bool { return n == name })
	case len(losers) == 0:
		delete(l.owners, f)
	default:
		l.owners[f], losers = losers[0], losers[1:]
	}
	if len(losers) == 0 {
		delete(l.losers, f)
		return
	}
	l.losers[f] = losers
}

// before says who comes first: a ClusterIP before an external IP, since whoever may
// write Services must not take another one's traffic; then the older one; then the lower
// name. It compares the plans, not the facts: in a batch the facts are ahead of the
// claims of the Services that are planned later, and owners and losers would be in no
// order.
func (l *Ledger) before(f Frontend, x, y model.Name) int {
	a, b := l.plans[x], l.plans[y]
	return cmp.Or(cmp.Compare(a.rank(f), b.rank(f)), cmp.Compare(a.Created, b.Created), x.Compare(y))
}

func (s Service) rank(f Frontend) int {
	if d, _ := s.decision(f); d.Kind == ClusterIP {
		return 0
	}
	return 1
}

func (l *Ledger) notes(name model.Name) []model.Note {
	p := l.plans[name]
	var notes []model.Note
	for _, d := range p.Decisions {
		if owner := l.owners[d.Frontend]; owner != name {
			notes = append(notes, model.Note{
				Reason: model.ReasonDuplicateFrontend,
				Field:  l.field(name, d),
				Detail: fmt.Sprintf("%s is held by Service %s", d.Frontend, owner),
			})
		}
	}
	if holders := l.checks[p.HealthCheckPort]; p.HealthCheckPort != 0 && len(holders) > 0 && holders[0] != name {
		notes = append(notes, model.Note{
			Reason: model.ReasonDuplicateFrontend,
			Field:  "spec.healthCheckNodePort",
			Detail: fmt.Sprintf("%d is held by Service %s", p.HealthCheckPort, holders[0]),
		})
	}
	return notes
}

// field names what a decision follows from.
func (l *Ledger) field(name model.Name, d Decision) string {
	switch d.Kind {
	case ExternalIP:
		return "spec.externalIPs"
	case LoadBalancerIP:
		return "status.loadBalancer.ingress"
	case NodePort:
		for i, p := range l.services[name].Ports {
			if p.NodePort == d.Frontend.Port && p.Protocol == d.Frontend.Protocol {
				return fmt.Sprintf("spec.ports[%d].nodePort", i)
			}
		}
	}
	return "spec.clusterIPs"
}

// String gives the frontend for people.
func (f Frontend) String() string {
	if !f.Addr.IsValid() {
		return fmt.Sprintf("NodePort %d %s", f.Port, f.Protocol)
	}
	return fmt.Sprintf("%s %s", netip.AddrPortFrom(f.Addr, f.Port), f.Protocol)
}

// check moves a Service's claim to a healthCheckNodePort.
func (l *Ledger) check(name model.Name, old, now Service, a *Applied) {
	if old.HealthCheckPort == now.HealthCheckPort && old.HealthCheck == now.HealthCheck && old.Created == now.Created {
		return
	}
	a.HealthChecks = true
	concerned := map[model.Name]bool{name: true}
	for _, port := range []uint16{old.HealthCheckPort, now.HealthCheckPort} {
		for _, n := range l.checks[port] {
			concerned[n] = true
		}
	}
	l.checks[old.HealthCheckPort] = slices.DeleteFunc(l.checks[old.HealthCheckPort], func(n model.Name) bool { return n == name })
	if len(l.checks[old.HealthCheckPort]) == 0 {
		delete(l.checks, old.HealthCheckPort)
	}
	if port := now.HealthCheckPort; port != 0 {
		l.checks[port] = append(l.checks[port], name)
		slices.SortFunc(l.checks[port], func(x, y model.Name) int {
			return cmp.Or(cmp.Compare(l.plans[x].Created, l.plans[y].Created), x.Compare(y))
		})
	}
	for n := range concerned {
		a.Noted[n] = l.notes(n)
	}
}

// HealthChecks gives what is told on each healthCheckNodePort.
func (l *Ledger) HealthChecks() map[uint16]HealthCheck {
	checks := map[uint16]HealthCheck{}
	for port, holders := range l.checks {
		checks[port] = l.plans[holders[0]].HealthCheck
	}
	return checks
}
