// Package fabric connects the pods of all nodes: it keeps this node's routes to the pod
// ranges of the others, directly where the others are on the same layer 2 and by VXLAN
// where they are not, and the settings without which nothing is forwarded. What it
// wants is decided in layout; here it is read, written and watched.
package fabric

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"onerule/daemon/fabric/layout"
)

// Timing of the loop.
const (
	// gather is how long after something is told the kernel is looked at: what comes
	// together is looked at together, and whoever goes on changing what is ours does not
	// keep the machine busy.
	gather = 100 * time.Millisecond
	// A failed write is tried again after firstRetry, then twice as long each time.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// A Config says what a Fabric is to do. Functions may be nil; they are called by Run, and
// must not wait for it.
type Config struct {
	Layout layout.Config
	// PodLinks is with what the names of links of pods begin.
	PodLinks string
	// Sysctls is where the kernel's settings are: /proc/sys/net.
	Sysctls string
	// Verify is how often settings are looked at: the kernel does not tell of all.
	Verify time.Duration
	Log    logr.Logger
	// Problems is given all that is wrong with nodes now, whenever that changes.
	Problems func([]layout.Problem)
	// Foreign is told of each change by others that is put right. Kinds are those that
	// layout.Words gives.
	Foreign func(kind, note string)
	// Reported is called whenever Err gives something else.
	Reported func()
}

// Defaults gives the configuration of a node that nobody configured.
func Defaults() Config {
	return Config{
		// 4789, the registered port, is what networks of data centres use themselves, and
		// some swallow it; Linux had 8472 before it was registered, and firewalls of
		// clusters know it. The number is one that no other plugin is known to have.
		Layout:   layout.Config{Encapsulation: layout.Auto, VNI: 111, Port: 8472, ChecksumOffload: true},
		PodLinks: "one",
		Sysctls:  "/proc/sys/net",
		Verify:   30 * time.Second,
		Log:      logr.Discard(),
	}
}

// Counts are operations since the start.
type Counts struct {
	Sets     int // links, addresses, forwarding entries, neighbours, routes
	Deletes  int
	Settings int // sysctls written
	Reads    int // of all that the kernel holds of ours
	Lookups  int // ways to single addresses
	Repairs  int // changes by others that were put right
}

func (c *Counts) operation(remove bool) {
	if remove {
		c.Deletes++
	} else {
		c.Sets++
	}
}

// A Fabric keeps the routes between nodes.
type Fabric struct {
	cfg  Config
	wake chan struct{} // holds one

	mu      sync.Mutex
	members layout.Members
	known   bool
	absent  string // this node's name, while its object is not there
	counts  Counts
	reach   Reach
	err     error
}

// New makes a Fabric. It does nothing before Set is called and Run runs.
func New(cfg Config) *Fabric {
	return &Fabric{cfg: cfg, wake: make(chan struct{}, 1), err: errors.New("the nodes are not known yet")}
}

// Set says which nodes there are, and which of them is this one. The latest call counts.
// While this one is not among them, all stays as it is.
func (f *Fabric) Set(self string, nodes []layout.Node) {
	members, known := layout.Admit(self, nodes)
	f.mu.Lock()
	if known {
		f.members, f.known, f.absent = members, true, ""
	} else {
		f.absent = self
	}
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// PodRanges gives the ranges of the pods of all nodes, merged and disjoint, sorted.
func (f *Fabric) PodRanges() []netip.Prefix {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.members.Ranges()
}

// Own gives the ranges of this node's own pods, and whether this node was ever among the
// nodes.
func (f *Fabric) Own() (ranges []netip.Prefix, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.members.Self.PodCIDRs), f.known
}

// Err says why not all is as it should be, or nil.
func (f *Fabric) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// Counts gives what was done.
func (f *Fabric) Counts() Counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts
}

// A Reach says by which ways the pods of other nodes are reached: ranges of pods by a route
// to their node, and those by VXLAN.
type Reach struct{ Peers, Routed, Tunnelled int }

// Reach gives what the kernel holds now.
func (f *Fabric) Reach() Reach {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reach
}

// Run works until ctx ends, in the network namespace of the calling thread, which its
// goroutine must not leave. What it has made stays.
func (f *Fabric) Run(ctx context.Context) error {
	k, err := openKernel(f.cfg.Sysctls, f.cfg.PodLinks)
	if err != nil {
		return err
	}
	defer k.close()
	j, err := listen()
	if err != nil {
		return err
	}
	defer j.Close()
	w := worker{fabric: f, kernel: k, journal: j, have: layout.NewState()}
	w.doubt = suspicion{rules: true, state: true, facts: true}
	return w.run(ctx)
}

func (f *Fabric) latest() (m layout.Members, known bool, absent string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.members, f.known, f.absent
}

func (f *Fabric) report(c Counts, r Reach, err error) {
	f.mu.Lock()
	same := f.err == nil && err == nil || f.err != nil && err != nil && f.err.Error() == err.Error()
	f.counts, f.reach, f.err = c, r, err
	f.mu.Unlock()
	if !same && f.cfg.Reported != nil {
		f.cfg.Reported()
	}
}

// tell gives problems to who wants them, if they are others than the last ones.
func (w *worker) tell(problems []layout.Problem, absent string) {
	if absent != "" {
		problems = append(problems, layout.Problem{Node: absent, Detail: "this node is not among the nodes: routes to others stay as they are"})
	}
	if slices.Equal(problems, w.told) {
		return
	}
	old := w.told
	w.told = problems
	for _, p := range problems {
		if slices.Contains(old, p) {
			continue
		}
		w.fabric.cfg.Log.Info("something is wrong with a node", "node", p.Node, "problem", p.Detail)
	}
	if w.fabric.cfg.Problems != nil {
		w.fabric.cfg.Problems(slices.Clone(problems))
	}
}

// foreign tells of changes by others, each kind once: one write of others, such as of
// ip_forward, can be many changes.
func (w *worker) foreign(changes []layout.Change) {
	w.kernel.counts.Repairs += len(changes)
	kinds := map[string][]layout.Change{}
	for _, c := range changes {
		kinds[c.Word()] = append(kinds[c.Word()], c)
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		list := kinds[kind]
		note := "it is put right: " + list[0].String()
		if more := len(list) - 1; more > 0 {
			note = fmt.Sprintf("%s, and %d more", note, more)
		}
		w.fabric.cfg.Log.Info("others changed what connects the nodes", "kind", kind, "note", note)
		if w.fabric.cfg.Foreign != nil {
			w.fabric.cfg.Foreign(kind, note)
		}
	}
}
