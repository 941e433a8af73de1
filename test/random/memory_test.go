package random_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"onerule/daemon/model"
	"onerule/nft"
	"onerule/test/oracle"
	"onerule/test/random"
)

const (
	rounds      = 100     // clusters in a run
	parts       = 4       // of a run, which go on side by side
	deals       = 2       // rounds that aim at each cell
	between     = 6       // changes drawn by chance after each aim
	leastSteps  = 100_000 // that a run takes: changes, with a packet after each
	steps       = 10      // changes of a cluster without aims
	planRounds  = 300     // clusters whose plan is compared with that of the whole
	faultRounds = 40      // clusters in which a seeded fault must be found
)

// A tally is what packets in memory met.
type tally struct {
	coverage *random.Coverage
	met      map[string]int
	steps    int
}

func newTally() *tally { return &tally{coverage: random.NewCoverage(), met: map[string]int{}} }

// add adds what others met.
func (s *tally) add(o *tally) {
	s.coverage.Add(o.coverage)
	for what, n := range o.met {
		s.met[what] += n
	}
	s.steps += o.steps
}

func TestRulesDoWhatTheOracleSays(t *testing.T) {
	run, all := begins(t, rounds), newTally()
	var lock sync.Mutex
	var wrong atomic.Bool // the first disagreement says enough
	hands := random.Deal(run.seed, rounds, deals)
	t.Run("in memory", func(t *testing.T) {
		for part := range parts {
			t.Run(fmt.Sprintf("part %d of %d", part+1, parts), func(t *testing.T) {
				t.Parallel() // rounds share nothing
				defer func() {
					if t.Failed() {
						wrong.Store(true)
					}
				}()
				one := newTally()
				for number := part; number < rounds && !wrong.Load(); number += parts {
					if run.has(number) {
						one.play(t, run, number, hands[number])
					}
				}
				lock.Lock()
				defer lock.Unlock()
				all.add(one)
			})
		}
	})
	t.Logf("%d steps, in %d clusters and %d cells: %v", all.steps, rounds, all.coverage.Seen(), all.met)
	if t.Failed() || !run.whole() {
		return
	}
	if all.steps < leastSteps {
		t.Errorf("%d steps taken, want %d", all.steps, leastSteps)
	}
	covered(t, all.coverage)
	for _, what := range situations() {
		if all.met[what] < 20 {
			t.Errorf("%s: met %d times, want 20", what, all.met[what])
		}
	}
}

// play plays a round: it aims at each cell of a hand, and lets chance change the cluster
// in between.
func (s *tally) play(t *testing.T, run run, number int, hand []random.Cell) {
	r, programs := begin(run.seed, number), random.Programs{}
	taken := 0
	defer func() { s.steps += taken }()
	step := func(packet oracle.Packet) {
		taken++
		if diff := s.send(r, programs, packet); diff != "" {
			t.Fatalf("seed %d, round %d, step %d, %+v: %s\n%s\n%s", run.seed, number, taken, packet, diff, r.facts(), run.again(t, number))
		}
	}
	r.change(0)
	for i, cell := range hand {
		for _, move := range r.gen.Aim(r.node.Setup, cell) {
			r.apply(move.Changes)
			if move.Packet != nil {
				step(*move.Packet)
			} else {
				step(r.packet())
			}
		}
		for n := range between {
			r.change(i*between + n + 1)
			step(r.packet())
		}
	}
}

// send counts a packet and compares what becomes of it.
func (s *tally) send(r *round, programs random.Programs, packet oracle.Packet) string {
	r.count(s.coverage, packet)
	for _, what := range r.meets(r.trial(packet)) {
		s.met[what]++
	}
	diff, err := r.send(programs, packet)
	if err != nil {
		return err.Error()
	}
	return diff
}

// covered checks that every cell was seen that has a meaning, and no other.
func covered(t *testing.T, c *random.Coverage) {
	t.Helper()
	for _, cell := range c.Misjudged() {
		reason, _ := random.WhyMeaningless(cell)
		t.Errorf("seen, though %s: %s", reason, cell)
	}
	unseen := c.Unseen()
	for _, cell := range unseen[:min(len(unseen), 10)] {
		t.Errorf("never seen: %s", cell)
	}
	if len(unseen) > 0 {
		t.Errorf("%d cells of %d were never seen", len(unseen), len(random.Cells()))
	}
}

