package fabric_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/fabric"
	"onerule/daemon/fabric/layout"
	"onerule/test/wired"
)

// childNodes holds, for the process that is killed, the nodes that are always there.
const childNodes = "ONERULE_TEST_FABRIC_NODES"

func TestMain(m *testing.M) {
	if nodes := os.Getenv(childNodes); nodes != "" {
		if err := child(nodes); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// passing gives nodes that come and go: one on the layer 2, one behind the router.
func passing() []layout.Node {
	return []layout.Node{
		{Name: "d", Created: 7, Addrs: addrs("172.16.1.40", "fd00:16:1::40"), PodCIDRs: prefixes("10.1.40.0/24", "fd00:1:0:40::/112")},
		{Name: "e", Created: 8, Addrs: addrs("172.16.2.50", "fd00:16:2::50"), PodCIDRs: prefixes("10.1.50.0/24", "fd00:1:0:50::/112")},
	}
}

// child keeps routes as the daemon does, with nodes that come and go all the time, until
// it is killed.
func child(list string) error {
	var nodes []layout.Node
	if err := json.Unmarshal([]byte(list), &nodes); err != nil {
		return err
	}
	f := fabric.New(config())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.Background()) }() // ends with the process
	tick := time.NewTicker(2 * time.Millisecond)
	f.Set("a", nodes)
	for n := 0; ; n++ {
		select {
		case err := <-ended:
			return err
		case <-tick.C:
		}
		if err := f.Err(); err == nil && n%20 == 0 {
			fmt.Println("works") // the parent reads the first one
		}
		now := slices.Clone(nodes)
		if n%2 == 0 {
			now = append(now, passing()...)
		}
		f.Set("a", now)
	}
}

// Whenever it is killed, what had a way has it still; a restart puts the rest right.
func TestKilledAtAnyMoment(t *testing.T) {
	w := newWorld(t)
	w.start(t, config())
	a := w.nodes[0]
	targets := slices.Concat(w.nodes[1].podAddrs(), w.nodes[2].podAddrs())
	for _, to := range targets {
		wired.Eventually(t, func() error { _, err := ask(a.pod, to, 1450, time.Second); return err })
	}
	a.stop()
	before := a.holds(t)
	nodes, err := json.Marshal(w.list())
	if err != nil {
		t.Fatal(err)
	}
	halfway := 0
	for range 25 {
		a.kill(t, string(nodes))
		if a.holds(t) != before {
			halfway++
		}
		for _, to := range targets {
			if _, err := ask(a.pod, to, 1450, patience); err != nil {
				t.Error(err)
			}
		}
	}
	if halfway == 0 {
		t.Error("it was never killed at work")
	}
	a.start(t, config(), w.list())
	if diff := cmp.Diff(before, a.holds(t)); diff != "" {
		t.Errorf("after a restart (-before +now):\n%s", diff)
	}
}

// kill starts a process that keeps the routes, and kills it soon after it works.
func (h *host) kill(t *testing.T, nodes string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childNodes+"="+nodes)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	timer := time.NewTimer(time.Duration(rand.IntN(20_000)) * time.Microsecond)
	defer timer.Stop()
	<-timer.C
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil || strings.TrimSpace(line) != "works" {
		t.Fatalf("the process said %q, %v", line, err)
	}
}

// A bad Node object harms only itself.
func TestABadNodeHarmsOnlyItself(t *testing.T) {
	w := newWorld(t)
	list := append(w.list(),
		layout.Node{Name: "d", Created: 7, Addrs: addrs("172.16.1.1"), PodCIDRs: prefixes("10.1.40.0/24")},
		layout.Node{Name: "e", Created: 7, Addrs: addrs("172.16.2.50"), PodCIDRs: prefixes("10.1.0.0/16", "0.0.0.0/0")},
		layout.Node{Name: "f", Created: 7, Addrs: addrs("172.16.1.60"), PodCIDRs: prefixes("172.16.0.0/12", "10.1.60.0/24")},
		layout.Node{Name: "g", Created: 7},
		layout.Node{Name: "h", Created: 7, Addrs: addrs("172.16.1.255"), PodCIDRs: prefixes("10.1.70.0/24")},
	)
	for _, h := range w.nodes {
		h.start(t, config(), list)
	}
	w.reach(t, routed, 50)
	a := w.nodes[0]
	want := []string{
		"node d: address 172.16.1.1 belongs to node a, or to its pods", "node d: has no usable address",
		"node e: podCIDR 10.1.0.0/16 overlaps with one, or with an address, of node a", "node e: podCIDR 0.0.0.0/0 can't be one of pods",
		"node f: podCIDR 172.16.0.0/12 overlaps with one, or with an address, of node a", "node g: has no usable address",
		"node h: no route leads to its address 172.16.1.255: there is no way to 10.1.70.0/24",
	}
	var got []string
	for _, p := range a.wrong() {
		got = append(got, p.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	holds := a.holds(t)
	for _, line := range []string{"unreachable 10.1.40.0/24", "10.1.60.0/24 via 172.16.1.60 dev eth0", "unreachable 10.1.70.0/24"} {
		if !strings.Contains(holds, line) {
			t.Errorf("%q is not among\n%s", line, holds)
		}
	}
	if got, want := fmt.Sprint(a.fabric.PodRanges()), "[10.1.1.0/24 10.1.2.0/23 10.1.40.0/24 10.1.60.0/24 10.1.70.0/24 fd00:1:0:1::/112 fd00:1:0:2::/112 fd00:1:0:3::/112]"; got != want {
		t.Errorf("pod ranges: got %s, want %s", got, want)
	}
}
