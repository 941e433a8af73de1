package inspect

import (
	"fmt"
	"slices"
	"strings"

	"onerule/daemon/model"
	"onerule/daemon/plan"
)

// A Place is the node that an answer is about.
type Place struct{ Node string }

func (p Place) here(e model.Endpoint) bool { return e.Node != "" && e.Node == p.Node }

// stateOf gives the state of an endpoint in words.
func stateOf(e model.Endpoint) string {
	switch {
	case e.Ready:
		return "ready"
	case e.Serving && e.Terminating:
		return "terminating, serves"
	case e.Terminating:
		return "terminating"
	}
	return "not ready"
}

// number says how many there are of something.
func number(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// tallied says how many of a list are in each state: "2 not ready, 1 terminating".
func tallied(list []plan.Candidate) string {
	counts := map[string]int{}
	for _, c := range list {
		counts[stateOf(c.Fact)]++
	}
	var parts []string
	for _, state := range []string{"ready", "not ready", "terminating, serves", "terminating"} {
		if n := counts[state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, strings.Replace(state, ", serves", " and serving", 1)))
		}
	}
	return strings.Join(parts, ", ")
}

// ofFamily gives the candidates of a family.
func ofFamily(list []plan.Candidate, family plan.Family) []plan.Candidate {
	return slices.DeleteFunc(slices.Clone(list), func(c plan.Candidate) bool { return plan.FamilyOf(c.To.Addr()) != family })
}

// An offer is what a frontend could be spread over: the endpoints of its port, and the number
// of EndpointSlices that there are for the Service.
type offer struct {
	all    []plan.Candidate
	slices int
}

// why says why a frontend is not spread over all endpoints of its port: "" if it is.
// local says that only endpoints on this node count.
func (p Place) why(d plan.Decision, of offer, local bool) string {
	all := ofFamily(of.all, d.Frontend.InFamily())
	ready := where(all, func(c plan.Candidate) bool { return c.Fact.Ready })
	used := d.Endpoints
	if local {
		used = d.LocalEndpoints
	}
	switch {
	case of.slices == 0:
		return "no endpoint: no EndpointSlice of it is known"
	case len(all) == 0:
		return fmt.Sprintf("no endpoint: no EndpointSlice has an %s address for a port named %q (%s)", familyWord(d.Frontend.InFamily()), d.PortName, d.Frontend.Protocol)
	case len(d.Endpoints) == 0:
		return "no ready endpoint: " + tallied(all)
	case local && len(used) == 0:
		elsewhere := number(len(d.Endpoints), "endpoint") + " elsewhere"
		if d.Kind != plan.ClusterIP {
			elsewhere += ", for pods and this node only"
		}
		return "no endpoint on this node, where only those serve: " + elsewhere
	case len(ready) == 0:
		return "no endpoint is ready, those that serve while they terminate are used: " + tallied(all)
	case local:
		return fmt.Sprintf("%s of %d: only those on this node count", number(len(used), "endpoint"), len(all))
	case len(used) < len(ready):
		return fmt.Sprintf("%s of %d that are ready: hints mean the others for other zones or nodes", number(len(used), "endpoint"), len(ready))
	case len(used) < len(all):
		return fmt.Sprintf("%s of %d: %s", number(len(used), "endpoint"), len(all), tallied(where(all, func(c plan.Candidate) bool { return !c.Fact.Ready })))
	}
	return ""
}

func where(list []plan.Candidate, good func(plan.Candidate) bool) []plan.Candidate {
	return slices.DeleteFunc(slices.Clone(list), func(c plan.Candidate) bool { return !good(c) })
}

func familyWord(f plan.Family) string {
	if f == plan.IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

func kindWord(k plan.Kind) string {
	switch k {
	case plan.ExternalIP:
		return "ExternalIP"
	case plan.LoadBalancerIP:
		return "LoadBalancerIP"
	case plan.NodePort:
		return "NodePort"
	}
	return "ClusterIP"
}

func policy(local bool) string {
	if local {
		return "Local"
	}
	return "Cluster"
}

func texts[T fmt.Stringer](list []T) []string {
	words := make([]string, len(list))
	for i, v := range list {
		words[i] = v.String()
	}
	return words
}
