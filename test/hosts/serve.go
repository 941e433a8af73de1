package hosts

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/oracle"
)

// Serve answers at addresses and ports that the hosts have, for TCP and UDP: with the
// endpoint's own address and the client's as it came. On a TCP connection it sends
// back whatever the client sends afterwards.
func (h *Hosts) Serve(t testing.TB, at ...netip.AddrPort) {
	t.Helper()
	for _, endpoint := range at {
		h.ServeOn(t, h.At(endpoint.Addr()), endpoint)
		h.endpoints = append(h.endpoints, endpoint)
	}
}

// ServeOn is Serve on a host that the addressing plan does not give the address to.
func (h *Hosts) ServeOn(t testing.TB, on *netns.NS, at netip.AddrPort) {
	t.Helper()
	var l *net.TCPListener
	var c *net.UDPConn
	err := on.Do(func() (err error) {
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
	go serveTCP(l, at)
	go serveUDP(c, at)
}

func serveTCP(l *net.TCPListener, at netip.AddrPort) {
	for {
		conn, err := l.AcceptTCP()
		if err != nil {
			return
		}
		go func() { // ends when the client does
			defer conn.Close()
			if _, err := fmt.Fprintln(conn, answer(at, conn.RemoteAddr())); err == nil {
				_, _ = io.Copy(conn, conn)
			}
		}()
	}
}

func serveUDP(c *net.UDPConn, at netip.AddrPort) {
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
}

func answer(at netip.AddrPort, client net.Addr) string {
	return fmt.Sprintf("%s %s", at, client)
}

// parseAnswer reads an answer: which endpoint it is of, and which client that saw.
func parseAnswer(text string) (endpoint, peer netip.AddrPort, err error) {
	at, client, _ := strings.Cut(strings.TrimSpace(text), " ")
	if endpoint, err = netip.ParseAddrPort(at); err != nil {
		return endpoint, peer, fmt.Errorf("answer %q: %w", text, err)
	}
	if peer, err = netip.ParseAddrPort(client); err != nil {
		return endpoint, peer, fmt.Errorf("answer %q: %w", text, err)
	}
	return endpoint, netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port()), nil
}

// settle waits until every kind of client reaches every endpoint directly.
func (h *Hosts) settle(t testing.TB) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	settled := map[netip.Addr]bool{}
	for _, e := range h.endpoints {
		if settled[e.Addr()] {
			continue
		}
		settled[e.Addr()] = true
		for _, client := range Clients(planOf(e.Addr())) {
			client.Dst, client.Protocol, client.Port = e.Addr(), model.TCP, e.Port()
			for {
				seen, err := h.Probe(client, Lost)
				if err == nil && seen.Verdict == Answered {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%+v gets no answer before any rule is in: %s, %v", client, seen, err)
				}
			}
		}
	}
}

// Clients gives a client of each kind that a Service proxy tells apart: a pod, the
// node itself, and somebody outside.
func Clients(p addr.Plan) []oracle.Packet {
	return []oracle.Packet{
		{From: oracle.Pod, Src: p.Pod(0)},
		{From: oracle.Node, Src: p.Node()},
		{From: oracle.Outside, Src: p.Outside()},
	}
}

func planOf(a netip.Addr) addr.Plan {
	if a.Is4() {
		return addr.IPv4()
	}
	return addr.IPv6()
}
