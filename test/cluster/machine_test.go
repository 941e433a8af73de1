package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"onerule/test/cluster/pid1"
	"onerule/test/netns"
)

// stubs are a cache whose programs are all one.
func stubs(t *testing.T, program string) *Cache {
	t.Helper()
	root, err := repository(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, err := newCache(root, t.TempDir(), pieces(), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range c.programs {
		file := filepath.Join(t.TempDir(), "stub")
		if err := errors.Join(copyFile(program, file), c.keep(p.name, file)); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// machines gives the namespaces of a cluster in which nothing runs.
func machines(t *testing.T, f Family) *Cluster {
	t.Helper()
	netns.Privileged(t)
	pause := smallCache(t)
	build(t, pause)
	o := Options{Dir: filepath.Join(t.TempDir(), "c"), Nodes: 2, Family: f, With: Nothing}
	c, err := prepare(t.Context(), &o, stubs(t, pause.Program("pause")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Down(); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(c.makeCgroups(), c.launch(t.Context(), false)); err != nil {
		t.Fatal(err)
	}
	return c
}

func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", cmd, err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestNodesAreMachinesOfTheirOwn(t *testing.T) {
	c := machines(t, Dual)
	n1, n2 := c.Node("n1"), c.Node("n2")
	for name, want := range map[string]string{
		"hostname":                          "n2",
		"ls /etc/cni/net.d /opt/cni":        "/etc/cni/net.d:\n\n/opt/cni:\nbin",
		"cat /proc/sys/kernel/panic":        "10",
		"cat /etc/resolv.conf":              "options ndots:1",
		"cat /proc/1/comm":                  "keeper",
		"ls /var/lib":                       "",
		"readlink /proc/self/ns/net":        fmt.Sprint(must(t, os.Readlink, fmt.Sprintf("/proc/%d/ns/net", n2.pid))),
		"sh -c exit":                        "",
		"cat /proc/sys/net/ipv4/ip_forward": "1",
	} {
		t.Run(name, func(t *testing.T) {
			if got := output(t, n2.Command(t.Context(), strings.Fields(name)...)); got != want {
				t.Errorf("%s prints %q, want %q", name, got, want)
			}
		})
	}
	t.Run("a process is in the node's cgroups", func(t *testing.T) {
		for line := range strings.Lines(output(t, n1.Command(t.Context(), "cat", "/proc/self/cgroup"))) {
			path := strings.TrimSpace(line[strings.LastIndex(line, ":")+1:])
			if path != "/" && path != "/machine" {
				t.Errorf("in %s", line)
			}
		}
	})
	t.Run("nodes and the control plane reach each other in both families", func(t *testing.T) {
		for _, to := range append(n2.Addresses(), c.Control().Addresses()...) {
			l, err := netListen(map[bool]*Machine{true: c.Control(), false: n2}[slices.Contains(c.Control().Addresses(), to)], net.JoinHostPort(to.String(), "0"))
			if err != nil {
				t.Fatal(err)
			}
			conn, err := n1.Dial(t.Context(), "tcp", l.Addr().String())
			if err != nil {
				t.Errorf("from n1 to %s: %v", to, err)
			} else {
				_ = conn.Close()
			}
			_ = l.Close()
		}
	})
	t.Run("the exit code of a command is ours", func(t *testing.T) {
		err := n1.Command(t.Context(), "sh", "-c", "exit 7").Run()
		var ended *exec.ExitError
		if !errors.As(err, &ended) || ended.ExitCode() != 7 {
			t.Errorf("ended with %v, want 7", err)
		}
	})
	t.Run("a command dies with its context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cmd := n1.Command(ctx, "sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error { return n1.Command(t.Context(), "pgrep", "-x", "sleep").Run() })
		cancel()
		_ = cmd.Wait() // killed
		eventually(t, func() error {
			if n1.Command(t.Context(), "pgrep", "-x", "sleep").Run() == nil {
				return errors.New("it still runs")
			}
			return nil
		})
	})
}

// must gives what a function of a name gives.
func must(t *testing.T, f func(string) (string, error), name string) string {
	t.Helper()
	got, err := f(name)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func netListen(m *Machine, address string) (l net.Listener, err error) {
	err = m.inNetwork(func() error {
		l, err = net.Listen("tcp", address)
		return err
	})
	return l, err
}

func eventually(t *testing.T, try func() error) {
	t.Helper()
	if err := until(t.Context(), 20*time.Second, try); err != nil {
		t.Fatal(err)
	}
}

func TestPiecesAreStartedAndStopped(t *testing.T) {
	c := machines(t, IPv4)
	m := c.Control()
	ctx := t.Context()
	state := func() string {
		runs, how, err := m.Runs("etcd")
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(runs, " ", how)
	}
	if got := state(); got != "false never started" {
		t.Errorf("before: %s", got)
	}
	if err := m.Start(ctx, "etcd"); err != nil {
		t.Fatal(err)
	}
	if got := state(); got != "true " {
		t.Errorf("started: %s", got)
	}
	if err := m.Start(ctx, "etcd"); err == nil || err.Error() != "start etcd on control: etcd runs already" {
		t.Errorf("started twice: %v", err)
	}
	if err := m.Kill("etcd"); err != nil {
		t.Fatal(err)
	}
	if got := state(); got != "false ended by killed" {
		t.Errorf("killed: %s", got)
	}
	if err := errors.Join(m.Stop(ctx, "etcd"), m.Start(ctx, "etcd"), m.Stop(ctx, "etcd")); err != nil {
		t.Errorf("stopped, started, stopped: %v", err)
	}
	if got := state(); !strings.HasPrefix(got, "false ended ") {
		t.Errorf("stopped: %s", got)
	}
	if err := m.Start(ctx, "flux-capacitor"); err == nil || err.Error() != "start flux-capacitor on control: there is no such piece" {
		t.Errorf("an unknown piece: %v", err)
	}
	t.Run("a port that is taken is named, and who has it", func(t *testing.T) {
		l, err := netListen(m, "127.0.0.1:2379")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		want := fmt.Sprintf("start etcd on control: port 2379 is taken by process %d (cluster.test)", os.Getpid())
		if err := m.Start(ctx, "etcd"); err == nil || err.Error() != want {
			t.Errorf("error is %v, want %s", err, want)
		}
	})
	t.Run("another process opens the cluster", func(t *testing.T) {
		again, err := Open(ctx, c.Dir())
		if err != nil {
			t.Fatal(err)
		}
		if again.control.pid != m.pid || len(again.nodes) != 2 || again.nodes[1].pid != c.nodes[1].pid || again.Family() != IPv4 {
			t.Errorf("it has %d, %d nodes, %s", again.control.pid, len(again.nodes), again.Family())
		}
	})
	t.Run("a second cluster in the same folder is refused", func(t *testing.T) {
		_, err := up(ctx, Options{Dir: c.Dir(), With: Nothing}, c.pieces)
		want := "start a cluster: a cluster runs already in " + c.Dir() + ": take it down first (make cluster-down)"
		if err == nil || err.Error() != want {
			t.Errorf("error is %v, want %s", err, want)
		}
		if _, err := pid1.PID(m.socket()); err != nil {
			t.Errorf("and the first one is gone: %v", err)
		}
	})
}

// left says what there still is of a cluster.
func left(dir string, pids []int, cgroups []string) error {
	for _, p := range pids {
		if unix.Kill(p, 0) == nil {
			return fmt.Errorf("process %d runs", p)
		}
	}
	for _, path := range append([]string{dir}, cgroups...) {
		if _, err := os.Stat(path); err == nil {
			return fmt.Errorf("%s is there", path)
		}
	}
	return nil
}

func TestDownLeavesNothing(t *testing.T) {
	c := machines(t, IPv6)
	if err := c.Node("n1").Start(t.Context(), "kubelet"); err != nil {
		t.Fatal(err)
	}
	pids := []int{c.control.pid, c.nodes[0].pid, c.nodes[1].pid}
	if left(c.Dir(), pids, nil) == nil {
		t.Fatal("nothing is there before")
	}
	if err := Down(c.Dir()); err != nil {
		t.Fatal(err)
	}
	if err := left(c.Dir(), pids, c.settings.Cgroups); err != nil {
		t.Errorf("after: %v", err)
	}
	c.down.Do(func() {}) // done
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), c.Dir()) {
		t.Errorf("mounts are left, or %v", err)
	}
}

func TestAClusterThatCannotStartLeavesNothing(t *testing.T) {
	netns.Privileged(t)
	dir := filepath.Join(t.TempDir(), "c")
	_, err := up(t.Context(), Options{Dir: dir, Nodes: 1, With: Nothing}, stubs(t, "/bin/false"))
	want := "start a cluster: kube-apiserver on control: it has ended: ended with 1"
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error is %v, want %s", err, want)
	}
	if err := left(dir, nil, nil); err != nil {
		t.Error(err)
	}
}

func TestAnInterruptedStartLeavesNothing(t *testing.T) {
	netns.Privileged(t)
	pause := smallCache(t)
	build(t, pause)
	cache := stubs(t, pause.Program("pause"))
	for name, reached := range map[string]string{
		"while namespaces are made":      "cluster.json",
		"while the API server is silent": "control/log/kube-apiserver.log",
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "c")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() {
				_, err := up(ctx, Options{Dir: dir, Nodes: 1, With: Nothing}, cache)
				done <- err
			}()
			eventually(t, func() error {
				_, err := os.Stat(filepath.Join(dir, reached))
				return err
			})
			s, err := readSettings(dir)
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("error is %v", err)
			}
			if err := left(dir, nil, s.Cgroups); err != nil {
				t.Error(err)
			}
		})
	}
}
