package main

import "onerule/test/conformance"

// owing is the word for an item that has no test.
func owing(when conformance.When) string {
	switch when {
	case conformance.Later:
		return "later"
	case conformance.Never:
		return "does not apply"
	}
	return "MISSING"
}

// owed lists all rows, in the order in which they are shown. IDs with A are what
// kube-proxy 1.37 does in nftables mode, those with R are faults that users reported,
// those with F faults that its code has.
func owed() []conformance.Item {
	var all []conformance.Item
	for _, part := range [][]conformance.Item{
		objectRows(), flowRows(), verdictRows(), endpointRows(), affinityRows(), nodePortRows(), localhostRows(),
		rangeRows(), healthCheckRows(), healthRows(), statusRows(), conntrackRows(), detectorRows(), lifeRows(),
		apiRows(), reportedRows(), furtherReportedRows(), foundRows(),
	} {
		all = append(all, part...)
	}
	return all
}

func objectRows() []conformance.Item {
	return []conformance.Item{
		{ID: "A1.1", Says: "a ClusterIP leads to the target port of a ready endpoint"},
		{ID: "A1.2", Says: "one port number in TCP, UDP and SCTP leads to three targets"},
		{ID: "A1.3", Says: "a port or protocol that the Service has not is refused"},
		{ID: "A1.4", Says: "a ping to a ClusterIP in use is answered as unreachable"},
		{ID: "A1.5", Says: "an address of a ServiceCIDR that no Service holds is silent"},
		{ID: "A1.6", Says: "a headless Service is not proxied"},
		{ID: "A1.7", Says: "an ExternalName is not proxied, and rules come and go with its type"},
		{ID: "A1.8", Says: "a Service labelled for another proxy is left alone, and taken back without the label"},
		{ID: "A1.9", Says: "a slice with the headless label gives no endpoints"},
		{ID: "A1.10", Says: "a slice that names no Service, or has no name, is left out and logged"},
		{ID: "A1.11", Says: "a slice of host names is left out and logged; each family has its own slices"},
		{ID: "A1.12", Says: "a slice port without name or number is left out, the others work"},
		{ID: "A1.13", Says: "only the first address of an endpoint is used"},
		{ID: "A1.14", Says: "an endpoint without a node is local nowhere"},
		{ID: "A1.15", Says: "conditions that are not given are ready, serving and not terminating"},
		{ID: "A1.16", Says: "slices are merged by address and port; a terminating entry replaces none"},
		{ID: "A1.17", Says: "a named target port with different numbers is balanced over all of them"},
		{ID: "A1.18", Says: "leading zeros in addresses and spaces around ranges are accepted"},
		{ID: "A1.19", Says: "load balancer IPs work, except those in Proxy mode; host names are ignored"},
		{ID: "A1.20", Says: "the class of a load balancer makes no difference"},
		{ID: "A1.21", Says: "a load balancer without NodePorts works"},
		{ID: "A1.22", Says: "external IPs work for every type, unless the feature gate is off"},
		{ID: "A1.23", Says: "each family has its own addresses; a Service without a family is absent from it"},
		{ID: "A1.24", Says: "without ipFamilies the ClusterIP tells the family"},
		{ID: "A1.25", Says: "after an update old frontends stop and new ones work"},
		{ID: "A1.26", Says: "names of the greatest length work"},
	}
}

func flowRows() []conformance.Item {
	return []conformance.Item{
		{ID: "A2", Says: "who reaches which endpoint with which source, for all clients, frontends and policies"},
		{ID: "A2.1", Says: "without a detector nobody is local: no masquerade to ClusterIPs, no way around Local"},
		{ID: "A2.2", Says: "masqueradeAll hides pods from the endpoints of a ClusterIP"},
		{ID: "A2.3", Says: "masqueradeAll without a detector hides everybody"},
		{ID: "A2.4", Says: "a pod reaches itself through its Service, and sees the node's address"},
		{ID: "A2.5", Says: "a pod keeps its address on the way to a ClusterIP"},
		{ID: "A2.6", Says: "masqueraded connections get random source ports"},
		{ID: "A2.7", Says: "the masquerade mark is one bit, set and cleared, and others' bits stay"},
		{ID: "A2.8", Says: "connections are spread evenly"},
		{ID: "A2.9", Says: "open TCP connections stay on their endpoint through changes and restarts"},
		{ID: "A2.10", Says: "processes of the node use every kind of frontend"},
		{ID: "A2.11", Says: "an endpoint in the host network is reached from pods, node and outside"},
	}
}

func verdictRows() []conformance.Item {
	return []conformance.Item{
		{ID: "A3.1", Says: "without usable endpoints every frontend refuses everybody"},
		{ID: "A3.2", Says: "an internal policy Local with endpoints elsewhere only is silent"},
		{ID: "A3.3", Says: "an external policy Local with endpoints elsewhere only is silent from outside"},
		{ID: "A3.4", Says: "pods and the node reach those endpoints elsewhere all the same"},
		{ID: "A3.5", Says: "neither policy affects the frontends of the other"},
		{ID: "A3.6", Says: "a refusal is seen at once in every protocol and family"},
		{ID: "A3.7", Says: "a refusal or drop cuts no established flow"},
		{ID: "A3.8", Says: "hooks and priorities that other tables could rely on", When: conformance.Never},
		{ID: "A3.9", Says: "evicted and failed pods are no endpoints"},
	}
}

