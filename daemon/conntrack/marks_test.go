package conntrack

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"onerule/nft"
	"onerule/nft/dump"
	"onerule/nft/flows"
)

var (
	vip       = netip.MustParseAddr("10.96.0.1")
	node      = netip.MustParseAddr("192.0.2.1")
	elsewhere = netip.MustParseAddr("192.0.2.9")
	external  = netip.MustParseAddr("192.0.2.5") // another Service's, and the node's own
	endpointA = netip.MustParseAddrPort("10.0.0.1:8080")
	endpointB = netip.MustParseAddrPort("10.0.0.2:8080")
)

const (
	tcp  = unix.IPPROTO_TCP
	udp  = unix.IPPROTO_UDP
	sctp = unix.IPPROTO_SCTP
)

// Attributes of tuples, from the kernel's linux/netfilter/nfnetlink_conntrack.h.
const (
	ctaTupleIP    = 1
	ctaTupleProto = 2
	ctaIPv4Src    = 1
	ctaIPv4Dst    = 2
	ctaIPv6Src    = 3
	ctaIPv6Dst    = 4
	ctaProtoNum   = 1
	ctaProtoSrc   = 2
	ctaProtoDst   = 3
)

// attr gives a netlink attribute.
func attr(kind uint16, value ...byte) []byte { return dump.Attr(kind, value) }

// encode gives a tuple as attributes.
func encode(src, dst netip.AddrPort, protocol uint8) []byte {
	from, to := uint16(ctaIPv4Src), uint16(ctaIPv4Dst)
	if dst.Addr().Is6() {
		from, to = ctaIPv6Src, ctaIPv6Dst
	}
	be := func(port uint16) []byte { return binary.BigEndian.AppendUint16(nil, port) }
	return slices.Concat(
		attr(ctaTupleIP|unix.NLA_F_NESTED, slices.Concat(attr(from, src.Addr().AsSlice()...), attr(to, dst.Addr().AsSlice()...))...),
		attr(ctaTupleProto|unix.NLA_F_NESTED, slices.Concat(attr(ctaProtoNum, protocol), attr(ctaProtoSrc, be(src.Port())...), attr(ctaProtoDst, be(dst.Port())...))...))
}

// flowTo gives a flow that somebody answers: with a DNAT unless that is its destination.
func flowTo(to nft.Frontend, answers netip.AddrPort) flows.Flow {
	client := netip.MustParseAddrPort("198.51.100.1:40000")
	dst := netip.AddrPortFrom(to.Addr, to.Port)
	return flows.Flow{Protocol: to.Protocol, To: dst, Translated: answers != dst, Answered: true, Original: encode(client, dst, to.Protocol), Reply: encode(answers, client, to.Protocol)}
}

