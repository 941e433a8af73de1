package network_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"onerule/daemon/network"
	"onerule/test/netns"
	"onerule/test/rig"
	"onerule/test/wired"
)

// The addressing plan: nodes a and b are on one layer 2, c is behind a router, which knows
// nothing of pods and has the address that is outside the cluster.
//
//	       br0 172.16.1.254        172.16.2.254
//	a .1 ──┤  router                     ├── .1 c
//	b .2 ──┘  fd00:16:1::fe  fd00:16:2::fe
const (
	sawPort  = 7 // pods say whom they saw
	echoPort = 9 // pods send back what comes
	patience = 10 * time.Second
)

func outside() []netip.Addr { return addrs("192.0.2.7", "fd00:9::7") }

func addrs(list ...string) []netip.Addr {
	var as []netip.Addr
	for _, s := range list {
		as = append(as, netip.MustParseAddr(s))
	}
	return as
}

type world struct {
	router *netns.NS
	nodes  []*host
}

// A host is a node with its daemon and a pod, which the real plugin wires.
type host struct {
	name   string
	number int // of its pod ranges
	addrs  []netip.Addr
	ns     *netns.NS
	pod    *netns.NS
	pods   []netip.Addr // the addresses of pod
	state  string       // of the plugin
	status string       // file
	daemon *rig.Daemon
}

// ranges gives the node's pod ranges.
func (h *host) ranges() []string {
	return []string{fmt.Sprintf("10.1.%d.0/24", h.number), fmt.Sprintf("fd00:1:0:%d::/112", h.number)}
}

// object gives the Node's manifest.
func (h *host) object() string {
	return node(h.name, h.number, h.ranges(), h.addrs...)
}

func node(name string, created int, ranges []string, internal ...netip.Addr) string {
	var list []string
	for _, a := range internal {
		list = append(list, fmt.Sprintf("{type: InternalIP, address: %q}", a))
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Node
metadata: {name: %s, creationTimestamp: "2026-01-01T00:00:%02dZ"}
spec: {podCIDRs: [%q, %q]}
status: {addresses: [%s]}
`, name, created, ranges[0], ranges[1], strings.Join(list, ", "))
}

// newNS makes a namespace whose devices look for no duplicates of their addresses: until
// that is over, a router can't ask for neighbours.
func newNS(t *testing.T, name string) *netns.NS {
	t.Helper()
	ns := netns.New(t, name)
	ns.Sysctl(t, "net.ipv6.conf.default.accept_dad", "0")
	ns.Sysctl(t, "net.ipv6.conf.default.dad_transmits", "0")
	return ns
}

// newWorld makes nodes with pods, and daemons that do not run yet. What they are told
// beside the nodes is in manifests.
func newWorld(t *testing.T, manifests []string, flags ...string) *world {
	t.Helper()
	w := &world{router: newNS(t, "router")}
	w.router.Run(t, "ip", "link", "add", "br0", "type", "bridge")
	w.router.Run(t, "ip", "link", "set", "br0", "up")
	w.router.Addr(t, "br0", "172.16.1.254/24", "fd00:16:1::fe/64")
	for _, a := range outside() {
		w.router.Addr(t, "lo", netip.PrefixFrom(a, a.BitLen()).String())
		wired.Serve(t, w.router, "outside", netip.AddrPortFrom(a, sawPort))
	}
	w.router.Forward(t)
	for i, name := range []string{"a", "b", "c"} {
		network, number := 1, i+1
		if name == "c" {
			network, number = 2, 1
		}
		w.nodes = append(w.nodes, w.newHost(t, name, i+1, network, number))
	}
	for _, h := range w.nodes {
		h.daemon = rig.New(t, h.ns, append([]string{
			"--hostname-override", h.name, "--pod-network", "--cni-state", h.state, "--network-status-file", h.status,
			"--cluster-cidr", "10.1.0.0/16,fd00:1::/48",
		}, flags...)...)
		for _, other := range w.nodes {
			h.daemon.Write("node-"+other.name+".yaml", other.object())
		}
		h.daemon.Write("services.yaml", append([]string{rig.ServiceCIDR("kubernetes", netip.MustParsePrefix("10.96.0.0/16"))}, manifests...)...)
	}
	return w
}

func (w *world) newHost(t *testing.T, name string, cidr, network, number int) *host {
	t.Helper()
	h := &host{
		name: name, number: cidr, ns: newNS(t, name), pod: newNS(t, "pod-"+name),
		addrs: addrs(fmt.Sprintf("172.16.%d.%d", network, number), fmt.Sprintf("fd00:16:%d::%d", network, number)),
		state: filepath.Join(t.TempDir(), "state"), status: filepath.Join(t.TempDir(), "run", "network.json"),
	}
	link := "to-" + name
	netns.Wire(t, h.ns, "eth0", w.router, link)
	if network == 1 {
		w.router.Run(t, "ip", "link", "set", link, "master", "br0")
	} else {
		w.router.Addr(t, link, "172.16.2.254/24", "fd00:16:2::fe/64")
	}
	h.ns.Addr(t, "eth0", h.addrs[0].String()+"/24", h.addrs[1].String()+"/64")
	h.ns.Route(t, "default", fmt.Sprintf("172.16.%d.254", network))
	h.ns.Route(t, "default", fmt.Sprintf("fd00:16:%d::fe", network))
	h.wire(t)
	return h
}

// wire has the plugin make a pod.
func (h *host) wire(t *testing.T) {
	t.Helper()
	out, err := h.plugin(t, "ADD")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal(out, &result); err != nil || len(result.IPs) != 2 {
		t.Fatalf("the plugin gave %s: %v", out, err)
	}
	for _, ip := range result.IPs {
		h.pods = append(h.pods, ip.Address.Addr())
		wired.Serve(t, h.pod, "pod-"+h.name, netip.AddrPortFrom(ip.Address.Addr(), sawPort))
		echo(t, h.pod, netip.AddrPortFrom(ip.Address.Addr(), echoPort))
	}
}

// plugin runs the real plugin, which is told where the daemon writes its status.
func (h *host) plugin(t *testing.T, verb string) (stdout []byte, err error) {
	t.Helper()
	config := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "pods", "type": "onerule", "dataDir": %q, "statusFile": %q,
		"ipam": {"ranges": [[{"subnet": %q}], [{"subnet": %q}]]}}`, h.state, h.status, h.ranges()[0], h.ranges()[1])
	cmd := exec.Command(rig.Binary(t, "onerule", "onerule/plugin/onerule"))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID=pod-"+h.name, "CNI_NETNS="+h.pod.Path(), "CNI_IFNAME=eth0", "CNI_PATH=/nowhere")
	cmd.Stdin = strings.NewReader(config)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err = h.ns.Start(cmd); err == nil {
		err = cmd.Wait()
	}
	return out.Bytes(), err
}

