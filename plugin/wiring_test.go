package plugin_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"onerule/test/netns"
)

// sysfs runs a shell line in a namespace with a /sys that shows its links.
func sysfs(t *testing.T, in *netns.NS, line string) string {
	t.Helper()
	return strings.TrimSpace(in.Run(t, "unshare", "-m", "sh", "-ec", "mount -t sysfs sysfs /sys; "+line))
}

func TestD10MACsAreSetFromUserspace(t *testing.T) {
	n := newNode(t)
	pod := netns.New(t, "pod")
	r := n.added(t, add("c1", "eth0", pod, n.config("1.1.0", nil)))
	const setByUser = "3" // NET_ADDR_SET: udev leaves such a MAC alone
	for in, dev := range map[*netns.NS]string{n.NS: r.Interfaces[0].Name, pod: "eth0"} {
		if got := sysfs(t, in, "cat /sys/class/net/"+dev+"/addr_assign_type"); got != setByUser {
			t.Errorf("addr_assign_type of %s: got %s, want %s", dev, got, setByUser)
		}
	}
}

// A link with more queues, of which it would use the first, has the kernel wait at each ADD.
func TestLinksHaveOneQueueEachWay(t *testing.T) {
	n := newNode(t)
	pod := netns.New(t, "pod")
	r := n.added(t, add("c1", "eth0", pod, n.config("1.1.0", nil)))
	for in, dev := range map[*netns.NS]string{n.NS: r.Interfaces[0].Name, pod: "eth0"} {
		if got := in.Run(t, "ip", "-d", "link", "show", dev); !strings.Contains(got, " numtxqueues 1 ") || !strings.Contains(got, " numrxqueues 1 ") {
			t.Errorf("want one queue each way, got %s", got)
		}
	}
}

func TestD18NoRouteLocalnet(t *testing.T) {
	n := newNode(t)
	pod := netns.New(t, "pod")
	n.added(t, add("c1", "eth0", pod, n.config("1.1.0", nil)))
	for _, in := range []*netns.NS{n.NS, pod} {
		if out := in.Run(t, "sh", "-c", "cat /proc/sys/net/ipv4/conf/*/route_localnet"); strings.Contains(out, "1") {
			t.Errorf("route_localnet in %s: got %s", in.Name(), out)
		}
	}
}

// A pod announces itself as a router: the node takes neither route nor address.
func TestD16AdvertisementsOfPodsAreNotHeard(t *testing.T) {
	n := newNode(t)
	pod := netns.New(t, "pod")
	// As on many hosts, and no forwarding: the node would listen.
	n.Sysctl(t, "net.ipv6.conf.default.accept_ra", "2")
	n.Sysctl(t, "net.ipv6.conf.all.accept_ra", "2")
	r := n.added(t, add("c1", "eth0", pod, n.config("1.1.0", nil)))
	heard := netns.New(t, "heard")
	// The same advertisement on a link that listens, to see that it is a good one.
	netns.Wire(t, pod, "other0", heard, "eth0")
	heard.Sysctl(t, "net.ipv6.conf.eth0.accept_ra", "2")
	advertise(t, pod, "other0")
	advertise(t, pod, "eth0")
	route := func(in *netns.NS) string { return in.Run(t, "ip", "-6", "route", "show", "default", "proto", "ra") }
	eventually(t, "the listener takes the route", func() bool { return route(heard) != "" })
	if out := route(n.NS); out != "" {
		t.Errorf("the node has %s by %s", out, r.Interfaces[0].Name)
	}
}

// eventually waits for something, with a deadline.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !is() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not in time: %s", what)
		}
	}
}

// advertise sends a router advertisement with a prefix to all nodes of a link.
func advertise(t *testing.T, from *netns.NS, dev string) {
	t.Helper()
	eventually(t, dev+" can send", func() bool {
		return from.Do(func() error { return sendAdvertisement(dev) }) == nil
	})
}

func sendAdvertisement(dev string) error {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255); err != nil {
		return fmt.Errorf("hop limit: %w", err)
	}
	if err := unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, dev); err != nil {
		return fmt.Errorf("bind to %s: %w", dev, err)
	}
	ra := []byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0} // lifetime 1800 s
	prefix := append([]byte{3, 4, 64, 0xc0, 0, 1, 0, 0, 0, 0, 0x80, 0, 0, 0, 0, 0}, netip.MustParseAddr("2001:db8:bad::").AsSlice()...)
	to := &unix.SockaddrInet6{Addr: netip.MustParseAddr("ff02::1").As16()}
	if err := unix.Sendto(fd, append(ra, prefix...), 0, to); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

