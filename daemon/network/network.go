// Package network is what a node's pods need beside Services: routes to the pods of other
// nodes, a guard against what pods must not send, masquerade to the outside, and host
// ports. It owns those parts, tells them of Nodes, has them put right what others change,
// and tells people and the CNI plugin what is in the way.
package network

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"

	"github.com/go-logr/logr"

	"onerule/daemon/config"
	"onerule/daemon/fabric"
	"onerule/daemon/fabric/layout"
	"onerule/daemon/model"
	"onerule/daemon/neighbours"
	"onerule/install"
	"onerule/nft"
	"onerule/nft/forward"
	"onerule/nft/guard"
	"onerule/nft/hostport"
)

// Kinds of changes by others that are put right, beside those of package layout.
const (
	kindGuard     = "guard"
	kindHostPorts = "hostports"
)

// An Event is for people who look at a Node.
type Event struct{ Node, Reason, Note string }

// A Config is what a Network is made with. Event and Foreign may be called from any
// goroutine, and must not wait.
type Config struct {
	// Node is the name of this node.
	Node     string
	Families []nft.Family
	// WithoutFib says that the kernel lacks the expression fib: see guard.TextWithoutFib.
	WithoutFib bool
	Settings   config.PodNetwork
	Sysctls    string // where the kernel's settings are written; empty: /proc/sys/net
	// NeighbourStats is where the kernel says how many neighbours there are; empty:
	// /proc/net/stat.
	NeighbourStats string
	Event          func(Event)
	// Foreign counts a change by others that is put right. See Kinds.
	Foreign func(kind string)
	// HostPorts takes in all that pods have claimed, whenever that was read.
	HostPorts func([]hostport.Claim)
	Log       logr.Logger
}

// A Network keeps a node's pods connected. Its methods can be called from any goroutine.
type Network struct {
	cfg    Config
	fabric *fabric.Fabric
	keeper *install.Keeper // nil: others install the plugin
	wake   chan struct{}   // holds one
	// serving is closed when pods could be served for the first time.
	serving chan struct{}
	// published are the ranges that the container runtime was told; nil: none yet. Only the
	// loop has them.
	published []netip.Prefix

	mu       sync.Mutex
	nodes    map[string]layout.Node
	synced   bool
	changed  bool // nodes, since the fabric was told
	found    []nft.Foreign
	problems []layout.Problem
	swept    map[string]int // since the start, by kind
	seen     seen
	first    []string                      // lists of other plugins that come before ours, in words
	guards   map[nft.Family]*guard.Program // nil before Run
	reported bool                          // the fabric has tried to do what it is to do
}

// Seen is what was found in the kernel.
type seen struct {
	barriers []forward.Barrier
	localnet []string // devices
	failing  error    // why the tables are not as they should be
	// neighbours are the machine's tables of them.
	neighbours map[neighbours.Family]neighbours.Table
	full       []string // tables of neighbours that are nearly full, in words
}

// Tables gives the tables that the monitor has to watch for a Network.
func Tables() []string { return slices.Concat(guard.Names(), hostport.Names()) }

// Kinds gives the words for changes by others, for counters.
func Kinds() []string {
	return append(layout.Words(), kindGuard, kindHostPorts, install.KindBinary, install.KindList)
}

// New makes a Network. It does nothing before Run runs.
func New(cfg Config) *Network {
	n := &Network{cfg: cfg, wake: make(chan struct{}, 1), serving: make(chan struct{}), nodes: map[string]layout.Node{}, swept: swept{}.kinds()}
	f := fabric.Defaults()
	f.Sysctls = cmp.Or(cfg.Sysctls, f.Sysctls)
	n.cfg.Sysctls, n.cfg.NeighbourStats = f.Sysctls, cmp.Or(cfg.NeighbourStats, "/proc/net/stat")
	f.Layout, f.PodLinks, f.Log = cfg.Settings.Layout, guard.PodLinks, cfg.Log
	f.Problems = func(list []layout.Problem) { n.put(func() { n.problems = list }) }
	f.Foreign = func(kind, note string) { n.repaired(kind, note) }
	f.Reported = func() { n.put(func() { n.reported = true }) }
	n.fabric = fabric.New(f)
	n.keeper = n.newKeeper()
	return n
}

// Changed takes in a Node as it is now, or that it is gone.
func (n *Network) Changed(c model.Change) {
	n.put(func() {
		n.changed = true
		if c.Node == nil {
			delete(n.nodes, c.Key.Name.Name)
			return
		}
		n.nodes[c.Node.Name] = layout.Node{
			Name: c.Node.Name, Created: c.Node.Created, PodCIDRs: c.Node.PodCIDRs, Addrs: c.Node.InternalIPs,
		}
	})
}

// Synced says that all Nodes were delivered once: before that, nothing is taken for gone.
func (n *Network) Synced() { n.put(func() { n.synced = true }) }

// Found takes in what others did to the tables, see nft.Monitor.
func (n *Network) Found(found []nft.Foreign) { n.put(func() { n.found = append(n.found, found...) }) }

func (n *Network) put(f func()) {
	n.mu.Lock()
	f()
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// A parcel is what came in since the last one.
type parcel struct {
	nodes    []layout.Node // nil: as before
	found    []nft.Foreign
	problems []layout.Problem
}

func (n *Network) take() parcel {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := parcel{found: n.found, problems: n.problems}
	n.found = nil
	if n.synced && n.changed {
		n.changed = false
		p.nodes = make([]layout.Node, 0, len(n.nodes))
		for _, node := range n.nodes {
			p.nodes = append(p.nodes, node)
		}
	}
	return p
}

// ranges gives what decides about masquerade, and who may send VXLAN, once this node is known.
func (n *Network) ranges() (guard.Ranges, bool) {
	own, known := n.fabric.Own()
	return guard.Ranges{Pods: own, AllPods: n.fabric.PodRanges(), Cluster: n.nonMasquerade()}, known
}

// OfPods says whether an address is in a range of this node's pods.
func (n *Network) OfPods(a netip.Addr) bool {
	own, _ := n.fabric.Own()
	return slices.ContainsFunc(own, func(r netip.Prefix) bool { return r.Contains(a) })
}

func (n *Network) nonMasquerade() []netip.Prefix { return n.cfg.Settings.NonMasquerade }

// repaired tells of a change by others that is put right.
func (n *Network) repaired(kind, note string) {
	n.cfg.Foreign(kind)
	n.event(n.cfg.Node, "NetworkChangedByOthers", kind+": "+note)
}

func (n *Network) event(node, reason, note string) {
	n.cfg.Event(Event{Node: node, Reason: reason, Note: note})
}
