// Package invariants_test holds the design's invariants to real packets.
package invariants_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/wired"
)

// lost is how long a connect may take: a SYN that is lost is sent again after 1 s,
// so a test that counts failures only would see nothing.
const lost = 400 * time.Millisecond

// backends is how many endpoints the server host has.
const backends = 5

// hosts are a client and a server with the node between them. The server has the
// addresses of backends.
type hosts struct {
	node, client, server *netns.NS
}

func newHosts(t *testing.T) *hosts {
	h := &hosts{node: netns.New(t, "node"), client: netns.New(t, "client"), server: netns.New(t, "server")}
	netns.Wire(t, h.client, "eth0", h.node, "to-client")
	netns.Wire(t, h.server, "eth0", h.node, "to-server")
	h.node.Forward(t)
	for _, p := range addr.Both() {
		bits := p.PodLinkBits()
		h.node.Addr(t, "to-client", netip.PrefixFrom(p.PodGateway(0), bits).String())
		h.client.Addr(t, "eth0", netip.PrefixFrom(p.Pod(0), bits).String())
		h.client.Route(t, "default", p.PodGateway(0).String())
		h.node.Addr(t, "to-server", netip.PrefixFrom(p.NodeBetween(), p.Between.Bits()).String())
		h.server.Addr(t, "eth0", netip.PrefixFrom(p.OtherNode(), p.Between.Bits()).String())
		h.server.Route(t, "default", p.NodeBetween().String())
		h.node.Route(t, p.OtherPods.String(), p.OtherNode().String())
		h.node.Route(t, "default", p.OtherNode().String()) // output looks for a route before it translates
		for i := range backends {
			h.server.Addr(t, "eth0", netip.PrefixFrom(p.OtherPod(i), p.OtherPod(i).BitLen()).String())
		}
	}
	return h
}

// backend gives an endpoint of the server host.
func backend(p addr.Plan, i int) netip.AddrPort { return netip.AddrPortFrom(p.OtherPod(i), 8080) }

func backendRange(p addr.Plan, n int) []netip.AddrPort {
	var list []netip.AddrPort
	for i := range n {
		list = append(list, backend(p, i))
	}
	return list
}

// serve answers TCP connections and UDP datagrams to all backends with one byte, the
// backend's number.
func (h *hosts) serve(t *testing.T, p addr.Plan) {
	t.Helper()
	for i := range backends {
		var l *net.TCPListener
		var c *net.UDPConn
		err := h.server.Do(func() (err error) {
			if l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(backend(p, i))); err != nil {
				return err
			}
			c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(backend(p, i)))
			return err
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
				_, _ = conn.Write([]byte{byte(i)})
				_ = conn.Close()
			}
		}()
		go func() {
			b := make([]byte, 16)
			for {
				_, from, err := c.ReadFromUDPAddrPort(b)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				_, _ = c.WriteToUDPAddrPort([]byte{byte(i)}, from)
			}
		}()
	}
}

// errResent says that a connection came about, but not with its first SYN.
var errResent = errors.New("a SYN was lost")

// connect makes one connection in the namespace of the calling thread, and gives the
// number of the backend that answered. A SYN that had to be sent again is an error.
func connect(to netip.AddrPort, limit time.Duration) (backend int, took time.Duration, err error) {
	start := time.Now()
	conn, err := net.DialTimeout("tcp", to.String(), limit)
	if err != nil {
		return 0, time.Since(start), err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.(*net.TCPConn).SetLinger(0) // leave no port in TIME_WAIT
	took = time.Since(start)
	if n, err := wired.Retransmissions(conn.(*net.TCPConn)); err != nil || n > 0 {
		return 0, took, errors.Join(err, fmt.Errorf("%w: connected with number %d", errResent, n+1))
	}
	_ = conn.SetReadDeadline(start.Add(limit))
	b := make([]byte, 1)
	if _, err = conn.Read(b); err != nil {
		return 0, time.Since(start), fmt.Errorf("read the answer: %w", err)
	}
	return int(b[0]), took, nil
}
