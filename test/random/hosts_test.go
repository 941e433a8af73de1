package random_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/oracle"
	"onerule/test/random"
)

// The hosts of the addressing plan, each a namespace. Every endpoint answers.
type hosts struct {
	node, outside, other *netns.NS
	pods                 []*netns.NS
}

func newHosts(t *testing.T) *hosts {
	h := &hosts{node: quiet(t, "node"), outside: quiet(t, "outside"), other: quiet(t, "other-node")}
	h.node.Forward(t)
	for i := range random.Pods {
		pod := quiet(t, fmt.Sprintf("pod-%d", i))
		h.pods = append(h.pods, pod)
		h.wire(t, pod, fmt.Sprintf("pod%d", i), func(p addr.Plan) (near, far netip.Addr, bits int) {
			return p.PodGateway(i), p.Pod(i), p.PodLinkBits()
		})
	}
	h.wire(t, h.outside, "uplink", func(p addr.Plan) (near, far netip.Addr, bits int) {
		return p.Node(), p.Outside(), p.Uplink.Bits()
	})
	h.wire(t, h.other, "between", func(p addr.Plan) (near, far netip.Addr, bits int) {
		return p.NodeBetween(), p.OtherNode(), p.Between.Bits()
	})
	for _, p := range addr.Both() {
		h.node.Route(t, "default", p.Outside().String())
		h.node.Route(t, p.OtherPods.String(), p.OtherNode().String())
		for i := range random.Pods {
			h.other.Addr(t, "eth0", netip.PrefixFrom(p.OtherPod(i), p.OtherPod(i).BitLen()).String())
		}
		for a := range random.Endpoints(p) {
			for _, port := range random.TargetPorts() {
				h.serve(t, netip.AddrPortFrom(a, port))
			}
		}
	}
	h.settle(t)
	return h
}

// quiet makes a host that answers from its first moment and believes no redirect.
func quiet(t *testing.T, name string) *netns.NS {
	n := netns.New(t, name)
	for _, which := range []string{"all", "default"} {
		n.Sysctl(t, "net.ipv6.conf."+which+".accept_dad", "0")
		n.Sysctl(t, "net.ipv6.conf."+which+".accept_redirects", "0")
		n.Sysctl(t, "net.ipv4.conf."+which+".send_redirects", "0")
		n.Sysctl(t, "net.ipv4.conf."+which+".rp_filter", "0")
	}
	n.Sysctl(t, "net.ipv4.ping_group_range", "0 2147483647")
	return n
}

// wire connects a host to the node and makes the node its router.
func (h *hosts) wire(t *testing.T, far *netns.NS, dev string, ends func(addr.Plan) (near, far netip.Addr, bits int)) {
	netns.Wire(t, far, "eth0", h.node, dev)
	for _, p := range addr.Both() {
		nearAddr, farAddr, bits := ends(p)
		h.node.Addr(t, dev, netip.PrefixFrom(nearAddr, bits).String())
		far.Addr(t, "eth0", netip.PrefixFrom(farAddr, bits).String())
		far.Route(t, "default", nearAddr.String())
	}
}

// at gives the host that has an address.
func (h *hosts) at(a netip.Addr) *netns.NS {
	for _, p := range addr.Both() {
		for i, pod := range h.pods {
			if a == p.Pod(i) {
				return pod
			}
		}
		switch {
		case p.OtherPods.Contains(a), a == p.OtherNode():
			return h.other
		case a == p.Outside():
			return h.outside
		}
	}
	return h.node
}

// serve answers at an endpoint, for TCP and UDP, with the endpoint's own address and
// the client's as it came.
func (h *hosts) serve(t *testing.T, at netip.AddrPort) {
	t.Helper()
	var l *net.TCPListener
	var c *net.UDPConn
	err := h.at(at.Addr()).Do(func() (err error) {
		if l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at)); err != nil {
			return fmt.Errorf("listen on %s TCP: %w", at, err)
		}
		if c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)); err != nil {
			return fmt.Errorf("listen on %s UDP: %w", at, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(l.Close(), c.Close()) }) // which ends both goroutines
	go func() {
		for {
			conn, err := l.AcceptTCP()
			if err != nil {
				return
			}
			_, _ = fmt.Fprint(conn, answer(at, conn.RemoteAddr()))
			_ = conn.Close()
		}
	}()
	go func() {
		buf := make([]byte, 64)
		for {
			_, client, err := c.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil { // else an ICMP error about an earlier answer
				_, _ = c.WriteToUDPAddrPort([]byte(answer(at, net.UDPAddrFromAddrPort(client))), client)
			}
		}
	}()
}

func answer(at netip.AddrPort, client net.Addr) string {
	return fmt.Sprintf("%s %s", at, client)
}

// An answer as read: which endpoint, and which client it saw.
func parseAnswer(text string) (arrival, error) {
	at, client, _ := strings.Cut(text, " ")
	endpoint, err := netip.ParseAddrPort(at)
	if err != nil {
		return arrival{}, fmt.Errorf("answer %q: %w", text, err)
	}
	peer, err := netip.ParseAddrPort(client)
	if err != nil {
		return arrival{}, fmt.Errorf("answer %q: %w", text, err)
	}
	return arrival{endpoint, peer.Addr().Unmap()}, nil
}

type arrival struct {
	endpoint netip.AddrPort
	peer     netip.Addr
}

// settle waits until every host reaches every endpoint directly.
func (h *hosts) settle(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for _, p := range addr.Both() {
		for a := range random.Endpoints(p) {
			for _, client := range []oracle.Packet{
				{From: oracle.Outside, Src: p.Outside()}, {From: oracle.Node, Src: p.Node()}, {From: oracle.Pod, Src: p.Pod(0)},
			} {
				client.Dst, client.Protocol, client.Port = a, 6, random.TargetPorts()[0]
				for {
					seen, err := h.probe(client, probeTimeout)
					if err == nil && seen.verdict == answered {
						break
					}
					if time.Now().After(deadline) {
						t.Fatalf("%+v gets no answer before any rule is in: %+v, %v", client, seen, err)
					}
				}
			}
		}
	}
}

// forget drops what conntrack knows, so that no port that comes again meets an old
// decision.
func (h *hosts) forget(t *testing.T) {
	t.Helper()
	if err := h.node.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }); err != nil {
		t.Fatalf("flush conntrack: %v", err)
	}
}

func background(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