// Of the flows to a frontend those go that its packets must not follow any more.
func TestStaleFlows(t *testing.T) {
	at := func(a netip.Addr, protocol uint8, port uint16) nft.Frontend {
		return nft.Frontend{Addr: a, Protocol: protocol, Port: port}
	}
	nodePort := func(protocol uint8, port uint16) nft.Frontend { return at(netip.Addr{}, protocol, port) }
	serving := Facts{Owned: true, Keep: []netip.AddrPort{endpointB, endpointA}}
	onlyA := Facts{Owned: true, Keep: []netip.AddrPort{endpointA}}
	begun := Facts{Owned: true, New: true, Keep: []netip.AddrPort{endpointA}}
	except := Facts{Owned: true, New: true, Keep: []netip.AddrPort{endpointA}, Except: []netip.Addr{external}}
	listed := Facts{Owned: true, Keep: []netip.AddrPort{endpointB, endpointA}}
	direct := func(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }
	for _, c := range []struct {
		name    string
		marked  nft.Frontend
		facts   Facts
		to      nft.Frontend
		answers netip.AddrPort
		want    bool
		reset   bool // and with ResetRemoved
	}{
		{"A12.1: to endpoints that serve, in any order", at(vip, udp, 53), serving, at(vip, udp, 53), endpointA, false, false},
		{"A12.1: to an endpoint that left", at(vip, udp, 53), onlyA, at(vip, udp, 53), endpointB, true, true},
		{"A12.1: to another port of an endpoint that serves", at(vip, udp, 53), onlyA, at(vip, udp, 53), direct(endpointA.Addr(), 8081), true, true},
		{"A12.2, R18: to a frontend without endpoints", at(vip, udp, 53), Facts{Owned: true}, at(vip, udp, 53), endpointA, true, true},
		{"A12.2: to a frontend that is gone", at(vip, udp, 53), Facts{}, at(vip, udp, 53), endpointA, true, true},
		{"not translated, to a frontend that is gone", at(vip, udp, 53), Facts{New: true}, at(vip, udp, 53), direct(vip, 53), false, false},
		{"A12.3: a NodePort, to an endpoint that left", nodePort(udp, 30053), onlyA, at(node, udp, 30053), endpointB, true, true},
		{"A12.3: a NodePort, to one that serves", nodePort(udp, 30053), onlyA, at(node, udp, 30053), endpointA, false, false},
		{"A12.3: a NodePort without endpoints", nodePort(udp, 30053), Facts{Owned: true}, at(node, udp, 30053), endpointA, true, true},
		{"the number of a NodePort where it is none", nodePort(udp, 30053), onlyA, at(elsewhere, udp, 30053), endpointB, false, false},
		{"a NodePort's number, of a Service's own address", nodePort(udp, 30053), except, at(external, udp, 30053), endpointB, false, false},
		{"the same, not translated", nodePort(udp, 30053), except, at(external, udp, 30053), direct(external, 30053), false, false},
		{"that NodePort at another address", nodePort(udp, 30053), except, at(node, udp, 30053), endpointB, true, true},
		{"A12.4: TCP to an endpoint that left", at(vip, tcp, 80), onlyA, at(vip, tcp, 80), endpointB, false, true},
		{"A12.4: TCP to a new frontend, from before", at(vip, tcp, 80), begun, at(vip, tcp, 80), endpointB, false, true},
		{"A12.4: TCP to a frontend that is gone", at(vip, tcp, 80), Facts{}, at(vip, tcp, 80), endpointA, false, true},
		{"A12.4: a NodePort of TCP", nodePort(tcp, 30080), onlyA, at(node, tcp, 30080), endpointB, false, true},
		{"A12.4: a NodePort of TCP with exceptions", nodePort(tcp, 30080), except, at(node, tcp, 30080), endpointA, false, false},
		{"R25: TCP to an endpoint that terminates", at(vip, tcp, 80), listed, at(vip, tcp, 80), endpointB, false, false},
		{"R24: TCP from before its frontend", at(vip, tcp, 80), begun, at(vip, tcp, 80), direct(vip, 80), true, true},
		{"R24: TCP from before its NodePort", nodePort(tcp, 30080), begun, at(node, tcp, 30080), direct(node, 30080), true, true},
		{"R19: UDP from before its frontend", at(vip, udp, 53), begun, at(vip, udp, 53), direct(vip, 53), true, true},
		{"not translated, to a frontend that was one before", at(vip, udp, 53), onlyA, at(vip, udp, 53), direct(vip, 53), false, false},
		{"R23: SCTP to an endpoint that left", at(vip, sctp, 99), onlyA, at(vip, sctp, 99), endpointB, true, true},
		{"R23: SCTP to one that serves", at(vip, sctp, 99), onlyA, at(vip, sctp, 99), endpointA, false, false},
		{"R20: the same address, another port", at(vip, udp, 53), Facts{}, at(vip, udp, 54), endpointB, false, false},
		{"another protocol", at(vip, udp, 53), Facts{}, at(vip, sctp, 53), endpointB, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for reset, want := range map[bool]bool{false: c.want, true: c.reset} {
				cleaner := New(Config{Family: nft.IPv4, ResetRemoved: reset})
				cleaner.Expect(c.marked, c.facts)
				cleaner.Written()
				got, err := cleaner.stale(view{cleaner.take()}, map[netip.Addr]bool{node: true, external: true}, flowTo(c.to, c.answers))
				if got != want || err != nil {
					t.Errorf("with ResetRemoved %v: stale %v (%v), want %v", reset, got, err, want)
				}
			}
		})
	}
}