func TestFewCellsAreMeaningless(t *testing.T) {
	cells, listed := random.Cells(), 0
	for _, class := range random.Meaningless() {
		if class.Reason == "" || !slices.ContainsFunc(cells, class.Holds) {
			t.Errorf("class %q: want a reason, and a cell in it", class.Reason)
		}
	}
	for _, c := range cells {
		if _, meaningless := random.WhyMeaningless(c); meaningless {
			listed++
		}
	}
	t.Logf("%d cells, of which %d are listed as meaningless", len(cells), listed)
	if listed*10 > len(cells) {
		t.Errorf("%d of %d cells are listed as meaningless, want a tenth at most", listed, len(cells))
	}
}

// What was planned change by change must be what is planned from all objects at
// once: also where no packet happened to look.
func TestPlanOfChangesIsThePlanOfTheWhole(t *testing.T) {
	seed := seed(t)
	hands := random.Deal(seed, planRounds, 1)
	for number := range planRounds {
		r := begin(seed, number)
		for step := range steps {
			r.change(step)
			for _, move := range r.gen.Aim(r.node.Setup, hands[number][step]) {
				r.apply(move.Changes)
			}
		}
		whole := random.NewNode(r.node.Setup)
		whole.Apply(r.world.Objects())
		for i, table := range r.node.Tables {
			if changes := nft.Diff(table.State, nft.Settle(table.State, whole.Tables[i].State)); !changes.Empty() {
				t.Fatalf("round %d: the whole has other elements:\n%s\n%s", number, changes.Text(table.Config.Family), r.facts())
			}
		}
	}
}

// situations are what packets must meet besides the cells.
func situations() []string {
	return []string{
		"reached", "refused", "dropped", "untouched", "one endpoint", "several endpoints", "five endpoints",
		"masqueraded", "not masqueraded", "masqueraded for one endpoint only", "to the pod itself",
		"TCP", "UDP", "SCTP", "echo refused", "contested frontend", "both families on a Service",
		"an address outside the ranges", "refused at an external address", "dropped for its source", "let in by its source",
		"the balancer's own address let in", "a NodePort where none is taken", "a NodePort on loopback", "an external IP of the node",
		"another port of an external IP of the node", "a NodePort beside a frontend with an address",
	}
}

// meets says what is worth counting about a trial.
func (r *round) meets(tr random.Trial) []string {
	list := []string{tr.Want.Verdict.String()}
	add := func(what string, holds bool) {
		if holds {
			list = append(list, what)
		}
	}
	masqueraded, itself, n, p := 0, false, len(tr.Want.Arrivals), tr.Packet
	for _, a := range tr.Want.Arrivals {
		if a.Masqueraded {
			masqueraded++
		}
		itself = itself || a.Endpoint.Addr() == p.Src
	}
	add(p.Protocol.String(), n > 0)
	add("one endpoint", n == 1)
	add("several endpoints", n > 1)
	add("five endpoints", n >= 5)
	add("masqueraded", masqueraded > 0)
	add("not masqueraded", n > 0 && masqueraded == 0)
	add("masqueraded for one endpoint only", n > 1 && masqueraded == 1)
	add("to the pod itself", itself && p.From == oracle.Pod)
	add("echo refused", (p.Protocol == oracle.ICMP || p.Protocol == oracle.ICMPv6) && tr.Want.Verdict == oracle.Refused)
	return append(list, r.meetsAddress(p, tr.Want)...)
}

