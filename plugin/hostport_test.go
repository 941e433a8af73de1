package plugin_test

import (
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"onerule/test/netns"
	"onerule/test/wired"
)

// The port of the node, and of the pods behind it.
const (
	hostPort = 8080
	podPort  = 80
)

// bothProtocols gives portMappings of a port for TCP and UDP.
func bothProtocols(port int) []object {
	return []object{
		{"hostPort": port, "containerPort": podPort, "protocol": "tcp"},
		{"hostPort": port, "containerPort": podPort, "protocol": "udp"},
	}
}

// withPorts gives a configuration with portMappings.
func (n *node) withPorts(more object, ports ...object) string {
	keys := object{"runtimeConfig": object{"portMappings": ports}}
	maps.Copy(keys, more)
	return n.config("1.1.0", keys)
}

// published makes a pod that answers on podPort by its name, and has hostPort.
func (n *node) published(t *testing.T, name string) (call, *netns.NS, []netip.Addr) {
	t.Helper()
	pod := netns.New(t, name)
	c := add(name, "eth0", pod, n.withPorts(nil, bothProtocols(hostPort)...))
	addrs := addresses(t, n.added(t, c))
	wired.Serve(t, pod, name, netip.AddrPortFrom(netip.Addr{}, podPort))
	return c, pod, addrs
}

// nodeAddrs are those of the node and of the host outside, by family.
func nodeAddrs() [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr(nodeAddr4), netip.MustParseAddr(nodeAddr6)}
}

func outAddrs() [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr(outAddr4), netip.MustParseAddr(outAddr6)}
}

// hears asks a port over UDP and TCP, and wants to hear who answered and whom it saw.
// Without want it wants no answer. On a busy machine one may come too late.
func hears(t *testing.T, from *netns.NS, at netip.AddrPort, want string) {
	t.Helper()
	for _, network := range []string{"udp", "tcp"} {
		got, err := wired.Ask(from, network, netip.AddrPort{}, at)
		for tries := 1; want != "" && errors.Is(err, os.ErrDeadlineExceeded) && tries < 4; tries++ {
			got, err = wired.Ask(from, network, netip.AddrPort{}, at)
		}
		if want == "" && err == nil || want != "" && (err != nil || got != want) {
			t.Errorf("%s from %s to %s: %q, %v, want %q", network, from.Name(), at, got, err, want)
		}
	}
}

// hostPortRules gives what the kernel has of host ports.
func (n *node) hostPortRules(t testing.TB) string {
	t.Helper()
	return n.Run(t, "sh", "-c", "nft list table ip onerule-hostports 2>/dev/null; nft list table ip6 onerule-hostports 2>/dev/null; true")
}

