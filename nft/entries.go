package nft

import "fmt"

// Counters of the skeleton: why connections were refused or dropped.
const (
	RefusedNoEndpoints = "refused-no-endpoints"
	RefusedNoPort      = "refused-no-port"
	RefusedNoLocal     = "refused-no-local-endpoints"
	RefusedLocalhost   = "refused-localhost-nodeport"
	DroppedNoLocal     = "dropped-no-local-endpoints"
	DroppedSource      = "dropped-source"
	DroppedNoService   = "dropped-no-service"
	DroppedChanging    = "dropped-changing"
)

func counters() []Counter {
	return []Counter{
		{RefusedNoEndpoints, "a Service without endpoints"},
		{RefusedNoPort, "a port or protocol that the address does not serve"},
		{RefusedNoLocal, "no endpoint on this node, where only those serve"},
		{RefusedLocalhost, "a NodePort on a loopback address that can't be served"},
		{DroppedNoLocal, "no endpoint on this node, where only those serve"},
		{DroppedSource, "a client outside the source ranges"},
		{DroppedNoService, "an address that no Service holds"},
		{DroppedChanging, "met a change in the middle, tries again"},
	}
}

// counting is the statement that counts with a named counter.
func counting(counter string) string { return "counter name " + counter }

// An Entry is what a frontend is: which clients are masqueraded on their way to it and
// whose endpoints they may reach depends on that.
type Entry struct {
	// External is for external and load balancer IPs, and NodePorts.
	External bool
	NodePort bool
	// Local says that the traffic policy is Local.
	Local bool
	// Guarded says that only sources in AllowedSources are let in. Only an External
	// entry with an address can be.
	Guarded bool
}

// Chain names the chain that connections to such a frontend go to, however many
// endpoints it has: a verdict that names a chain makes the kernel walk every such
// verdict in the table, 6 ms for 30,000 frontends (6.18).
func (e Entry) Chain(protocol uint8) string { return e.chain(protocolWord(protocol)) }

func (e Entry) chain(proto string) string {
	name := "cluster-ip"
	switch {
	case e.NodePort:
		name = "nodeport"
	case e.Guarded:
		name = "guarded"
	case e.External:
		name = "external"
	}
	if e.Local {
		name += "-local"
	}
	return name + "-" + proto
}

// entries gives the chains that verdicts of frontends lead to, for one protocol. They
// stand behind the dispatch, not in front of it: a commit cannot fall between the two
// decisions. Each ends in a verdict.
func entries(c Config, proto string) []Chain {
	var chains []Chain
	for _, local := range []bool{false, true} {
		chains = append(chains,
			clusterIP(c, Entry{Local: local}, proto),
			external(c, Entry{External: true, Local: local}, proto),
			external(c, Entry{External: true, NodePort: true, Local: local}, proto),
			guarded(c.Family, Entry{External: true, Guarded: true, Local: local}, proto))
	}
	return chains
}

// clusterIP decides whether the client keeps its address, then balances.
func clusterIP(c Config, e Entry, proto string) Chain {
	chain := Chain{Name: e.chain(proto), Comment: "a ClusterIP: clients that are no pods are masqueraded"}
	fromOthers, known := c.fromPods(false)
	switch {
	case c.MasqueradeAll:
		chain.Comment = "a ClusterIP: all clients are masqueraded"
		chain.Rules = append(chain.Rules, "jump mark-for-masquerade")
	case known:
		chain.Rules = append(chain.Rules, fromOthers+" jump mark-for-masquerade")
	default:
		chain.Comment = "a ClusterIP: all clients keep their address"
	}
	slots := Endpoints
	if e.Local {
		slots = LocalEndpoints
	}
	chain.Rules = append(chain.Rules, "goto "+slots.balanceChain(proto))
	return chain
}

// external is for what is reached from outside. With the policy Local clients keep
// their address and reach endpoints on this node, but for pods and the node itself:
// they are inside already, and reach all endpoints.
func external(c Config, e Entry, proto string) Chain {
	all, local := Endpoints, LocalEndpoints
	if e.NodePort {
		all, local = NodePortEndpoints, NodePortLocalEndpoints
	}
	if !e.Local {
		return Chain{
			Name:    e.chain(proto),
			Comment: "from outside: clients are masqueraded",
			Rules:   []string{"jump mark-for-masquerade", "goto " + all.balanceChain(proto)},
		}
	}
	chain := Chain{Name: e.chain(proto), Comment: "from outside, policy Local: clients keep their address"}
	if fromPods, known := c.fromPods(true); known {
		chain.Rules = append(chain.Rules, fmt.Sprintf("%s goto %s", fromPods, all.balanceChain(proto)))
	}
	chain.Rules = append(chain.Rules,
		fmt.Sprintf("%s goto %s", c.fromNode(), Entry{External: true, NodePort: e.NodePort}.chain(proto)),
		"goto "+local.balanceChain(proto))
	return chain
}

// guarded lets clients in the source ranges of a frontend on. The protocol is conntrack's:
// for meta l4proto nft has it turned around in front of a set of intervals, a single byte,
// which Linux 6.12.117 refuses.
func guarded(f Family, e Entry, proto string) Chain {
	return Chain{
		Name:    e.chain(proto),
		Comment: "from outside, with source ranges",
		Rules: []string{
			fmt.Sprintf("%s daddr . ct original protocol . th dport . %s saddr @%s goto %s", f, f, AllowedSources, Entry{External: true, Local: e.Local}.chain(proto)),
			"goto not-allowed",
		},
	}
}

func notAllowed() Chain {
	return Chain{Name: "not-allowed", Comment: "a client outside the source ranges hears nothing", Rules: []string{counting(DroppedSource) + " drop"}}
}

// fromPods matches traffic of pods, or all other traffic; it is not known if the two
// cannot be told apart.
func (c Config) fromPods(pods bool) (match string, known bool) {
	not := "!= "
	if pods {
		not = ""
	}
	switch c.Detector {
	case DetectCIDR:
		return fmt.Sprintf("%s saddr %s@%s", c.Family, not, PodCIDRs), true
	case DetectInterface:
		return fmt.Sprintf("iifname %s%q", not, c.PodInterface), true
	}
	return "", false
}

func (c Config) fromNode() string {
	if c.WithoutFib {
		return fmt.Sprintf("%s saddr @%s", c.Family, NodeIPs)
	}
	return "fib saddr type local"
}

func (c Config) toNodePorts() string {
	if !c.NodePortsEverywhere || c.WithoutFib {
		return fmt.Sprintf("%s daddr @%s", c.Family, NodePortIPs)
	}
	return fmt.Sprintf("%s daddr != %s fib daddr type local", c.Family, loopbackOf(c.Family))
}
