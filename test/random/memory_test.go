package random_test

import (
	"fmt"
	"testing"

	"onerule/nft"
	"onerule/test/oracle"
	"onerule/test/random"
	"onerule/test/sim"
)

const (
	rounds        = 400 // clusters in a run
	steps         = 10  // changes of each
	packets       = 20  // after each change
	faultRounds   = 50  // in which a seeded fault must be found
	roundsTallied = 100 // in which everything that a packet can meet must have been met
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
	gen   *random.Generator
	world *random.World
	node  *random.Node
}

func begin(seed uint64, number int) *round {
	g := random.NewGenerator(seed, number)
	return &round{g, random.NewWorld(), random.NewNode(g.Config())}
}

// beginWith begins a round with a configuration that is not drawn.
func beginWith(seed uint64, number int, c oracle.Config) *round {
	return &round{random.NewGenerator(seed, number), random.NewWorld(), random.NewNode(c)}
}

func (r *round) change(step int) []random.Update {
	changes := r.gen.Changes()
	if step == 0 {
		changes = r.gen.Begin()
	}
	r.world.Apply(changes)
	return r.node.Apply(changes)
}

// packet draws one, with what must become of it.
func (r *round) packet() (oracle.Packet, oracle.Outcome) {
	c := r.world.Cluster()
	packet := r.gen.PacketTo(c)
	return packet, oracle.Judge(c, r.node.Config, packet)
}

// facts says everything that a disagreement follows from.
func (r *round) facts() string {
	text := fmt.Sprintf("%+v", r.node.Config)
	c := r.world.Cluster()
	for _, o := range c.Services {
		text += fmt.Sprintf("\n\tService %+v", o)
	}
	for _, o := range c.Slices {
		text += fmt.Sprintf("\n\tEndpointSlice %+v", o)
	}
	return text + fmt.Sprintf("\n\tServiceCIDRs %+v", c.ServiceCIDRs)
}

