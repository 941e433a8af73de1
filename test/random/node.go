package random

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"onerule/daemon"
	"onerule/daemon/model"
	"onerule/daemon/plan"
	"onerule/nft"
	"onerule/test/oracle"
	"onerule/test/sim"
)

// masqueradeBit is kube-proxy's default.
const masqueradeBit = 14

// A Node is our side of the comparison: it plans what changes, and holds the state
// of both tables.
type Node struct {
	Setup  Setup
	ledger *plan.Ledger
	Tables []*Table
}

// A Table is the table of one family: its rules, what its sets and maps hold, and the
// pins that the rules wrote.
type Table struct {
	Config nft.Config
	State  nft.State
	Pins   sim.Pins
	// own are the elements that no object says: the node's addresses.
	own map[nft.AddrSet][]netip.Addr
}

// NewNode gives a node that knows no object, after its first load: that is what
// brings in what does not come from objects, ranges and addresses.
func NewNode(s Setup) *Node {
	n := &Node{Setup: s, ledger: plan.NewLedger(plan.Config{
		NodeName: s.NodeName, ClusterCIDRs: s.ClusterCIDRs, WithoutExternalIPs: s.WithoutExternalIPs,
	})}
	for _, f := range []nft.Family{nft.IPv4, nft.IPv6} {
		n.Tables = append(n.Tables, newTable(s, f))
	}
	keys := n.ledger.All()
	for _, a := range s.NodeAddrs {
		keys.Addrs[a] = true
	}
	n.update(keys)
	return n
}

func newTable(s Setup, f nft.Family) *Table {
	c := nft.Config{
		Family: f, MasqueradeBit: masqueradeBit, MasqueradeAll: s.MasqueradeAll,
		RefuseWithoutLocal: s.RefuseWithoutLocal, WithoutFib: s.WithoutFib,
	}
	ofFamily := func(p netip.Prefix) bool { return of(f, p.Addr()) }
	switch {
	case s.PodInterface != "":
		c.Detector, c.PodInterface = nft.DetectInterface, s.PodInterface
	case slices.ContainsFunc(s.ClusterCIDRs, ofFamily):
		c.Detector = nft.DetectCIDR
	}
	all := func(p netip.Prefix) bool { return ofFamily(p) && p.Bits() == 0 }
	c.NodePortsEverywhere = !slices.ContainsFunc(s.NodePortRanges, ofFamily) || slices.ContainsFunc(s.NodePortRanges, all)
	t := &Table{Config: c, State: nft.NewState(), Pins: sim.Pins{}, own: map[nft.AddrSet][]netip.Addr{}}
	for _, a := range s.NodeAddrs {
		if !of(f, a) {
			continue
		}
		if s.WithoutFib {
			t.own[nft.NodeIPs] = append(t.own[nft.NodeIPs], a)
		}
		in := func(p netip.Prefix) bool { return p.Contains(a) }
		if s.WithoutFib && c.NodePortsEverywhere || !c.NodePortsEverywhere && slices.ContainsFunc(s.NodePortRanges, in) {
			t.own[nft.NodePortIPs] = append(t.own[nft.NodePortIPs], a)
		}
	}
	return t
}

// An Update is what changes made of one table.
type Update struct {
	Keys nft.Keys
	Want nft.State // what the keys name
}

// Apply takes changes in, and gives what they made of each table. Pins to endpoints that
// left are gone then.
func (n *Node) Apply(changes []model.Change) []Update {
	return n.update(n.ledger.Apply(changes).Touched)
}

func (n *Node) update(touched plan.Keys) []Update {
	outcome := n.ledger.Decide(touched)
	var updates []Update
	for _, t := range n.Tables {
		keys, want := daemon.Spell(t.Config.Family, touched, outcome)
		for set, list := range t.own {
			for _, a := range list {
				if keys.Addrs[a] { // what is said of an address is said of all sets
					want.Addrs[set][a] = true
				}
			}
		}
		t.State.Put(keys, nft.Settle(t.State.At(keys), want))
		t.unpin()
		updates = append(updates, Update{keys, want})
	}
	return updates
}

