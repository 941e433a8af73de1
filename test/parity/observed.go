package main

// Rows that an operator, a load balancer or Prometheus sees.

func healthCheckRows() []row {
	return []row{
		{id: "A9.1", sees: "load balancers with external policy Local have a health check port, others none"},
		{id: "A9.2", sees: "any request to it gets 200 with local ready endpoints and a healthy proxy, else 503"},
		{id: "A9.3", sees: "its headers give the type JSON, nosniff, and the number of endpoints as weight"},
		{id: "A9.4", sees: "its body names the Service, its local endpoints, and the proxy's health"},
		{id: "A9.5", sees: "it counts pods by address: one with two ports is one"},
		{id: "A9.6", sees: "a node about to be deleted goes on answering by its endpoints"},
		{id: "A9.7", sees: "it listens where NodePorts do"},
		{id: "A9.8", sees: "a port that is taken gives an event on the Service, and is tried again"},
		{id: "A9.9", sees: "another port number or policy closes the old port"},
		{id: "A9.10", sees: "one listener serves both families"},
	}
}

func healthRows() []row {
	return []row{
		{id: "A10.1", sees: "/healthz and /livez say in JSON when each family was up to date"},
		{id: "A10.2", sees: "a change that stays unwritten for twice the sync period is 503"},
		{id: "A10.3", sees: "/healthz is 503 on a node that the autoscaler removes, that is deleted, or unknown"},
		{id: "A10.4", sees: "/livez does not look at the node"},
		{id: "A10.5", sees: "a healthy answer is dated now"},
		{id: "A10.6", sees: "503 until everything was written once"},
		{id: "A10.7", sees: "the port can be off; one that is taken is tried again, or ends the process if so asked"},
		{id: "A10.8", sees: "the process ends when its Node is deleted or gets other addresses"},
	}
}

func statusRows() []row {
	return []row{
		{id: "A11", sees: "kube-proxy's metrics are there with their types, labels, buckets and meaning"},
		{id: "A11.1", sees: "the metrics port answers ok on /healthz"},
		{id: "A11.2", sees: "/metrics is what Prometheus reads"},
		{id: "A11.3", sees: "/metrics/slis has the health of components"},
		{id: "A11.4", sees: "/proxyMode says nftables"},
		{id: "A11.5", sees: "/configz gives the configuration in force as JSON"},
		{id: "A11.6", sees: "/flagz and /statusz show flags and status, unless their gates are off"},
		{id: "A11.7", sees: "with profiling /debug/pprof answers and the verbosity can be set"},
		{id: "A11.8", sees: "a metrics port that is taken is tried again, or ends the process if so asked"},
	}
}

func conntrackRows() []row {
	return []row{
		{id: "A12.1", sees: "UDP flows to endpoints that no longer serve are removed, those that terminate and serve stay"},
		{id: "A12.2", sees: "a Service without endpoints keeps no UDP flows"},
		{id: "A12.3", sees: "stale flows of NodePorts are removed, also without endpoints left"},
		{id: "A12.4", sees: "TCP flows are not cut; flows from before their Service are removed in every protocol"},
		{id: "A12.5", sees: "a UDP client with a fixed port moves to a live pod, through every frontend"},
		{id: "A12.6", sees: "an interrupted listing of flows is repeated"},
		{id: "A12.7", sees: "conntrack limits and timeouts are set at start, and a failure is a warning"},
		{id: "A12.8", sees: "limits go by the node's CPUs, not by those allowed to the process"},
		{id: "A12.9", sees: "no rule drops packets that conntrack calls invalid; being liberal is a setting"},
	}
}

func detectorRows() []row {
	return []row{
		{id: "A13", sees: "who counts as a pod is what the detector says, on every path"},
		{id: "A13.1", sees: "ClusterCIDR: pods are the addresses of the cluster's range; without one nobody is local"},
		{id: "A13.2", sees: "NodeCIDR: pods are the addresses of the node's range, which is waited for"},
		{id: "A13.3", sees: "BridgeInterface: pods are behind the interface of that name, which must be given"},
		{id: "A13.4", sees: "InterfaceNamePrefix: pods are behind interfaces of that prefix, which must be given"},
		{id: "A13.5", sees: "any other mode: nobody is local"},
		{id: "A13.6", sees: "ranges of the wrong family alone end the process at start"},
	}
}

func lifeRows() []row {
	return []row{
		{id: "A14.1", sees: "nothing is written before Services and slices are known, and old rules work on"},
		{id: "A14.2", sees: "how a restart reads back what is there", due: foreign},
		{id: "A14.3", sees: "Services work on when the process is stopped"},
		{id: "A14.4", sees: "a change is written at once, or with others after the shortest period"},
		{id: "A14.5", sees: "what failed or was changed by others is written again"},
		{id: "A14.6", sees: "how old chains are removed", due: foreign},
		{id: "A14.7", sees: "a file with unknown fields works with a warning; beside a file most flags are ignored"},
		{id: "A14.8", sees: "a changed configuration file takes effect"},
		{id: "A14.9", sees: "--write-config-to writes the configuration and exits with 0"},
		{id: "A14.10", sees: "--cleanup removes everything, and its exit code says whether it could"},
		{id: "A14.11", sees: "the start removes what other modes of kube-proxy left"},
		{id: "A14.12", sees: "--init-only does what needs privilege and exits; a later run needs NET_ADMIN only"},
		{id: "A14.13", sees: "the node's name is the override or the host's, in lower case; a blank one is an error"},
		{id: "A14.14", sees: "the node's addresses are the bind address or the Node's, or loopback after a wait"},
		{id: "A14.15", sees: "a host without IPv6 gets IPv4 only; without its primary family the start fails"},
		{id: "A14.16", sees: "a kernel or nft too old ends the start with one clear line"},
		{id: "A14.17", sees: "which mode an unset one means", due: foreign},
		{id: "A14.18", sees: "the out-of-memory score is set, and a failure logged"},
		{id: "A14.19", sees: "events tell of the start and of ports that cannot be opened"},
	}
}

func apiRows() []row {
	return []row{
		{id: "A14.20", sees: "only Services, slices, ServiceCIDRs and the own Node that matter are watched"},
		{id: "A14.21", sees: "kube-proxy's role in the API is enough"},
		{id: "A14.22", sees: "kubeconfig, --master, content type and rates of the connection are as said"},
		{id: "A14.23", sees: "ServiceCIDRs tell which addresses are silent, in each family"},
		{id: "A14.24", sees: "logs are text or JSON with -v and --vmodule; a failed write says what failed"},
		{id: "A14.25", sees: "SIGTERM ends the process without delay"},
		{id: "A14.26", sees: "what the tables are called", due: foreign},
		{id: "A14-F", sees: "every flag of kube-proxy is accepted, with its default and meaning"},
		{id: "A14-C", sees: "every field of KubeProxyConfiguration is accepted, with its default, meaning and validation"},
	}
}
