package main

import "onerule/test/conformance"

// reportedRows are faults of kube-proxy that its users reported, numbered by us.
func reportedRows() []conformance.Item {
	return []conformance.Item{
		{ID: "R1", Report: "kubernetes/kubernetes#139513", Says: "one change costs the same among few Services and many"},
		{ID: "R2", Report: "kubernetes/kubernetes#135639", Says: "the load of a big cluster takes time by its elements and does not hold up the kernel"},
		{ID: "R3", Report: "kubernetes/kubernetes#139328", Says: "a new node serves the important Services first, and is ready when it serves all"},
		{ID: "R4", Report: "kubernetes/kubernetes#136786", Says: "tables of others, whatever they hold, do not matter"},
		{ID: "R6", Report: "kubernetes/kubernetes#140405", Says: "an nft without JSON will do"},
		{ID: "R7", Report: "kubernetes/kubernetes#139515", Says: "the longest names without an endpoint block no other Service"},
		{ID: "R8", Report: "kubernetes/kubernetes#142068", Says: "a kernel without one expression costs one feature, and is reported"},
		{ID: "R9", Report: "kubernetes/kubernetes#129128", Says: "rules that others flush or delete are back within seconds"},
		{ID: "R10", Report: "kubernetes/kubernetes#112604", Says: "flows are cleaned and latency counted although the first write failed"},
		{ID: "R11", Report: "kubernetes/kubernetes#121362", Says: "no change is lost when writes fail at random"},
		{ID: "R12", Report: "kubernetes/kubernetes#122604", Says: "a Service deleted and made again and again leaves nothing behind"},
		{ID: "R15", Report: "k0sproject/k0s#5760", Says: "NodePorts on loopback work, or are refused and counted"},
		{ID: "R16", Report: "kubernetes/kubernetes#131765", Says: "a pod reaches a Local load balancer IP whose endpoints are elsewhere, with every detector"},
		{ID: "R17", Report: "kubernetes/kubernetes#121371", Says: "where asked for, a Local policy without local endpoints refuses"},
		{ID: "R18", Report: "kubernetes/kubernetes#139629", Says: "a UDP sender to a Service scaled to zero is refused, and its packets reach no pod"},
		{ID: "R19", Report: "kubernetes/kubernetes#125467", Says: "a UDP client moves to the first or next endpoint, also over a restart"},
		{ID: "R20", Report: "kubernetes/kubernetes#129982", Says: "cleaning flows takes little memory and time among very many"},
		{ID: "R23", Report: "kubernetes/kubernetes#106651", Says: "an SCTP client with a fixed port moves off an endpoint that is gone"},
		{ID: "R24", Report: "kubernetes/kubernetes#48719", Says: "a connect that began before its Service succeeds with a retry"},
		{ID: "R25", Report: "kubernetes/kubernetes#100698", Says: "TCP flows of a removed endpoint stay, or are reset where asked for"},
		{ID: "R26", Report: "kubernetes/kubernetes#74839", Says: "a segment out of the window does not reset a client"},
		{ID: "R28", Report: "kubernetes/kubernetes#19983", Says: "marks of other agents survive, with our bit at either end"},
		{ID: "R29", Report: "kubernetes/kubernetes#56903", Says: "two UDP packets at once from a new socket are both answered"},
		{ID: "R33", Report: "kubernetes/kubernetes#124914", Says: "published pods that are not ready get traffic, and keep their UDP flows"},
		{ID: "R34", Report: "kubernetes/kubernetes#103000", Says: "affinity is by port, ends on time, holds with Local, and leaves what is not usable"},
		{ID: "R36", Report: "kubernetes/kubernetes#63617", Says: "a health check port serves both families, and a clash is told and tried again"},
		{ID: "R37", Report: "kubernetes/kubernetes#141943", Says: "conntrack settings that cannot be written do not stop the start"},
		{ID: "R38", Report: "kubernetes/kubernetes#57144", Says: "a ConfigMap update is noticed"},
		{ID: "R39", Report: "kubernetes/kubernetes#134648", Says: "/livez is about the process, /healthz about serving and staying"},
		{ID: "R40", Report: "containernetworking/plugins#269", Says: "a hostPort does not take the traffic of a ClusterIP on its number"},
	}
}

// furtherReportedRows are numbered as their reports.
func furtherReportedRows() []conformance.Item {
	return []conformance.Item{
		{ID: "R140056", Report: "kubernetes/kubernetes#140056", Says: "managedFields are not kept in memory"},
		{ID: "R133694", Report: "kubernetes/kubernetes#133694", Says: "without one family the start goes on with the other"},
		{ID: "R66607", Report: "kubernetes/kubernetes#66607", Says: "traffic to a load balancer IP in Proxy mode leaves the node"},
		{ID: "R14118", Report: "cilium/cilium#14118", Says: "an undefined port of an external address, or a ping to it, does not loop"},
		{ID: "R10437", Report: "siderolabs/talos#10437", Says: "a host firewall can see and allow NodePort traffic"},
		{ID: "R76338", Report: "kubernetes/kubernetes#76338", Says: "after an outage of the API changes arrive within the timeout, and staleness shows"},
		{ID: "R75360", Report: "kubernetes/kubernetes#75360", Says: "no connection fails while the process restarts"},
		{ID: "R109286", Report: "kubernetes/kubernetes#109286", Says: "nothing of kube-proxy is left when it is replaced"},
		{ID: "R5525", Report: "canonical/microk8s#5525", Says: "a missing part of the kernel is one line at start, and an event"},
		{ID: "R83791", Report: "kubernetes/kubernetes#83791", Says: "without a Node object Services work"},
		{ID: "R350", Report: "google/nftables#350", Says: "a big flush does not fail for want of buffers"},
		{ID: "R142183", Report: "kubernetes/kubernetes#142183", Says: "a loopback NodePort closes when its number changes, and is there when switched on"},
	}
}

// foundRows are faults that nobody reported.
func foundRows() []conformance.Item {
	return []conformance.Item{
		{ID: "F1", Says: "a ServiceCIDR counts at once when it comes and when it goes"},
		{ID: "F2", Says: "of two ServiceCIDRs with one range the other one goes on to hold"},
		{ID: "F3", Says: "a table that was flushed is noticed and mended, and nobody calls it healthy"},
		{ID: "F5", Says: "not healthy before anything is written"},
		{ID: "F6", Says: "more clients than affinity has room for are counted, and told"},
		{ID: "F8", Says: "UDP flows of a Service, or a frontend, that is deleted are removed"},
		{ID: "F10", Says: "without a local endpoint of policy Local a NodePort answers on loopback as on the node's address"},
		{ID: "F11", Says: "every range of the cluster or the node makes an address local"},
		{ID: "F13", Says: "a zone or a ServiceCIDR that changes does not wait for a long write"},
		{ID: "F14", Says: "a health check port that was taken is tried again without any other change"},
	}
}