// hostPortFiles lists the claims on disk, also half-written ones.
func (n *node) hostPortFiles(t testing.TB) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(n.dataDir, "pods/hostports"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "lock" {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestHostPorts(t *testing.T) {
	n := newNode(t)
	first, a, addrs := n.published(t, "a")
	b := netns.New(t, "b")
	second := add("b", "eth0", b, n.config("1.1.0", nil))
	others := addresses(t, n.added(t, second))
	for f, at := range nodeAddrs() {
		to := netip.AddrPortFrom(at, hostPort)
		family := []string{"IPv4", "IPv6"}[f]
		t.Run("C58: from outside as itself, "+family, func(t *testing.T) { hears(t, n.outside, to, "a saw "+outAddrs()[f].String()) })
		t.Run("C58: from another pod as itself, "+family, func(t *testing.T) { hears(t, b, to, "a saw "+others[f].String()) })
		t.Run("C58: from the node, "+family, func(t *testing.T) { hears(t, n.NS, to, "a saw "+at.String()) })
		t.Run("C58, D34: from the pod itself, "+family, func(t *testing.T) { hears(t, a, to, "a saw "+at.String()) })
		t.Run("C58: not at the outside's address, "+family, func(t *testing.T) {
			hears(t, a, netip.AddrPortFrom(outAddrs()[f], hostPort), "")
		})
	}
	t.Run("D18: route_localnet is off all the same", func(t *testing.T) {
		if out := n.Run(t, "sh", "-c", "cat /proc/sys/net/ipv4/conf/*/route_localnet"); strings.Contains(out, "1") {
			t.Errorf("got %s", out)
		}
	})
	t.Run("C58, D24: a port that a pod has is refused by its name, and stays with it", func(t *testing.T) {
		n.succeed(t, second.as("DEL"))
		second.stdin = n.withPorts(nil, bothProtocols(hostPort)[1])
		n.fail(t, second, 109, "hostPort udp 8080 is taken by a:eth0")
		if out := links(t, b); strings.Contains(out, "eth0") {
			t.Errorf("the other pod has a link: %s", out)
		}
		if got := n.hostPortFiles(t); !slices.Equal(got, []string{"a:eth0.json"}) {
			t.Errorf("got files %q", got)
		}
		hears(t, n.outside, netip.AddrPortFrom(nodeAddrs()[0], hostPort), "a saw "+outAddr4)
	})
	t.Run("D3, C36: a DEL without a namespace closes the port", func(t *testing.T) {
		del := first.as("DEL")
		del.netns = ""
		n.succeed(t, del)
		n.clean(t)
		for _, at := range nodeAddrs() {
			hears(t, n.outside, netip.AddrPortFrom(at, hostPort), "")
		}
	})
	t.Run("C58: and then the other pod gets it", func(t *testing.T) {
		if got := addresses(t, n.added(t, second)); slices.Equal(got, addrs) {
			t.Fatalf("got %s again: this shows nothing", got)
		}
		wired.Serve(t, b, "b", netip.AddrPortFrom(netip.Addr{}, podPort))
		for f, at := range nodeAddrs() {
			got, err := wired.Ask(n.outside, "udp", netip.AddrPort{}, netip.AddrPortFrom(at, hostPort))
			if want := "b saw " + outAddrs()[f].String(); err != nil || got != want {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
		}
	})
}

// A raw socket stands for an SCTP server, which the kernel may not have.
func TestC58SCTP(t *testing.T) {
	n := newNode(t)
	pod := netns.New(t, "pod")
	addrs := addresses(t, n.added(t, add("c1", "eth0", pod, n.withPorts(nil, object{"hostPort": hostPort, "containerPort": podPort, "protocol": "SCTP"}))))
	for f, at := range nodeAddrs() {
		listener := rawSCTP(t, pod, addrs[f])
		client := rawSCTP(t, n.outside, outAddrs()[f])
		if err := unix.Sendto(client, sctpInit(hostPort), 0, sockaddr(at)); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 256)
		size, _, err := unix.Recvfrom(listener, got, 0)
		if err != nil {
			t.Fatalf("at %s: nothing came from %s: %v", addrs[f], at, err)
		}
		if got = got[:size]; at.Is4() {
			got = got[int(got[0]&0xf)*4:]
		}
		if port := int(got[2])<<8 | int(got[3]); port != podPort {
			t.Errorf("at %s: got port %d, want %d", addrs[f], port, podPort)
		}
	}
}

func rawSCTP(t *testing.T, in *netns.NS, at netip.Addr) (fd int) {
	t.Helper()
	domain := unix.AF_INET
	if at.Is6() {
		domain = unix.AF_INET6
	}
	err := in.Do(func() (err error) {
		if fd, err = unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP); err != nil {
			return err
		}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}); err != nil {
			return err
		}
		return unix.Bind(fd, sockaddr(at))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is6() {
		return &unix.SockaddrInet6{Addr: a.As16()}
	}
	return &unix.SockaddrInet4{Addr: a.As4()}
}

// sctpInit gives the first packet of an association (RFC 9260, 3.3.2).
func sctpInit(port uint16) []byte {
	b := []byte{
		0x9c, 0x40, byte(port >> 8), byte(port), 0, 0, 0, 0, 0, 0, 0, 0, // ports, no tag yet, checksum
		1, 0, 0, 20, 0, 0, 0, 9, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, // INIT: length, tag, window, streams, number
	}
	sum := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	for i := range 4 {
		b[8+i] = byte(sum >> (8 * i))
	}
	return b
}

func TestHostPortsThatAreRefused(t *testing.T) {
	n := newNode(t)
	pod := netns.New(t, "pod")
	of := func(ports any) call {
		return add("c1", "eth0", pod, n.config("1.1.0", object{"runtimeConfig": object{"portMappings": ports}}))
	}
	for name, tc := range map[string]struct {
		ports any
		what  string
	}{
		"a port too high":                   {[]object{{"hostPort": 65536, "containerPort": 80}}, "65536"},
		"a port below zero":                 {[]object{{"hostPort": -1, "containerPort": 80}}, "-1"},
		"no port of the pod":                {[]object{{"hostPort": 80}}, "port 0"},
		"a protocol without ports":          {[]object{{"hostPort": 80, "containerPort": 80, "protocol": "icmp"}}, "icmp"},
		"an address that is none":           {[]object{{"hostPort": 80, "containerPort": 80, "hostIP": "here"}}, "here"},
		"UDP at a loopback address":         {[]object{{"hostPort": 80, "containerPort": 80, "protocol": "udp", "hostIP": "127.0.0.1"}}, "127.0.0.1"},
		"the same port twice":               {append(bothProtocols(80), bothProtocols(80)...), "twice"},
		"no list":                           {"80:80", "portMappings"},
		"a port that is no number, as text": {[]object{{"hostPort": "80", "containerPort": 80}}, "portMappings"},
	} {
		t.Run("C58: "+name, func(t *testing.T) {
			n.fail(t, of(tc.ports), 7, tc.what)
			if _, err := os.Stat(n.dataDir); !os.IsNotExist(err) {
				t.Errorf("the state directory is there: %v", err)
			}
		})
	}
	t.Run("C58: a family that the pod has not", func(t *testing.T) {
		n.fail(t, add("c1", "eth0", pod, n.withPorts(object{"ipam": object{"ranges": [][]object{{{"subnet": podRange4}}}}},
			object{"hostPort": 80, "containerPort": 80, "hostIP": "2001:db8::1"})), 7, "2001:db8::1")
	})
	t.Run("C28, D24: a process of the node has it", func(t *testing.T) {
		var l net.Listener
		if err := n.Do(func() (err error) { l, err = net.Listen("tcp", fmt.Sprint(":", hostPort)); return err }); err != nil {
			t.Fatal(err)
		}
		n.fail(t, of(bothProtocols(hostPort)), 109, fmt.Sprintf("taken by process plugin.test (%d)", os.Getpid()))
		n.clean(t)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("C34: no port of the node, or null, is none", func(t *testing.T) {
		for _, none := range []any{nil, []object{}, []object{{"hostPort": 0, "containerPort": 80}}} {
			n.added(t, of(none))
			n.succeed(t, of(none).as("DEL"))
		}
		if got := n.hostPortRules(t); got != "" {
			t.Errorf("got %s, want no table", got)
		}
	})
}

// A client that keeps its port, as a syslog sender does.
func TestD25UDPClientsFollowTheirHostPort(t *testing.T) {
	n := newNode(t)
	for f, at := range nodeAddrs() {
		from := netip.AddrPortFrom(outAddrs()[f], 5140)
		ask := func() string {
			answer, _ := wired.Ask(n.outside, "udp", from, netip.AddrPortFrom(at, hostPort)) // lost, or refused: no answer
			return answer
		}
		for _, name := range []string{"a", "b"} {
			c, _, _ := n.published(t, name)
			if got, want := ask(), name+" saw "+outAddrs()[f].String(); got != want {
				t.Errorf("with pod %s: got %q, want %q", name, got, want)
			}
			n.succeed(t, c.as("DEL"))
			if got := ask(); got != "" {
				t.Errorf("after pod %s: got %q from a pod that is gone", name, got)
			}
		}
	}
}

func TestC58PodsWithHostPortsComeAndGoAtOnce(t *testing.T) {
	const pods = 12
	n := newNode(t)
	calls := make([]call, pods)
	for i := range calls {
		pod := netns.New(t, fmt.Sprint("pod", i))
		calls[i] = add(pod.Name(), "eth0", pod, n.withPorts(nil, bothProtocols(9000+i)...))
		wired.Serve(t, pod, pod.Name(), netip.AddrPortFrom(netip.Addr{}, podPort))
	}
	all := func(list []call, verb string) {
		var wg sync.WaitGroup
		for _, c := range list {
			wg.Go(func() {
				if a := n.run(t, c.as(verb)); a.exit != 0 {
					t.Errorf("%s of %s: %+v", verb, c.container, a)
				}
			})
		}
		wg.Wait()
	}
	all(calls, "ADD")
	all(calls[:pods/2], "DEL")
	for i := range calls {
		want := ""
		if i >= pods/2 {
			want = fmt.Sprintf("pod%d saw %s", i, outAddr4)
		}
		hears(t, n.outside, netip.AddrPortFrom(nodeAddrs()[0], uint16(9000+i)), want)
	}
	all(calls, "DEL")
	n.clean(t)
}

func TestCheckOfHostPorts(t *testing.T) {
	n := newNode(t)
	pod := netns.New(t, "pod")
	for _, tc := range []struct{ name, spoil, what string }{
		{"nothing is wrong", "true", ""},
		{"the element is missing", "nft delete element ip onerule-hostports hostports-any '{ tcp . 8080 }'", "hostports-any"},
		{"the element leads elsewhere", "nft 'delete element ip6 onerule-hostports hostports-any { udp . 8080 }; add element ip6 onerule-hostports hostports-any { udp . 8080 comment \"c1:eth0\" : fd00:1::99 . 80 }'", "hostports-any"},
		{"the element of one address is missing", "nft delete element ip onerule-hostports hostports '{ 192.0.2.1 . tcp . 9090 }'", "hostports"},
		{"a table is gone", "nft delete table ip6 onerule-hostports", "onerule-hostports is missing"},
		{"the claim is gone", "rm $state/hostports/c1:eth0.json", "c1:eth0"},
		{"the claim is truncated", "truncate -s 20 $state/hostports/c1:eth0.json", "c1:eth0"},
	} {
		t.Run("C44, C58: "+tc.name, func(t *testing.T) {
			c := add("c1", "eth0", pod, n.withPorts(nil, append(bothProtocols(hostPort), object{"hostPort": 9090, "containerPort": 80, "hostIP": nodeAddr4})...))
			n.added(t, c)
			check := n.checkOf(t, c)
			n.Run(t, "sh", "-ec", "state="+filepath.Join(n.dataDir, "pods")+"; "+tc.spoil)
			if tc.what == "" {
				n.succeed(t, check)
			} else {
				n.fail(t, check, 106, tc.what)
			}
			n.succeed(t, c.as("DEL"))
			n.clean(t)
		})
	}
}

func TestStatusOfHostPorts(t *testing.T) {
	n := newNode(t)
	n.added(t, add("c1", "eth0", netns.New(t, "pod"), n.withPorts(nil, bothProtocols(hostPort)...)))
	c := statusOf(n, podRange4, podRange6)
	n.succeed(t, c)
	t.Run("C47: others flushed the rules", func(t *testing.T) {
		n.Run(t, "nft", "flush", "ruleset")
		n.softly(t, c, 51, "host ports don't lead to their pods")
	})
	t.Run("C46: the next pod with a host port puts all right", func(t *testing.T) {
		n.added(t, add("c2", "eth0", netns.New(t, "other"), n.withPorts(nil, bothProtocols(hostPort+1)...)))
		n.succeed(t, c)
	})
}

func TestGCOfHostPorts(t *testing.T) {
	n := newNode(t)
	pods := map[string]*netns.NS{}
	for i, id := range []string{"c1", "c2", "c3"} {
		pods[id] = netns.New(t, id)
		n.added(t, add(id, "eth0", pods[id], n.withPorts(nil, bothProtocols(9000+i)...)))
	}
	gc := func(keys object) { n.succeed(t, call{verb: "GC", stdin: n.config("1.1.0", keys)}) }
	want := func(t *testing.T, names ...string) {
		t.Helper()
		for i, id := range []string{"c1", "c2", "c3"} {
			is := slices.Contains(names, id)
			if got := strings.Contains(n.hostPortRules(t), fmt.Sprintf("tcp . %d ", 9000+i)); got != is {
				t.Errorf("element of %s: got %t, want %t", id, got, is)
			}
			if got := slices.Contains(n.hostPortFiles(t), id+":eth0.json"); got != is {
				t.Errorf("file of %s: got %t, want %t", id, got, is)
			}
		}
	}
	t.Run("C48, C58: those that the runtime does not list go", func(t *testing.T) {
		gc(object{"cni.dev/valid-attachments": []object{attachment("c2"), attachment("c3")}})
		want(t, "c2", "c3")
	})
	t.Run("C50, C58: without a list those whose link is gone go", func(t *testing.T) {
		pods["c2"].Run(t, "ip", "link", "del", "eth0")
		gc(nil)
		want(t, "c3")
	})
	t.Run("D39, C58: a pod whose record is lost keeps its ports as it keeps its addresses", func(t *testing.T) {
		n.Run(t, "rm", filepath.Join(n.dataDir, "pods/attachments/c3:eth0.json"))
		gc(nil)
		want(t, "c3")
	})
	t.Run("C48, C58: ports that nothing speaks of go, and what a killed writer left", func(t *testing.T) {
		n.Run(t, "sh", "-c", "cd "+filepath.Join(n.dataDir, "pods")+"; rm addresses/*; echo { >hostports/.new-c9:eth0")
		gc(nil)
		want(t)
		if got := n.hostPortFiles(t); len(got) != 0 {
			t.Errorf("got files %q", got)
		}
	})
}

// The tables of all networks are the same, and follow one folder.
func TestHostPortsOfASecondNetwork(t *testing.T) {
	n := newNode(t)
	first := add("c1", "eth0", netns.New(t, "first"), n.withPorts(nil, bothProtocols(hostPort)...))
	other := object{"name": "others", "ipam": object{"ranges": [][]object{{{"subnet": "10.2.0.0/24"}}}}}
	second := add("c2", "eth0", netns.New(t, "second"), n.withPorts(other, bothProtocols(hostPort+1)...))
	n.added(t, first)
	t.Run("C58: is refused while the first has some, which stay", func(t *testing.T) {
		n.fail(t, second, 109, "network pods, as hostPort tcp 8080 of c1:eth0")
		if out := n.hostPortRules(t); !strings.Contains(out, "tcp . 8080") || strings.Contains(out, "8081") {
			t.Errorf("got %s", out)
		}
	})
	t.Run("C58: and served when it has none", func(t *testing.T) {
		n.succeed(t, first.as("DEL"))
		if _, err := os.Stat(filepath.Join(n.dataDir, "pods/hostports")); !os.IsNotExist(err) {
			t.Errorf("the folder of the first is there: %v", err)
		}
		n.added(t, second)
		if out := n.hostPortRules(t); !strings.Contains(out, "tcp . 8081") {
			t.Errorf("got %s", out)
		}
		n.succeed(t, second.as("DEL"))
	})
}

func TestHostPortsThatAreLocked(t *testing.T) {
	n := newNode(t)
	pod := netns.New(t, "pod")
	c := add("c1", "eth0", pod, n.withPorts(object{"lockTimeout": "50ms"}, bothProtocols(hostPort)...))
	dir := filepath.Join(n.dataDir, "pods/hostports")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	t.Run("C11, C28: try again", func(t *testing.T) {
		n.fail(t, c, 11, "still locked after 50ms")
		n.clean(t)
	})
	t.Run("C58: pods without host ports do not wait", func(t *testing.T) {
		plain := add("c2", "eth0", pod, n.config("1.1.0", object{"lockTimeout": "50ms"}))
		n.added(t, plain)
		n.succeed(t, plain.as("DEL"))
	})
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	n.added(t, c)
	n.succeed(t, c.as("DEL"))
}
