package random_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"onerule/daemon/model"
	"onerule/nft"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/netns"
	"onerule/test/oracle"
	"onerule/test/random"
)

const (
	wireRounds  = 4  // clusters with real packets in a run
	soakRounds  = 60 // and in a soak: 5,040 steps
	wireSteps   = 4  // changes of each by chance
	wireAims    = 80 // cells that each cluster aims at: a step each, too
	wirePackets = 60 // after each change
	wireFaults  = 10 // clusters in which a seeded fault must be found by packets
	senders     = 8  // packets on their way at once
	comings     = 4  // how often a client that is pinned comes again
)

// A kernel is our two tables in the node's kernel.
type kernel struct {
	ns       *netns.NS
	programs []*nft.Program
}

// open takes over the tables of the node, and replaces the rules of another
// configuration.
func open(t *testing.T, ns *netns.NS, node *random.Node) *kernel {
	t.Helper()
	k := &kernel{ns: ns}
	for _, table := range node.Tables {
		err := ns.Do(func() error {
			p, err := nft.Open(table.Config)
			if err == nil {
				k.programs = append(k.programs, p)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(k.close)
	return k
}

func (k *kernel) close() {
	for _, p := range k.programs {
		_ = p.Close()
	}
	k.programs = nil
}

func (k *kernel) load(t *testing.T, i int, state nft.State) {
	t.Helper()
	err := k.ns.Do(func() error { return k.programs[i].Load(background(t), state, nft.NewKeys()) })
	if err != nil {
		t.Fatal(err)
	}
}

func (k *kernel) update(t *testing.T, i int, u random.Update) {
	t.Helper()
	if err := k.ns.Do(func() error { return k.programs[i].Update(background(t), u.Keys, u.Want) }); err != nil {
		t.Fatal(err)
	}
}

// rules replaces the rules of the chains by those of a skeleton, with nft.
func (k *kernel) rules(t *testing.T, s nft.Skeleton) {
	t.Helper()
	var text strings.Builder
	for _, c := range s.Chains {
		fmt.Fprintf(&text, "flush chain %s %s %s\n", s.Family, nft.TableName, c.Name)
		for _, r := range c.Rules {
			fmt.Fprintf(&text, "add rule %s %s %s %s\n", s.Family, nft.TableName, c.Name, r)
		}
	}
	file := filepath.Join(t.TempDir(), "rules.nft")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	k.ns.Run(t, "nft", "-f", file)
}

// settled deletes the pins to endpoints that left, as the daemon does: it reads them until
// a reading finds none. The second that lies between two readings is for packets under
// way, of which there are none here.
func (k *kernel) settled(t *testing.T) {
	t.Helper()
	now := time.Now()
	for _, p := range k.programs {
		for at, due := p.StaleAt(); due; at, due = p.StaleAt() {
			if at.After(now) {
				now = at
			}
			if err := k.ns.Do(func() error { _, err := p.Unpin(now); return err }); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A wire is a round whose packets are real.
type wire struct {
	*round
	h        *hosts.Hosts
	k        *kernel
	coverage *random.Coverage
	tally    map[string]int
}

// rewrite makes changes, in the kernel too.
func (w *wire) rewrite(t *testing.T, updates []random.Update) {
	t.Helper()
	for i, u := range updates {
		w.k.update(t, i, u)
	}
	w.k.settled(t)
	w.h.Forget(t)
}

// trials draws packets that real sockets can send and whose end can be seen. At most
// a sixth of them reach no endpoint in the same way: refusals are the most there is
// and the least to see.
func (r *round) trials(n int) []random.Trial {
	var list []random.Trial
	drawn := map[oracle.Verdict]int{}
	for tries := 0; len(list) < n && tries < 20*n; tries++ {
		tr := r.trial(r.packet())
		if !sendable(tr) || tr.Want.Verdict != oracle.Reached && drawn[tr.Want.Verdict] >= n/6 {
			continue
		}
		drawn[tr.Want.Verdict]++
		list = append(list, tr)
	}
	return list
}

// sendable leaves out what no socket here can send or tell: SCTP; the address of a load
// balancer, which nobody has; whoever would be answered past the translation: a pod that
// reaches itself with its own address (A1.14), and another node's that reaches that
// node; and what goes out untouched to somebody who is not there.
func sendable(tr random.Trial) bool {
	p := tr.Packet
	if p.Protocol == model.SCTP || p.Dst.IsLoopback() || p.Src == p.Dst {
		return false
	}
	for _, plan := range addr.Both() {
		if slices.ContainsFunc([]netip.Prefix{plan.Balancers, plan.External, plan.ServiceCIDR}, func(r netip.Prefix) bool { return r.Contains(p.Src) }) {
			return false
		}
		fromOther := plan.OtherPods.Contains(p.Src) || p.Src == plan.OtherNode()
		if fromOther && (plan.OtherPods.Contains(p.Dst) || p.Dst == plan.OtherNode()) {
			return false
		}
		for _, a := range tr.Want.Arrivals {
			if !a.Masqueraded && (a.Endpoint.Addr() == p.Src || fromOther && plan.OtherPods.Contains(a.Endpoint.Addr())) {
				return false
			}
		}
		if _, serves := random.Endpoints(plan)[p.Dst]; serves && tr.Want.Verdict == oracle.Untouched {
			return slices.Contains(random.TargetPorts(), p.Port) && p.Protocol != oracle.ICMP && p.Protocol != oracle.ICMPv6
		}
	}
	return tr.Want.Verdict != oracle.Untouched
}

// seen counts a trial.
func (w *wire) seen(tr random.Trial) {
	w.count(w.coverage, tr.Packet)
	w.tally[tr.Want.Verdict.String()]++
	w.tally[protocolName(tr.Packet.Protocol)]++
}

// pinned says whether the packet pins its client, or finds it pinned.
func (w *wire) pinned(tr random.Trial) bool {
	hit, ok := oracle.Find(w.cluster, w.config(), tr.Packet)
	if !ok || tr.Want.Verdict != oracle.Reached {
		return false
	}
	_, sticky := hit.Affinity()
	return sticky
}

// check sends one packet. A client of a service port with affinity comes again, and must
// find what it found.
func (w *wire) check(tr random.Trial) (string, error) {
	w.seen(tr)
	if !w.pinned(tr) {
		return w.h.Check(tr.Packet, tr.Want, hosts.Patience)
	}
	for range comings {
		tr = w.trial(tr.Packet)
		if len(tr.Want.Arrivals) > 1 {
			got, err := w.h.Probe(tr.Packet, hosts.Patience)
			if err != nil {
				return "", err
			}
			i := slices.IndexFunc(tr.Want.Arrivals, func(a oracle.Arrival) bool { return a.Endpoint == got.Endpoint })
			if i < 0 {
				return fmt.Sprintf("%s, want one of %v", got, tr.Want.Arrivals), nil
			}
			tr.Want.Arrivals = tr.Want.Arrivals[i : i+1]
		} else if diff, err := w.h.Check(tr.Packet, tr.Want, hosts.Patience); err != nil || diff != "" {
			return diff, err
		}
		w.memory.Arrive(w.cluster, w.config(), tr.Packet, tr.Want.Arrivals[0].Endpoint)
	}
	return "", nil
}

// run sends every trial, several at once but for those that pin clients, and gives what
// went wrong.
func (w *wire) run(t *testing.T, list []random.Trial) []string {
	t.Helper()
	var wrong []string
	say := func(tr random.Trial, diff string, err error) {
		if err != nil {
			t.Error(err)
		}
		if diff != "" {
			wrong = append(wrong, fmt.Sprintf("%+v: %s", tr.Packet, diff))
		}
	}
	var free []random.Trial
	for _, tr := range list {
		if w.pinned(tr) {
			diff, err := w.check(tr)
			say(tr, diff, err)
			continue
		}
		w.seen(tr)
		free = append(free, tr)
	}
	var waiting sync.WaitGroup
	var lock sync.Mutex
	next := make(chan random.Trial)
	for range senders {
		waiting.Go(func() {
			for tr := range next {
				diff, err := w.h.Check(tr.Packet, tr.Want, hosts.Patience)
				lock.Lock()
				say(tr, diff, err)
				lock.Unlock()
			}
		})
	}
	for _, tr := range free {
		next <- tr
	}
	close(next)
	waiting.Wait()
	return wrong
}

// moves draws an aim whose packets sockets here can send.
func (w *wire) moves(cell random.Cell) []random.Move {
	for {
		moves := w.gen.Aim(w.node.Setup, cell)
		if moves[len(moves)-1].Packet.Protocol != model.SCTP {
			return moves
		}
	}
}

// aim makes the changes and sends the packets that lead to a cell.
func (w *wire) aim(t *testing.T, cell random.Cell) string {
	t.Helper()
	for _, move := range w.moves(cell) {
		w.rewrite(t, w.apply(move.Changes))
		if move.Packet == nil {
			continue
		}
		tr := w.trial(*move.Packet)
		if !sendable(tr) {
			return ""
		}
		diff, err := w.check(tr)
		if err != nil {
			t.Error(err)
		}
		if diff != "" {
			return fmt.Sprintf("%+v: %s", tr.Packet, diff)
		}
	}
	return ""
}

func TestPacketsDoWhatTheOracleSays(t *testing.T) {
	h := hosts.New(t, random.Pods, random.TargetPorts()...)
	rounds := wireRounds
	if soaking() {
		rounds = soakRounds
	}
	run, begun := begins(t, rounds), time.Now()
	coverage, tally := random.NewCoverage(), map[string]int{}
	for number, hand := range random.Deal(run.seed, rounds, 1) {
		if !run.has(number) {
			continue
		}
		w := &wire{round: begin(run.seed, number), h: h, coverage: coverage, tally: tally}
		w.play(t, run, number, hand)
		if soaking() {
			t.Logf("round %d of 0 to %d: %d steps and %d packets so far, in %v", number, rounds-1,
				tally["step"], tally["TCP"]+tally["UDP"]+tally["echo"], time.Since(begun).Round(time.Second))
		}
	}
	t.Logf("%d cells: %v", coverage.Seen(), tally)
	if !run.whole() {
		return
	}
	if want := rounds * (wireSteps + wireAims); tally["step"] != want {
		t.Errorf("%d steps taken, want %d", tally["step"], want)
	}
	for _, what := range []string{"reached", "refused", "dropped", "untouched", "TCP", "UDP", "echo"} {
		if tally[what] == 0 {
			t.Errorf("no packet was %s", what)
		}
	}
	for _, pair := range coverage.UnseenPairs() {
		t.Errorf("no packet with %s", pair)
	}
}

// play plays a round: it changes the cluster by chance, and then to reach cells of a
// hand, with packets after each of these steps.
func (w *wire) play(t *testing.T, run run, number int, hand []random.Cell) {
	t.Helper()
	w.change(0)
	w.k = open(t, w.h.Node, w.node)
	defer w.k.close()
	for i, table := range w.node.Tables {
		w.k.load(t, i, table.Copy())
	}
	w.h.Forget(t)
	for step := range wireSteps {
		if step > 0 {
			w.rewrite(t, w.change(step))
		}
		w.tally["step"]++
		if wrong := w.run(t, w.trials(wirePackets)); len(wrong) > 0 {
			t.Fatalf("seed %d, round %d, change %d: %s\n%s\n%s", run.seed, number, step, strings.Join(wrong, "\n"), w.facts(), run.again(t, number))
		}
		for i, cell := range hand[step*wireAims/wireSteps : (step+1)*wireAims/wireSteps] {
			w.tally["step"]++
			if wrong := w.aim(t, cell); wrong != "" {
				t.Fatalf("seed %d, round %d, aim %d after change %d, to %s: %s\n%s\n%s", run.seed, number, i, step, cell, wrong, w.facts(), run.again(t, number))
			}
		}
	}
}

func background(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func protocolName(p model.Protocol) string {
	if p == oracle.ICMP || p == oracle.ICMPv6 {
		return "echo"
	}
	return p.String()
}

func TestSeededFaultsAreFoundByPackets(t *testing.T) {
	h := hosts.New(t, random.Pods, random.TargetPorts()...)
	seed := seed(t)
	for _, fault := range random.Faults()[:3] { // the kernel does with all maps what it does with these
		t.Run(fault.Name, func(t *testing.T) {
			for number := range wireFaults {
				w := &wire{round: beginWith(seed, number, random.Usual()), h: h, coverage: random.NewCoverage(), tally: map[string]int{}}
				if wrong := w.findFault(t, fault); len(wrong) > 0 {
					t.Logf("found in cluster %d by %d packets: %s", number, len(wrong), wrong[0])
					return
				}
			}
			t.Fatalf("not found in %d clusters", wireFaults)
		})
	}
}

// reachable adds Services whose ClusterIPs some clients certainly reach, and gives packets
// to them.
func (w *wire) reachable() []oracle.Packet {
	var list []oracle.Packet
	for _, client := range []uint8{random.FromPod, random.FromNode, random.FromOutside} {
		for _, family := range []uint8{random.OfIPv4, random.OfIPv6} {
			for _, move := range w.moves(random.Cell{random.DimClient: client, random.DimFamily: family}) {
				w.apply(move.Changes)
				if move.Packet != nil && sendable(w.trial(*move.Packet)) {
					list = append(list, *move.Packet)
				}
			}
		}
	}
	return list
}

// findFault loads a cluster with the fault in it, and gives the packets that found it, of
// those that must reach an endpoint, and pin nobody: each of the faults is in their way.
// They must find nothing when the fault is gone.
func (w *wire) findFault(t *testing.T, fault random.Fault) []string {
	t.Helper()
	w.change(0)
	sure := w.reachable()
	w.k = open(t, w.h.Node, w.node)
	defer w.k.close()
	seeded := false
	for i, table := range w.node.Tables {
		skeleton, state, ok := table.Faulty(fault, w.gen)
		seeded = seeded || ok
		w.k.load(t, i, state)
		w.k.rules(t, skeleton)
	}
	if !seeded {
		return nil
	}
	w.h.Forget(t)
	drawn := w.trials(wirePackets)
	for _, packet := range sure {
		drawn = append(drawn, w.trial(packet))
	}
	reaching := slices.DeleteFunc(drawn, func(tr random.Trial) bool {
		return tr.Want.Verdict != oracle.Reached || w.pinned(tr)
	})
	var found []random.Trial
	var wrong []string
	for some := range slices.Chunk(reaching, senders) {
		if wrong = w.run(t, some); len(wrong) > 0 {
			found = some
			break
		}
	}
	for i, table := range w.node.Tables {
		w.k.load(t, i, table.Copy())
		w.k.rules(t, nft.NewSkeleton(table.Config))
	}
	w.h.Forget(t)
	if still := w.run(t, found); len(still) > 0 {
		t.Fatalf("wrong without the fault:\n%s\n%s", strings.Join(still, "\n"), w.facts())
	}
	return wrong
}
