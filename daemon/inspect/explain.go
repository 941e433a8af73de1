package inspect

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"onerule/daemon/model"
	"onerule/daemon/plan"
	"onerule/nft"
)

// A Case is a packet and all that an explanation of its way follows from.
type Case struct {
	Place  Place
	Config nft.Config
	// Own are the addresses of this node.
	Own    []netip.Addr
	Packet nft.Packet
	// Seen is what the kernel holds, Wanted what it should hold at the same keys.
	Seen   nft.Sight
	Wanted nft.State
	// Facts are about the Services that have the frontend, and the NodePort of its number.
	Facts map[nft.Frontend]plan.Facts
	// Decisions are about the same.
	Decisions map[nft.Frontend]plan.Decision
	// Loopback is about the NodePort on a loopback address that the packet goes to, if the
	// daemon is to listen there itself.
	Loopback *Loopback
	Besides  Besides
}

// A Loopback is a NodePort of TCP on a loopback address.
type Loopback struct {
	// Endpoints are those that connections are led to. Without one nobody listens.
	Endpoints []netip.AddrPort
	// Fault says why the daemon does not listen although there are some.
	Fault string
}

// Differs says whether the kernel holds something else than it should.
func (c Case) Differs() bool { return !c.missing().Empty() }

func (c Case) missing() nft.Changes {
	return nft.Diff(c.Seen.State, nft.Settle(c.Seen.State, c.Wanted.At(c.Seen.Keys)))
}

// Explain says what becomes of the packet.
func (c Case) Explain() Explanation {
	p := c.Packet
	way := c.walk(c.Seen.State)
	e := Explanation{
		From: p.Src.String(), Origin: c.origin(), In: p.Iif, To: netip.AddrPortFrom(p.Dst, p.Port).String(), Protocol: protocolWord(p.Protocol),
		Table:   fmt.Sprintf("%s %s", c.Config.Family, nft.TableName),
		Verdict: way.Verdict.String(), Reached: []Target{},
	}
	e.Stages = []Stage{{Chain: "-", Found: c.Seen.Wrong, Then: "pass"}}
	if c.Seen.There {
		e.Stages = append([]Stage{c.hook()}, stages(way.Stages)...)
	}
	if d, ok := c.Decisions[way.Frontend]; ok {
		e.Service, e.Port, e.Kind = c.Facts[way.Frontend].Service.Name.String(), d.PortName, kindWord(d.Kind)
	}
	known := c.endpoints(way.Frontend)
	for _, a := range way.Arrivals {
		e.Reached = append(e.Reached, Target{known.of(a.Endpoint), a.Masqueraded})
	}
	e.Reason = c.reason(way)
	e.Stages = append(e.Stages, c.leaving(way)...)
	if way.Verdict == nft.Passed && c.Loopback != nil && p.Local {
		c.onLoopback(&e)
	}
	c.besides(&e)
	if c.Seen.Wrong != "" {
		e.Wrong = append(e.Wrong, c.Seen.Wrong)
	}
	for _, odd := range c.Seen.Odd {
		e.Wrong = append(e.Wrong, "an element that this daemon never writes: "+odd)
	}
	if missing := c.missing(); !missing.Empty() {
		e.Differs = strings.Split(strings.TrimSpace(missing.Text(c.Config.Family)), "\n")
		wanted := c.walk(c.Wanted)
		e.Wanted = summary(wanted) + reasonBehind(c.reason(wanted))
	}
	return e
}

// walk says what becomes of the packet in a state. Where there is no table nothing does.
func (c Case) walk(s nft.State) nft.Way {
	return nft.Walk(c.Config, s, c.Seen.Pins, c.Own, c.Packet)
}

func (c Case) hook() Stage {
	if c.Packet.Local {
		return Stage{"nat-output", "this node sends it", "jump services"}
	}
	by := ""
	if c.Packet.Iif != "" {
		by = " by " + c.Packet.Iif
	}
	return Stage{"nat-prerouting", "it comes in" + by, "jump services"}
}