// meetsAddress looks at where the packet goes, and whose that is.
func (r *round) meetsAddress(p oracle.Packet, want oracle.Outcome) (list []string) {
	add := func(what string, holds bool) {
		if holds {
			list = append(list, what)
		}
	}
	hit, served := oracle.Find(r.cluster, r.config(), p)
	own := slices.Contains(r.config().NodeAddrs, p.Dst)
	claims, external, number := 0, false, false
	for _, s := range r.cluster.Services {
		outside := slices.Contains(s.ExternalIPs, p.Dst) || slices.Contains(s.LoadBalancerIPs, p.Dst)
		external = external || outside && len(s.Ports) > 0
		add("both families on a Service", len(s.ClusterIPs) == 2 && slices.Contains(s.ClusterIPs, p.Dst) && want.Verdict == oracle.Reached)
		for _, port := range s.Ports {
			number = number || port.NodePort == p.Port && port.NodePort != 0 && port.Protocol == p.Protocol
			if port.Protocol == p.Protocol && port.Port == p.Port && (outside || slices.Contains(s.ClusterIPs, p.Dst)) {
				claims++
				break
			}
		}
	}
	add("contested frontend", claims > 1)
	add("an address outside the ranges", served && hit.Kind == oracle.ClusterIP && !r.inRange(p) && want.Verdict == oracle.Reached)
	add("refused at an external address", external && !served && !own && want.Verdict == oracle.Refused)
	add("dropped for its source", hit.Guarded && len(hit.Cluster) > 0 && !hit.OnlyLocal && want.Verdict == oracle.Dropped)
	add("let in by its source", hit.Guarded && want.Verdict == oracle.Reached)
	add("the balancer's own address let in", hit.Guarded && want.Verdict == oracle.Reached && slices.Contains(hit.Service.LoadBalancerIPs, p.Src))
	add("a NodePort where none is taken", number && own && !served && !r.config().TakesNodePorts(p.Dst))
	add("a NodePort on loopback", number && p.Dst.IsLoopback())
	add("an external IP of the node", served && hit.Kind == oracle.ExternalIP && own)
	add("another port of an external IP of the node", external && own && !served)
	add("a NodePort beside a frontend with an address", number && own && served && hit.Kind != oracle.NodePort)
	return list
}

func (r *round) inRange(p oracle.Packet) bool {
	return slices.ContainsFunc(r.cluster.ServiceCIDRs, func(s model.ServiceCIDR) bool {
		for _, cidr := range s.CIDRs {
			if cidr.Contains(p.Dst) {
				return true
			}
		}
		return false
	})
}

func TestSeededFaultsAreFoundInMemory(t *testing.T) {
	seed := seed(t)
	hands := random.Deal(seed, faultRounds, 1)
	for _, fault := range random.Faults() {
		t.Run(fault.Name, func(t *testing.T) {
			programs := random.Programs{}
			for number, hand := range hands {
				if diff := findFault(t, beginWith(seed, number, random.Usual()), programs, hand[:steps], fault); diff != "" {
					t.Logf("found in cluster %d: %s", number, diff)
					return
				}
			}
			t.Fatalf("not found in %d clusters", faultRounds)
		})
	}
}

// findFault sends packets through rules as they should be and, one by one, through such
// that have a fault.
func findFault(t *testing.T, r *round, programs random.Programs, hand []random.Cell, fault random.Fault) string {
	t.Helper()
	r.change(0)
	for _, cell := range hand {
		for _, move := range r.gen.Aim(r.node.Setup, cell) {
			r.apply(move.Changes)
			sent := []oracle.Packet{r.packet(), r.packet()}
			if move.Packet != nil {
				sent = append(sent, *move.Packet)
			}
			for _, packet := range sent {
				if diff := r.throughFault(t, packet, fault); diff != "" {
					return diff
				}
				if diff, err := r.send(programs, packet); err != nil || diff != "" {
					t.Fatalf("without the fault: %s, %v", diff, err)
				}
			}
		}
	}
	return ""
}

func (r *round) throughFault(t *testing.T, packet oracle.Packet, fault random.Fault) string {
	t.Helper()
	table, tr := r.table(packet), r.trial(packet)
	skeleton, state, ok := table.Faulty(fault, r.gen)
	if !ok {
		return ""
	}
	program := compile(t, skeleton)
	if err := program.Add(state.Affinities); err != nil {
		t.Fatal(err)
	}
	walks, err := table.Walks(program, state, r.config().NodeAddrs, tr)
	if err != nil {
		t.Fatal(err)
	}
	if diff := table.Compare(walks, r.config(), tr); diff != "" {
		return fmt.Sprintf("%+v: %s", packet, diff)
	}
	return ""
}
