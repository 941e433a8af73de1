package random

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"onerule/nft"
	"onerule/test/oracle"
	"onerule/test/sim"
)

// Programs are rules in executable form, each made once.
type Programs map[nft.Config]*sim.Program

// For gives the rules of a table, with those for the service ports that have session
// affinity now.
func (p Programs) For(t *Table) (*sim.Program, error) {
	if p[t.Config] == nil {
		program, err := Compile(nft.NewSkeleton(t.Config))
		if err != nil {
			return nil, err
		}
		p[t.Config] = program
	}
	return p[t.Config], p[t.Config].Add(t.State.Affinities)
}

// Compile gives the rules in executable form, with those for every number of
// endpoints that a cluster of ours can have.
func Compile(s nft.Skeleton) (*sim.Program, error) {
	var counts []int
	for n := 1; n <= MaxEndpoints(); n++ {
		counts = append(counts, n)
	}
	program, err := sim.Compile(s, counts...)
	if err != nil {
		return nil, fmt.Errorf("compile the skeleton of %s: %w", s.Family, err)
	}
	return program, nil
}

// A Trial is a packet with what it meets, and what must become of it.
type Trial struct {
	Packet  oracle.Packet
	Want    oracle.Outcome
	Cluster oracle.Cluster
	Pins    oracle.Pins // before it
}

// Walks runs the packet of a trial through rules and state, with the pins of the table.
func (t *Table) Walks(program *sim.Program, state nft.State, nodeAddrs []netip.Addr, tr Trial) (map[sim.Outcome]sim.Pins, error) {
	node := sim.Constant(state, nodeAddrs...)
	node.Pins = t.Pins
	return program.Walks(sim.Packet{
		Local: tr.Packet.From == oracle.Node, Iif: tr.Packet.Iif,
		Src: tr.Packet.Src, Dst: tr.Packet.Dst,
		Protocol: uint8(tr.Packet.Protocol), Port: tr.Packet.Port,
		Mark: foreignMark(tr.Packet),
	}, node)
}

// foreignMark gives bits of others, which must come out as they went in.
func foreignMark(p oracle.Packet) uint32 { return uint32(p.Port) << 16 &^ (1 << masqueradeBit) }

// Compare says how walks differ from what the oracle wants: "" if they do not.
func (t *Table) Compare(walks map[sim.Outcome]sim.Pins, cfg oracle.Config, tr Trial) string {
	got := map[sim.Outcome]bool{}
	for o := range walks {
		if diff := marked(o, cfg, tr.Packet); diff != "" {
			return diff
		}
		o.Mark = 0
		got[o] = true
	}
	if diff := Differ(got, tr.Want); diff != "" {
		return diff
	}
	for o, pins := range walks {
		if diff := t.comparePins(o, pins, cfg, tr); diff != "" {
			return fmt.Sprintf("after %s %s: %s", o.Verdict, o.Endpoint, diff)
		}
	}
	return ""
}

// Differ says how outcomes, whose marks do not count, differ from what the oracle wants: ""
// if they do not.
func Differ(got map[sim.Outcome]bool, want oracle.Outcome) string {
	if expected := outcomes(want); !maps.Equal(expected, got) {
		return fmt.Sprintf("got %s, want %s", describe(got), describe(expected))
	}
	return ""
}

// marked says what is wrong with the mark that a packet leaves with. Ours may stay on
// what ends on the node.
func marked(o sim.Outcome, cfg oracle.Config, p oracle.Packet) string {
	mark := foreignMark(p)
	if o.Verdict == sim.Dropped || o.Verdict == sim.Refused {
		return ""
	}
	delivered := p.From != oracle.Node && slices.Contains(cfg.NodeAddrs, o.Endpoint.Addr())
	if delivered {
		o.Mark &^= 1 << masqueradeBit
	}
	if o.Mark != mark {
		return fmt.Sprintf("the mark is %#x, want %#x as it came", o.Mark, mark)
	}
	return ""
}

// comparePins says how pins differ from those that must follow from an outcome.
func (t *Table) comparePins(o sim.Outcome, pins sim.Pins, cfg oracle.Config, tr Trial) string {
	after := tr.Pins
	if o.Verdict == sim.Translated {
		after = oracle.After(tr.Cluster, cfg, tr.Pins, tr.Packet, o.Endpoint)
	}
	got, want := pinsOf(pins), wantedPins(t.Config.Family, after)
	for k := range missing(got, want) {
		if t.borrowed(k, tr) {
			delete(got, k)
			delete(pins[k.addrs()], k.client)
			delete(pins[k.ports()], k.client)
		}
	}
	if maps.Equal(got, want) {
		return ""
	}
	return fmt.Sprintf("got pins %v, want %v", missing(got, want), missing(want, got))
}

// borrowed says whether a pin is for a NodePort of the same number as the frontend with
// an address that the packet went to: the rules find a NodePort by its number alone, and
// where both have the endpoint the client is pinned for the NodePort, too. It may begin
// there with any endpoint, and so with this one; the comparison goes on without the pin.
func (t *Table) borrowed(k pinKey, tr Trial) bool {
	for _, s := range tr.Cluster.Services {
		for _, port := range s.Ports {
			if s.Affinity == 0 || port.NodePort != tr.Packet.Port || port.Protocol != tr.Packet.Protocol {
				continue
			}
			sp := oracle.ServicePort{Service: s.Name, Port: port.Name, Protocol: port.Protocol, IPv6: tr.Packet.Dst.Is6()}
			if k.client == tr.Packet.Src && k.id == affinityID(t.Config.Family, sp) {
				return true
			}
		}
	}
	return false
}

// missing gives the pins that are not in others.
func missing(pins, others map[pinKey]netip.AddrPort) map[pinKey]netip.AddrPort {
	list := maps.Clone(pins)
	maps.DeleteFunc(list, func(k pinKey, v netip.AddrPort) bool { return others[k] == v })
	return list
}

// Arrive makes the pins those that an arrival left.
func (t *Table) Arrive(walks map[sim.Outcome]sim.Pins, a oracle.Arrival) {
	for o, pins := range walks {
		if o.Endpoint == a.Endpoint {
			t.Pins = pins
		}
	}
}

// outcomes says what the oracle wants in the words of the simulation.
func outcomes(o oracle.Outcome) map[sim.Outcome]bool {
	set := map[sim.Outcome]bool{}
	for _, a := range o.Arrivals {
		set[sim.Outcome{Verdict: sim.Translated, Endpoint: a.Endpoint, Masqueraded: a.Masqueraded}] = true
	}
	switch o.Verdict {
	case oracle.Untouched:
		set[sim.Outcome{Verdict: sim.Accepted}] = true
	case oracle.Refused:
		set[sim.Outcome{Verdict: sim.Refused}] = true
	case oracle.Dropped:
		set[sim.Outcome{Verdict: sim.Dropped}] = true
	}
	return set
}

func describe(set map[sim.Outcome]bool) []string {
	var list []string
	for o := range set {
		switch {
		case o.Verdict != sim.Translated:
			list = append(list, o.Verdict.String())
		case o.Masqueraded:
			list = append(list, o.Endpoint.String()+" masqueraded")
		default:
			list = append(list, o.Endpoint.String())
		}
	}
	slices.Sort(list)
	return list
}
