package main

// A due says whether a row must have a test today.
type due int

const (
	now     due = iota
	later       // with a part of the project that is still to come
	foreign     // it is about how kube-proxy does it, which nobody sees
)

func (d due) String() string {
	switch d {
	case later:
		return "later"
	case foreign:
		return "does not apply"
	}
	return "MISSING" // what a row that is due and has no test is
}

// A row is a piece of what kube-proxy does, or a fault that its users met.
type row struct {
	id     string
	sees   string // what a client or an operator sees when it is right
	report string // the public report of a fault, as owner/repository#number
	due    due
}

// owed lists all rows, in the order in which they are shown. IDs with A are what
// kube-proxy 1.37 does in nftables mode, those with R are faults that users reported,
// those with F faults that its code has.
func owed() []row {
	var all []row
	for _, part := range [][]row{
		objectRows(), flowRows(), verdictRows(), endpointRows(), affinityRows(), nodePortRows(), localhostRows(),
		rangeRows(), healthCheckRows(), healthRows(), statusRows(), conntrackRows(), detectorRows(), lifeRows(),
		apiRows(), reportedRows(), furtherReportedRows(), foundRows(),
	} {
		all = append(all, part...)
	}
	return all
}

func objectRows() []row {
	return []row{
		{id: "A1.1", sees: "a ClusterIP leads to the target port of a ready endpoint"},
		{id: "A1.2", sees: "one port number in TCP, UDP and SCTP leads to three targets"},
		{id: "A1.3", sees: "a port or protocol that the Service has not is refused"},
		{id: "A1.4", sees: "a ping to a ClusterIP in use is answered as unreachable"},
		{id: "A1.5", sees: "an address of a ServiceCIDR that no Service holds is silent"},
		{id: "A1.6", sees: "a headless Service is not proxied"},
		{id: "A1.7", sees: "an ExternalName is not proxied, and rules come and go with its type"},
		{id: "A1.8", sees: "a Service labelled for another proxy is left alone, and taken back without the label"},
		{id: "A1.9", sees: "a slice with the headless label gives no endpoints"},
		{id: "A1.10", sees: "a slice that names no Service, or has no name, is left out and logged"},
		{id: "A1.11", sees: "a slice of host names is left out and logged; each family has its own slices"},
		{id: "A1.12", sees: "a slice port without name or number is left out, the others work"},
		{id: "A1.13", sees: "only the first address of an endpoint is used"},
		{id: "A1.14", sees: "an endpoint without a node is local nowhere"},
		{id: "A1.15", sees: "conditions that are not given are ready, serving and not terminating"},
		{id: "A1.16", sees: "slices are merged by address and port; a terminating entry replaces none"},
		{id: "A1.17", sees: "a named target port with different numbers is balanced over all of them"},
		{id: "A1.18", sees: "leading zeros in addresses and spaces around ranges are accepted"},
		{id: "A1.19", sees: "load balancer IPs work, except those in Proxy mode; host names are ignored"},
		{id: "A1.20", sees: "the class of a load balancer makes no difference"},
		{id: "A1.21", sees: "a load balancer without NodePorts works"},
		{id: "A1.22", sees: "external IPs work for every type, unless the feature gate is off"},
		{id: "A1.23", sees: "each family has its own addresses; a Service without a family is absent from it"},
		{id: "A1.24", sees: "without ipFamilies the ClusterIP tells the family"},
		{id: "A1.25", sees: "after an update old frontends stop and new ones work"},
		{id: "A1.26", sees: "names of the greatest length work"},
	}
}

func flowRows() []row {
	return []row{
		{id: "A2", sees: "who reaches which endpoint with which source, for all clients, frontends and policies"},
		{id: "A2.1", sees: "without a detector nobody is local: no masquerade to ClusterIPs, no way around Local"},
		{id: "A2.2", sees: "masqueradeAll hides pods from the endpoints of a ClusterIP"},
		{id: "A2.3", sees: "masqueradeAll without a detector hides everybody"},
		{id: "A2.4", sees: "a pod reaches itself through its Service, and sees the node's address"},
		{id: "A2.5", sees: "a pod keeps its address on the way to a ClusterIP"},
		{id: "A2.6", sees: "masqueraded connections get random source ports"},
		{id: "A2.7", sees: "the masquerade mark is one bit, set and cleared, and others' bits stay"},
		{id: "A2.8", sees: "connections are spread evenly"},
		{id: "A2.9", sees: "open TCP connections stay on their endpoint through changes and restarts"},
		{id: "A2.10", sees: "processes of the node use every kind of frontend"},
		{id: "A2.11", sees: "an endpoint in the host network is reached from pods, node and outside"},
	}
}