func stages(list []nft.Stage) []Stage {
	var words []Stage
	for _, s := range list {
		words = append(words, Stage{s.Chain, s.Found, s.Then})
	}
	return words
}

// leaving says what happens to a translated packet behind the routing decision.
func (c Case) leaving(way nft.Way) []Stage {
	if way.Verdict != nft.Translated {
		return nil
	}
	masqueraded := 0
	for _, a := range way.Arrivals {
		if a.Masqueraded {
			masqueraded++
		}
	}
	s := Stage{Chain: "masquerading"}
	switch {
	case way.Marked && masqueraded > 0:
		s.Found, s.Then = "it is marked", "masquerade"
		if masqueraded < len(way.Arrivals) {
			s.Found += ": on the way to endpoints that are not in the node's own network"
		}
	case way.Marked:
		s.Chain, s.Found, s.Then = "input", "it ends in the node's own network, where nothing is masqueraded", "accept"
	case masqueraded > 0:
		s.Found, s.Then = fmt.Sprintf("hairpins has %s: it may reach itself", c.Packet.Src), "masquerade, if it does"
	default:
		s.Found, s.Then = "it is not marked", "accept"
	}
	return []Stage{s}
}

// onLoopback is for NodePorts that the daemon itself takes. Where it does not listen, the
// packet goes to whoever does: to nobody, most often, and then it is refused.
func (c Case) onLoopback(e *Explanation) {
	nodePort := nft.Frontend{Protocol: c.Packet.Protocol, Port: c.Packet.Port}
	d := c.Decisions[nodePort]
	e.Service, e.Port, e.Kind = c.Facts[nodePort].Service.Name.String(), d.PortName, kindWord(d.Kind)
	switch l := c.Loopback; {
	case len(l.Endpoints) == 0:
		e.Reason = "the daemon listens at this NodePort only while there is an endpoint: " + c.why(d, nodePort, false)
		return
	case l.Fault != "":
		e.Reason = "the daemon can't listen at this NodePort, and tries again: " + l.Fault
		return
	}
	e.Verdict, e.Reason = "proxied", c.whyProxied(d, nodePort)
	known := c.endpoints(nodePort)
	for _, to := range c.Loopback.Endpoints {
		e.Reached = append(e.Reached, Target{known.of(to), true})
	}
}

func (c Case) whyProxied(d plan.Decision, nodePort nft.Frontend) string {
	local := d.Local && len(d.LocalEndpoints) > 0
	reasons := []string{"no rule translates it: the daemon itself listens at this NodePort, and connects to an endpoint anew"}
	if why := c.why(d, nodePort, local); why != "" {
		reasons = append(reasons, why)
	}
	if d.Local && !local {
		reasons = append(reasons, "no endpoint is on this node, so that all are used, as at the node's own address")
	}
	if d.Affinity != (plan.ServicePort{}) {
		reasons = append(reasons, "session affinity: all connections of this node go to one of them")
	}
	return strings.Join(reasons, "; ")
}

// endpointsOf is what is known of endpoints.
type endpointsOf map[netip.AddrPort]Endpoint

// endpoints gives those that slices have for a frontend.
func (c Case) endpoints(f nft.Frontend) endpointsOf {
	known := endpointsOf{}
	for _, candidate := range c.candidates(f) {
		known[candidate.To] = c.Place.endpoint(candidate)
	}
	return known
}

func (known endpointsOf) of(to netip.AddrPort) Endpoint {
	if e, ok := known[to]; ok {
		return e
	}
	return Endpoint{Address: to.String(), State: "no slice has it"}
}

// own says whether an address is one of this node.
func (c Case) own(a netip.Addr) bool { return a.IsLoopback() || slices.Contains(c.Own, a) }

