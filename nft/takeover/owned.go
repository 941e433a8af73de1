package takeover

import (
	"slices"
	"strings"
)

// What kube-proxy calls its own, beside its chains.
const (
	proxyTable = "kube-proxy"
	ipvsDevice = "kube-ipvs0"
	// markChain is what plugins that map ports of the host may jump to, too.
	markChain = "KUBE-MARK-MASQ"
)

// iptablesTables are the tables in which kube-proxy has had chains.
func iptablesTables() []string { return []string{"nat", "filter", "mangle", "raw"} }

// isProxyChain knows the chains of kube-proxy's by table: other programs, kubelet and network policies
// among them, have chains that begin with KUBE-, too. KUBE-FIREWALL, KUBE-MARK-DROP,
// KUBE-KUBELET-CANARY and KUBE-IPTABLES-HINT are kubelet's and stay, also where
// kube-proxy made the first of them: it keeps strangers from 127.0.0.1 for as long as
// the sysctl route_localnet is set.
func isProxyChain(table, name string) bool {
	if isIPVSChain(name) {
		return table == "nat" || table == "filter"
	}
	switch name {
	case "KUBE-PROXY-CANARY":
		return true
	case "KUBE-SERVICES", "KUBE-NODEPORTS":
		return table == "nat" || table == "filter"
	case "KUBE-EXTERNAL-SERVICES", "KUBE-FORWARD", "KUBE-PROXY-FIREWALL":
		return table == "filter"
	case "KUBE-POSTROUTING", markChain:
		return table == "nat"
	}
	return table == "nat" && isServiceChain(name)
}

// isServiceChain knows the chains that belong to one Service or endpoint. KUBE-XLB- is
// what KUBE-SVL- and KUBE-EXT- were before Kubernetes 1.24.
func isServiceChain(name string) bool {
	return slices.ContainsFunc([]string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-FW-", "KUBE-EXT-", "KUBE-XLB-"},
		func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// isIPVSChain knows the chains that only IPVS mode makes.
func isIPVSChain(name string) bool {
	switch name {
	case "KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER":
		return true
	}
	return false
}

// isProxyComment knows the comments of kube-proxy's jumps: every one has had one,
// "kubernetes service portals" or "kube-proxy firewall rules" for example.
func isProxyComment(comment string) bool {
	return strings.HasPrefix(comment, "kubernetes ") || strings.HasPrefix(comment, "kube-proxy ")
}

// isProxySet knows the names of kube-proxy's sets, of either family. Network policies
// have others that begin with KUBE-.
func isProxySet(name string) bool {
	return slices.ContainsFunc([]string{
		"LOOP-BACK", "CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL",
		"LOAD-BALANCER", "LOAD-BALANCER-LOCAL", "LOAD-BALANCER-FW",
		"LOAD-BALANCER-SOURCE-IP", "LOAD-BALANCER-SOURCE-CIDR",
		"NODE-PORT-TCP", "NODE-PORT-LOCAL-TCP", "NODE-PORT-UDP", "NODE-PORT-LOCAL-UDP",
		"NODE-PORT-SCTP-HASH", "NODE-PORT-LOCAL-SCTP-HASH",
		"HEALTH-CHECK-NODE-PORT", "IPVS-IPS",
	}, func(set string) bool {
		six := "KUBE-6-" + set
		return name == "KUBE-"+set || name == six[:min(len(six), longestSetName)]
	})
}

// longestSetName is the most that ipset takes: names for IPv6 are cut.
const longestSetName = 31
