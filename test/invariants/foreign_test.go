package invariants_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"onerule/nft"
	"onerule/test/addr"
	"onerule/test/netns"
)

// A NAT table of somebody else at the usual priorities, loaded before ours or after it,
// decides neither for a frontend nor about the masquerade.
func TestForeignNATTablesDecideNothing(t *testing.T) {
	for _, p := range addr.Both() {
		for _, first := range []bool{true, false} {
			name := fmt.Sprintf("%s, foreign table first: %v", family(p), first)
			t.Run(name, func(t *testing.T) {
				h := newHosts(t)
				peers := h.peersOf(t, backend(p, 0))
				if first {
					h.loadForeignNAT(t, p)
				}
				answerFor(t, h.node, p)
				if !first {
					h.loadForeignNAT(t, p)
				}
				err := h.client.Do(func() error {
					c, err := net.DialTimeout("tcp", netip.AddrPortFrom(p.VIP(0), 80).String(), lost)
					if err != nil {
						return err
					}
					return c.Close()
				})
				if err != nil {
					t.Fatal(err)
				}
				if peer := <-peers; peer != p.NodeBetween() {
					t.Errorf("the server saw %s, want the node, %s", peer, p.NodeBetween())
				}
			})
		}
	}
}

// loadForeignNAT loads a table that sends the ClusterIP to another backend, where
// nobody answers, and gives everything another source.
func (h *hosts) loadForeignNAT(t *testing.T, p addr.Plan) {
	t.Helper()
	f := family(p).String()
	script := fmt.Sprintf(`add table %[1]s other
add chain %[1]s other pre { type nat hook prerouting priority -100; }
add rule %[1]s other pre %[1]s daddr %[2]s dnat to %[3]s
add chain %[1]s other post { type nat hook postrouting priority 100; }
add rule %[1]s other post snat to %[4]s
`, f, p.VIP(0), p.OtherPod(3), p.Outside())
	if err := h.node.Do(func() error { return nftScript(script) }); err != nil {
		t.Fatal(err)
	}
}

// peersOf listens at a backend and delivers the address of each client.
func (h *hosts) peersOf(t *testing.T, at netip.AddrPort) <-chan netip.Addr {
	t.Helper()
	var l *net.TCPListener
	err := h.server.Do(func() (err error) {
		l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // which ends the goroutine
	peers := make(chan netip.Addr, 16)
	go func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			peers <- c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
			_ = c.Close()
		}
	}()
	return peers
}

// answerFor loads our table with one Service of one endpoint, everything masqueraded.
func answerFor(t *testing.T, node *netns.NS, p addr.Plan) {
	t.Helper()
	want := nft.NewState()
	want.Set(nft.Frontend{Addr: p.VIP(0), Protocol: 6, Port: 80}, nft.Route{Endpoints: backendRange(p, 1)})
	err := node.Do(func() error {
		program, err := nft.Open(nft.Config{Family: family(p), MasqueradeBit: 14, MasqueradeAll: true})
		if err != nil {
			return err
		}
		defer func() { _ = program.Close() }()
		return program.Load(context.Background(), want, nft.NewKeys())
	})
	if err != nil {
		t.Fatal(err)
	}
}
