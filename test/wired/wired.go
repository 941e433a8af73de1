// Package wired makes a node whose pods hang on it as the plugin wires them: whole
// addresses, point to point, names that begin with one; and a host outside. Every host
// says whom it saw.
package wired

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"onerule/test/addr"
	"onerule/test/netns"
)

// Lost is after how long a datagram or a connection counts as lost.
const Lost = 400 * time.Millisecond

// A World is a node, its pods, and what is outside. Outside also has the address of a pod
// of another node, Plan.OtherPod(0), without any encapsulation, and routes to the node's
// pods.
type World struct {
	Node, Outside *netns.NS
	Pods          []*netns.NS
}

// Link is the name of the node's end of the link of pod i.
func Link(i int) string { return fmt.Sprintf("one%012x", i+1) }

// New makes a world with so many pods.
func New(t testing.TB, pods int) *World {
	t.Helper()
	w := &World{Node: netns.New(t, "node"), Outside: netns.New(t, "outside")}
	w.Node.Forward(t)
	netns.Wire(t, w.Node, "eth0", w.Outside, "eth0")
	for _, p := range addr.Both() {
		w.Node.Addr(t, "eth0", prefix(p.Node(), p.Uplink.Bits()))
		w.Outside.Addr(t, "eth0", prefix(p.Outside(), p.Uplink.Bits()))
		w.Outside.Addr(t, "lo", prefix(p.OtherPod(0), p.Node().BitLen()))
		w.Node.Route(t, p.OtherPods.String(), p.Outside().String())
		w.Outside.Route(t, p.NodePods.String(), p.Node().String())
	}
	// A host that passes a packet on asks for no neighbour in IPv6 while its link-local
	// address is tentative.
	for _, p := range addr.Both() {
		neighbour(t, w.Node, "eth0", p.Outside(), MAC(t, w.Outside, "eth0"))
		neighbour(t, w.Outside, "eth0", p.Node(), MAC(t, w.Node, "eth0"))
	}
	for i := range pods {
		w.Pods = append(w.Pods, w.pod(t, i))
	}
	return w
}

func (w *World) pod(t testing.TB, i int) *netns.NS {
	t.Helper()
	pod := netns.New(t, fmt.Sprintf("pod %d", i))
	link := Link(i)
	netns.Wire(t, w.Node, link, pod, "eth0")
	w.Node.Addr(t, link, "fe80::1/64")
	pod.Addr(t, "eth0", fmt.Sprintf("fe80::a:%x/64", i+1))
	for _, p := range addr.Both() {
		whole := prefix(p.Pod(i), p.Pod(i).BitLen())
		gateway := netip.MustParseAddr("169.254.1.1")
		if p.Pod(i).Is6() {
			gateway = netip.MustParseAddr("fe80::1")
		}
		pod.Addr(t, "eth0", whole)
		neighbour(t, pod, "eth0", gateway, MAC(t, w.Node, link))
		pod.Run(t, "ip", "route", "add", "default", "via", gateway.String(), "dev", "eth0", "onlink")
		neighbour(t, w.Node, link, p.Pod(i), MAC(t, pod, "eth0"))
		w.Node.Run(t, "ip", "route", "add", whole, "dev", link, "proto", "111")
	}
	return pod
}

func neighbour(t testing.TB, on *netns.NS, dev string, a netip.Addr, mac net.HardwareAddr) {
	t.Helper()
	on.Run(t, "ip", "neigh", "replace", a.String(), "lladdr", mac.String(), "dev", dev, "nud", "permanent")
}

// MAC gives the address of a device.
func MAC(t testing.TB, on *netns.NS, dev string) (address net.HardwareAddr) {
	t.Helper()
	err := on.Do(func() error {
		l, err := net.InterfaceByName(dev)
		if err == nil {
			address = l.HardwareAddr
		}
		return err
	})
	if err != nil {
		t.Fatalf("address of %s in %s: %v", dev, on.Name(), err)
	}
	return address
}

func prefix(a netip.Addr, bits int) string { return netip.PrefixFrom(a, bits).String() }

// Serve answers on a host, over UDP and TCP, with a name and the client as it was seen.
// Without a valid address it serves at all of the host's.
func Serve(t testing.TB, on *netns.NS, name string, at netip.AddrPort) {
	t.Helper()
	err := on.Do(func() error {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		if err != nil {
			return err
		}
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
		if err != nil {
			_ = c.Close()
			return err
		}
		t.Cleanup(func() { _ = errors.Join(c.Close(), l.Close()) }) // which ends both goroutines
		go serveUDP(c, name)
		go serveTCP(l, name)
		return nil
	})
	if err != nil {
		t.Fatalf("serve %s: %v", name, err)
	}
}

func serveUDP(c *net.UDPConn, name string) {
	buf := make([]byte, 2048)
	for {
		_, client, err := c.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error about an earlier answer
		}
		_, _ = c.WriteToUDPAddrPort([]byte(saw(name, client)), client)
	}
}

func serveTCP(l *net.TCPListener, name string) {
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return
		}
		_, _ = c.Write([]byte(saw(name, c.RemoteAddr().(*net.TCPAddr).AddrPort())))
		_ = c.Close()
	}
}

func saw(name string, client netip.AddrPort) string {
	return name + " saw " + client.Addr().Unmap().String()
}

// Ask sends to an address and gives the answer, or an error after Lost. Network is udp or
// tcp; from is the source address and port to bind, or nothing.
func Ask(on *netns.NS, network string, from, to netip.AddrPort) (answer string, err error) {
	err = on.Do(func() error {
		d := net.Dialer{Timeout: Lost}
		switch {
		case !from.IsValid():
		case network == "udp":
			d.LocalAddr = net.UDPAddrFromAddrPort(from)
		default:
			d.LocalAddr = net.TCPAddrFromAddrPort(from)
		}
		c, err := d.Dial(network, to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(Lost)); err != nil {
			return err
		}
		if network == "udp" {
			if _, err := c.Write([]byte("?")); err != nil {
				return err
			}
		}
		buf := make([]byte, 256)
		n, err := c.Read(buf)
		answer = string(buf[:n])
		return err
	})
	return answer, err
}

// Send sends a packet, from its network header on, on a device as it is. to is the MAC
// address, or nil for that of everybody.
func Send(t testing.TB, on *netns.NS, dev string, to net.HardwareAddr, packet []byte) {
	t.Helper()
	if err := on.Do(func() error { return send(dev, to, packet) }); err != nil {
		t.Fatalf("send on %s of %s: %v", dev, on.Name(), err)
	}
}

func send(dev string, to net.HardwareAddr, packet []byte) error {
	l, err := net.InterfaceByName(dev)
	if err != nil {
		return err
	}
	kind := uint16(unix.ETH_P_IP)
	if packet[0]>>4 == 6 {
		kind = unix.ETH_P_IPV6
	}
	kind = kind<<8 | kind>>8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(kind))
	if err != nil {
		return err
	}
	defer os.NewFile(uintptr(fd), "packet").Close()
	at := &unix.SockaddrLinklayer{Protocol: kind, Ifindex: l.Index, Halen: 6, Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
	copy(at.Addr[:], to)
	return unix.Sendto(fd, packet, 0, at)
}