// The maps of pins are named after the scope and the service port: pins-addr-ID,
// pins-port-ID, pins-local-addr-ID, and so on. Members are members-ID, local-members-ID.
const (
	pinsPrefix  = "pins-"
	localPrefix = "local-"
)

// unpin deletes pins to what is no member, as the daemon does after a change.
func (t *Table) unpin() {
	for pin := range pinsOf(t.Pins) {
		scope := strings.TrimSuffix(strings.TrimPrefix(pin.scope, pinsPrefix), "addr-")
		at := netip.AddrPortFrom(t.Pins[pin.addrs()][pin.client].Addr(), t.Pins[pin.ports()][pin.client].Port())
		if !t.State.Members[scope+"members-"+pin.id][at] {
			delete(t.Pins[pin.addrs()], pin.client)
			delete(t.Pins[pin.ports()], pin.client)
		}
	}
}

// A pinKey says for whom a pin is, and scope that it is for frontends that use all
// endpoints, or only those on this node.
type pinKey struct {
	scope, id string
	client    netip.Addr
}

func (k pinKey) addrs() string { return k.scope + k.id }
func (k pinKey) ports() string { return strings.Replace(k.addrs(), "addr-", "port-", 1) }

// pinsOf reads the pins of a table: a client without an address or a port has none.
func pinsOf(pins sim.Pins) map[pinKey]netip.AddrPort {
	all := map[pinKey]netip.AddrPort{}
	for name, clients := range pins {
		at := strings.Index(name, "addr-")
		if at < 0 {
			continue
		}
		at += len("addr-")
		for client, endpoint := range clients {
			key := pinKey{name[:at], name[at:], client}
			if port, ok := pins[key.ports()][client]; ok {
				all[key] = netip.AddrPortFrom(endpoint.Addr(), port.Port())
			}
		}
	}
	return all
}

// wantedPins says what pins the oracle wants in a table, in the words of the rules.
func wantedPins(f nft.Family, pins oracle.Pins) map[pinKey]netip.AddrPort {
	all := map[pinKey]netip.AddrPort{}
	for port, clients := range pins {
		if port.IPv6 != (f == nft.IPv6) {
			continue
		}
		id := affinityID(f, port)
		for client, pin := range clients {
			if pin.Any.IsValid() {
				all[pinKey{pinsPrefix + "addr-", id, client}] = pin.Any
			}
			if pin.Local.IsValid() {
				all[pinKey{pinsPrefix + localPrefix + "addr-", id, client}] = pin.Local
			}
		}
	}
	return all
}

// affinityID asks the daemon what it calls a service port.
func affinityID(f nft.Family, port oracle.ServicePort) string {
	keys := plan.NewKeys()
	keys.Affinities[plan.ServicePort{Service: port.Service, Port: port.Port, Protocol: port.Protocol, Family: plan.Family(f)}] = true
	named, _ := daemon.Spell(f, keys, plan.Outcome{})
	for id := range named.Affinities {
		return id
	}
	return ""
}

func of(f nft.Family, a netip.Addr) bool { return a.Is4() == (f == nft.IPv4) }

// Faulty gives a copy of the table with a fault in it, and false if it has nothing
// that could break that way.
func (t *Table) Faulty(f Fault, g *Generator) (nft.Skeleton, nft.State, bool) {
	skeleton, state := nft.NewSkeleton(t.Config), t.Copy()
	return skeleton, state, f.Seed(g, skeleton, state)
}

// Copy gives the state as a value of its own, which later changes don't reach.
func (t *Table) Copy() nft.State {
	s := t.State
	c := nft.NewState()
	for name, m := range s.Addrs {
		maps.Copy(c.Addrs[name], m)
	}
	for name, m := range s.Routes {
		maps.Copy(c.Routes[name], m)
	}
	for name, m := range s.Slots {
		maps.Copy(c.Slots[name], m)
	}
	for name, m := range s.Counts {
		maps.Copy(c.Counts[name], m)
	}
	maps.Copy(c.Ranges, s.Ranges)
	maps.Copy(c.Sources, s.Sources)
	maps.Copy(c.Members, s.Members)
	maps.Copy(c.Affinities, s.Affinities)
	return c
}
