package plugin_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/plugin"
	"onerule/test/netns"
	"onerule/test/rig"
)

// sweptIn runs the plugin as the daemon does, in a namespace.
func (n *node) sweptIn(t *testing.T, ns *netns.NS) (got plugin.Swept, stderr string, exit int) {
	t.Helper()
	return told[plugin.Swept](t, ns, "sweep", n.dataDir)
}

// told runs a command of the plugin's that is none of CNI, and gives what it prints.
func told[T any](t *testing.T, ns *netns.NS, args ...string) (got T, stderr string, exit int) {
	t.Helper()
	cmd := exec.Command(binary(), args...)
	cmd.Env = []string{}
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	var failed *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
		t.Fatalf("it printed %q: %v; %s", out.String(), err, errs.String())
	}
	return got, errs.String(), cmd.ProcessState.ExitCode()
}

// swept wants it to succeed.
func (n *node) swept(t *testing.T) plugin.Swept {
	t.Helper()
	got, stderr, exit := n.sweptIn(t, n.NS)
	if exit != 0 {
		t.Errorf("exit %d: %s", exit, stderr)
	}
	return got
}

// dies ends a pod's namespace, and waits for the kernel to delete the links.
func (n *node) dies(t *testing.T, pod *netns.NS, c call) {
	t.Helper()
	link := n.hostLinkOf(t, c)
	if err := pod.Close(); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, "the link of "+c.container+" is gone", func() error {
		if strings.Contains(links(t, n.NS), link) {
			return errors.New("it is there")
		}
		return nil
	})
}

func (n *node) hostLinkOf(t *testing.T, c call) string {
	t.Helper()
	b, err := os.ReadFile(n.recordOf(c))
	if err != nil {
		t.Fatal(err)
	}
	var rec struct{ HostLink string }
	if err := json.Unmarshal(b, &rec); err != nil {
		t.Fatal(err)
	}
	return rec.HostLink
}

func (n *node) recordOf(c call) string {
	return filepath.Join(n.dataDir, "pods/attachments", c.container+":"+c.ifName+".json")
}

// ofAnotherBoot rewrites what is on record of a pod, and of its addresses.
func (n *node) ofAnotherBoot(t *testing.T, c call) {
	t.Helper()
	n.Run(t, "sh", "-c", `cd "`+filepath.Join(n.dataDir, "pods")+`" && sed -i 's/"bootID": *"[^"]*"/"bootID":"another"/' $(grep -l '"`+c.container+`"' attachments/* addresses/*)`)
}