// start runs all daemons, and waits until each has all in the kernel.
func (w *world) start(t *testing.T) {
	t.Helper()
	for _, h := range w.nodes {
		h.daemon.Run()
	}
	for _, h := range w.nodes {
		h.daemon.AwaitHealthy()
		h.awaitStatus(t)
	}
}

// awaitStatus waits until the plugin is told that these conditions hold, and no others. Each
// is a part of a message.
func (h *host) awaitStatus(t *testing.T, want ...string) {
	t.Helper()
	rig.Eventually(t, "status file of node "+h.name, func() error {
		b, err := os.ReadFile(h.status)
		if err != nil {
			return err
		}
		var got network.Status
		if err := json.Unmarshal(b, &got); err != nil {
			return err
		}
		if len(got.Conditions) != len(want) || time.Since(got.Time) > time.Minute {
			return fmt.Errorf("it holds %s, want %q", b, want)
		}
		for i, c := range got.Conditions {
			if c.Code != 51 || !strings.Contains(c.Message, want[i]) {
				return fmt.Errorf("it holds %s, want %q", b, want)
			}
		}
		return nil
	})
}

// echo sends back what comes, by TCP and by UDP.
func echo(t *testing.T, on *netns.NS, at netip.AddrPort) {
	t.Helper()
	var l net.Listener
	var c net.PacketConn
	err := on.Do(func() (err error) {
		if l, err = net.Listen("tcp", at.String()); err != nil {
			return err
		}
		c, err = net.ListenPacket("udp", at.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = l.Close(), c.Close() })
	go func() { // ends when l is closed
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the connection
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	go func() { // ends when c is closed
		buf := make([]byte, 1<<16)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(buf[:n], from)
		}
	}()
}

// whole sends a UDP packet of so many bytes that may not be fragmented, and wants it back.
func whole(from *netns.NS, to netip.Addr, size int) error {
	headers, level, option, value := 28, unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO
	if to.Is6() {
		headers, level, option, value = 48, unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO
	}
	return from.Do(func() error {
		conn, err := net.Dial("udp", netip.AddrPortFrom(to, echoPort).String())
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		raw, err := conn.(*net.UDPConn).SyscallConn()
		if err != nil {
			return err
		}
		ctlErr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, value) })
		if err := errors.Join(ctlErr, err, conn.SetDeadline(time.Now().Add(time.Second))); err != nil {
			return err
		}
		sent, got := bytes.Repeat([]byte{0xa5}, size-headers), make([]byte, size)
		if _, err := conn.Write(sent); err != nil {
			return err
		}
		n, err := conn.Read(got)
		if err == nil && !bytes.Equal(got[:n], sent) {
			err = fmt.Errorf("%d bytes came back of %d", n, len(sent))
		}
		return err
	})
}

// transfer sends much by TCP, and wants all of it back.
func transfer(from *netns.NS, to netip.Addr) error {
	const amount = 300_000
	return from.Do(func() error {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, echoPort).String(), patience)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(patience))
		wrote := make(chan error, 1)
		go func() { // ends with the connection
			_, err := conn.Write(make([]byte, amount))
			wrote <- errors.Join(err, conn.(*net.TCPConn).CloseWrite())
		}()
		n, err := io.Copy(io.Discard, conn)
		if err := errors.Join(err, <-wrote); err != nil || n != amount {
			return fmt.Errorf("%d bytes came back of %d: %w", n, amount, err)
		}
		return nil
	})
}

// hears asks until the answer is the one that is wanted: neighbours are looked for first.
func hears(t *testing.T, on *netns.NS, from netip.Addr, to netip.AddrPort, want string) {
	t.Helper()
	for _, protocol := range []string{"udp", "tcp"} {
		source := netip.AddrPort{}
		if from.IsValid() {
			source = netip.AddrPortFrom(from, 0)
		}
		rig.Eventually(t, fmt.Sprintf("%s from %s to %s", protocol, on.Name(), to), func() error {
			got, err := wired.Ask(on, protocol, source, to)
			if err == nil && got != want {
				err = fmt.Errorf("got %q, want %q", got, want)
			}
			return err
		})
	}
}
