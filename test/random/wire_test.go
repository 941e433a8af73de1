package random_test

import (
	"context"
	"fmt"
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
	wireSteps   = 4  // changes of each
	wirePackets = 60 // after each change
	wireFaults  = 8  // clusters in which a seeded fault must be found by packets
	senders     = 8  // packets on their way at once
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

// rewrite replaces the rules of the chains by those of a skeleton, with nft.
func (k *kernel) rewrite(t *testing.T, s nft.Skeleton) {
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

// A trial is a packet on the wire and what must come of it.
type trial struct {
	packet oracle.Packet
	want   oracle.Outcome
}

// trials draws packets that real sockets can send and whose end can be seen. At most
// a sixth of them reach no endpoint in the same way: refusals are the most there is
// and the least to see.
func (r *round) trials(n int) []trial {
	var list []trial
	drawn := map[oracle.Verdict]int{}
	for tries := 0; len(list) < n && tries < 20*n; tries++ {
		packet, want := r.packet()
		if !sendable(packet, want) || want.Verdict != oracle.Reached && drawn[want.Verdict] >= n/6 {
			continue
		}
		drawn[want.Verdict]++
		list = append(list, trial{packet, want})
	}
	return list
}

// sendable leaves out what no socket here can send or tell: SCTP, of which this
// kernel has no sockets; another node's pods, which don't come by this node; a pod
// that reaches itself with its own address (A1.14), which no host takes in; and what
// goes out untouched to somebody who is not there.
func sendable(p oracle.Packet, want oracle.Outcome) bool {
	if p.Protocol == model.SCTP {
		return false
	}
	for _, a := range want.Arrivals {
		if a.Endpoint.Addr() == p.Src && !a.Masqueraded {
			return false
		}
	}
	for _, plan := range addr.Both() {
		if plan.OtherPods.Contains(p.Src) {
			return false
		}
		if _, serves := random.Endpoints(plan)[p.Dst]; serves {
			return slices.Contains(random.TargetPorts(), p.Port)
		}
	}
	return want.Verdict != oracle.Untouched
}

// run sends every trial, several at once, and gives what went wrong.
func run(t *testing.T, h *hosts.Hosts, list []trial) []string {
	t.Helper()
	var wg sync.WaitGroup
	var lock sync.Mutex
	var wrong []string
	next := make(chan trial)
	for range senders {
		wg.Go(func() {
			for tr := range next {
				diff, err := h.Check(tr.packet, tr.want, hosts.Patience)
				if err != nil {
					t.Error(err)
				}
				if diff != "" {
					lock.Lock()
					wrong = append(wrong, fmt.Sprintf("%+v: %s", tr.packet, diff))
					lock.Unlock()
				}
			}
		})
	}
	for _, tr := range list {
		next <- tr
	}
	close(next)
	wg.Wait()
	return wrong
}

func TestPacketsDoWhatTheOracleSays(t *testing.T) {
	h := hosts.New(t, random.Pods, random.TargetPorts()...)
	seed := seed(t)
	t.Log("SCTP is compared in memory only: this kernel has no SCTP sockets")
	tally := map[string]int{}
	for number := range wireRounds {
		r := begin(seed, number)
		r.change(0)
		k := open(t, h.Node, r.node)
		for i, table := range r.node.Tables {
			k.load(t, i, table.Copy())
		}
		for step := range wireSteps {
			if step > 0 {
				for i, u := range r.change(step) {
					k.update(t, i, u)
				}
			}
			h.Forget(t)
			list := r.trials(wirePackets)
			for _, tr := range list {
				tally[tr.want.Verdict.String()]++
				tally[protocolName(tr.packet.Protocol)]++
			}
			if wrong := run(t, h, list); len(wrong) > 0 {
				t.Fatalf("round %d, step %d: %s\n%s", number, step, strings.Join(wrong, "\n"), r.facts())
			}
		}
		k.close()
	}
	t.Log(tally)
	for _, what := range []string{"reached", "refused", "dropped", "untouched", "TCP", "UDP", "echo"} {
		if tally[what] == 0 {
			t.Errorf("no packet was %s", what)
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
	for _, fault := range random.Faults() {
		t.Run(fault.Name, func(t *testing.T) {
			for number := range wireFaults {
				if wrong := findFaultOnWire(t, h, beginWith(seed, number, random.DetectBoth()), fault); len(wrong) > 0 {
					t.Logf("found in cluster %d by %d packets: %s", number, len(wrong), wrong[0])
					return
				}
			}
			t.Fatalf("not found in %d clusters", wireFaults)
		})
	}
}

// findFaultOnWire loads a cluster with the fault in it, and gives the packets that found
// it, of those that must reach an endpoint: each of the faults is in their way. They
// must find nothing when the fault is gone.
func findFaultOnWire(t *testing.T, h *hosts.Hosts, r *round, fault random.Fault) []string {
	t.Helper()
	r.change(0)
	k := open(t, h.Node, r.node)
	defer k.close()
	seeded := false
	for i, table := range r.node.Tables {
		skeleton, state, ok := table.Faulty(fault, r.gen)
		seeded = seeded || ok
		k.load(t, i, state)
		k.rewrite(t, skeleton)
	}
	if !seeded {
		return nil
	}
	h.Forget(t)
	reaching := slices.DeleteFunc(r.trials(wirePackets), func(tr trial) bool { return tr.want.Verdict != oracle.Reached })
	var found []trial
	var wrong []string
	for some := range slices.Chunk(reaching, senders) {
		if wrong = run(t, h, some); len(wrong) > 0 {
			found = some
			break
		}
	}
	for i, table := range r.node.Tables {
		k.load(t, i, table.Copy())
		k.rewrite(t, nft.NewSkeleton(table.Config))
	}
	h.Forget(t)
	if still := run(t, h, found); len(still) > 0 {
		t.Fatalf("wrong without the fault:\n%s\n%s", strings.Join(still, "\n"), r.facts())
	}
	return wrong
}
