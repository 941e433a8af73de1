package rows_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/netns"
	"onerule/test/rig"
)

// testOutOfWindow: an endpoint sends a segment from outside the window. What conntrack calls
// invalid is not translated back: the client does not know who sends, and resets. With
// the option it is translated like any other.
func testOutOfWindow(t *testing.T, w *world) {
	const liberal = "net.netfilter.nf_conntrack_tcp_be_liberal"
	defer w.h.Node.Sysctl(t, liberal, "0") // which no daemon does
	for _, c := range []struct {
		name  string
		flags []string
		reset bool
	}{
		{"without --conntrack-tcp-be-liberal", nil, true},
		{"R26, A12.9: with --conntrack-tcp-be-liberal", []string{"--conntrack-tcp-be-liberal"}, false},
	} {
		w.h.Node.Sysctl(t, liberal, "0")
		w.restart(t, detectBoth(c.flags...)...)
		t.Run(c.name, func(t *testing.T) {
			each(t, func(t *testing.T, p addr.Plan) {
				w.put(t, "web.yaml", web(p), webSlice(p, p.Pod(1)))
				s := w.connection(t, at(p.VIP(0), model.TCP, 80).from(hosts.Clients(p)[0]))
				client, endpoint := w.h.Pods[0], w.h.Pods[1]
				watchSegments(t, client)
				watchSegments(t, endpoint)
				for _, seq := range strayNumbers() {
					if err := sendSegment(endpoint, s.Endpoint, s.Peer, seq); err != nil {
						t.Fatal(err)
					}
				}
				rig.Eventually(t, "both segments arrive", func() error {
					if n := counted(t, client, "stray"); n != "2" {
						return fmt.Errorf("%s did", n)
					}
					return nil
				})
				if c.reset {
					rig.Eventually(t, "the endpoint is reset", func() error {
						if counted(t, endpoint, "resets") == "0" {
							return errors.New("it is not")
						}
						return nil
					})
					return
				}
				if err := s.Alive(); err != nil {
					t.Error(err)
				}
				if atClient, atEndpoint := counted(t, client, "resets"), counted(t, endpoint, "resets"); atClient != "0" || atEndpoint != "0" {
					t.Errorf("%s resets arrived at the client and %s at the endpoint, want none", atClient, atEndpoint)
				}
			})
		})
	}
}

// strayNumbers are sequence numbers that are in no window. One is beyond it, wherever it
// is; what lies before it conntrack takes for sent again, and translates.
func strayNumbers() []uint32 { return []uint32{12345, 12345 + 1<<31} }

// watchSegments counts the resets and the stray segments that a host gets from now on.
func watchSegments(t *testing.T, ns *netns.NS) {
	t.Helper()
	ns.Run(t, "nft", fmt.Sprintf("table inet watched\ndelete table inet watched\ntable inet watched { counter resets { }; counter stray { }; chain in { type filter hook input priority 0; tcp flags & rst == rst counter name resets; tcp sequence { %d, %d } counter name stray; }; }", strayNumbers()[0], strayNumbers()[1]))
}

func counted(t *testing.T, ns *netns.NS, counter string) string {
	t.Helper()
	m := regexp.MustCompile(`packets (\d+)`).FindStringSubmatch(ns.Run(t, "nft", "list", "counter", "inet", "watched", counter))
	if m == nil {
		t.Fatalf("no counter of %s", counter)
	}
	return m[1]
}

// sendSegment sends a TCP segment with a sequence number and nothing in it from a raw
// socket.
func sendSegment(ns *netns.NS, from, to netip.AddrPort, seq uint32) error {
	return ns.Do(func() error {
		family := unix.AF_INET
		if from.Addr().Is6() {
			family = unix.AF_INET6
		}
		s, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		if err != nil {
			return fmt.Errorf("open raw socket: %w", err)
		}
		defer func() { _ = unix.Close(s) }()
		if err := unix.Bind(s, rawAddr(from.Addr())); err != nil {
			return fmt.Errorf("bind raw socket: %w", err)
		}
		if err := unix.Sendto(s, segment(from, to, seq), 0, rawAddr(to.Addr())); err != nil {
			return fmt.Errorf("send segment: %w", err)
		}
		return nil
	})
}

func rawAddr(a netip.Addr) unix.Sockaddr {
	if a.Is6() {
		return &unix.SockaddrInet6{Addr: a.As16()}
	}
	return &unix.SockaddrInet4{Addr: a.As4()}
}

// segment gives a TCP header (RFC 9293, 3.1) that acknowledges.
func segment(from, to netip.AddrPort, seq uint32) []byte {
	b := binary.BigEndian.AppendUint16(nil, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = binary.BigEndian.AppendUint32(b, seq)
	b = binary.BigEndian.AppendUint32(b, seq) // what it acknowledges
	b = append(b, 5<<4, 0x10, 0xff, 0xff)     // length in words, ACK, window
	b = append(b, 0, 0, 0, 0)                 // checksum, urgent
	pseudo := append(from.Addr().AsSlice(), to.Addr().AsSlice()...)
	pseudo = append(pseudo, 0, unix.IPPROTO_TCP, 0, byte(len(b)))
	sum := uint32(0)
	for _, part := range [][]byte{pseudo, b} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[16:], ^uint16(sum))
	return b
}

// testTwoAtOnce: two datagrams of a new socket, as a resolver sends them, race for one flow,
// and may have been given different endpoints. Both are answered.
func testTwoAtOnce(t *testing.T, w *world) {
	const rounds = 2000
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", web(p), webSlice(p, p.Pod(1), p.Pod(2)))
		client := hosts.Clients(p)[0]
		to := netip.AddrPortFrom(p.VIP(0), 80)
		lost := 0
		err := w.h.At(client.Src).Do(func() error {
			for range rounds {
				answers, err := askTwice(to)
				if err != nil {
					return err
				}
				lost += 2 - answers
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if lost > 0 {
			t.Errorf("%d of %d datagrams were not answered", lost, 2*rounds)
		}
	})
}

// askTwice sends two datagrams at once from a new socket, and counts the answers.
func askTwice(to netip.AddrPort) (answers int, err error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(hosts.Patience)); err != nil {
		return 0, err
	}
	var sent sync.WaitGroup
	var failed [2]error
	for i := range failed {
		sent.Go(func() { _, failed[i] = c.Write([]byte("who?")) })
	}
	sent.Wait()
	if err := errors.Join(failed[:]...); err != nil {
		return 0, err
	}
	for answers < 2 {
		if _, err := c.Read(make([]byte, 256)); err != nil {
			return answers, nil // none came in time
		}
		answers++
	}
	return answers, nil
}