// A TCP flow that nobody has answered goes when its endpoint serves no more, in the second
// pass that sees it so.
func TestTCPFlowsThatNobodyHasAnswered(t *testing.T) {
	at := nft.Frontend{Addr: vip, Protocol: tcp, Port: 80}
	gone, stays := Facts{Owned: true, Keep: []netip.AddrPort{endpointA}}, Facts{Owned: true, Keep: []netip.AddrPort{endpointA, endpointB}}
	for _, c := range []struct {
		name     string
		facts    Facts
		retried  bool
		then     *Facts // before the second pass
		answered bool   // then
		want     bool
	}{
		{"its endpoint has left", gone, false, nil, false, true},
		{"the write failed and was made again", gone, true, nil, false, true},
		{"its frontend has", Facts{}, false, nil, false, true},
		{"its endpoint serves", stays, false, nil, false, false},
		{"it came back", gone, false, &stays, false, false},
		{"somebody has answered meanwhile", gone, false, nil, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cleaner := New(Config{Family: nft.IPv4, Unanswered: true})
			cleaner.Expect(at, c.facts)
			if c.retried { // by a load, which can't know what was written before
				cleaner.Expect(at, Facts{Owned: true, New: true, Keep: c.facts.Keep})
			}
			cleaner.Written()
			marks := view{cleaner.take()}
			f := flowTo(at, endpointB)
			f.Answered = false
			if got, err := cleaner.stale(marks, nil, f); got || err != nil {
				t.Errorf("in the first pass: stale %v, %v", got, err)
			}
			cleaner.silent, cleaner.found = cleaner.found, map[string]bool{}
			if c.then != nil {
				cleaner.Expect(at, *c.then)
			}
			f.Answered = c.answered
			if got, err := cleaner.stale(marks, nil, f); got != c.want || err != nil {
				t.Errorf("in the second pass: stale %v (%v), want %v", got, err, c.want)
			}
			other := flowTo(at, endpointB)
			other.Answered, other.ID = false, []byte{1}
			if got, err := cleaner.stale(marks, nil, other); got || err != nil {
				t.Errorf("another one that began in its place: stale %v, %v", got, err)
			}
		})
	}
}

// What is newer about a frontend counts, but for the flows from before it.
func TestNewerMarksCount(t *testing.T) {
	f := nft.Frontend{Addr: vip, Protocol: udp, Port: 53}
	started := Facts{Owned: true, New: true}
	served := Facts{Owned: true, Keep: []netip.AddrPort{endpointA}}
	for _, c := range []struct {
		name                  string
		facts                 []Facts // the oldest first
		untranslated, toA, ok bool
	}{
		{"it was never marked", nil, false, false, false},
		{"an endpoint came", []Facts{started, served}, true, false, true},
		{"it left again", []Facts{started, served, {Owned: true}}, true, true, true},
		{"the frontend is gone", []Facts{started, served, {}}, false, true, true},
		{"it is back", []Facts{started, {}, {Owned: true, New: true, Keep: []netip.AddrPort{endpointA}}}, true, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			merged := marks{}
			var layers view
			for _, facts := range c.facts {
				m := marked(f, facts, Config{})
				merged.add(f, m)
				layers = append(view{marks{f: m}}, layers...)
			}
			for what, v := range map[string]view{"in one layer": {merged}, "in layers": layers, "merged": {layers.merged()}} {
				m, ok := v.find(f)
				toA, err := m.stale(flowTo(f, endpointA))
				if ok != c.ok || m.untranslated != c.untranslated || toA != c.toA || err != nil {
					t.Errorf("%s: found %v, untranslated %v, to an endpoint %v (%v); want %v, %v, %v",
						what, ok, m.untranslated, toA, err, c.ok, c.untranslated, c.toA)
				}
			}
		})
	}
}

// Lists that a caller keeps are not written to.
func TestListsAreSortedInACopy(t *testing.T) {
	list := []netip.AddrPort{endpointB, endpointA}
	marked(nft.Frontend{Addr: vip, Protocol: udp, Port: 53}, Facts{Owned: true, Keep: list}, Config{})
	if list[0] != endpointB {
		t.Errorf("got %v", list)
	}
}
