package plugin_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"onerule/test/netns"
)

// killed starts a call and kills it after a delay, if it lives that long.
func (n *node) killed(t *testing.T, c call, after time.Duration) (lived bool) {
	t.Helper()
	cmd := n.command(c)
	cmd.Stdout, cmd.Stderr = io.Discard, io.Discard
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	return timer.Stop() || err == nil
}

// podWithDefaultRoute gives a pod whose further interfaces come with rules.
func podWithDefaultRoute(t *testing.T) *netns.NS {
	t.Helper()
	pod := netns.New(t, "pod")
	pod.Run(t, "ip", "link", "add", "other", "type", "veth", "peer", "name", "theirs")
	pod.Run(t, "ip", "link", "set", "other", "up")
	pod.Run(t, "ip", "route", "add", "default", "dev", "other")
	pod.Run(t, "ip", "-6", "route", "add", "default", "dev", "other")
	return pod
}

// collected lets GC remove everything, and wants nothing left on the node, in the
// store and in a pod that lives on.
func (n *node) collected(t testing.TB, pod *netns.NS) {
	t.Helper()
	n.succeed(t, call{verb: "GC", stdin: n.config("1.1.0", object{"cni.dev/valid-attachments": []object{}})})
	n.clean(t)
	podIsClean(t, pod)
}

func podIsClean(t testing.TB, pod *netns.NS) {
	t.Helper()
	if out := links(t, pod); strings.Contains(out, ": eth") {
		t.Errorf("the pod has a link: %s", out)
	}
	for _, f := range []string{"-4", "-6"} {
		if out := pod.Run(t, "ip", f, "rule"); strings.Contains(out, "11100:") {
			t.Errorf("rules are left in the pod: %s", out)
		}
	}
}

// soaking gives the second number with ONERULE_SOAK=1.
func soaking(always, soak int) int {
	if os.Getenv("ONERULE_SOAK") == "1" {
		return soak
	}
	return always
}

// TestKill kills ADDs and DELs at random moments, a few in a row, and then lets GC
// remove what they left. The pods have host ports.
func TestKill(t *testing.T) {
	n, pod := newNode(t), podWithDefaultRoute(t)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	at := func(i int) call {
		return add(fmt.Sprint("c", i), fmt.Sprint("eth", i%100), pod, n.withPorts(nil, bothProtocols(8000+i%100)...))
	}
	timed := func(c call) time.Duration {
		start := time.Now()
		n.succeed(t, c)
		return time.Since(start)
	}
	n.succeed(t, at(0)) // which takes longer: the tables of the host ports are made
	n.succeed(t, at(0).as("DEL"))
	whole := map[string]time.Duration{"ADD": timed(at(1)), "DEL": timed(at(1).as("DEL"))}
	want, cut := soaking(60, 500), map[string]int{}
	t.Run("C15, C58, D2: nothing is left after kills and a GC", func(t *testing.T) {
		for i := 2; cut["ADD"]+cut["DEL"] < want; i++ {
			if i > 8*want {
				t.Fatalf("only %v of %d were cut short: this shows nothing", cut, i)
			}
			c := at(i)
			if i%2 == 0 {
				n.succeed(t, c)
				c = c.as("DEL")
			}
			if !n.killed(t, c, time.Duration(random.Int64N(int64(whole[c.verb])))) {
				cut[c.verb]++
			}
			if i%10 == 0 {
				n.collected(t, pod)
			}
			if t.Failed() {
				t.Fatalf("after %d calls, seed %d", i, seed)
			}
		}
		n.collected(t, pod)
	})
	t.Logf("cut short: %v of which a whole one took %v; seed %d", cut, whole, seed)
}

// TestKillAtEachSystemCall kills an ADD before its first, second, third... call of
// each kind that changes something, until it gets through.
func TestKillAtEachSystemCall(t *testing.T) {
	for _, syscall := range []string{"sendto", "renameat", "linkat", "openat", "mkdirat", "write", "setns"} {
		t.Run("C15: "+syscall, func(t *testing.T) {
			n := newNode(t) // with a state directory still to be made
			n.killedAtEach(t, syscall, "ADD", call{stdin: n.config("1.1.0", nil)}, func() { n.clean(t) })
		})
	}
}

// The calls that host ports add: netlink of nftables, and the claim on disk.
func TestC58KillAtEachSystemCallForHostPorts(t *testing.T) {
	for verb, syscalls := range map[string][]string{"ADD": {"sendmsg", "fsync", "renameat", "flock"}, "DEL": {"sendmsg", "sendto", "unlinkat", "fsync"}} {
		for _, syscall := range syscalls {
			t.Run("C15: "+syscall+" of "+verb, func(t *testing.T) {
				n := newNode(t) // with a table still to be made
				n.killedAtEach(t, syscall, verb, call{stdin: n.withPorts(nil, bothProtocols(hostPort)...)}, func() { n.clean(t) })
			})
		}
	}
}

// killedAtEach wants nothing left after each kill and a DEL. The call is without its pod.
func (n *node) killedAtEach(t *testing.T, syscall, verb string, of call, clean func()) {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs strace")
	}
	const enough = 60
	for i := 1; i <= enough; i++ {
		pod := netns.New(t, "pod")
		c := add(fmt.Sprint("c", i), "eth0", pod, of.stdin)
		if verb == "DEL" {
			n.succeed(t, c)
		}
		c.wrap = []string{strace, "-f", "-qqq", "-o", "/dev/null", "-e", "trace=" + syscall, "-e", fmt.Sprintf("inject=%s:signal=SIGKILL:when=%d", syscall, i)}
		c.stdout = of.stdout
		killed := n.run(t, c.as(verb)).exit == -1 // strace ends as the plugin did
		c.wrap, c.stdout = nil, nil
		n.succeed(t, c.as("DEL"))
		clean()
		if out := links(t, pod); strings.Contains(out, "eth0@") {
			t.Errorf("the pod has a link: %s", out)
		}
		if !killed {
			if i == 1 {
				t.Error("it was never killed: this shows nothing")
			}
			t.Logf("killed %d times", i-1)
			return
		}
		if t.Failed() {
			t.Fatalf("after a kill at call %d", i)
		}
	}
	t.Fatalf("still killed at call %d", enough)
}
