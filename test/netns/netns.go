// Package netns makes network namespaces for tests: hosts, and wires between
// them. Nothing it does is seen by the machine's own namespace, and everything
// goes with the test.
package netns

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// An NS is a network namespace that lives as long as its descriptor is open or a
// process is in it.
type NS struct {
	name string
	file *os.File
}

// Privileged skips the test with the reason where namespaces can't be made. With
// ONERULE_PRIVILEGED=1, which make test sets, it fails instead: a tier that needs
// root must not pass by running nothing.
func Privileged(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	const why = "needs root: network namespaces, nftables and sysctls"
	if os.Getenv("ONERULE_PRIVILEGED") == "1" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// New makes a namespace with its loopback up and without limits on ICMP errors
// (20 refusals at once gave 8 silent ones under the defaults). It goes with the
// test.
func New(t testing.TB, name string) *NS {
	t.Helper()
	Privileged(t)
	n, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// Open makes a namespace as New does, for programs that are no tests.
func Open(name string) (*NS, error) {
	n := &NS{name: name}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace %s: %w", name, err)
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return fmt.Errorf("open network namespace %s: %w", name, err)
		}
		n.file = f
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find loopback of %s: %w", name, err)
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return fmt.Errorf("set up loopback of %s: %w", name, err)
		}
		for _, key := range []string{"net.ipv4.icmp_ratelimit", "net.ipv6.icmp.ratelimit"} {
			if err := sysctl(key, "0"); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return n, nil
}

// At gives a namespace that is there already by a file that stands for it, such as
// /proc/PID/ns/net.
func At(name, path string) (*NS, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", name, err)
	}
	return &NS{name: name, file: f}, nil
}

// Name gives the name that New was called with.
func (n *NS) Name() string { return n.name }

// Path gives a file name that other processes can open while the test runs, such
// as CNI_NETNS.
func (n *NS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd()) }

// Fd gives the descriptor, for setns and for libraries that dial in a namespace.
func (n *NS) Fd() int { return int(n.file.Fd()) }

// Close lets the namespace go. Processes in it keep it alive.
func (n *NS) Close() error { return n.file.Close() }

// Do runs f in the namespace, on a thread of its own that ends with f. Goroutines
// that f starts are not in the namespace; sockets that it opens stay in it.
func (n *NS) Do(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(n.Fd(), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", n.name, err)
		}
		return f()
	})
}

// Start starts a command in the namespace.
func (n *NS) Start(cmd *exec.Cmd) error { return n.Do(cmd.Start) }

// Output runs a program in the namespace to its end and gives what it printed on
// both streams, also when it fails.
func (n *NS) Output(program string, args ...string) (string, error) {
	var out []byte
	err := n.Do(func() (err error) {
		out, err = exec.Command(program, args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s %s in %s: %w: %s", program, strings.Join(args, " "), n.name, err, out)
		}
		return nil
	})
	return string(out), err
}

// Run is Output for tests: a failure ends the test.
func (n *NS) Run(t testing.TB, program string, args ...string) string {
	t.Helper()
	out, err := n.Output(program, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Sysctl writes a sysctl of the namespace, named with dots (slashes where a name
// part has dots).
func (n *NS) Sysctl(t testing.TB, key, value string) {
	t.Helper()
	if err := n.Do(func() error { return sysctl(key, value) }); err != nil {
		t.Fatal(err)
	}
}

// Forward makes the namespace a router for both families.
func (n *NS) Forward(t testing.TB) {
	t.Helper()
	n.Sysctl(t, "net.ipv4.ip_forward", "1")
	n.Sysctl(t, "net.ipv6.conf.all.forwarding", "1")
}

// Wire connects two namespaces by a veth pair, both ends up.
func Wire(t testing.TB, a *NS, aDev string, b *NS, bDev string) {
	t.Helper()
	if err := Connect(a, aDev, b, bDev); err != nil {
		t.Fatal(err)
	}
}

// Connect is Wire for programs that are no tests.
func Connect(a *NS, aDev string, b *NS, bDev string) error {
	err := a.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = aDev
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: bDev, PeerNamespace: netlink.NsFd(b.Fd())})
	})
	if err != nil {
		return fmt.Errorf("wire %s/%s to %s/%s: %w", a.name, aDev, b.name, bDev, err)
	}
	for _, end := range []struct {
		ns  *NS
		dev string
	}{{a, aDev}, {b, bDev}} {
		if err := end.ns.up(end.dev); err != nil {
			return err
		}
	}
	return nil
}

func (n *NS) up(dev string) error {
	return n.Do(func() error {
		link, err := netlink.LinkByName(dev)
		if err != nil {
			return fmt.Errorf("find %s in %s: %w", dev, n.name, err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("set up %s in %s: %w", dev, n.name, err)
		}
		return nil
	})
}

// Addr adds addresses to a device, IPv6 ones without duplicate detection.
func (n *NS) Addr(t testing.TB, dev string, prefixes ...string) {
	t.Helper()
	if err := n.AddAddr(dev, prefixes...); err != nil {
		t.Fatal(err)
	}
}

// AddAddr is Addr for programs that are no tests.
func (n *NS) AddAddr(dev string, prefixes ...string) error {
	return n.Do(func() error {
		link, err := netlink.LinkByName(dev)
		if err != nil {
			return fmt.Errorf("find %s in %s: %w", dev, n.name, err)
		}
		for _, p := range prefixes {
			addr, err := netlink.ParseAddr(p)
			if err != nil {
				return fmt.Errorf("address %s: %w", p, err)
			}
			addr.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrAdd(link, addr); err != nil {
				return fmt.Errorf("add %s to %s in %s: %w", p, dev, n.name, err)
			}
		}
		return nil
	})
}

// Route adds a route by way of a gateway; dst may be "default".
func (n *NS) Route(t testing.TB, dst, via string) {
	t.Helper()
	if err := n.AddRoute(dst, via); err != nil {
		t.Fatal(err)
	}
}

// AddRoute is Route for programs that are no tests.
func (n *NS) AddRoute(dst, via string) error {
	gw, err := netip.ParseAddr(via)
	if err != nil {
		return fmt.Errorf("gateway %q: %w", via, err)
	}
	return n.Do(func() error {
		r := &netlink.Route{Gw: gw.AsSlice()}
		if dst != "default" {
			if r.Dst, err = netlink.ParseIPNet(dst); err != nil {
				return fmt.Errorf("route to %q: %w", dst, err)
			}
		}
		if err := netlink.RouteAdd(r); err != nil {
			return fmt.Errorf("add route to %s by %s in %s: %w", dst, via, n.name, err)
		}
		return nil
	})
}

func sysctl(key, value string) error {
	path := filepath.Join("/proc/sys", strings.ReplaceAll(key, ".", "/"))
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set sysctl %s to %s: %w", key, value, err)
	}
	return nil
}

// onThread runs f on an operating system thread that Go ends afterwards, since it
// may be in another namespace than the rest of the process.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			// Not the first thread: it would not end, and its namespace is the process's
			// for all who look into /proc. While we hold it, the next one is another.
			defer runtime.UnlockOSThread()
			done <- onThread(f)
			return
		}
		done <- f()
	}()
	return <-done
}