func TestD28AddressesAreUsedAgainAtOnce(t *testing.T) {
	n := newNode(t)
	peer := netns.New(t, "peer")
	n.added(t, add("peer", "eth0", peer, n.config("1.1.0", nil)))
	stdin := n.config("1.1.0", object{"runtimeConfig": object{"ips": []string{"10.1.0.77", "fd00:1::77"}}})
	var macs []string
	for i := range 3 {
		pod := netns.New(t, "pod")
		c := add(fmt.Sprint("c", i), "eth0", pod, stdin)
		r := n.added(t, c)
		macs = append(macs, r.Interfaces[1].Mac)
		for _, a := range addresses(t, r) {
			for _, from := range []*netns.NS{n.NS, peer, n.outside} {
				connect(t, from, pod, a)
			}
		}
		n.succeed(t, c.as("DEL"))
	}
	if macs[0] == macs[1] || macs[1] == macs[2] {
		t.Errorf("got MACs %v: pods with the same one show nothing", macs)
	}
}

// traced gives the system calls of a plugin's call.
func (n *node) traced(t *testing.T, c call, syscalls string) string {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs strace")
	}
	trace := filepath.Join(t.TempDir(), "trace")
	c.wrap = []string{strace, "-f", "-v", "-e", "trace=" + syscalls, "-o", trace}
	n.succeed(t, c)
	b, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestAddOfAnOrdinaryPod(t *testing.T) {
	n := newNode(t)
	c := add("c1", "eth0", netns.New(t, "pod"), n.config("1.1.0", nil))
	out := n.traced(t, c, "sendto,sendmsg,socket,execve,flock")
	t.Run("D30: dumps nothing from the kernel", func(t *testing.T) {
		if !strings.Contains(out, "RTM_NEWLINK") || strings.Contains(out, "NLM_F_DUMP") {
			t.Errorf("got %s, want messages, and no dump", out)
		}
	})
	t.Run("D22: changes no rules and starts no program", func(t *testing.T) {
		if !strings.Contains(out, "NETLINK_ROUTE") || strings.Contains(out, "NETLINK_NETFILTER") || strings.Contains(out, "flock") || strings.Count(out, "execve(") > 1 {
			t.Errorf("got %s", out)
		}
	})
	t.Run("D30: neither does DEL", func(t *testing.T) {
		out := n.traced(t, c.as("DEL"), "sendto,sendmsg,socket,flock")
		if !strings.Contains(out, "RTM_DELLINK") || strings.Contains(out, "NLM_F_DUMP") {
			t.Errorf("got %s, want messages, and no dump", out)
		}
		if strings.Contains(out, "NETLINK_NETFILTER") || strings.Contains(out, "flock") {
			t.Errorf("got %s, want nothing about host ports", out)
		}
	})
}

// An ADD that leads ports to the pod, and one of a second interface, ask for no more than
// they name. Only who gets UDP ports looks through connection tracking, for the flows of who
// had them before, which the kernel finds in no other way.
func TestADDsThatAreNotOrdinary(t *testing.T) {
	n := newNode(t)
	pod, tcp := netns.New(t, "pod"), func(port int) object {
		return object{"hostPort": port, "containerPort": podPort, "protocol": "tcp"}
	}
	n.added(t, add("c0", "eth0", netns.New(t, "first"), n.withPorts(nil, bothProtocols(8000)...))) // which makes the tables
	for name, tc := range map[string]struct {
		call call
		want []string // what each dump is of
	}{
		"D30: a TCP port": {add("c1", "eth0", pod, n.withPorts(nil, tcp(8001))), nil},
		"D30: ports of both protocols": {add("c2", "eth0", netns.New(t, "next"), n.withPorts(nil, bothProtocols(8002)...)),
			[]string{"RTM_GETADDR", "IPCTNL_MSG_CT_GET", "IPCTNL_MSG_CT_GET"}},
		"D30: a second interface": {add("c1", "net1", pod, n.config("1.1.0", nil)), nil},
	} {
		t.Run(name, func(t *testing.T) {
			out := n.traced(t, tc.call, "sendto,sendmsg")
			if !strings.Contains(out, "RTM_NEWLINK") {
				t.Errorf("got %s, want messages", out)
			}
			var dumps []string
			for line := range strings.Lines(out) {
				if strings.Contains(line, "NLM_F_DUMP") {
					dumps = append(dumps, regexp.MustCompile(`RTM_GET\w+|IPCTNL_MSG_\w+|NFT_MSG_\w+`).FindString(line))
				}
			}
			if d := cmp.Diff(tc.want, dumps); d != "" {
				t.Errorf("dumps (-want +got):\n%s", d)
			}
		})
	}
}

