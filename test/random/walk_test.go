package random_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"onerule/nft"
	"onerule/test/oracle"
	"onerule/test/random"
	"onerule/test/sim"
)

// What people are told of a packet's way must be what the rules do with it: for every
// cell of the random clusters, judged by the oracle.
func TestTheWayThatIsToldIsTheWayOfTheOracle(t *testing.T) {
	seed, programs, met := seed(t), random.Programs{}, map[nft.Verdict]int{}
	const clusters = 20
	for number, hand := range random.Deal(seed, clusters, 1) {
		r := begin(seed, number)
		r.change(0)
		for _, cell := range hand {
			for _, move := range r.gen.Aim(r.node.Setup, cell) {
				r.apply(move.Changes)
				packet := r.packet()
				if move.Packet != nil {
					packet = *move.Packet
				}
				if verdict, diff := r.tell(packet); diff != "" {
					t.Fatalf("seed %d, cluster %d, %+v: %s\n%s", seed, number, packet, diff, r.facts())
				} else {
					met[verdict]++
				}
				if diff, err := r.send(programs, packet); err != nil || diff != "" {
					t.Fatalf("the rules themselves: %s, %v", diff, err)
				}
			}
		}
	}
	t.Logf("%v", met)
	for _, v := range []nft.Verdict{nft.Passed, nft.Translated, nft.Refused, nft.Dropped} {
		if met[v] < 20 {
			t.Errorf("%s: met %d times, want 20", v, met[v])
		}
	}
}

// tell compares the way that a packet is told to go with what the oracle wants.
func (r *round) tell(p oracle.Packet) (nft.Verdict, string) {
	if p.Protocol == oracle.ICMP || p.Protocol == oracle.ICMPv6 {
		return nft.Passed, ""
	}
	table, tr := r.table(p), r.trial(p)
	way := nft.Walk(table.Config, table.State, pinsFor(table, p.Src), r.config().NodeAddrs, nft.Packet{
		Local: p.From == oracle.Node, Iif: p.Iif, Returns: p.Iif == "uplink" && !slices.Contains(r.config().NodeAddrs, p.Dst),
		Src: p.Src, Dst: p.Dst, Protocol: uint8(p.Protocol), Port: p.Port,
	})
	got := map[sim.Outcome]bool{}
	for _, a := range way.Arrivals {
		got[sim.Outcome{Verdict: sim.Translated, Endpoint: a.Endpoint, Masqueraded: a.Masqueraded}] = true
	}
	ends := map[nft.Verdict]sim.Verdict{nft.Passed: sim.Accepted, nft.Refused: sim.Refused, nft.Dropped: sim.Dropped}
	if end, ok := ends[way.Verdict]; ok {
		got[sim.Outcome{Verdict: end}] = true
	}
	if diff := random.Differ(got, tr.Want); diff != "" {
		return way.Verdict, fmt.Sprintf("%s: %+v", diff, way)
	}
	if len(way.Stages) == 0 {
		return way.Verdict, "no stage is told"
	}
	return way.Verdict, ""
}

// pinsFor gives what a client is pinned to in a table.
func pinsFor(t *random.Table, client netip.Addr) nft.Pins {
	pins := nft.Pins{Any: map[string]netip.AddrPort{}, Local: map[string]netip.AddrPort{}}
	for id := range t.State.Affinities {
		for scope, to := range map[string]map[string]netip.AddrPort{"": pins.Any, "local-": pins.Local} {
			addr := t.Pins["pins-"+scope+"addr-"+id][client].Addr()
			port := t.Pins["pins-"+scope+"port-"+id][client].Port()
			if addr.IsValid() && port != 0 {
				to[id] = netip.AddrPortFrom(addr, port)
			}
		}
	}
	return pins
}