func verdictRows() []row {
	return []row{
		{id: "A3.1", sees: "without usable endpoints every frontend refuses everybody"},
		{id: "A3.2", sees: "an internal policy Local with endpoints elsewhere only is silent"},
		{id: "A3.3", sees: "an external policy Local with endpoints elsewhere only is silent from outside"},
		{id: "A3.4", sees: "pods and the node reach those endpoints elsewhere all the same"},
		{id: "A3.5", sees: "neither policy affects the frontends of the other"},
		{id: "A3.6", sees: "a refusal is seen at once in every protocol and family"},
		{id: "A3.7", sees: "a refusal or drop cuts no established flow"},
		{id: "A3.8", sees: "hooks and priorities that other tables could rely on", due: foreign},
		{id: "A3.9", sees: "evicted and failed pods are no endpoints"},
	}
}

func endpointRows() []row {
	return []row{
		{id: "A4.1", sees: "ready endpoints are used, and without any those that serve while they terminate"},
		{id: "A4.2", sees: "local endpoints are chosen apart, down to those that terminate"},
		{id: "A4.3", sees: "an endpoint neither ready nor terminating is never used"},
		{id: "A4.4", sees: "published endpoints that are not ready yet are used"},
		{id: "A4.5", sees: "the health check port counts ready local endpoints, although terminating ones get traffic"},
		{id: "A4.6", sees: "hints for nodes hold if all ready endpoints have some and one names this node"},
		{id: "A4.7", sees: "otherwise hints for zones hold if all have some and one names this zone"},
		{id: "A4.8", sees: "a hint missing, a node without zone or a zone without endpoints: hints are ignored"},
		{id: "A4.9", sees: "endpoints that are not ready have no say about hints"},
		{id: "A4.10", sees: "hints leave the local endpoints of a Local policy alone"},
		{id: "A4.11", sees: "trafficDistribution and annotations change nothing but through hints"},
		{id: "A4.12", sees: "a new zone of the node counts at once for all Services"},
		{id: "A4.13", sees: "hints never lead to terminating endpoints while any is ready"},
	}
}

func affinityRows() []row {
	return []row{
		{id: "A5.1", sees: "a client sticks to one endpoint over all frontends of a port"},
		{id: "A5.2", sees: "each port of a Service sticks on its own"},
		{id: "A5.3", sees: "affinity ends when a client was idle for the timeout, and each connection renews it"},
		{id: "A5.4", sees: "without its endpoint a client is balanced again, the others stay, through restarts too"},
		{id: "A5.5", sees: "affinity can be switched on and off"},
		{id: "A5.6", sees: "affinity works in every protocol and family, and with a Local policy"},
		{id: "A5.7", sees: "clients on the node are told apart by the address they had before masquerading"},
	}
}

func nodePortRows() []row {
	return []row{
		{id: "A6.1", sees: "NodePorts answer on the node's primary addresses by default"},
		{id: "A6.2", sees: "primary means the addresses in the Node, or all if that is a loopback"},
		{id: "A6.3", sees: "localhost, all, primary and ranges can be mixed; a keyword twice is an error"},
		{id: "A6.4", sees: "with ranges NodePorts answer on the host's addresses inside them only"},
		{id: "A6.5", sees: "ranges of one family leave the other unrestricted"},
		{id: "A6.6", sees: "all means every local address but loopback"},
		{id: "A6.7", sees: "loopback addresses are no NodePort addresses even if a range has them"},
		{id: "A6.8", sees: "NodePorts follow addresses of the host that come and go"},
		{id: "A6.9", sees: "a warning tells of addresses unset, or set for one family of two"},
		{id: "A6.10", sees: "source ranges do not restrict NodePorts"},
		{id: "A6.11", sees: "one NodePort number in TCP and UDP can belong to two Services"},
	}
}

func localhostRows() []row {
	return []row{
		{id: "A7.1", sees: "NodePorts on loopback are not handled unless they are asked for"},
		{id: "A7.2", sees: "with an explicit loopback range TCP NodePorts answer there"},
		{id: "A7.3", sees: "all does not stand for an explicit loopback range"},
		{id: "A7.4", sees: "an external policy Local leads to local endpoints only, where there are any"},
		{id: "A7.5", sees: "affinity holds for all clients of a loopback NodePort together"},
		{id: "A7.6", sees: "without endpoints or Service the port closes, and its connections too"},
		{id: "A7.7", sees: "a port that cannot be opened is logged, counted and tried again"},
		{id: "A7.8", sees: "UDP and SCTP NodePorts on loopback are refused and counted"},
		{id: "A7.9", sees: "the node pulls images from a registry on a loopback NodePort"},
	}
}

func rangeRows() []row {
	return []row{
		{id: "A8.1", sees: "a client outside all source ranges hears nothing from a load balancer IP"},
		{id: "A8.2", sees: "a range of everything allows everybody"},
		{id: "A8.3", sees: "pods and the node must be in a range, too"},
		{id: "A8.4", sees: "a range with this node's address allows the load balancer's own"},
		{id: "A8.5", sees: "ranges of the other family restrict nothing"},
		{id: "A8.6", sees: "ranges do not restrict ClusterIP, NodePort and external IPs"},
		{id: "A8.7", sees: "ranges do not restrict another port of a shared address"},
	}
}
