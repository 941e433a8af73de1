// Package rows_test proves the specification of ClusterIPs row by row: the real
// daemon, manifests as a person writes them, and real packets. Every row that is owed
// stands in owed, and has its test in tests under the same ID.
package rows_test

import (
	"flag"
	"maps"
	"slices"
	"strings"
	"testing"
)

// A row is a piece of the specification: its ID, and what a client or an operator sees.
type row struct{ id, sees string }

// owed lists the rows that ClusterIPs owe. IDs with R are faults that users met,
// those with F and D too; IN is bad input.
func owed() []row {
	return []row{
		{"A1.1", "a ClusterIP leads to the target port of its endpoint"},
		{"A1.2", "one port number in three protocols leads to three targets"},
		{"A1.3", "a port or protocol that the Service has not is refused"},
		{"A1.4", "a ping to a ClusterIP in use is refused"},
		{"A1.5", "an address of a ServiceCIDR that no Service holds is silent"},
		{"A1.6", "a headless Service is not there"},
		{"A1.7", "an ExternalName with a stale ClusterIP is not there, and comes and goes with its type"},
		{"A1.8", "a Service of another proxy is not there, and comes and goes with its label"},
		{"A1.9", "a slice with the headless label counts for nothing"},
		{"A1.10", "a slice without the name of a Service, or without a name, is left out and logged"},
		{"A1.11", "a slice of names is left out and logged, and each family has its own slices"},
		{"A1.12", "a slice port without a name or a number is left out, the others work"},
		{"A1.13", "the first address of an endpoint counts"},
		{"A1.14", "an endpoint without a node is nowhere local"},
		{"A1.15", "conditions that are not said have their defaults"},
		{"A1.16", "slices are merged by address and port"},
		{"A1.17", "a target port with another number in each slice is balanced over all"},
		{"A1.18", "addresses with leading zeros are those without"},
		{"A1.19", "load balancer IPs are taken unless their mode is Proxy"},
		{"A1.20", "the class of a load balancer plays no role"},
		{"A1.21", "a load balancer without NodePorts works"},
		{"A1.22", "external IPs work, also one that the node has, and are off with the gate"},
		{"A1.23", "each family has its ClusterIP, whatever the order"},
		{"A1.24", "a Service without families tells them by its addresses"},
		{"A1.25", "what a Service had is refused after an update, and what it has answers"},
		{"A1.26", "the longest names work"},
		{"A2", "pods keep their address to a ClusterIP, the node and others are masqueraded"},
		{"A2.1", "without a detector everybody keeps his address"},
		{"A2.2", "with masqueradeAll pods are masqueraded too"},
		{"A2.3", "without a detector and with masqueradeAll everybody is masqueraded"},
		{"A2.4", "a pod reaches itself through its Service, and sees the node"},
		{"A2.5", "a pod keeps its address and is seen by it"},
		{"A2.6", "masqueraded flows get ports at random"},
		{"A2.7", "the mark has our bit only on the way, and others' bits stay"},
		{"A2.8", "connections spread evenly"},
		{"A2.9", "open connections stay on their endpoint, whatever changes"},
		{"A2.10", "processes of the node use ClusterIPs from any of its addresses"},
		{"A2.11", "an endpoint in the node's network is reached from everywhere"},
		{"A3.1", "without a usable endpoint it is refused"},
		{"A2.external", "the flow matrix of NodePorts, external and load balancer IPs"},
		{"A2.1.external", "without a detector pods are outside"},
		{"A2.2.external", "masqueradeAll is for ClusterIPs only"},
		{"A3.1.external", "without any endpoint every frontend refuses, whatever the policy"},
		{"A3.2", "a ClusterIP of policy Local with endpoints elsewhere only is silent"},
		{"A3.3", "from outside, policy Local with endpoints elsewhere only is silent"},
		{"A3.4", "pods and the node reach endpoints elsewhere all the same"},
		{"A3.5", "each policy is for its own frontends"},
		{"A3.6", "a refusal comes at once, IPv6 TCP by a reset"},
		{"A3.7", "a refusal or a drop cuts no established flow"},
		{"A3.9", "an evicted pod is no endpoint"},
		{"A4.1", "without a ready endpoint those that terminate and serve are used"},
		{"A4.2", "the local set is chosen by itself"},
		{"A4.3", "what is neither ready nor terminating is never used"},
		{"A4.4", "ready is ready, even if it does not serve"},
		{"A4.6", "hints for nodes hold if each ready endpoint has one and any is for this node"},
		{"A4.7", "else hints for zones hold in the same way"},
		{"A4.8", "else hints are ignored"},
		{"A4.9", "hints of endpoints that are not ready do not matter"},
		{"A4.10", "hints are nothing to policy Local"},
		{"A4.11", "trafficDistribution and annotations change nothing but through hints"},
		{"A4.12", "another zone of the node counts at once"},
		{"A4.13", "hints never lead to an endpoint that leaves"},
		{"A5.1", "one client comes to one endpoint, whatever the frontend"},
		{"A5.2", "R34: each port of a Service has its own"},
		{"A5.3", "R34: every connection renews the timeout, and nothing else does"},
		{"A5.4", "R34: who loses an endpoint gets another one, and nobody else does"},
		{"A5.4.kept", "a restart and another timeout keep who comes where"},
		{"A5.5", "session affinity comes and goes with the field"},
		{"A5.6", "R34: policy Local has endpoints of its own, and both are kept"},
		{"A5.7", "clients are told apart by the address before masquerade"},
		{"A6.2", "A6.1: by default, and where asked for, the node's primary addresses take NodePorts, also with ranges"},
		{"A6.4", "addresses in the ranges take NodePorts, others are the node's own"},
		{"A6.5", "a family without a range is not restricted"},
		{"A6.6", "all addresses of the node take NodePorts where asked for"},
		{"A6.8", "addresses that come and go are followed"},
		{"A6.9", "ranges of one family only are warned of"},
		{"A6.10", "NodePorts ignore source ranges"},
		{"A6.11", "one number in TCP and UDP belongs to two Services"},
		{"A8.1", "who is outside all source ranges hears nothing"},
		{"A8.2", "a range of everything lets everybody in"},
		{"A8.3", "source ranges are for pods and the node, too"},
		{"A8.4", "a range with the node's address lets the load balancer's in"},
		{"A8.5", "ranges of the other family restrict nothing"},
		{"A8.6", "ranges are for load balancer IPs only"},
		{"A8.7", "another port of the same address is not restricted"},
		{"A13.1", "pods are the addresses of the cluster's ranges, and without one everybody keeps his"},
		{"A13.2", "pods are the addresses of the node's ranges, which are waited for"},
		{"A13.3", "pods are behind the interface of a name, which must be given"},
		{"A13.4", "pods are behind interfaces of a prefix, which must be given"},
		{"A13.5", "without a mode it is ClusterCIDR, and another mode is refused"},
		{"A13.6", "ranges of the wrong family alone end the process at start"},
		{"A14.8", "a changed configuration file takes effect, at once or by a restart that is asked for"},
		{"R4", "tables of others, whatever they hold, hinder nothing"},
		{"R38", "another version of a ConfigMap takes effect at once"},
		{"F11", "every range of the node makes an address a pod's"},
		{"R16", "a pod reaches a load balancer IP of policy Local with endpoints elsewhere, however pods are told"},
		{"R14118", "undefined ports of external addresses and pings to them are refused"},
		{"R17", "where asked for, no local endpoint is a refusal"},
		{"R7", "the longest names without an endpoint hurt nobody"},
		{"R66607", "traffic to a load balancer IP in Proxy mode leaves the node as it is"},
		{"R10437", "a host firewall sees NodePort traffic and can allow it"},
		{"R12", "a Service deleted and made a hundred times leaves nothing behind"},
		{"R19", "a UDP sender is answered when the first endpoint, or the Service, comes"},
		{"A12.5", "senders that keep their port follow their Service wherever it goes"},
		{"R23", "an SCTP client that keeps its port gets another endpoint"},
		{"R24", "a connect that began before its Service succeeds"},
		{"IN.dead", "a connect to an endpoint that died without a word succeeds once it has left"},
		{"R25", "where asked for, connections to endpoints that are gone are reset"},
		{"R26", "where asked for, a segment from outside the window resets nothing"},
		{"R29", "two datagrams of a new socket at once are both answered"},
		{"R28", "marks of others survive with our bit at either end"},
		{"R33", "publishNotReadyAddresses sends to pods that are not ready"},
		{"F1", "a ServiceCIDR counts at once when it comes and when it goes"},
		{"F2", "of two ServiceCIDRs with one range the other one holds"},
		{"D34", "a pod reaches itself over UDP too"},
		{"IN.parse", "a file that does not parse is named once, and what it said holds"},
		{"IN.kind", "an unknown kind is named once, and the rest of its file works"},
		{"IN.address", "an invalid address is named once, and what was holds"},
		{"IN.duplicate", "a duplicate frontend is named once, and the older Service has it"},
		{"IN.claims", "of two Services with one external address or NodePort the older has it, and nothing flips"},
		{"IN.port", "a port out of range is named once, and what was holds"},
		{"IN.name", "a name too long is named once, one at the limit works"},
		{"IN.half", "a file half written is named once, and what it said holds"},
	}
}

