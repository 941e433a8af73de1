package plan

import (
	"maps"
	"net/netip"
	"slices"

	"onerule/daemon/model"
)

// A Candidate is an endpoint of a service port, chosen or not, with what is known of it.
type Candidate struct {
	To   netip.AddrPort
	Fact model.Endpoint
}

// A PortFacts is a port of a Service with all endpoints that slices have for it, of both
// families, sorted.
type PortFacts struct {
	Port       model.ServicePort
	Candidates []Candidate
}

// Facts are what a ledger knows of one Service, for people. Nothing in them changes any
// more.
type Facts struct {
	Service *model.Service
	parts   []*model.EndpointSlice
	// Decisions are about the frontends that the Service has, sorted; Lost says which ones
	// it claims in vain, and who has them.
	Decisions []Decision
	Lost      map[Frontend]model.Name
	Notes     []model.Note
}

// Names gives the Services that there are, sorted.
func (l *Ledger) Names() []model.Name {
	return slices.SortedFunc(maps.Keys(l.services), model.Name.Compare)
}

// Facts gives what is known of a Service, and false if there is none.
func (l *Ledger) Facts(name model.Name) (Facts, bool) {
	s, p := l.services[name], l.plans[name]
	if s == nil || p == nil {
		return Facts{}, false
	}
	f := Facts{Service: s, parts: l.slicesOf(name), Lost: map[Frontend]model.Name{}, Notes: slices.Clone(l.told[name])}
	for _, d := range p.Decisions {
		if owner := l.owners[d.Frontend]; owner != name {
			f.Lost[d.Frontend] = owner
			continue
		}
		f.Decisions = append(f.Decisions, d)
	}
	return f, true
}

// Ports gives the ports and their endpoints. It costs what there is of them.
func (f Facts) Ports() []PortFacts {
	var list []PortFacts
	for _, port := range f.Service.Ports {
		list = append(list, PortFacts{port, candidates(endpointsOf(port, f.parts))})
	}
	return list
}

// Slices is how many EndpointSlices of the Service there are.
func (f Facts) Slices() int { return len(f.parts) }

func candidates(all map[netip.AddrPort]model.Endpoint) []Candidate {
	var list []Candidate
	for _, to := range slices.SortedFunc(maps.Keys(all), netip.AddrPort.Compare) {
		list = append(list, Candidate{to, all[to]})
	}
	return list
}