func (c Case) why(d plan.Decision, f nft.Frontend, local bool) string {
	return c.Place.why(d, offer{c.candidates(f), c.Facts[f].Slices()}, local)
}

// candidates gives the endpoints of the port that a frontend is of: none, if it is nobody's.
func (c Case) candidates(f nft.Frontend) []plan.Candidate {
	facts, ours := c.Facts[f]
	if !ours {
		return nil
	}
	return candidates(facts.Ports(), c.Decisions[f])
}

// origin says what the daemon takes the sender for.
func (c Case) origin() string {
	src := c.Packet.Src
	switch {
	case c.Packet.Local:
		return "this node"
	case c.Config.Detector == nft.DetectNone:
		return "outside, or a pod: it is not known who is one"
	case c.Config.Detector == nft.DetectInterface:
		if c.Packet.Iif != "" && c.Config.IsPodInterface(c.Packet.Iif) {
			return "a pod"
		}
		return "outside"
	}
	if slices.ContainsFunc(c.Seen.State.Ranges[nft.PodCIDRs], func(r netip.Prefix) bool { return r.Contains(src) }) {
		return "a pod"
	}
	return "outside"
}

// reason says in words why the verdict is what it is.
func (c Case) reason(way nft.Way) string {
	d, known := c.Decisions[way.Frontend]
	why := ""
	if known {
		why = c.why(d, way.Frontend, way.Local)
	}
	switch way.Counter {
	case nft.RefusedNoEndpoints, nft.RefusedNoLocal, nft.DroppedNoLocal:
		if why == "" {
			return "no endpoint is held for it"
		}
		return why
	case nft.RefusedNoPort:
		return fmt.Sprintf("%s is a Service's address, and has no port %d/%s", c.Packet.Dst, c.Packet.Port, protocolWord(c.Packet.Protocol))
	case nft.RefusedLocalhost:
		return fmt.Sprintf("a NodePort on a loopback address takes TCP only, not %s", protocolWord(c.Packet.Protocol))
	case nft.DroppedSource:
		return fmt.Sprintf("%s is in none of the ranges that the Service lets in: %s", c.Packet.Src, strings.Join(texts(d.Sources), ", "))
	case nft.DroppedNoService:
		return fmt.Sprintf("no Service has the address %s, which is in a range of ClusterIPs", c.Packet.Dst)
	case nft.DroppedChanging:
		return "the table holds no endpoint for this frontend, nor that it has none: it is in the middle of a change, or broken"
	}
	switch way.Verdict {
	case nft.Astray:
		return "an element leads to a chain that is none of this daemon's"
	case nft.Passed:
		return c.whyPassed()
	}
	if way.Pinned {
		return "session affinity: the client was here before"
	}
	return why
}

// whyPassed says why no rule is about the packet.
func (c Case) whyPassed() string {
	if c.Packet.Dst.IsLoopback() && !c.Packet.Local {
		return "no other host has a way to a loopback address: the kernel drops it behind these rules"
	}
	nodePort := nft.Frontend{Protocol: c.Packet.Protocol, Port: c.Packet.Port}
	if f, ours := c.Facts[nodePort]; ours && c.own(c.Packet.Dst) {
		return fmt.Sprintf("it is a NodePort of Service %s, and %s takes no NodePorts (--nodeport-addresses)", f.Service.Name, c.Packet.Dst)
	}
	return "it is for no Service"
}

func reasonBehind(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

// summary says in short what becomes of a packet.
func summary(way nft.Way) string {
	if way.Verdict != nft.Translated {
		return way.Verdict.String()
	}
	var to []string
	for _, a := range way.Arrivals {
		word := a.Endpoint.String()
		if a.Masqueraded {
			word += " masqueraded"
		}
		to = append(to, word)
	}
	return "translated to " + strings.Join(to, ", ")
}

func protocolWord(number uint8) string { return model.Protocol(number).String() }
