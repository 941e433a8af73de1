package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"onerule/test/cluster/pid1"
)

// launch starts the first process of the control plane, and through it those of the
// nodes, and connects them.
func (c *Cluster) launch(ctx context.Context, stay bool) error {
	if err := c.launchControl(ctx, stay); err != nil {
		return err
	}
	for _, n := range c.nodes {
		if err := c.launchNode(ctx, n); err != nil {
			return err
		}
	}
	return c.connect(ctx)
}

func (c *Cluster) launchControl(ctx context.Context, stay bool) error {
	m := c.control
	log, err := os.Create(m.Log("keeper"))
	if err != nil {
		return fmt.Errorf("log of the first process: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(m.keeper, "first", "control", m.name, m.dir)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}
	if !stay {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if err := startAndWait(cmd); err != nil {
		return fmt.Errorf("make namespaces: %w", err)
	}
	return m.find(ctx)
}

// startAndWait starts a command on a thread that stays until it ends: the kernel
// delivers the parent-death signal when the thread that started a child ends.
func startAndWait(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	go func() { // ends with the command
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // Down kills it
		}
	}()
	return <-started
}

func (c *Cluster) launchNode(ctx context.Context, n *Machine) error {
	err := pid1.Start(c.control.socket(), pid1.Command{
		Name: n.name, Args: []string{n.keeper, "node", n.name, n.dir, n.cgroupsFile()}, Log: n.Log("keeper"),
	})
	if err != nil {
		return fmt.Errorf("make namespaces of %s: %w", n.name, err)
	}
	return n.find(ctx)
}

// find waits until the first process answers, and notes its number.
func (m *Machine) find(ctx context.Context) error {
	err := until(ctx, 20*time.Second, func() (err error) {
		m.pid, err = pid1.PID(m.socket())
		return err
	})
	if err == nil {
		return nil
	}
	log, _ := os.ReadFile(m.Log("keeper")) // nothing more to say without it
	return fmt.Errorf("namespaces of %s: %w: %s", m.name, err, lastLines(string(log), 3))
}

// connect wires the control plane and all nodes to one bridge.
func (c *Cluster) connect(ctx context.Context) error {
	pids := map[string]int{}
	for _, n := range c.nodes {
		pids[n.name] = n.pid
	}
	// The machine's /proc: ip finds the namespaces of the nodes there.
	if err := c.control.ip(ctx, controlLinks(c.settings.Family, pids, len(c.nodes))); err != nil {
		return err
	}
	for _, n := range c.nodes {
		if err := n.ip(ctx, nodeLinks(c.settings.Family, n.number)); err != nil {
			return err
		}
		if staticRoutes(c.settings.With) {
			if err := n.ip(ctx, podRoutes(c.settings.Family, len(c.nodes), n.number)); err != nil {
				return err
			}
		}
	}
	return c.control.ip(ctx, podRoutes(c.settings.Family, len(c.nodes), 0))
}

// ip gives commands to ip(8) in the machine's network namespace.
func (m *Machine) ip(ctx context.Context, commands string) error {
	cmd := m.enter(ctx, "net", "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(commands)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("links of %s: %w: %s", m.name, err, lastLines(string(out), 3))
	}
	return nil
}

// controlLinks makes the bridge and a wire to each node.
func controlLinks(f Family, pids map[string]int, nodes int) string {
	var b bytes.Buffer
	fmt.Fprintln(&b, "link add br0 type bridge\nlink set br0 up")
	for _, a := range f.controlAddresses() {
		fmt.Fprintf(&b, "address add %s dev br0%s\n", a, noDAD(a.Addr().Is6()))
	}
	for i := 1; i <= nodes; i++ {
		name := nodeName(i)
		fmt.Fprintf(&b, "link add %s type veth peer name eth0 netns %d\nlink set %s master br0 up\n", name, pids[name], name)
	}
	return b.String()
}

// nodeLinks sets up a node's end. The control plane is its way out, which ends there.
func nodeLinks(f Family, n int) string {
	var b bytes.Buffer
	fmt.Fprintln(&b, "link set eth0 up")
	for i, a := range f.nodeAddresses(n) {
		fmt.Fprintf(&b, "address add %s dev eth0%s\n", a, noDAD(a.Addr().Is6()))
		fmt.Fprintf(&b, "route add default via %s\n", f.controlAddresses()[i].Addr())
	}
	return b.String()
}

// podRoutes are the ways to the pods of all nodes but one.
func podRoutes(f Family, nodes, but int) string {
	var b bytes.Buffer
	for n := 1; n <= nodes; n++ {
		for i, r := range f.podRanges(n) {
			if n != but {
				fmt.Fprintf(&b, "route add %s via %s\n", r, f.nodeAddresses(n)[i].Addr())
			}
		}
	}
	return b.String()
}

// noDAD leaves out the search for duplicates, a second in which the address is not
// used.
func noDAD(six bool) string {
	if six {
		return " nodad"
	}
	return ""
}

// find notes the numbers of all first processes of a cluster that runs.
func (c *Cluster) find() error {
	for _, m := range append([]*Machine{c.control}, c.nodes...) {
		pid, err := pid1.PID(m.socket())
		if err != nil {
			return fmt.Errorf("no cluster runs in %s: start one first (make cluster-up)", c.dir)
		}
		m.pid = pid
	}
	return nil
}

// errEnded says that what is waited for has ended.
var errEnded = errors.New("it has ended")

// until tries something again until it succeeds, the time is up, or it is no use.
func until(ctx context.Context, atMost time.Duration, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		last := try()
		if last == nil {
			return nil
		}
		if errors.Is(last, errEnded) {
			return last
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("not within %v: %w", atMost, last)
			}
			return ctx.Err()
		case <-again.C:
		}
	}
}

// buildKeeper builds the program of the first processes into the cluster's folder: it
// belongs to this tree, and takes a second.
func buildKeeper(ctx context.Context, root, dir string) (string, error) {
	keeper := filepath.Join(dir, "bin", "keeper")
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", keeper, "./test/cluster/pid1/keeper")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build keeper: %w: %s", err, lastLines(string(out), 5))
	}
	return keeper, nil
}
