package main

// reportedRows are faults of kube-proxy that its users reported, numbered by us.
func reportedRows() []row {
	return []row{
		{id: "R1", report: "kubernetes/kubernetes#139513", sees: "one change costs the same among few Services and many"},
		{id: "R2", report: "kubernetes/kubernetes#135639", sees: "the load of a big cluster takes time by its elements and does not hold up the kernel"},
		{id: "R3", report: "kubernetes/kubernetes#139328", sees: "a new node serves the important Services first, and is ready when it serves all"},
		{id: "R4", report: "kubernetes/kubernetes#136786", sees: "tables of others, whatever they hold, do not matter"},
		{id: "R6", report: "kubernetes/kubernetes#140405", sees: "an nft without JSON will do"},
		{id: "R7", report: "kubernetes/kubernetes#139515", sees: "the longest names without an endpoint block no other Service"},
		{id: "R8", report: "kubernetes/kubernetes#142068", sees: "a kernel without one expression costs one feature, and is reported"},
		{id: "R9", report: "kubernetes/kubernetes#129128", sees: "rules that others flush or delete are back within seconds"},
		{id: "R10", report: "kubernetes/kubernetes#112604", sees: "flows are cleaned and latency counted although the first write failed"},
		{id: "R11", report: "kubernetes/kubernetes#121362", sees: "no change is lost when writes fail at random"},
		{id: "R12", report: "kubernetes/kubernetes#122604", sees: "a Service deleted and made again and again leaves nothing behind"},
		{id: "R15", report: "k0sproject/k0s#5760", sees: "NodePorts on loopback work, or are refused and counted"},
		{id: "R16", report: "kubernetes/kubernetes#131765", sees: "a pod reaches a Local load balancer IP whose endpoints are elsewhere, with every detector"},
		{id: "R17", report: "kubernetes/kubernetes#121371", sees: "where asked for, a Local policy without local endpoints refuses"},
		{id: "R18", report: "kubernetes/kubernetes#139629", sees: "a UDP sender to a Service scaled to zero is refused, and its packets reach no pod"},
		{id: "R19", report: "kubernetes/kubernetes#125467", sees: "a UDP client moves to the first or next endpoint, also over a restart"},
		{id: "R20", report: "kubernetes/kubernetes#129982", sees: "cleaning flows takes little memory and time among very many"},
		{id: "R23", report: "kubernetes/kubernetes#106651", sees: "an SCTP client with a fixed port moves off an endpoint that is gone"},
		{id: "R24", report: "kubernetes/kubernetes#48719", sees: "a connect that began before its Service succeeds with a retry"},
		{id: "R25", report: "kubernetes/kubernetes#100698", sees: "TCP flows of a removed endpoint stay, or are reset where asked for"},
		{id: "R26", report: "kubernetes/kubernetes#74839", sees: "a segment out of the window does not reset a client"},
		{id: "R28", report: "kubernetes/kubernetes#19983", sees: "marks of other agents survive, with our bit at either end"},
		{id: "R29", report: "kubernetes/kubernetes#56903", sees: "two UDP packets at once from a new socket are both answered"},
		{id: "R33", report: "kubernetes/kubernetes#124914", sees: "published pods that are not ready get traffic, and keep their UDP flows"},
		{id: "R34", report: "kubernetes/kubernetes#103000", sees: "affinity is by port, ends on time, holds with Local, and leaves what is not usable"},
		{id: "R36", report: "kubernetes/kubernetes#63617", sees: "a health check port serves both families, and a clash is told and tried again"},
		{id: "R37", report: "kubernetes/kubernetes#141943", sees: "conntrack settings that cannot be written do not stop the start"},
		{id: "R38", report: "kubernetes/kubernetes#57144", sees: "a ConfigMap update is noticed"},
		{id: "R39", report: "kubernetes/kubernetes#134648", sees: "/livez is about the process, /healthz about serving and staying"},
		{id: "R40", report: "containernetworking/plugins#269", sees: "a hostPort does not take the traffic of a ClusterIP on its number"},
	}
}

// furtherReportedRows are numbered as their reports.
func furtherReportedRows() []row {
	return []row{
		{id: "R140056", report: "kubernetes/kubernetes#140056", sees: "managedFields are not kept in memory"},
		{id: "R133694", report: "kubernetes/kubernetes#133694", sees: "without one family the start goes on with the other"},
		{id: "R66607", report: "kubernetes/kubernetes#66607", sees: "traffic to a load balancer IP in Proxy mode leaves the node"},
		{id: "R14118", report: "cilium/cilium#14118", sees: "an undefined port of an external address, or a ping to it, does not loop"},
		{id: "R10437", report: "siderolabs/talos#10437", sees: "a host firewall can see and allow NodePort traffic"},
		{id: "R76338", report: "kubernetes/kubernetes#76338", sees: "after an outage of the API changes arrive within the timeout, and staleness shows"},
		{id: "R75360", report: "kubernetes/kubernetes#75360", sees: "no connection fails while the process restarts"},
		{id: "R109286", report: "kubernetes/kubernetes#109286", sees: "nothing of kube-proxy is left when it is replaced"},
		{id: "R5525", report: "canonical/microk8s#5525", sees: "a missing part of the kernel is one line at start, and an event"},
		{id: "R83791", report: "kubernetes/kubernetes#83791", sees: "without a Node object Services work"},
		{id: "R350", report: "google/nftables#350", sees: "a big flush does not fail for want of buffers"},
		{id: "R142183", report: "kubernetes/kubernetes#142183", sees: "a loopback NodePort closes when its number changes, and is there when switched on"},
	}
}

// foundRows are faults that nobody reported.
func foundRows() []row {
	return []row{
		{id: "F1", sees: "a ServiceCIDR counts at once when it comes and when it goes"},
		{id: "F2", sees: "of two ServiceCIDRs with one range the other one goes on to hold"},
		{id: "F3", sees: "a table that was flushed is noticed and mended, and nobody calls it healthy"},
		{id: "F5", sees: "not healthy before anything is written"},
		{id: "F6", sees: "more clients than affinity has room for are counted, and told"},
		{id: "F8", sees: "UDP flows of a Service, or a frontend, that is deleted are removed"},
		{id: "F10", sees: "without a local endpoint of policy Local a NodePort answers on loopback as on the node's address"},
		{id: "F11", sees: "every range of the cluster or the node makes an address local"},
		{id: "F13", sees: "a zone or a ServiceCIDR that changes does not wait for a long write"},
		{id: "F14", sees: "a health check port that was taken is tried again without any other change"},
	}
}
