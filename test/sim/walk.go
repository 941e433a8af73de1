package sim

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"onerule/nft"
)

// Bits and limits of the kernel, in its headers IPS_DST_NAT and
// NFT_JUMP_STACK_SIZE. maxRules is ours: goto in a circle would never end.
const (
	statusDNAT = 0x20
	typeLocal  = 2 // RTN_LOCAL
	maxDepth   = 16
	maxRules   = 1000
)

// A walk is one packet on its way through the hooks.
type walk struct {
	program *Program
	node    Node
	packet  Packet
	// original is the packet as it came.
	original Packet
	pins     Pins

	hook        string
	lookups     int
	rules       int
	endpointAt  netip.AddrPort
	masqueraded bool

	// choices holds the random numbers: those to be replayed, then those drawn.
	choices []choice
	drawn   int

	err error
}

// A choice is a random number below of.
type choice struct{ value, of int }

func (c choice) last() bool { return c.value == c.of-1 }

func (w *walk) choose(of int) int {
	if w.drawn == len(w.choices) {
		w.choices = append(w.choices, choice{0, of})
	}
	c := w.choices[w.drawn]
	if c.of != of {
		w.fail("random number %d is below %d in one walk and below %d in another", w.drawn, c.of, of)
	}
	w.drawn++
	return c.value
}

func (w *walk) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

// run takes the packet in, and out again unless it is for this node.
func (w *walk) run() Outcome {
	in, out := "prerouting", "postrouting"
	if w.packet.Local {
		in = "output"
	}
	if end := w.walkHook(in); end != accept {
		return w.outcome(end)
	}
	if !w.packet.Local && slices.Contains(w.node.Addrs, w.packet.Dst) {
		out = "input"
	}
	return w.outcome(w.walkHook(out))
}

func (w *walk) outcome(end code) Outcome {
	switch end {
	case drop:
		return Outcome{Verdict: Dropped}
	case refuse:
		return Outcome{Verdict: Refused}
	}
	o := Outcome{Endpoint: w.endpointAt, Masqueraded: w.masqueraded, Mark: w.packet.Mark}
	if w.endpointAt.IsValid() {
		o.Verdict = Translated
	}
	return o
}

func (w *walk) walkHook(hook string) code {
	w.hook = hook
	for _, chain := range w.program.hooks[hook] {
		before := w.natDone()
		if end := w.walkBase(chain); end != accept {
			return end
		}
		if w.natDone() != before {
			return accept // NAT is set up once in each direction
		}
	}
	return accept
}

func (w *walk) natDone() [2]bool { return [2]bool{w.endpointAt.IsValid(), w.masqueraded} }

// A place is a chain and the rule in it that comes next.
type place struct {
	chain string
	rule  int
}

func (w *walk) walkBase(base string) code {
	at := place{chain: base}
	var stack []place
	for w.err == nil {
		rules := w.program.chains[at.chain]
		v := verdict{code: leave}
		if at.rule < len(rules) {
			v = w.execute(rules[at.rule])
			at.rule++
		}
		switch v.code {
		case accept, drop, refuse:
			return v.code
		case jump, goTo:
			if _, ok := w.program.chains[v.chain]; !ok {
				w.fail("a verdict leads to chain %q, which is not there", v.chain)
			}
			if v.code == jump {
				stack = append(stack, at)
			}
			if len(stack) > maxDepth {
				w.fail("more than %d jumps deep in chain %s", maxDepth, at.chain)
			}
			at = place{chain: v.chain}
		case leave:
			if len(stack) == 0 {
				return accept // the policy of the base chain
			}
			at, stack = stack[len(stack)-1], stack[:len(stack)-1]
		}
	}
	return accept
}

// execute gives skip when the rule has no verdict.
func (w *walk) execute(r rule) verdict {
	if w.rules++; w.rules > maxRules {
		w.fail("more than %d rules: a circle?", maxRules)
	}
	for _, s := range r {
		if v := s(w); v.code != next {
			return v
		}
	}
	return verdict{code: skip}
}

func (w *walk) status() uint32 {
	if w.endpointAt.IsValid() {
		return statusDNAT
	}
	return 0
}

func (w *walk) translate(to netip.AddrPort) verdict {
	if w.hook != "prerouting" && w.hook != "output" {
		w.fail("dnat in %s", w.hook)
	}
	w.endpointAt = to
	w.packet.Dst, w.packet.Port = to.Addr(), to.Port()
	return verdict{code: accept}
}

