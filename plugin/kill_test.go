package plugin_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
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

func TestKill(t *testing.T) {
	kills := 50
	if s := os.Getenv("ONERULE_KILLS"); s != "" {
		var err error
		if kills, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	n := newNode(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	pod := netns.New(t, "pod")
	// The other interface makes eth0 the one with rules.
	pod.Run(t, "ip", "link", "add", "other", "type", "veth", "peer", "name", "theirs")
	pod.Run(t, "ip", "link", "set", "other", "up")
	pod.Run(t, "ip", "route", "add", "default", "dev", "other")

	probe := add("probe", "eth0", pod, n.config("1.1.0", nil))
	start := time.Now()
	n.added(t, probe)
	whole := time.Since(start)
	start = time.Now()
	n.succeed(t, probe.as("DEL"))
	wholeDel := time.Since(start)

	addsCut, delsCut := 0, 0
	for i := 0; addsCut < kills; i++ {
		if i > 8*kills {
			t.Fatalf("only %d of %d ADDs were cut short: this shows nothing", addsCut, i)
		}
		c := add(fmt.Sprint("c", i), "eth0", pod, n.config("1.1.0", nil))
		if !n.killed(t, c, time.Duration(random.Int64N(int64(whole)))) {
			addsCut++
		}
		if i%2 == 0 && !n.killed(t, c.as("DEL"), time.Duration(random.Int64N(int64(wholeDel)))) {
			delsCut++
		}
		n.succeed(t, c.as("DEL"))
		n.clean(t)
		if out := links(t, pod); strings.Contains(out, "eth0@") {
			t.Errorf("the pod has a link: %s", out)
		}
		if out := pod.Run(t, "ip", "rule"); strings.Contains(out, "from 10.1.") {
			t.Errorf("rules are left: %s", out)
		}
		if t.Failed() {
			t.Fatalf("after kill %d", i)
		}
	}
	t.Logf("cut short: %d ADDs, %d DELs; a whole ADD took %s, a DEL %s", addsCut, delsCut, whole, wholeDel)
}

// TestKillAtEachSystemCall kills an ADD before its first, second, third... call of
// each kind that changes something, until it gets through.
func TestKillAtEachSystemCall(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs strace")
	}
	for _, syscall := range []string{"sendto", "renameat", "linkat", "unlinkat", "mkdirat", "fsync", "write", "setns"} {
		t.Run("item 15: "+syscall, func(t *testing.T) {
			n := newNode(t) // with a state directory still to be made
			const enough = 60
			for i := 1; ; i++ {
				if i > enough {
					t.Fatalf("still killed at call %d", i)
				}
				pod := netns.New(t, "pod")
				c := add(fmt.Sprint("c", i), "eth0", pod, n.config("1.1.0", nil))
				c.wrap = []string{strace, "-f", "-qqq", "-o", "/dev/null", "-e", "trace=" + syscall, "-e", fmt.Sprintf("inject=%s:signal=SIGKILL:when=%d", syscall, i)}
				exit := n.run(t, c).exit
				c.wrap = nil
				n.succeed(t, c.as("DEL"))
				n.clean(t)
				if out := links(t, pod); strings.Contains(out, "eth0@") {
					t.Errorf("the pod has a link: %s", out)
				}
				if exit == 0 {
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
		})
	}
}