func endpointRows() []conformance.Item {
	return []conformance.Item{
		{ID: "A4.1", Says: "ready endpoints are used, and without any those that serve while they terminate"},
		{ID: "A4.2", Says: "local endpoints are chosen apart, down to those that terminate"},
		{ID: "A4.3", Says: "an endpoint neither ready nor terminating is never used"},
		{ID: "A4.4", Says: "published endpoints that are not ready yet are used"},
		{ID: "A4.5", Says: "the health check port counts ready local endpoints, although terminating ones get traffic"},
		{ID: "A4.6", Says: "hints for nodes hold if all ready endpoints have some and one names this node"},
		{ID: "A4.7", Says: "otherwise hints for zones hold if all have some and one names this zone"},
		{ID: "A4.8", Says: "a hint missing, a node without zone or a zone without endpoints: hints are ignored"},
		{ID: "A4.9", Says: "endpoints that are not ready have no say about hints"},
		{ID: "A4.10", Says: "hints leave the local endpoints of a Local policy alone"},
		{ID: "A4.11", Says: "trafficDistribution and annotations change nothing but through hints"},
		{ID: "A4.12", Says: "a new zone of the node counts at once for all Services"},
		{ID: "A4.13", Says: "hints never lead to terminating endpoints while any is ready"},
	}
}

func affinityRows() []conformance.Item {
	return []conformance.Item{
		{ID: "A5.1", Says: "a client sticks to one endpoint over all frontends of a port"},
		{ID: "A5.2", Says: "each port of a Service sticks on its own"},
		{ID: "A5.3", Says: "affinity ends when a client was idle for the timeout, and each connection renews it"},
		{ID: "A5.4", Says: "without its endpoint a client is balanced again, the others stay, through restarts too"},
		{ID: "A5.5", Says: "affinity can be switched on and off"},
		{ID: "A5.6", Says: "affinity works in every protocol and family, and with a Local policy"},
		{ID: "A5.7", Says: "clients on the node are told apart by the address they had before masquerading"},
	}
}

func nodePortRows() []conformance.Item {
	return []conformance.Item{
		{ID: "A6.1", Says: "NodePorts answer on the node's primary addresses by default"},
		{ID: "A6.2", Says: "primary means the addresses in the Node, or all if that is a loopback"},
		{ID: "A6.3", Says: "localhost, all, primary and ranges can be mixed; a keyword twice is an error"},
		{ID: "A6.4", Says: "with ranges NodePorts answer on the host's addresses inside them only"},
		{ID: "A6.5", Says: "ranges of one family leave the other unrestricted"},
		{ID: "A6.6", Says: "all means every local address but loopback"},
		{ID: "A6.7", Says: "loopback addresses are no NodePort addresses even if a range has them"},
		{ID: "A6.8", Says: "NodePorts follow addresses of the host that come and go"},
		{ID: "A6.9", Says: "a warning tells of addresses unset, or set for one family of two"},
		{ID: "A6.10", Says: "source ranges do not restrict NodePorts"},
		{ID: "A6.11", Says: "one NodePort number in TCP and UDP can belong to two Services"},
	}
}

func localhostRows() []conformance.Item {
	return []conformance.Item{
		{ID: "A7.1", Says: "NodePorts on loopback are not handled unless they are asked for"},
		{ID: "A7.2", Says: "with an explicit loopback range TCP NodePorts answer there"},
		{ID: "A7.3", Says: "all does not stand for an explicit loopback range"},
		{ID: "A7.4", Says: "an external policy Local leads to local endpoints only, where there are any"},
		{ID: "A7.5", Says: "affinity holds for all clients of a loopback NodePort together"},
		{ID: "A7.6", Says: "without endpoints or Service the port closes, and its connections too"},
		{ID: "A7.7", Says: "a port that cannot be opened is logged, counted and tried again"},
		{ID: "A7.8", Says: "UDP and SCTP NodePorts on loopback are refused and counted"},
		{ID: "A7.9", Says: "the node pulls images from a registry on a loopback NodePort"},
	}
}

func rangeRows() []conformance.Item {
	return []conformance.Item{
		{ID: "A8.1", Says: "a client outside all source ranges hears nothing from a load balancer IP"},
		{ID: "A8.2", Says: "a range of everything allows everybody"},
		{ID: "A8.3", Says: "pods and the node must be in a range, too"},
		{ID: "A8.4", Says: "a range with this node's address allows the load balancer's own"},
		{ID: "A8.5", Says: "ranges of the other family restrict nothing"},
		{ID: "A8.6", Says: "ranges do not restrict ClusterIP, NodePort and external IPs"},
		{ID: "A8.7", Says: "ranges do not restrict another port of a shared address"},
	}
}