// Neither /run nor anything that listens there is needed.
func TestWithoutRun(t *testing.T) {
	n := newNode(t)
	pod := netns.New(t, "pod")
	c := add("c1", "eth0", pod, n.config("1.1.0", nil))
	c.wrap = []string{"unshare", "-m", "sh", "-c", `mount -t tmpfs tmpfs /run && exec "$0"`}
	t.Run("C42, D5: ADD and DEL without a daemon, an API and /run", func(t *testing.T) {
		for range 20 {
			n.added(t, c)
			n.succeed(t, c.as("DEL"))
		}
		n.clean(t)
	})
}

func TestCheckChangesNothing(t *testing.T) {
	n := newNode(t)
	pod := netns.New(t, "pod")
	c := add("c1", "eth0", pod, n.config("1.1.0", nil))
	r := n.added(t, c)
	// The kernel looks at carriers up to a second later, by itself.
	carrier := regexp.MustCompile(`NO-CARRIER,|,LOWER_UP| state [A-Z]+`)
	state := func() string {
		out := n.Run(t, "sh", "-c", "ip link; ip addr; ip route; ip -6 route; ip neigh show nud permanent; find "+n.dataDir+" -type f -printf '%p %T@ %s\\n' | sort")
		out += pod.Run(t, "sh", "-c", "ip link; ip addr; ip route; ip -6 route; ip rule")
		return carrier.ReplaceAllString(out, "")
	}
	check := n.checkOf(t, c)
	t.Run("C43: the same answer each time", func(t *testing.T) {
		for range 5 {
			n.succeed(t, check)
		}
	})
	t.Run("C45: it repairs nothing, also when several look at once", func(t *testing.T) {
		n.Run(t, "ip", "route", "del", firstPod4)
		before := state()
		done := make(chan answer)
		for range 8 {
			go func() { done <- n.run(t, check) }()
		}
		for range 8 {
			if a := <-done; a.exit == 0 || !strings.Contains(a.stdout, "no route to "+firstPod4) {
				t.Errorf("got %+v, want an error about the route", a)
			}
		}
		if after := state(); after != before {
			t.Errorf("it changed (-before +after):\n%s", cmp.Diff(before, after))
		}
	})
	t.Run("C44: it fails when others take the link down", func(t *testing.T) {
		n.Run(t, "ip", "link", "set", r.Interfaces[0].Name, "down")
		n.fail(t, check, 106, "is down")
	})
}

func TestJournalIsBounded(t *testing.T) {
	n := newNode(t)
	journal := filepath.Join(n.dataDir, "pods/journal")
	gc := call{verb: "GC", stdin: n.config("1.1.0", object{"cni.dev/valid-attachments": []object{}})}
	once := func() {
		t.Helper()
		n.added(t, add("c1", "eth0", netns.New(t, "pod"), n.config("1.1.0", nil)))
		n.succeed(t, gc)
	}
	once()
	t.Run("C10: a full one makes room, and two are kept", func(t *testing.T) {
		for range 2 {
			if err := os.WriteFile(journal, []byte(strings.Repeat("x\n", 200_000)), 0o600); err != nil {
				t.Fatal(err)
			}
			once()
		}
		names := n.Run(t, "sh", "-c", "ls "+filepath.Dir(journal)+" | grep journal")
		b, err := os.ReadFile(journal)
		if err != nil || names != "journal\njournal.old\n" || !strings.HasSuffix(string(b), "the runtime does not list it\n") || len(b) > 1000 {
			t.Errorf("got files %q and a journal of %d bytes, %v", names, len(b), err)
		}
	})
	t.Run("C10: one that nobody reads blocks nothing", func(t *testing.T) {
		if err := os.Remove(journal); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mkfifo(journal, 0o600); err != nil {
			t.Fatal(err)
		}
		once()
	})
}
