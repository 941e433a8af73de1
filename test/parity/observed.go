package main

import "onerule/test/conformance"

// Rows that an operator, a load balancer or Prometheus sees.

func healthCheckRows() []conformance.Item {
	return []conformance.Item{
		{ID: "A9.1", Says: "load balancers with external policy Local have a health check port, others none"},
		{ID: "A9.2", Says: "any request to it gets 200 with local ready endpoints and a healthy proxy, else 503"},
		{ID: "A9.3", Says: "its headers give the type JSON, nosniff, and the number of endpoints as weight"},
		{ID: "A9.4", Says: "its body names the Service, its local endpoints, and the proxy's health"},
		{ID: "A9.5", Says: "it counts pods by address: one with two ports is one"},
		{ID: "A9.6", Says: "a node about to be deleted goes on answering by its endpoints"},
		{ID: "A9.7", Says: "it listens where NodePorts do"},
		{ID: "A9.8", Says: "a port that is taken gives an event on the Service, and is tried again"},
		{ID: "A9.9", Says: "another port number or policy closes the old port"},
		{ID: "A9.10", Says: "one listener serves both families"},
	}
}

func healthRows() []conformance.Item {
	return []conformance.Item{
		{ID: "A10.1", Says: "/healthz and /livez say in JSON when each family was up to date"},
		{ID: "A10.2", Says: "a change that stays unwritten for twice the sync period is 503"},
		{ID: "A10.3", Says: "/healthz is 503 on a node that the autoscaler removes, that is deleted, or unknown"},
		{ID: "A10.4", Says: "/livez does not look at the node"},
		{ID: "A10.5", Says: "a healthy answer is dated now"},
		{ID: "A10.6", Says: "503 until everything was written once"},
		{ID: "A10.7", Says: "the port can be off; one that is taken is tried again, or ends the process if so asked"},
		{ID: "A10.8", Says: "the process ends when its Node is deleted or gets other addresses"},
	}
}

func statusRows() []conformance.Item {
	return []conformance.Item{
		{ID: "A11", Says: "kube-proxy's metrics are there with their types, labels, buckets and meaning"},
		{ID: "A11.1", Says: "the metrics port answers ok on /healthz"},
		{ID: "A11.2", Says: "/metrics is what Prometheus reads"},
		{ID: "A11.3", Says: "/metrics/slis has the health of components"},
		{ID: "A11.4", Says: "/proxyMode says nftables"},
		{ID: "A11.5", Says: "/configz gives the configuration in force as JSON"},
		{ID: "A11.6", Says: "/flagz and /statusz show flags and status, unless their gates are off"},
		{ID: "A11.7", Says: "with profiling /debug/pprof answers and the verbosity can be set"},
		{ID: "A11.8", Says: "a metrics port that is taken is tried again, or ends the process if so asked"},
	}
}

func conntrackRows() []conformance.Item {
	return []conformance.Item{
		{ID: "A12.1", Says: "UDP flows to endpoints that no longer serve are removed, those that terminate and serve stay"},
		{ID: "A12.2", Says: "a Service without endpoints keeps no UDP flows"},
		{ID: "A12.3", Says: "stale flows of NodePorts are removed, also without endpoints left"},
		{ID: "A12.4", Says: "TCP flows are not cut; flows from before their Service are removed in every protocol"},
		{ID: "A12.5", Says: "a UDP client with a fixed port moves to a live pod, through every frontend"},
		{ID: "A12.6", Says: "an interrupted listing of flows is repeated"},
		{ID: "A12.7", Says: "conntrack limits and timeouts are set at start, and a failure is a warning"},
		{ID: "A12.8", Says: "limits go by the node's CPUs, not by those allowed to the process"},
		{ID: "A12.9", Says: "no rule drops packets that conntrack calls invalid; being liberal is a setting"},
	}
}

func detectorRows() []conformance.Item {
	return []conformance.Item{
		{ID: "A13", Says: "who counts as a pod is what the detector says, on every path"},
		{ID: "A13.1", Says: "ClusterCIDR: pods are the addresses of the cluster's range; without one nobody is local"},
		{ID: "A13.2", Says: "NodeCIDR: pods are the addresses of the node's range, which is waited for"},
		{ID: "A13.3", Says: "BridgeInterface: pods are behind the interface of that name, which must be given"},
		{ID: "A13.4", Says: "InterfaceNamePrefix: pods are behind interfaces of that prefix, which must be given"},
		{ID: "A13.5", Says: "any other mode: nobody is local"},
		{ID: "A13.6", Says: "ranges of the wrong family alone end the process at start"},
	}
}

func lifeRows() []conformance.Item {
	return []conformance.Item{
		{ID: "A14.1", Says: "nothing is written before Services and slices are known, and old rules work on"},
		{ID: "A14.2", Says: "how a restart reads back what is there", When: conformance.Never},
		{ID: "A14.3", Says: "Services work on when the process is stopped"},
		{ID: "A14.4", Says: "a change is written at once, or with others after the shortest period"},
		{ID: "A14.5", Says: "what failed or was changed by others is written again"},
		{ID: "A14.6", Says: "how old chains are removed", When: conformance.Never},
		{ID: "A14.7", Says: "a file with unknown fields works with a warning; beside a file most flags are ignored"},
		{ID: "A14.8", Says: "a changed configuration file takes effect"},
		{ID: "A14.9", Says: "--write-config-to writes the configuration and exits with 0"},
		{ID: "A14.10", Says: "--cleanup removes everything, and its exit code says whether it could"},
		{ID: "A14.11", Says: "the start removes what other modes of kube-proxy left"},
		{ID: "A14.12", Says: "--init-only does what needs privilege and exits; a later run needs NET_ADMIN only"},
		{ID: "A14.13", Says: "the node's name is the override or the host's, in lower case; a blank one is an error"},
		{ID: "A14.14", Says: "the node's addresses are the bind address or the Node's, or loopback after a wait"},
		{ID: "A14.15", Says: "a host without IPv6 gets IPv4 only; without its primary family the start fails"},
		{ID: "A14.16", Says: "a kernel or nft too old ends the start with one clear line"},
		{ID: "A14.17", Says: "which mode an unset one means", When: conformance.Never},
		{ID: "A14.18", Says: "the out-of-memory score is set, and a failure logged"},
		{ID: "A14.19", Says: "events tell of the start and of ports that cannot be opened"},
	}
}

func apiRows() []conformance.Item {
	return []conformance.Item{
		{ID: "A14.20", Says: "only Services, slices, ServiceCIDRs and the own Node that matter are watched"},
		{ID: "A14.21", Says: "kube-proxy's role in the API is enough"},
		{ID: "A14.22", Says: "kubeconfig, --master, content type and rates of the connection are as said"},
		{ID: "A14.23", Says: "ServiceCIDRs tell which addresses are silent, in each family"},
		{ID: "A14.24", Says: "logs are text or JSON with -v and --vmodule; a failed write says what failed"},
		{ID: "A14.25", Says: "SIGTERM ends the process without delay"},
		{ID: "A14.26", Says: "what the tables are called", When: conformance.Never},
		{ID: "A14-F", Says: "every flag of kube-proxy is accepted, with its default and meaning"},
		{ID: "A14-C", Says: "every field of KubeProxyConfiguration is accepted, with its default, meaning and validation"},
	}
}
