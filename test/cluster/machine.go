package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"onerule/test/cluster/pid1"
	"onerule/test/netns"
)

// A Machine is a node or the control plane: namespaces that a first process holds.
type Machine struct {
	name      string
	number    int // of a node, from 1; 0: the control plane
	dir       string
	family    Family
	keeper    string // the program that is the first process
	pieces    *Cache
	pid       int            // of the first process, as we see it
	addresses []netip.Prefix // the primary one first
	commands  map[string]pid1.Command
}

// Name gives the machine's name: control, or that of its Node object.
func (m *Machine) Name() string { return m.name }

// Addresses gives the machine's addresses, that of the primary family first.
func (m *Machine) Addresses() []netip.Addr { return bare(m.addresses) }

// PodRanges gives the ranges of a node's pods.
func (m *Machine) PodRanges() []netip.Prefix { return m.family.podRanges(m.number) }

// Command gives a command that is ready to run in all of the machine's namespaces and
// cgroups. Programs are looked for there. When the context ends, or this process, it
// is killed.
func (m *Machine) Command(ctx context.Context, args ...string) *exec.Cmd {
	return m.enter(ctx, "all", args...)
}

// enter runs a command in the namespaces that a word names, see keeper enter.
func (m *Machine) enter(ctx context.Context, which string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, m.keeper, append([]string{"enter", which, fmt.Sprint(m.pid), m.cgroupsFile()}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+m.path())
	cmd.WaitDelay = 5 * time.Second // for children that keep the output open
	return cmd
}

// path is where programs are looked for on the machine: those of this cluster, of the
// cache, and ours first.
func (m *Machine) path() string {
	folders := append([]string{filepath.Dir(m.keeper)}, m.pieces.path()...)
	folders = append(folders, m.pieces.bin(), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
	return strings.Join(folders, ":")
}

func (m *Machine) cgroupsFile() string { return filepath.Join(m.dir, "cgroups") }
func (m *Machine) socket() string      { return filepath.Join(m.dir, "s") }

// Log gives the name of a piece's log.
func (m *Machine) Log(piece string) string { return filepath.Join(m.dir, "log", piece+".log") }

// Start starts a piece again that was stopped, with what it was started with. It is
// an error if it runs.
func (m *Machine) Start(_ context.Context, piece string) error {
	command, known := m.commands[piece]
	if !known {
		return fmt.Errorf("start %s on %s: there is no such piece", piece, m.name)
	}
	if err := m.portsFree(piece); err != nil {
		return err
	}
	command.Name, command.Log = piece, m.Log(piece)
	if err := pid1.Start(m.socket(), command); err != nil {
		return fmt.Errorf("start %s on %s: %w", piece, m.name, err)
	}
	return nil
}

// Stop ends a piece by SIGTERM, and by SIGKILL what is left after 10 s, and returns
// when it is gone. Of one that does not run nothing is said.
func (m *Machine) Stop(_ context.Context, piece string) error { return m.signal(piece, unix.SIGTERM) }

// Kill ends a piece by SIGKILL.
func (m *Machine) Kill(piece string) error { return m.signal(piece, unix.SIGKILL) }

func (m *Machine) signal(piece string, s unix.Signal) error {
	if err := pid1.Stop(m.socket(), piece, s); err != nil {
		return fmt.Errorf("stop %s on %s: %w", piece, m.name, err)
	}
	return nil
}

// Runs says whether a piece runs, and how it ended if it does not.
func (m *Machine) Runs(piece string) (bool, string, error) { return pid1.Runs(m.socket(), piece) }

// run runs a command on the machine to its end.
func (m *Machine) run(ctx context.Context, args ...string) error {
	if out, err := m.Command(ctx, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s on %s: %w: %s", filepath.Base(args[0]), m.name, err, lastLines(string(out), 5))
	}
	return nil
}

// load gives an image archive to the node's container runtime.
func (m *Machine) load(ctx context.Context, archive string) error {
	if err := m.run(ctx, "ctr", "--address", containerdSocket, "-n", "k8s.io", "images", "import", "--local", archive); err != nil {
		return fmt.Errorf("load image %s: %w", filepath.Base(archive), err)
	}
	return nil
}

// Dial connects from within the machine's network namespace.
func (m *Machine) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = m.inNetwork(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// inNetwork runs f in the machine's network namespace, on a thread that ends with it.
// Sockets that f opens stay in it.
func (m *Machine) inNetwork(f func() error) error {
	network, err := netns.At(m.name, fmt.Sprintf("/proc/%d/ns/net", m.pid))
	if err != nil {
		return err
	}
	return errors.Join(network.Do(f), network.Close())
}

// lastLines is the end of a text.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
