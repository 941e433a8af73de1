package network

import (
	"fmt"
	"net/netip"
	"slices"
)

// A Summary is what a node's pod network is like.
type Summary struct {
	Ranges []netip.Prefix // of this node's pods
	// Peers are the other nodes. Routed and Tunnelled are ranges of their pods, by a route to
	// the node or by VXLAN.
	Peers, Routed, Tunnelled int
	// Served says that all was there for pods once, since when they may begin.
	Served bool
	// Installs says that this process keeps the CNI plugin, and publishes its list once pods
	// are served; Published, that it has.
	Installs, Published bool
}

// Summary says what there is now.
func (n *Network) Summary() Summary {
	own, _ := n.fabric.Own()
	reach := n.fabric.Reach()
	published, _ := n.installed()
	return Summary{
		Ranges: own, Peers: reach.Peers, Routed: reach.Routed, Tunnelled: reach.Tunnelled, Served: n.served(),
		Installs: n.keeper != nil, Published: published,
	}
}

// installed says whether the plugin's list was published, and what of its files is not as it
// should be.
func (n *Network) installed() (published bool, fault error) {
	if n.keeper == nil {
		return false, nil
	}
	return n.keeper.State()
}

func (n *Network) served() bool {
	select {
	case <-n.serving:
		return true
	default:
		return false
	}
}

// Degraded says in a line each what is not as it should be, and what that costs.
func (n *Network) Degraded() []string {
	n.mu.Lock()
	seen, problems, first := n.seen, slices.Clone(n.problems), slices.Clone(n.first)
	n.mu.Unlock()
	list := n.lacks()
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if !n.served() {
		add("%s", n.unserved())
	}
	for _, text := range words(seen.barriers) {
		add("%s: packets of pods that no rule of it accepts are lost", text)
	}
	if err := n.fabric.Err(); err != nil {
		add("routes between nodes: %v", err)
	}
	if seen.failing != nil {
		add("tables of the pod network: %v", seen.failing)
	}
	if _, err := n.installed(); err != nil {
		add("the CNI plugin is not installed as it should be: %v", err)
	}
	for _, p := range problems {
		add("something is wrong with node %s: %s", p.Node, p.Detail)
	}
	for _, text := range devices(seen.localnet) {
		add("%s: packets to this node's loopback addresses may come in, which the guard drops", text)
	}
	for _, text := range seen.full {
		add("%s: whoever is not in it can't be reached when it is full", text)
	}
	return append(list, first...)
}

// unserved says why no pod is served yet, as far as nothing else tells it.
func (n *Network) unserved() string {
	text := "pods are not served yet"
	if n.keeper != nil {
		text += ", and the list of plugins is not published for them"
	}
	if own, known := n.fabric.Own(); known && len(own) == 0 {
		text += fmt.Sprintf(": node %s has no pod ranges (spec.podCIDRs)", n.cfg.Node)
	}
	return text
}

// lacks says what this kernel makes worse than it should be.
func (n *Network) lacks() []string {
	if !n.cfg.WithoutFib {
		return nil
	}
	return []string{"the kernel lacks the expression fib of nftables: the guard does not look at the addresses with which pods send"}
}
