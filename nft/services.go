package nft

import "fmt"

const localhostChain = "localhost"

// localhost is for NodePorts on loopback addresses that nothing else takes connections for.
func localhost() Chain {
	return Chain{
		Name:    localhostChain,
		Comment: "a NodePort on a loopback address that can't be served",
		Rules:   []string{counting(RefusedLocalhost) + " goto " + RefuseChain},
	}
}

// services decides for every packet that begins a connection, from pods and other
// hosts (prerouting) and from this node (output).
func services(c Config) Chain {
	f := c.Family
	chain := Chain{
		Name:    "services",
		Comment: "the decision for each new connection",
		Rules: []string{
			dispatch(f),
			fmt.Sprintf("%s daddr @%s goto owned", f, ClusterIPs),
			// A commit may have fallen into the first look-up. Other ports are not ours: another
			// machine may have the address, and be asked for its own.
			fmt.Sprintf("%s daddr @%s %s", f, ExternalIPs, dispatch(f)),
			c.toNodePorts() + " jump nodeports",
			fmt.Sprintf("%s daddr @%s %s drop", f, ServiceCIDRs, counting(DroppedNoService)),
		},
	}
	if c.LocalhostNodePorts {
		chain.Rules = append(chain.Rules, fmt.Sprintf("%s daddr %s meta l4proto . th dport vmap @%s", f, loopbackOf(f), LocalhostNodePorts))
	}
	return chain
}

// arrivals are the rules for what comes from pods and other hosts. What nobody serves at an
// external address, and would go back to where it came from, would go round between the
// router and this node (cilium#14118).
func (c Config) arrivals() []string {
	rules := []string{"jump services"}
	if !c.WithoutFib {
		rules = append(rules, fmt.Sprintf("%s daddr @%s fib daddr . iif oif exists goto owned", c.Family, ExternalIPs))
	}
	return rules
}

func loopbackOf(f Family) string {
	if f == IPv6 {
		return "::1"
	}
	return "127.0.0.0/8"
}
