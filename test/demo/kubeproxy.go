package main

// A layout is how many rules, chains, and sets and maps a table of one family has.
type layout struct{ rules, chains, sets int }

// kubeProxyFixed is what kube-proxy's nftables mode has in a table without any
// Service: setupNFTables in pkg/proxy/nftables/proxier.go of Kubernetes v1.37.2, with
// a detector of local traffic, a ServiceCIDR and the default feature gates.
func kubeProxyFixed() layout {
	chains := map[string]int{ // their rules
		// Base chains, which jump to the others.
		"filter-prerouting-pre-dnat": 1,
		"filter-output-pre-dnat":     1,
		"filter-input":               2,
		"filter-forward":             2,
		"filter-output":              2,
		"nat-prerouting":             1,
		"nat-output":                 1,
		"nat-postrouting":            1,
		// What they jump to.
		"nodeport-endpoints-check": 1,
		"service-endpoints-check":  1,
		"firewall-check":           1,
		"cluster-ips-check":        2, // refuse wrong ports, drop what nobody holds
		"services":                 3, // masquerade, service IPs, NodePorts
		"masquerading":             2, // what is marked, hairpins
		"reject-chain":             1,
	}
	sets := []string{
		"cluster-ips", "nodeport-ips", "hairpin-connections", "no-endpoint-services",
		"no-endpoint-nodeports", "firewall-ips", "service-ips", "service-nodeports",
	}
	l := layout{chains: len(chains), sets: len(sets)}
	for _, rules := range chains {
		l.rules += rules
	}
	return l
}

// kubeProxyPort is what a service port of a ClusterIP adds there, by the number of
// its endpoints: syncProxyRules in the same file.
func kubeProxyPort(endpoints int, affinity bool) layout {
	switch {
	case endpoints == 0:
		return layout{} // an element
	case affinity:
		// A chain with a rule for each endpoint's pins and the choice, whose vmap is
		// anonymous; for each endpoint a set of pins, and a chain with two rules.
		return layout{rules: endpoints + 1 + 2*endpoints, chains: 1 + endpoints, sets: 1 + endpoints}
	case endpoints == 1:
		return layout{rules: 1, chains: 1}
	default:
		return layout{rules: 1, chains: 1, sets: 1} // the choice, from an anonymous map
	}
}

func (l layout) plus(o layout, times int) layout {
	return layout{l.rules + times*o.rules, l.chains + times*o.chains, l.sets + times*o.sets}
}