// state gives the sets and maps for one look-up.
func (w *walk) state() nft.State {
	s := w.node.State(w.lookups)
	w.lookups++
	return s
}

// addrType gives what the node's routes say of an address: whether it is its own.
func (w *walk) addrType(a netip.Addr) uint32 {
	if a.IsLoopback() || slices.Contains(w.node.Addrs, a) {
		return typeLocal
	}
	return 1
}

// returns gives 1 if the way to the destination leads by the interface that the packet comes
// in by. All ways out lead by the one that tests call uplink.
func (w *walk) returns() uint32 {
	if w.packet.Iif == "uplink" && w.addrType(w.packet.Dst) != typeLocal {
		return 1
	}
	return 0
}

// frontend reads one from a key. A NodePort has no address.
func frontend(key []value, nodePort bool) (nft.Frontend, bool) {
	if nodePort && len(key) == 2 {
		return nft.Frontend{Protocol: uint8(key[0].num), Port: uint16(key[1].num)}, true
	}
	if nodePort || len(key) != 3 {
		return nft.Frontend{}, false
	}
	return nft.Frontend{Addr: key[0].addr, Protocol: uint8(key[1].num), Port: uint16(key[2].num)}, true
}

// route looks a frontend up.
func (w *walk) route(set string, key []value) (string, bool) {
	routes, ok := w.state().Routes[nft.RouteMap(set)]
	f, fits := frontend(key, nft.RouteMap(set).NodePorts())
	if !ok || !fits {
		w.fail("state has no routes for map %s", set)
	}
	chain, found := routes[f]
	return chain, found
}

// endpoint looks a slot up.
func (w *walk) endpoint(set string, key []value) (netip.AddrPort, bool) {
	s := w.state()
	for _, m := range nft.SlotMaps() {
		for _, p := range nft.Protocols() {
			if set != m.Of(p.Number) {
				continue
			}
			list := s.Slots[m][portKey(key, m, p.Number)]
			slot := int(key[len(key)-1].num)
			if slot >= len(list) || !list[slot].IsValid() { // the zero value: no element
				return netip.AddrPort{}, false
			}
			return list[slot], true
		}
	}
	w.fail("state has no endpoints for map %s", set)
	return netip.AddrPort{}, false
}

// portKey reads a frontend from the beginning of a key without a protocol.
func portKey(key []value, m nft.SlotMap, protocol uint8) nft.Frontend {
	f := nft.Frontend{Protocol: protocol}
	if !m.NodePorts() {
		f.Addr, key = key[0].addr, key[1:]
	}
	f.Port = uint16(key[0].num)
	return f
}

// member looks a set up: of frontends, of addresses or of ranges.
func (w *walk) member(set string, key []value) bool {
	s := w.state()
	if c, ok := w.program.counts[set]; ok {
		n, held := s.Counts[c.slots][portKey(key, c.slots, c.protocol)]
		return held && n == c.n
	}
	for _, m := range nft.SlotMaps() {
		if set == m.EmptySet() {
			f, _ := frontend(key, m.NodePorts())
			n, held := s.Counts[m][f]
			return held && n == 0
		}
	}
	addr := key[0].addr
	contains := func(p netip.Prefix) bool { return p.Contains(addr) }
	addrs, isAddrs := s.Addrs[nft.AddrSet(set)]
	switch {
	case set == string(nft.Hairpins) && len(key) == 2:
		// The state says each address once, the kernel holds it joined with itself.
		return key[0] == key[1] && addrs[addr]
	case isAddrs && len(key) == 1:
		return addrs[addr]
	case (set == string(nft.PodCIDRs) || set == string(nft.ServiceCIDRs)) && len(key) == 1:
		return slices.ContainsFunc(s.Ranges[nft.RangeSet(set)], contains)
	case set == nft.AllowedSources && len(key) == 4:
		f, _ := frontend(key[:3], false)
		addr = key[3].addr
		return slices.ContainsFunc(s.Sources[f], contains)
	case strings.Contains(set, "members-") && len(key) == 2:
		return s.Members[set][netip.AddrPortFrom(addr, uint16(key[1].num))]
	}
	w.fail("state has no set %s with keys of %d values", set, len(key))
	return false
}
