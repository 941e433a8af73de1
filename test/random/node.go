package random

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"onerule/daemon"
	"onerule/daemon/model"
	"onerule/daemon/plan"
	"onerule/nft"
	"onerule/test/oracle"
	"onerule/test/sim"
)

// masqueradeBit is kube-proxy's default.
const masqueradeBit = 14

// A Node is our side of the comparison: it plans what changes, and holds the state
// of both tables.
type Node struct {
	Config oracle.Config
	ledger *plan.Ledger
	Tables []*Table
}

// A Table is the table of one family: its rules and what its sets and maps hold.
type Table struct {
	Config nft.Config
	State  nft.State
}

// NewNode gives a node that knows no object, after its first load: that is what
// brings the ranges in which do not come from objects.
func NewNode(c oracle.Config) *Node {
	n := &Node{
		Config: c,
		ledger: plan.NewLedger(plan.Config{NodeName: c.NodeName, ClusterCIDRs: c.ClusterCIDRs}),
	}
	for _, f := range []nft.Family{nft.IPv4, nft.IPv6} {
		t := &Table{State: nft.NewState(), Config: nft.Config{
			Family: f, MasqueradeBit: masqueradeBit, MasqueradeAll: c.MasqueradeAll,
		}}
		if slices.ContainsFunc(c.ClusterCIDRs, func(p netip.Prefix) bool { return of(f, p.Addr()) }) {
			t.Config.Detector = nft.DetectCIDR
		}
		n.Tables = append(n.Tables, t)
	}
	n.update(n.ledger.All())
	return n
}

// An Update is what changes made of one table.
type Update struct {
	Keys nft.Keys
	Want nft.State // what the keys name
}

// Apply takes changes in, and gives what they made of each table.
func (n *Node) Apply(changes []model.Change) []Update {
	return n.update(n.ledger.Apply(changes).Touched)
}

func (n *Node) update(touched plan.Keys) []Update {
	outcome := n.ledger.Decide(touched)
	var updates []Update
	for _, t := range n.Tables {
		keys, want := daemon.Spell(t.Config.Family, touched, outcome)
		t.State.Put(keys, nft.Settle(t.State.At(keys), want))
		updates = append(updates, Update{keys, want})
	}
	return updates
}

func of(f nft.Family, a netip.Addr) bool { return a.Is4() == (f == nft.IPv4) }

// Faulty gives a copy of the table with a fault in it, and false if it has nothing
// that could break that way.
func (t *Table) Faulty(f Fault, g *Generator) (nft.Skeleton, nft.State, bool) {
	skeleton, state := nft.NewSkeleton(t.Config), t.Copy()
	return skeleton, state, f.Seed(g, skeleton, state)
}

// Copy gives the state as a value of its own, which later changes don't reach.
func (t *Table) Copy() nft.State {
	s := t.State
	c := nft.NewState()
	for name, m := range s.Addrs {
		maps.Copy(c.Addrs[name], m)
	}
	for name, m := range s.Routes {
		maps.Copy(c.Routes[name], m)
	}
	for name, m := range s.Slots {
		maps.Copy(c.Slots[name], m)
	}
	for name, m := range s.Counts {
		maps.Copy(c.Counts[name], m)
	}
	maps.Copy(c.Ranges, s.Ranges)
	return c
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

// Compare runs a packet through rules and state, and says how that differs from
// what the oracle wants: "" if it does not.
func Compare(program *sim.Program, state nft.State, c oracle.Config, packet oracle.Packet, want oracle.Outcome) (string, error) {
	// Bits of others, which must come out as they went in.
	mark := uint32(packet.Port) << 16 &^ (1 << masqueradeBit)
	got, err := program.Run(sim.Packet{
		Local: packet.From == oracle.Node,
		Src:   packet.Src, Dst: packet.Dst,
		Protocol: uint8(packet.Protocol), Port: packet.Port,
		Mark: mark,
	}, sim.Constant(state, c.NodeAddrs...))
	if err != nil {
		return "", err
	}
	for o := range got {
		if o.Verdict == sim.Dropped || o.Verdict == sim.Refused {
			continue
		}
		delivered := packet.From != oracle.Node && slices.Contains(c.NodeAddrs, o.Endpoint.Addr())
		if !delivered && o.Mark != mark {
			return fmt.Sprintf("the mark is %#x, want %#x as it came", o.Mark, mark), nil
		}
	}
	if expected := outcomes(want); !maps.Equal(expected, unmarked(got)) {
		return fmt.Sprintf("got %s, want %s", describe(unmarked(got)), describe(expected)), nil
	}
	return "", nil
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

func unmarked(set map[sim.Outcome]bool) map[sim.Outcome]bool {
	plain := map[sim.Outcome]bool{}
	for o := range set {
		o.Mark = 0
		plain[o] = true
	}
	return plain
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
