package network

import (
	"fmt"
	"slices"
	"strings"

	"onerule/daemon/fabric/layout"
	"onerule/daemon/neighbours"
	"onerule/nft/forward"
	"onerule/nft/guard"
)

// limited is the code by which CNI says that pods can be connected in part only.
const limited = 51

// A reporter tells what people have to know, each thing once: by the log, and by events of
// Nodes. The CNI plugin reads what concerns it in a file.
type reporter struct {
	network *Network
	status  status
	told    map[layout.Problem]bool
	// first are the names of the first nodes, one more than the tellers.
	first []string
}

// know takes in which nodes there are.
func (r *reporter) know(nodes []layout.Node) {
	var names []string
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	r.first = names[:min(tellers+1, len(names))]
}

// problems tells what is wrong with nodes. The fabric has logged it.
func (r *reporter) problems(list []layout.Problem) {
	now := map[layout.Problem]bool{}
	for _, p := range list {
		now[p] = true
		if !r.told[p] && r.tells(p.Node) {
			r.network.event(p.Node, "NodeNotConnected", p.Detail)
		}
	}
	r.told = now
}

// tellers is how many others tell of a node beside itself.
const tellers = 2

// tells says whether this node's daemon tells what is wrong with a node. All daemons find
// the same. The node's own tells it, which may have none, and so do the first others.
func (r *reporter) tells(node string) bool {
	self := r.network.cfg.Node
	if node == self {
		return true
	}
	others := slices.DeleteFunc(slices.Clone(r.first), func(name string) bool { return name == node })
	return slices.Contains(others[:min(tellers, len(others))], self)
}

// look looks for what others put in the way of pods.
func (r *reporter) look() {
	n := r.network
	barriers, err := forward.Barriers(guard.PodLinks)
	if err != nil {
		n.cfg.Log.Error(err, "what others put in the way of pods is not known")
	}
	tables := n.readNeighbours()
	n.mu.Lock()
	before := n.seen
	n.mu.Unlock()
	full := crowded(before.neighbours, tables, neighbours.Permanent)
	n.mu.Lock()
	if err == nil {
		n.seen.barriers = barriers
	}
	n.seen.neighbours = tables
	n.seen.full = full
	now := n.seen
	n.mu.Unlock()
	r.compare("ForwardChainDrops", words(before.barriers), words(now.barriers),
		"of others: packets of pods that no rule of it accepts are lost")
	r.compare("NeighboursNearlyFull", before.full, now.full,
		"in all network namespaces: whoever is not in it can't be reached when it is full; raise gc_thresh3")
	r.localnet()
}

// localnet looks for devices that let packets to loopback addresses in. The kernel tells
// nobody of it: not by netlink, and by inotify only where it was set through the same mount
// of /proc.
func (r *reporter) localnet() {
	now, err := guard.RouteLocalnet()
	n := r.network
	if err != nil {
		n.cfg.Log.Error(err, "who lets packets to loopback addresses in is not known")
		return
	}
	n.mu.Lock()
	before := n.seen.localnet
	n.seen.localnet = now
	n.mu.Unlock()
	r.compare("RouteLocalnet", devices(before), devices(now),
		"by somebody: packets to this node's loopback addresses may come in; the guard drops them")
}

func words(list []forward.Barrier) []string {
	var texts []string
	for _, b := range list {
		texts = append(texts, b.String())
	}
	return texts
}

func devices(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	return []string{"route_localnet is set on " + strings.Join(list, ", ")}
}

// compare tells what is new, and logs what is over.
func (r *reporter) compare(reason string, before, now []string, more string) {
	for _, text := range now {
		if !slices.Contains(before, text) {
			r.network.cfg.Log.Info(text + ", " + more)
			r.network.event(r.network.cfg.Node, reason, text+", "+more)
		}
	}
	for _, text := range before {
		if !slices.Contains(now, text) {
			r.network.cfg.Log.Info("it is so no longer that " + text)
		}
	}
}

// failing takes in why the tables are not as they should be, or nil.
func (r *reporter) failing(err error) {
	r.network.mu.Lock()
	r.network.seen.failing = err
	r.network.mu.Unlock()
}

// say lets the plugin know why pods can't be reached, if they can't. As long as the nodes
// are not known, nothing is: the routes of an earlier daemon may be as good as ever. It gives
// whether all is well.
func (r *reporter) say() (well bool) {
	r.network.mu.Lock()
	seen, reported := r.network.seen, r.network.reported
	r.network.mu.Unlock()
	if !reported {
		return false
	}
	list := []Condition{}
	add := func(message string) { list = append(list, Condition{Code: limited, Message: message}) }
	for _, text := range words(seen.barriers) {
		add(text)
	}
	if err := r.network.fabric.Err(); err != nil {
		add(fmt.Sprintf("routes between nodes: %v", err))
	}
	if seen.failing != nil {
		add(seen.failing.Error())
	}
	r.status.write(list)
	return len(list) == 0
}
