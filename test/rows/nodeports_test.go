package rows_test

import (
	"fmt"
	"net/netip"
	"testing"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/oracle"
	"onerule/test/rig"
)

// nodePortTests are the rows about the addresses that take NodePorts.
func nodePortTests() map[string]func(*testing.T, *world) {
	return map[string]func(*testing.T, *world){
		"A6.2": testPrimaryAddresses, "A6.4": testNodePortCIDRs, "A6.5": testNodePortsOfOneFamily,
		"A6.6": testAllAddresses, "A6.8": testAddressesLive, "A6.9": testNodePortWarnings,
	}
}

// nodeWith is this node with the primary addresses of both families.
func nodeWith() string {
	return fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s}\nstatus: {addresses: [{type: InternalIP, address: %q}, {type: InternalIP, address: %q}]}\n",
		addr.NodeName, addr.IPv4().Node(), addr.IPv6().Node())
}

// takes checks which addresses of the node lead a client to the NodePort, and that a
// port of others is the node's own, which has nobody there.
func (w *world) takes(t *testing.T, p addr.Plan, is, isNot []netip.Addr) {
	t.Helper()
	w.put(t, "web.yaml", outsideService(p, ""), webSlice(p, here(p)))
	for _, client := range hosts.Clients(p) {
		for _, proto := range []model.Protocol{model.TCP, model.UDP} {
			for _, a := range is {
				w.sees(t, client, at(a, proto, nodePort), reaches(true, here(p)))
			}
			for _, a := range isNot {
				w.sees(t, client, at(a, proto, nodePort), oracle.Outcome{Verdict: oracle.Refused})
			}
		}
	}
	if out := w.h.Node.Run(t, "nft", "list", "set", nftFamily(p), "onerule", "nodeport-ips"); contains(out, "127.0.0.1") || contains(out, " ::1") {
		t.Errorf("loopback takes NodePorts: %s", out)
	}
}

func testPrimaryAddresses(t *testing.T, w *world) {
	w.put(t, "node.yaml", nodeWith())
	for _, flags := range [][]string{nil, {"--nodeport-addresses", "primary"}} {
		w.restart(t, detectBoth(flags...)...)
		each(t, func(t *testing.T, p addr.Plan) {
			w.takes(t, p, []netip.Addr{p.Node()}, []netip.Addr{p.NodeBetween(), p.PodGateway(0)})
		})
	}
	w.restart(t, detectBoth("--nodeport-addresses", fmt.Sprintf("primary,%s,%s", addr.IPv4().Between, addr.IPv6().Between))...)
	each(t, func(t *testing.T, p addr.Plan) {
		w.takes(t, p, []netip.Addr{p.Node(), p.NodeBetween()}, []netip.Addr{p.PodGateway(0)})
	})
}

func testNodePortCIDRs(t *testing.T, w *world) {
	w.restart(t, detectBoth("--nodeport-addresses", fmt.Sprintf("%s,%s,127.0.0.0/8,::1/128", addr.IPv4().Between, addr.IPv6().Between))...)
	each(t, func(t *testing.T, p addr.Plan) {
		w.takes(t, p, []netip.Addr{p.NodeBetween()}, []netip.Addr{p.Node(), p.PodGateway(0)})
	})
}

func testNodePortsOfOneFamily(t *testing.T, w *world) {
	p4, p6 := addr.IPv4(), addr.IPv6()
	w.restart(t, detectBoth("--nodeport-addresses", p4.Between.String())...)
	w.takes(t, p4, []netip.Addr{p4.NodeBetween()}, []netip.Addr{p4.Node()})
	w.takes(t, p6, []netip.Addr{p6.NodeBetween(), p6.Node(), p6.PodGateway(0)}, nil)
}

func testAllAddresses(t *testing.T, w *world) {
	w.restart(t, detectBoth("--nodeport-addresses", "all")...)
	each(t, func(t *testing.T, p addr.Plan) {
		w.takes(t, p, []netip.Addr{p.NodeBetween(), p.Node(), p.PodGateway(0)}, nil)
	})
}

// An address that the node gets takes NodePorts, and one that it loses does not.
func testAddressesLive(t *testing.T, w *world) {
	w.restart(t, detectBoth("--nodeport-addresses", fmt.Sprintf("%s,%s", addr.IPv4().Uplink, addr.IPv6().Uplink))...)
	each(t, func(t *testing.T, p addr.Plan) {
		added := addr.Nth(p.Uplink, 77)
		prefix := netip.PrefixFrom(added, p.Uplink.Bits()).String()
		set := func(want bool) {
			t.Helper()
			rig.Eventually(t, fmt.Sprintf("%s takes NodePorts: %t", added, want), func() error {
				out, err := w.h.Node.Output("nft", "list", "set", nftFamily(p), "onerule", "nodeport-ips")
				if err == nil && contains(out, added.String()) != want {
					err = fmt.Errorf("it holds %s", out)
				}
				return err
			})
		}
		w.takes(t, p, []netip.Addr{p.Node()}, nil)
		w.h.Node.Addr(t, "uplink", prefix)
		set(true)
		w.sees(t, hosts.Clients(p)[oracle.Outside], at(added, model.TCP, nodePort), reaches(true, here(p)))
		w.h.Node.Run(t, "ip", "addr", "del", prefix, "dev", "uplink")
		set(false)
		w.takes(t, p, []netip.Addr{p.Node()}, nil)
	})
}

func testNodePortWarnings(t *testing.T, w *world) {
	p4, p6 := addr.IPv4(), addr.IPv6()
	for given, missing := range map[netip.Prefix]addr.Plan{p4.Uplink: p6, p6.Uplink: p4} {
		w.restart(t, detectBoth("--nodeport-addresses", given.String())...)
		if w.said("nodePortAddresses", familyOf(missing)) == 0 {
			t.Errorf("with --nodeport-addresses=%s nothing is said of %s", given, familyOf(missing))
		}
	}
}
