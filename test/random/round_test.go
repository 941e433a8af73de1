package random_test

import (
	"fmt"
	"testing"

	"onerule/daemon/model"
	"onerule/nft"
	"onerule/test/oracle"
	"onerule/test/random"
	"onerule/test/sim"
)

func seed(t *testing.T) uint64 {
	t.Helper()
	s, err := random.Seed()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s=%d repeats this run", random.SeedVariable, s)
	return s
}

// A round is one cluster through its changes.
type round struct {
	gen     *random.Generator
	world   *random.World
	cluster oracle.Cluster // the world as it is now
	node    *random.Node
	memory  *random.Memory
	// recent are the last packets to a frontend: clients come again.
	recent []oracle.Packet
}

// begin begins a round. Every cell is within reach of those with even numbers.
func begin(seed uint64, number int) *round {
	g := random.NewGenerator(seed, number)
	return &round{gen: g, world: random.NewWorld(), node: random.NewNode(g.Setup(number%2 == 0)), memory: random.NewMemory()}
}

// beginWith begins a round with a setup that is not drawn.
func beginWith(seed uint64, number int, s random.Setup) *round {
	return &round{gen: random.NewGenerator(seed, number), world: random.NewWorld(), node: random.NewNode(s), memory: random.NewMemory()}
}

func (r *round) config() oracle.Config { return r.node.Setup.Config }

// change draws changes and makes them.
func (r *round) change(step int) []random.Update {
	if step == 0 {
		return r.apply(r.gen.Begin())
	}
	return r.apply(r.gen.Changes())
}

func (r *round) apply(changes []model.Change) []random.Update {
	r.world.Apply(changes)
	r.cluster = r.world.Cluster()
	updates := r.node.Apply(changes)
	r.memory.Change(r.cluster, r.config())
	return updates
}

// packet draws one, which may be one that was sent before.
func (r *round) packet() oracle.Packet {
	if len(r.recent) > 0 && r.gen.Again() {
		return r.gen.Recall(r.recent)
	}
	packet := r.gen.PacketTo(r.cluster)
	if r.recent = append(r.recent, packet); len(r.recent) > 8 {
		r.recent = r.recent[1:]
	}
	return packet
}

// trial says what must become of a packet now.
func (r *round) trial(packet oracle.Packet) random.Trial {
	return random.Trial{
		Packet: packet, Cluster: r.cluster, Pins: r.memory.Pins,
		Want: oracle.Judge(r.cluster, r.config(), r.memory.Pins, packet),
	}
}

// count counts the packet in its cell.
func (r *round) count(c *random.Coverage, packet oracle.Packet) {
	if cell, ok := random.CellOf(r.cluster, r.config(), r.memory, packet); ok {
		c.See(cell)
	}
}

// table gives the table that a packet meets.
func (r *round) table(p oracle.Packet) *random.Table {
	if p.Dst.Is4() {
		return r.node.Tables[0]
	}
	return r.node.Tables[1]
}

// send runs a packet through the rules, and says how that differs from what the oracle
// wants. One of the endpoints that it may reach is reached.
func (r *round) send(programs random.Programs, packet oracle.Packet) (string, error) {
	table, tr := r.table(packet), r.trial(packet)
	program, err := programs.For(table)
	if err != nil {
		return "", err
	}
	walks, err := table.Walks(program, table.State, r.config().NodeAddrs, tr)
	if err != nil {
		return "", err
	}
	if diff := table.Compare(walks, r.config(), tr); diff != "" {
		return diff, nil
	}
	r.arrive(walks, tr)
	return "", nil
}

func (r *round) arrive(walks map[sim.Outcome]sim.Pins, tr random.Trial) {
	if tr.Want.Verdict != oracle.Reached {
		return
	}
	at := r.gen.Pick(tr.Want.Arrivals)
	r.table(tr.Packet).Arrive(walks, at)
	r.memory.Arrive(r.cluster, r.config(), tr.Packet, at.Endpoint)
}

// facts says everything that a disagreement follows from.
func (r *round) facts() string {
	text := fmt.Sprintf("%+v", r.node.Setup)
	for _, o := range r.cluster.Services {
		text += fmt.Sprintf("\n\tService %+v", o)
	}
	for _, o := range r.cluster.Slices {
		text += fmt.Sprintf("\n\tEndpointSlice %s of %s %v", o.Name, o.Service, o.Ports)
		for _, e := range o.Endpoints {
			text += fmt.Sprintf("\n\t\t%s on %q ready %t serving %t terminating %t", e.Addr, e.Node, e.Ready, e.Serving, e.Terminating)
			if e.Hints != nil {
				text += fmt.Sprintf(" hints %+v", *e.Hints)
			}
		}
	}
	text += fmt.Sprintf("\n\tServiceCIDRs %+v\n\tpins %v", r.cluster.ServiceCIDRs, r.memory.Pins)
	if r.cluster.Node != nil {
		text += fmt.Sprintf("\n\tNode %+v", *r.cluster.Node)
	}
	return text
}

func compile(t *testing.T, s nft.Skeleton) *sim.Program {
	t.Helper()
	p, err := random.Compile(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