// tests has the test of each row.
func tests() map[string]func(*testing.T, *world) {
	all := map[string]func(*testing.T, *world){}
	for _, part := range []map[string]func(*testing.T, *world){
		objectTests(), familyTests(), flowTests(), lastingTests(), verdictTests(), reportedTests(), inputTests(),
		outsideTests(), affinityTests(), topologyTests(), nodePortTests(), detectorTests(), liveTests(), foreignTests(), conntrackTests(),
	} {
		maps.Copy(all, part)
	}
	return all
}

func TestRows(t *testing.T) {
	w := newWorld(t)
	w.begin(t, detectBoth()...)
	usual := w.flags
	tests, ran := tests(), map[string]bool{}
	for _, r := range owed() {
		test := tests[r.id]
		if test == nil {
			continue // which is said below
		}
		delete(tests, r.id)
		t.Run(r.id+" "+r.sees, func(t *testing.T) {
			test(t, w)
			ran[r.id] = true // not reached if it skips
		})
		if !slices.Equal(w.flags, usual) {
			w.restart(t, usual...)
		}
		w.clear(t, r.id)
	}
	for id := range tests {
		t.Errorf("the test %s is of no row", id)
	}
	if only := flag.Lookup("test.run").Value.String(); strings.Contains(only, "/") {
		t.Logf("not all rows were asked for: %s", only)
		return
	}
	for _, r := range owed() {
		if !ran[r.id] {
			t.Errorf("%s was not tested: %s", r.id, r.sees)
		}
	}
}
