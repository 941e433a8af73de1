// Package sim interprets our nftables rules: it takes the rules as text, a state
// and the first packet of a connection, and says what can become of the packet. It
// knows the statements that our rules use, as the kernel executes them, and
// refuses any other: a rule that it can't read is an error, never skipped.
//
// What it knows of nft: a look-up that finds nothing ends the rule, not the chain;
// the end of a chain returns to the one that jumped, and goto does not come back;
// the end of a base chain accepts; a NAT statement ends the walk of the hook.
package sim

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"onerule/nft"
)

// A Packet is the first of a connection. The port of an echo request is whatever
// its checksum is: that is where th dport looks.
type Packet struct {
	Local    bool   // sent by this node: output in place of prerouting
	Iif      string // the interface that it comes in by; empty if it is sent by this node
	Src, Dst netip.Addr
	Protocol uint8
	Port     uint16
	Mark     uint32
}

// An Outcome is what can become of a packet.
type Outcome struct {
	Verdict     Verdict
	Endpoint    netip.AddrPort // where it was translated to
	Masqueraded bool
	Mark        uint32 // as it leaves
}

// A Verdict is the end of a walk.
type Verdict uint8

// The verdicts.
const (
	Accepted Verdict = iota // without translation
	Translated
	Refused
	Dropped
)

// String gives the verdict as a word.
func (v Verdict) String() string {
	return [...]string{"accepted", "translated", "refused", "dropped"}[v]
}

// A Node is what the walk depends on besides rules and packet.
type Node struct {
	// State gives the sets and maps at the nth look-up of a walk, from 0: a commit
	// may fall between any two.
	State func(lookup int) nft.State
	// Addrs are the node's own: what goes to them is not sent on.
	Addrs []netip.Addr
	// Pins are what earlier connections left.
	Pins Pins
}

// Pins hold what the rules themselves write into maps: for each map and client an
// address or a port.
type Pins map[string]map[netip.Addr]netip.AddrPort

func (p Pins) clone() Pins {
	c := Pins{}
	for name, m := range p {
		c[name] = maps.Clone(m)
	}
	return c
}

// Constant gives a node whose state never changes.
func Constant(s nft.State, addrs ...netip.Addr) Node {
	return Node{State: func(int) nft.State { return s }, Addrs: addrs}
}

// A Program is a table in executable form.
type Program struct {
	family nft.Family
	counts map[string]count // sets of frontends by number of endpoints
	parser parser
	// affinities are those whose chains are there, by their first chain.
	affinities map[nft.Affinity]bool
	chains     map[string][]rule
	hooks      map[string][]string // base chains by hook, in the order of their walk
}

// A count is what the frontends in a set have in common.
type count struct {
	slots    nft.SlotMap
	protocol uint8
	n        int
}

// Compile reads the rules of a skeleton and those for the numbers of endpoints that
// are in use, which are tried in the order given.
func Compile(s nft.Skeleton, counts ...int) (*Program, error) {
	program := &Program{family: s.Family, counts: map[string]count{}, chains: map[string][]rule{}, affinities: map[nft.Affinity]bool{}}
	chains, sets := slices.Clone(s.Chains), slices.Clone(s.Sets)
	for _, m := range nft.SlotMaps() {
		for _, p := range nft.Protocols() {
			chains = append(chains, nft.Counts(s.Family, m, p.Number, counts)...)
			for _, n := range counts {
				set := nft.CountSet(s.Family, m, p.Number, n)
				program.counts[set.Name] = count{m, p.Number, n}
				sets = append(sets, set)
			}
		}
	}
	p, err := newParser(s.Family, sets, chains)
	if err != nil {
		return nil, err
	}
	program.parser = p
	if err := program.read(chains); err != nil {
		return nil, err
	}
	program.hooks, err = hooks(chains)
	return program, err
}

// Add adds the chains of session affinities. Those that are there already are left out.
func (p *Program) Add(list map[string]nft.Affinity) error {
	for _, a := range list {
		if p.affinities[a] {
			continue
		}
		p.affinities[a] = true
		var sets []nft.Set
		for _, s := range a.Sets(p.family) {
			if _, ok := p.parser.sets[s.Name]; !ok { // else that of another timeout
				sets = append(sets, s)
			}
		}
		var chains []nft.Chain
		for _, c := range a.Chains(p.family) {
			if !p.parser.chains[c.Name] {
				chains = append(chains, c)
			}
		}
		if err := p.parser.add(sets, chains); err != nil {
			return err
		}
		if err := p.read(chains); err != nil {
			return err
		}
	}
	return nil
}

func (p *Program) read(chains []nft.Chain) error {
	for _, c := range chains {
		p.chains[c.Name] = nil // a chain without rules is one, too
		for _, text := range c.Rules {
			r, err := p.parser.rule(text)
			if err != nil {
				return fmt.Errorf("chain %s: %w", c.Name, err)
			}
			p.chains[c.Name] = append(p.chains[c.Name], r)
		}
	}
	return nil
}

func hooks(chains []nft.Chain) (map[string][]string, error) {
	byHook := map[string][]nft.Chain{}
	for _, c := range chains {
		if c.Base == nil {
			continue
		}
		switch c.Base.Hook {
		case "prerouting", "output", "input", "postrouting":
			byHook[c.Base.Hook] = append(byHook[c.Base.Hook], c)
		default:
			return nil, fmt.Errorf("chain %s: no hook %q in nat", c.Name, c.Base.Hook)
		}
	}
	names := map[string][]string{}
	for hook, list := range byHook {
		slices.SortStableFunc(list, func(a, b nft.Chain) int { return cmp.Compare(a.Base.Priority, b.Base.Priority) })
		for _, c := range list {
			names[hook] = append(names[hook], c.Name)
		}
	}
	return names, nil
}

// Run walks a packet through the table once for every way in which random numbers
// can fall, and gives all that can become of it.
func (p *Program) Run(packet Packet, n Node) (map[Outcome]bool, error) {
	walks, err := p.Walks(packet, n)
	if err != nil {
		return nil, err
	}
	outcomes := map[Outcome]bool{}
	for o := range walks {
		outcomes[o] = true
	}
	return outcomes, nil
}

// Walks is Run with the pins that each outcome leaves.
func (p *Program) Walks(packet Packet, n Node) (map[Outcome]Pins, error) {
	if packet.Dst.Is4() != (p.family == nft.IPv4) {
		return nil, fmt.Errorf("packet to %s in a table of family %s", packet.Dst, p.family)
	}
	outcomes := map[Outcome]Pins{}
	var script []choice
	for {
		w := &walk{program: p, node: n, packet: packet, original: packet, pins: n.Pins.clone(), choices: script}
		outcome := w.run()
		if w.err != nil {
			return nil, fmt.Errorf("packet %+v: %w", packet, w.err)
		}
		outcomes[outcome] = w.pins
		script = w.choices
		for len(script) > 0 && script[len(script)-1].last() {
			script = script[:len(script)-1]
		}
		if len(script) == 0 {
			return outcomes, nil
		}
		script[len(script)-1].value++
	}
}
