package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"onerule/daemon/model"
	"onerule/daemon/plan"
)

// Describe says what is decided about a Service. With refuseLocal, what a Local policy
// without endpoints here would drop is refused.
func (p Place) Describe(f plan.Facts, refuseLocal bool) Service {
	s := Service{
		Namespace: f.Service.Name.Namespace, Name: f.Service.Name.Name, AffinitySeconds: f.Service.Affinity,
		Frontends: []Frontend{}, Ports: []Port{},
	}
	ports := f.Ports()
	for _, d := range f.Decisions {
		s.Frontends = append(s.Frontends, p.frontend(d, offer{candidates(ports, d), f.Slices()}, refuseLocal))
	}
	for _, port := range ports {
		s.Ports = append(s.Ports, p.port(port))
	}
	told := map[string]bool{}
	for _, n := range f.Notes {
		told[note(n)] = true
	}
	s.Notes = slices.Sorted(maps.Keys(told))
	return s
}

func note(n model.Note) string {
	if n.Field == "" {
		return n.Detail
	}
	return n.Field + ": " + n.Detail
}

// candidates gives the endpoints of the port that a frontend is of.
func candidates(ports []plan.PortFacts, d plan.Decision) []plan.Candidate {
	for _, port := range ports {
		if port.Port.Name == d.PortName && port.Port.Protocol == d.Frontend.Protocol {
			return port.Candidates
		}
	}
	return nil
}

func (p Place) frontend(d plan.Decision, of offer, refuseLocal bool) Frontend {
	front := Frontend{
		Kind: kindWord(d.Kind), Family: familyWord(d.Frontend.InFamily()),
		Port: d.Frontend.Port, Protocol: d.Frontend.Protocol.String(), PortName: d.PortName,
		Policy: policy(d.Local), Endpoints: texts(d.Endpoints), LocalEndpoints: texts(d.LocalEndpoints),
		Guarded: d.Guarded, Sources: texts(d.Sources), Answer: "balance",
	}
	if d.Frontend.Addr.IsValid() {
		front.Address = d.Frontend.Addr.String()
	}
	switch {
	case len(d.Endpoints) == 0:
		front.Answer = "refuse"
	case d.Local && len(d.LocalEndpoints) == 0 && refuseLocal:
		front.Answer = "refuse"
	case d.Local && len(d.LocalEndpoints) == 0:
		front.Answer = "drop"
	}
	front.Reason = p.why(d, of, d.Local)
	return front
}

func (p Place) port(port plan.PortFacts) Port {
	described := Port{
		Name: port.Port.Name, Protocol: port.Port.Protocol.String(), Port: port.Port.Port, NodePort: port.Port.NodePort,
		Endpoints: []Endpoint{},
	}
	for _, c := range port.Candidates {
		described.Endpoints = append(described.Endpoints, p.endpoint(c))
	}
	return described
}

func (p Place) endpoint(c plan.Candidate) Endpoint {
	return Endpoint{Address: c.To.String(), Node: c.Fact.Node, Here: p.here(c.Fact), State: stateOf(c.Fact)}
}

// String gives the frontend as people write it: a NodePort with the address that stands
// for any.
func (f Frontend) String() string {
	if f.Family == "IPv6" {
		return fmt.Sprintf("[%s]:%d/%s", cmp.Or(f.Address, "::"), f.Port, f.Protocol)
	}
	return fmt.Sprintf("%s:%d/%s", cmp.Or(f.Address, "0.0.0.0"), f.Port, f.Protocol)
}