func TestC52Sweep(t *testing.T) {
	n := newNode(t)
	var pods []*netns.NS
	var calls []call
	for i := range 4 {
		pods = append(pods, netns.New(t, "pod"))
		calls = append(calls, add(fmt.Sprint("c", i), "eth0", pods[i], n.withPorts(nil, bothProtocols(hostPort+i)...)))
		n.added(t, calls[i])
	}
	t.Run("C52: what lives stays", func(t *testing.T) {
		before := n.files(t)
		if d := cmp.Diff(plugin.Swept{}, n.swept(t)); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		if d := cmp.Diff(before, n.files(t)); d != "" {
			t.Errorf("(-before +after):\n%s", d)
		}
	})
	n.dies(t, pods[0], calls[0])
	n.ofAnotherBoot(t, calls[1])
	n.dies(t, pods[2], calls[2])
	for _, name := range []string{"attachments/.c8:eth0.json.new", "addresses/.10.1.0.99.new", "attachments/torn:eth0.json"} {
		if err := os.WriteFile(filepath.Join(n.dataDir, "pods", name), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(n.recordOf(calls[2])); err != nil {
		t.Fatal(err)
	}
	t.Run("C52: what is of pods that are gone goes, counted by kind", func(t *testing.T) {
		want := plugin.Swept{Attachments: 3, Addresses: 6, Links: 1, HostPorts: 12, Files: 3}
		if d := cmp.Diff(want, n.swept(t)); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	})
	t.Run("C52: and what lives stays whole", func(t *testing.T) {
		n.succeed(t, n.checkOf(t, calls[3]))
		if got := n.hostPortFiles(t); len(got) != 1 {
			t.Errorf("got claims %q, want one", got)
		}
		if d := cmp.Diff(plugin.Swept{}, n.swept(t)); d != "" {
			t.Errorf("again (-want +got):\n%s", d)
		}
	})
	t.Run("C52: each removal is in the journal, with its reason", func(t *testing.T) {
		b, err := os.ReadFile(filepath.Join(n.dataDir, "pods/journal"))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"SWEEP: removing pods/c0/eth0 with [10.1.0.2 fd00:1::2]: its link is gone\n", "SWEEP: removing pods/c1/eth0", ": it is of an earlier boot\n"} {
			if !strings.Contains(string(b), want) {
				t.Errorf("got %s, want %q in it", b, want)
			}
		}
	})
	t.Run("C42: a DEL that comes late finds nothing, and succeeds", func(t *testing.T) {
		for _, c := range calls[:3] {
			n.succeed(t, c.as("DEL"))
		}
	})
	n.dies(t, pods[3], calls[3])
	n.swept(t)
	n.clean(t)
}

func TestC52TheSweepLeavesAloneWhatIsInUse(t *testing.T) {
	n := newNode(t)
	pod := netns.New(t, "pod")
	c := add("c1", "eth0", pod, n.config("1.1.0", nil))
	n.added(t, c)
	t.Run("C52: where links of this node can't be seen, none is gone", func(t *testing.T) {
		got, stderr, exit := n.sweptIn(t, n.outside)
		if d := cmp.Diff(plugin.Swept{}, got); d != "" || exit != 0 {
			t.Errorf("exit %d: %s (-want +got):\n%s", exit, stderr, d)
		}
		n.succeed(t, n.checkOf(t, c))
	})
	n.dies(t, pod, c)
	unfinished := filepath.Join(n.dataDir, "pods/attachments/.c2:eth0.json.new")
	if err := os.WriteFile(unfinished, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	unlock := rig.LockAttachments(t, filepath.Join(n.dataDir, "pods/lock"))
	t.Run("C52: what a verb is at work on", func(t *testing.T) {
		if d := cmp.Diff(plugin.Swept{}, n.swept(t)); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		if got := n.files(t); len(got) != 4 {
			t.Errorf("got files %q", got)
		}
	})
	unlock()
	t.Run("C52: the next one takes it", func(t *testing.T) {
		if d := cmp.Diff(plugin.Swept{Attachments: 1, Addresses: 2, Files: 1}, n.swept(t)); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		n.clean(t)
	})
	t.Run("C52: a link that nothing on record speaks of is told, and stays", func(t *testing.T) {
		n.Run(t, "ip", "link", "add", "one0123456789ab", "type", "veth", "peer", "name", "oneof")
		if d := cmp.Diff(plugin.Swept{Strangers: []string{"one0123456789ab"}}, n.swept(t)); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		n.Run(t, "ip", "link", "show", "one0123456789ab")
	})
	t.Run("C52: where there is no state, nothing is made", func(t *testing.T) {
		n := &node{NS: n.NS, outside: n.outside, dataDir: filepath.Join(t.TempDir(), "none")}
		n.swept(t)
		if _, err := os.Stat(n.dataDir); !os.IsNotExist(err) {
			t.Errorf("got %v", err)
		}
	})
}

func TestC52AnAddressThatWasSweptIsNotGivenAtOnce(t *testing.T) {
	n := newSmallNode(t, "1h")
	n.fill(t)
	pod := netns.New(t, "pod")
	n.succeed(t, call{verb: "DEL", container: "c0", ifName: "eth0", stdin: n.config("1.1.0", n.more)})
	c := add("short", "eth0", pod, n.config("1.1.0", n.more))
	c.args = "IP=10.2.0.2"
	n.added(t, c)
	n.dies(t, pod, c)
	if d := cmp.Diff(plugin.Swept{Attachments: 1, Addresses: 1}, n.swept(t)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	n.fail(t, n.pod(t, "next"), 11, "released just now")
}

// sweepsUntil runs one sweep after the other, and tells how many succeeded.
func (n *node) sweepsUntil(stop <-chan struct{}) <-chan int {
	stopped := make(chan int)
	go func() { // ends when stop is closed
		sweeps := 0
		for {
			select {
			case <-stop:
				stopped <- sweeps
				return
			default:
				cmd := exec.Command(binary(), "sweep", n.dataDir)
				if err := n.Start(cmd); err == nil && cmd.Wait() == nil {
					sweeps++
				}
			}
		}
	}()
	return stopped
}

// TestC52SweepsWhileAddsAreKilled has sweeps run beside ADDs, half of which are killed.
func TestC52SweepsWhileAddsAreKilled(t *testing.T) {
	n := newNode(t)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	stop := make(chan struct{})
	stopped := n.sweepsUntil(stop)
	type living struct {
		pod *netns.NS
		call
	}
	var alive, all []living
	want, cut := soaking(12, 200), 0
	for i := 0; cut < want && i < 8*want && !t.Failed(); i++ {
		l := living{netns.New(t, "pod"), call{}}
		l.call = add(fmt.Sprint("c", i), "eth0", l.pod, n.withPorts(nil, bothProtocols(8000+i)...))
		all = append(all, l)
		if i%2 == 0 {
			n.added(t, l.call)
			alive = append(alive, l)
		} else if !n.killed(t, l.call, time.Duration(random.Int64N(int64(10*time.Millisecond)))) {
			cut++
		}
		if len(all) == 100 { // the range has no more than 254 addresses
			if len(alive) > 0 && alive[0].container == all[0].container {
				n.succeed(t, n.checkOf(t, alive[0].call))
				alive = alive[1:]
			}
			if err := all[0].pod.Close(); err != nil {
				t.Fatal(err)
			}
			all = all[1:]
		}
	}
	for _, l := range alive {
		n.succeed(t, n.checkOf(t, l.call))
	}
	close(stop)
	if sweeps := <-stopped; sweeps == 0 || cut < want {
		t.Fatalf("%d sweeps, %d ADDs cut short: this shows nothing", sweeps, cut)
	}
	for _, l := range all {
		if err := l.pod.Close(); err != nil {
			t.Fatal(err)
		}
	}
	rig.Eventually(t, "all links are gone", func() error {
		if strings.Contains(links(t, n.NS), ": one") {
			return errors.New("some are there")
		}
		return nil
	})
	n.swept(t)
	n.clean(t)
	if t.Failed() {
		t.Logf("seed %d", seed)
	}
}

func TestC52SweepGoesOnAfterErrors(t *testing.T) {
	n := newNode(t)
	pod := netns.New(t, "pod")
	c := add("c1", "eth0", pod, n.config("1.1.0", nil))
	n.added(t, c)
	n.dies(t, pod, c)
	broken := filepath.Join(n.dataDir, "broken")
	if err := errors.Join(os.MkdirAll(filepath.Join(broken, "attachments"), 0o700), os.MkdirAll(filepath.Join(broken, "lock"), 0o700)); err != nil {
		t.Fatal(err)
	}
	got, stderr, exit := n.sweptIn(t, n.NS)
	if d := cmp.Diff(plugin.Swept{Attachments: 1, Addresses: 2}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if exit != 1 || !strings.Contains(stderr, "network broken: ") {
		t.Errorf("got exit %d and %q, want 1 and the network's name", exit, stderr)
	}
	if got := n.files(t); len(got) != 0 {
		t.Errorf("files are left: %q", got)
	}
}