func compile(t *testing.T, s nft.Skeleton) *sim.Program {
	t.Helper()
	p, err := random.Compile(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// table gives the table that a packet meets.
func (r *round) table(p oracle.Packet) *random.Table {
	if p.Dst.Is4() {
		return r.node.Tables[0]
	}
	return r.node.Tables[1]
}

func (r *round) programs(t *testing.T) map[nft.Family]*sim.Program {
	programs := map[nft.Family]*sim.Program{}
	for _, table := range r.node.Tables {
		programs[table.Config.Family] = compile(t, nft.NewSkeleton(table.Config))
	}
	return programs
}

func TestRulesDoWhatTheOracleSays(t *testing.T) {
	seed := seed(t)
	compared := 0
	for number := range rounds {
		r := begin(seed, number)
		programs := r.programs(t)
		for step := range steps {
			r.change(step)
			for range packets {
				packet, want := r.packet()
				table := r.table(packet)
				diff, err := random.Compare(programs[table.Config.Family], table.State, r.node.Config, packet, want)
				if err != nil {
					t.Fatalf("round %d, step %d: %v\n%s", number, step, err, r.facts())
				}
				if diff != "" {
					t.Fatalf("round %d, step %d, %+v: %s\n%s", number, step, packet, diff, r.facts())
				}
				compared++
			}
		}
	}
	t.Logf("%d packets compared, in %d clusters", compared, rounds)
}

// What was planned change by change must be what is planned from all objects at
// once: also where no packet happened to look.
func TestPlanOfChangesIsThePlanOfTheWhole(t *testing.T) {
	seed := seed(t)
	for number := range rounds {
		r := begin(seed, number)
		for step := range steps {
			r.change(step)
		}
		whole := random.NewNode(r.node.Config)
		whole.Apply(r.world.Objects())
		for i, table := range r.node.Tables {
			if changes := nft.Diff(table.State, nft.Settle(table.State, whole.Tables[i].State)); !changes.Empty() {
				t.Fatalf("round %d: the whole has other elements:\n%s\n%s", number, changes.Text(table.Config.Family), r.facts())
			}
		}
	}
}

// The comparison is worth what its packets meet.
func TestPacketsMeetEverything(t *testing.T) {
	seed := seed(t)
	met := map[string]int{}
	for number := range roundsTallied {
		r := begin(seed, number)
		for step := range steps {
			r.change(step)
			for range packets {
				packet, want := r.packet()
				for _, what := range meets(r.world.Cluster(), packet, want) {
					met[what]++
				}
			}
		}
	}
	for _, what := range []string{
		"reached", "refused", "dropped", "untouched", "one endpoint", "several endpoints", "five endpoints",
		"masqueraded", "not masqueraded", "masqueraded for one endpoint only", "to the pod itself",
		"TCP", "UDP", "SCTP", "echo refused", "terminating endpoints", "contested frontend", "both families on a Service",
		"from pod", "from node", "from outside", "an address outside the ranges",
	} {
		if met[what] < 20 {
			t.Errorf("%s: met %d times in %d clusters, want 20", what, met[what], roundsTallied)
		}
	}
	t.Log(met)
}

// meets says what is worth counting about a packet.
func meets(c oracle.Cluster, packet oracle.Packet, want oracle.Outcome) []string {
	list := []string{want.Verdict.String(), "from " + packet.From.String()}
	add := func(what string, holds bool) {
		if holds {
			list = append(list, what)
		}
	}
	masqueraded, itself := 0, false
	for _, a := range want.Arrivals {
		if a.Masqueraded {
			masqueraded++
		}
		itself = itself || a.Endpoint.Addr() == packet.Src
	}
	n := len(want.Arrivals)
	add(packet.Protocol.String(), n > 0)
	add("one endpoint", n == 1)
	add("several endpoints", n > 1)
	add("five endpoints", n >= 5)
	add("masqueraded", masqueraded > 0)
	add("not masqueraded", n > 0 && masqueraded == 0)
	add("masqueraded for one endpoint only", n > 1 && masqueraded == 1)
	add("to the pod itself", itself && packet.From == oracle.Pod)
	add("echo refused", (packet.Protocol == oracle.ICMP || packet.Protocol == oracle.ICMPv6) && want.Verdict == oracle.Refused)
	add("terminating endpoints", onlyTerminating(c, want))
	held, claims := 0, 0
	for _, s := range c.Services {
		for _, vip := range s.ClusterIPs {
			if vip != packet.Dst {
				continue
			}
			held++
			add("both families on a Service", len(s.ClusterIPs) == 2 && n > 0)
			for _, p := range s.Ports {
				if p.Protocol == packet.Protocol && p.Port == packet.Port {
					claims++
					break
				}
			}
		}
	}
	add("contested frontend", claims > 1)
	inRange := false
	for _, s := range c.ServiceCIDRs {
		for _, cidr := range s.CIDRs {
			inRange = inRange || cidr.Contains(packet.Dst)
		}
	}
	add("an address outside the ranges", held > 0 && !inRange && n > 0)
	return list
}

// onlyTerminating says whether every endpoint reached is somewhere said to be on
// its way out.
func onlyTerminating(c oracle.Cluster, want oracle.Outcome) bool {
	leaving := map[string]bool{}
	for _, s := range c.Slices {
		for _, e := range s.Endpoints {
			if e.Terminating && !e.Ready {
				leaving[e.Addr.String()] = true
			}
		}
	}
	for _, a := range want.Arrivals {
		if !leaving[a.Endpoint.Addr().String()] {
			return false
		}
	}
	return len(want.Arrivals) > 0
}

func TestSeededFaultsAreFoundInMemory(t *testing.T) {
	seed := seed(t)
	for _, fault := range random.Faults() {
		t.Run(fault.Name, func(t *testing.T) {
			number, diff := findFault(t, seed, fault)
			if diff == "" {
				t.Fatalf("not found in %d clusters", faultRounds)
			}
			t.Logf("found in cluster %d: %s", number, diff)
		})
	}
}

func findFault(t *testing.T, seed uint64, fault random.Fault) (number int, diff string) {
	for number := range faultRounds {
		r := beginWith(seed, number, random.DetectBoth())
		for step := range steps {
			r.change(step)
			for i, table := range r.node.Tables {
				skeleton, state, ok := table.Faulty(fault, r.gen)
				if !ok {
					continue
				}
				program := compile(t, skeleton)
				for range packets {
					packet, want := r.packet()
					if r.table(packet) != r.node.Tables[i] {
						continue
					}
					diff, err := random.Compare(program, state, r.node.Config, packet, want)
					if err != nil {
						t.Fatal(err)
					}
					if diff != "" {
						return number, fmt.Sprintf("%+v: %s", packet, diff)
					}
				}
			}
		}
	}
	return 0, ""
}
