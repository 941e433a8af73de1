package nft

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// pinsSize is how many clients can be pinned to the endpoints of a service port. The
// kernel's own bound is 65,535, and it says nothing when it is reached.
const pinsSize = 262_144

// An Affinity is the session affinity of a service port: a constant number of rules,
// maps and sets.
//
// A pin is two elements, the endpoint's address and its port: nft 1.0.6 aborts on a
// rule that updates a map with an IPv6 address and a port. The port goes in first, and
// its map is the smaller one: a pin without a port is none, and one without an address
// does not come about when the maps are full.
type Affinity struct {
	// ID stands in the names: see AffinityID.
	ID       string
	Protocol uint8
	// Seconds is how long a client may be idle. It stands in a rule, not in the map: a
	// new timeout keeps the pins.
	Seconds uint32
	// Local says that there are frontends whose policy is Local. They have pins of
	// their own, to endpoints on this node.
	Local bool
}

// AffinityID gives a short name for a service port.
func AffinityID(service string) string {
	sum := sha256.Sum256([]byte(service))
	return hex.EncodeToString(sum[:6])
}

// The kinds of pins, in the names of what belongs to them: to any endpoint, and to those
// on this node.
const (
	anyPins   = ""
	localPins = "local-"
)

func pinScopes() []string { return []string{anyPins, localPins} }

// scopes are the kinds of pins that there are.
func (a Affinity) scopes() []string {
	if a.Local {
		return pinScopes()
	}
	return []string{anyPins}
}

// stickyChain names the chain that sends a client where it is pinned to.
func stickyChain(scope, id string) string { return scope + "sticky-" + id }

// pinChain names the chain that pins a client. It says all that its rules depend on.
func (a Affinity) pinChain() string {
	name := fmt.Sprintf("pin-%s-%s-%d", a.ID, protocolWord(a.Protocol), a.Seconds)
	if a.Local {
		name += "-local"
	}
	return name
}

// affinityOf is the inverse of pinChain.
func affinityOf(chain string) (a Affinity, ok bool) {
	parts := strings.Split(chain, "-")
	if len(parts) < 4 || parts[0] != "pin" {
		return a, false
	}
	seconds, err := strconv.ParseUint(parts[3], 10, 32)
	if err != nil {
		return a, false
	}
	a = Affinity{ID: parts[1], Seconds: uint32(seconds), Local: len(parts) == 5 && parts[4] == "local"}
	for _, p := range Protocols() {
		if p.Word == parts[2] {
			a.Protocol = p.Number
		}
	}
	return a, chain == a.pinChain()
}

// memberSet names the set of the endpoints that a client may be pinned to.
func memberSet(scope, id string) string { return scope + memberPrefix + id }

const memberPrefix = "members-"

func isMemberSet(set string) bool {
	return strings.HasPrefix(strings.TrimPrefix(set, localPins), memberPrefix)
}

func pinMaps(scope, id string) (addrs, ports string) {
	return "pins-" + scope + "addr-" + id, "pins-" + scope + "port-" + id
}

// objects gives what an affinity consists of, apart from its elements. Those of one
// service port with another timeout share all but the chains that pin.
func (a Affinity) objects(f Family) objects {
	proto := protocolWord(a.Protocol)
	o := objects{counters: []Counter{{a.fullCounter(), "clients that could not be pinned: the map is full"}}}
	pin := Chain{Name: a.pinChain(), Comment: "pin a client to the endpoint that it was given"}
	for _, scope := range a.scopes() {
		addrs, ports := pinMaps(scope, a.ID)
		members := memberSet(scope, a.ID)
		o.sets = append(o.sets,
			Set{Name: members, Type: f.addrType() + " . inet_service", Comment: "endpoints to pin clients to"},
			Set{Name: addrs, Type: f.addrType() + " : " + f.addrType(), Map: true, Flags: "dynamic,timeout", Size: pinsSize + pinsSize/4, Comment: "client: address of its endpoint"},
			Set{Name: ports, Type: f.addrType() + " : inet_service", Map: true, Flags: "dynamic,timeout", Size: pinsSize, Comment: "client: port of its endpoint"})
		update := Chain{Name: scope + "update-" + a.ID + "-" + fmt.Sprint(a.Seconds), Comment: "pin, or renew: a pin keeps its endpoint", Rules: []string{
			fmt.Sprintf("update @%s { %s saddr timeout %ds : %s dport } update @%s { %s saddr timeout %ds : %s daddr } return", ports, f, a.Seconds, proto, addrs, f, a.Seconds, f),
			counting(a.fullCounter()),
		}}
		pin.Rules = append(pin.Rules, fmt.Sprintf("%s daddr . %s dport @%s jump %s", f, proto, members, update.Name))
		o.chains = append(o.chains, update, Chain{
			Name: stickyChain(scope, a.ID), Comment: "where the client is pinned to",
			Rules: []string{fmt.Sprintf("meta l4proto %s dnat to %s saddr map @%s : %s saddr map @%s", proto, f, addrs, f, ports)},
		})
	}
	o.chains = append(o.chains, pin)
	return o
}

// Sets gives the sets and maps of an affinity, and Chains its chains.
func (a Affinity) Sets(f Family) []Set { return a.objects(f).sets }

// Chains gives its chains.
func (a Affinity) Chains(f Family) []Chain { return a.objects(f).chains }

func (a Affinity) fullCounter() string { return PinsFullPrefix + a.ID }

// PinsFullPrefix begins the names of the counters of clients that could not be pinned.
const PinsFullPrefix = "pins-full-"

// pinning finds the service port of a translated flow by where the client sent it. nft
// takes the port of the original direction only where it knows the protocol (1.0.6).
func pinning(f Family) Chain {
	c := Chain{Name: "pinning", Comment: "pin the clients of Services with session affinity"}
	for _, p := range Protocols() {
		c.Rules = append(c.Rules,
			fmt.Sprintf("meta l4proto %s ct original %s daddr . meta l4proto . ct original proto-dst vmap @%s", p.Word, f, Pinning),
			fmt.Sprintf("meta l4proto %s meta l4proto . ct original proto-dst vmap @%s", p.Word, NodePortPinning))
	}
	return c
}
