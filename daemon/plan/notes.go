package plan

import (
	"fmt"
	"slices"

	"onerule/daemon/model"
)

// note says what is wrong with the Services that are concerned, where that is something
// else than what was said before.
func (b *batch) note() {
	l := b.ledger
	delete(b.concerned, model.Name{}) // nobody, before a frontend had an owner
	for name := range b.concerned {
		notes := l.notes(name)
		if slices.Equal(notes, l.told[name]) {
			continue
		}
		b.applied.Noted[name] = notes
		if l.told[name] = notes; len(notes) == 0 {
			delete(l.told, name)
		}
	}
}

func (l *Ledger) notes(name model.Name) []model.Note {
	p, s := l.plans[name], l.services[name]
	if p == nil {
		return nil
	}
	notes := append(duplicateNodePorts(s), l.cfg.refusedExternalIPs(s)...)
	for _, d := range p.Decisions {
		if owner := l.owners[d.Frontend]; owner != name {
			notes = addNote(notes, field(s, d), fmt.Sprintf("%s is held by Service %s", d.Frontend, owner))
		}
	}
	if p.HealthCheckPort == 0 {
		return notes
	}
	if holder := l.checks[p.HealthCheckPort][0]; holder != name {
		notes = addNote(notes, "spec.healthCheckNodePort", fmt.Sprintf("%d is held by Service %s", p.HealthCheckPort, holder))
	}
	for _, family := range []Family{IPv4, IPv6} {
		f := Frontend{Family: family, Protocol: model.TCP, Port: p.HealthCheckPort}
		if owner, held := l.owners[f]; held {
			notes = addNote(notes, "spec.healthCheckNodePort", fmt.Sprintf("%s is held by Service %s, which gets what is asked there", f, owner))
		}
	}
	return notes
}

// addNote adds a note unless it is there: what both families have is told once.
func addNote(notes []model.Note, field, detail string) []model.Note {
	n := model.Note{Reason: model.ReasonDuplicateFrontend, Field: field, Detail: detail}
	if slices.Contains(notes, n) {
		return notes
	}
	return append(notes, n)
}

// refusedExternalIPs finds those that lie in no range that is allowed.
func (c Config) refusedExternalIPs(s *model.Service) []model.Note {
	if c.WithoutExternalIPs {
		return nil
	}
	var notes []model.Note
	for _, a := range s.ExternalIPs {
		if !c.admits(a) {
			notes = append(notes, model.Note{Reason: model.ReasonRefusedAddress, Field: "spec.externalIPs", Detail: a.String() + " is in no range that external IPs may be of"})
		}
	}
	return notes
}

// duplicateNodePorts finds NodePorts that an earlier port of the Service has already.
func duplicateNodePorts(s *model.Service) []model.Note {
	var notes []model.Note
	for i, p := range s.Ports {
		first := slices.IndexFunc(s.Ports, func(o model.ServicePort) bool {
			return o.NodePort == p.NodePort && o.Protocol == p.Protocol
		})
		if p.NodePort != 0 && first < i {
			notes = addNote(notes, fmt.Sprintf("spec.ports[%d].nodePort", i),
				fmt.Sprintf("NodePort %d %s is that of spec.ports[%d] already", p.NodePort, p.Protocol, first))
		}
	}
	return notes
}

// field names what a decision follows from.
func field(s *model.Service, d Decision) string {
	switch d.Kind {
	case ExternalIP:
		return "spec.externalIPs"
	case LoadBalancerIP:
		return "status.loadBalancer.ingress"
	case NodePort:
		i := slices.IndexFunc(s.Ports, func(p model.ServicePort) bool {
			return p.NodePort == d.Frontend.Port && p.Protocol == d.Frontend.Protocol
		})
		return fmt.Sprintf("spec.ports[%d].nodePort", i)
	}
	return "spec.clusterIPs"
}
