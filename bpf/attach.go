package bpf

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

const (
	// lastButConfirm is in front of the confirmation of a connection, which is the last
	// thing in postrouting and input: at the greatest number, in IPv6 at the one before.
	// A program can't share a number with anything else.
	lastButConfirm = math.MaxInt32 - 111
	// beforeNAT is behind connection tracking and in front of all chains of type nat.
	beforeNAT = -101
)

// The ways of seeing connections, for people.
const (
	modeNetfilter = "netfilter"
	modeFexit     = "fexit"
)

// A hook is a place where a program is attached to.
type hook struct {
	program string
	name    string // for the pin
	attach  func(*ebpf.Program) (link.Link, error)
}

// A way is one of seeing connections.
type way struct {
	mode  string
	hooks []hook
}

// ways lists them, the better one first.
func ways(ipv6 bool) []way {
	filter, fexit := way{mode: modeNetfilter}, way{mode: modeFexit}
	families := map[string]link.NetfilterProtocolFamily{"ip": link.NetfilterProtoIPv4}
	if ipv6 {
		families["ip6"] = link.NetfilterProtoIPv6
	}
	for name, family := range families {
		filter.hooks = append(filter.hooks,
			netfilter(hitsProgCountHits, name+"-postrouting", family, link.NetfilterInetPostRouting, lastButConfirm),
			netfilter(hitsProgCountHits, name+"-input", family, link.NetfilterInetLocalIn, lastButConfirm),
			netfilter(hitsProgCountRejects, name+"-output", family, link.NetfilterInetLocalOut, beforeNAT))
	}
	traced := []string{hitsProgCountTranslations, hitsProgCountRefusalsIp}
	if ipv6 {
		traced = append(traced, hitsProgCountRefusalsIp6)
	}
	for _, name := range traced {
		fexit.hooks = append(fexit.hooks, hook{name, name, func(p *ebpf.Program) (link.Link, error) {
			return link.AttachTracing(link.TracingOptions{Program: p})
		}})
	}
	return []way{filter, fexit}
}

func netfilter(program, name string, family link.NetfilterProtocolFamily, at link.NetfilterInetHook, priority int32) hook {
	return hook{program, name, func(p *ebpf.Program) (link.Link, error) {
		return link.AttachNetfilter(link.NetfilterOptions{Program: p, ProtocolFamily: family, Hook: at, Priority: priority})
	}}
}

// attach takes the first way that the kernel allows.
func (c *Counters) attach(spec *ebpf.CollectionSpec, o Options, netns uint32) error {
	if err := spec.Variables[hitsVarOwnNetns].Set(netns); err != nil {
		return fmt.Errorf("tell the programs their network namespace: %w", err)
	}
	var failures []failure
	for _, w := range ways(o.IPv6) {
		err := c.attachBy(w, spec.Copy(), o.Dir, netns)
		if err == nil {
			c.mode = w.mode
			return nil
		}
		failures = append(failures, failure{w.mode, err})
		for _, l := range c.links {
			_ = l.Unpin() // it is of no use alone
			_ = l.Close()
		}
		c.links = nil
	}
	return neither(failures)
}

func (c *Counters) attachBy(w way, spec *ebpf.CollectionSpec, dir string, netns uint32) error {
	used := map[string]bool{}
	for _, h := range w.hooks {
		used[h.program] = true
	}
	for name := range spec.Programs {
		if !used[name] {
			delete(spec.Programs, name)
		}
	}
	loaded, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
		MapReplacements: map[string]*ebpf.Map{hitsMapEndpointHits: c.hits, hitsMapLocalhostRejects: c.rejects},
	})
	if err != nil {
		return err
	}
	defer loaded.Close()
	names := []string{hitsMapEndpointHits, hitsMapLocalhostRejects}
	for _, h := range w.hooks {
		name := fmt.Sprintf("link-%d-%s", netns, h.name)
		l, err := c.link(h, loaded.Programs[h.program], dir, name)
		if err != nil {
			return fmt.Errorf("attach %s at %s: %w", h.program, h.name, err)
		}
		c.links = append(c.links, l)
		names = append(names, name)
	}
	return deleteOthers(dir, names)
}

// link attaches a program, unless the one that is pinned is the same: so none counts
// twice, and none is left out while daemons change.
func (c *Counters) link(h hook, p *ebpf.Program, dir, name string) (link.Link, error) {
	if dir == "" {
		return h.attach(p)
	}
	path := filepath.Join(dir, name)
	old, err := link.LoadPinnedLink(path, nil)
	if err == nil {
		if c.same(old, p) {
			return old, nil
		}
		err = errors.Join(old.Close(), unpin(path))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := h.attach(p)
	if err != nil {
		return nil, err
	}
	if err := l.Pin(path); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// same says whether a link is of the same program, and counts into our maps.
func (c *Counters) same(old link.Link, now *ebpf.Program) bool {
	info, err := old.Info()
	if err != nil {
		return false
	}
	then, err := ebpf.NewProgramFromID(info.Program)
	if err != nil {
		return false
	}
	defer func() { _ = then.Close() }()
	a, errA := then.Info()
	b, errB := now.Info()
	if errA != nil || errB != nil || a.Tag != b.Tag {
		return false
	}
	maps, _ := a.MapIDs()
	own, _ := b.MapIDs()
	return !slices.ContainsFunc(own, func(id ebpf.MapID) bool { return c.pinned(id) && !slices.Contains(maps, id) })
}

// pinned says whether a map is one of those that counters are in.
func (c *Counters) pinned(id ebpf.MapID) bool {
	for _, m := range []*ebpf.Map{c.hits, c.rejects} {
		if info, err := m.Info(); err == nil {
			if own, ok := info.ID(); ok && own == id {
				return true
			}
		}
	}
	return false
}

// deleteOthers deletes pins of other versions, and of network namespaces that this one
// has taken the place of: their programs would count, too.
func deleteOthers(dir string, ours []string) error {
	if dir == "" {
		return nil
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look for pins that are not needed: %w", err)
	}
	var errs []error
	for _, e := range list {
		if !slices.Contains(ours, e.Name()) {
			errs = append(errs, unpin(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// unpin deletes a pin. What a link attached is detached before: a link that nobody holds
// any more counts on until the kernel comes to it. Tracing can't be detached otherwise.
func unpin(path string) error {
	var errs []error
	if l, err := link.LoadPinnedLink(path, nil); err == nil { // it is no map
		if err := l.Detach(); !errors.Is(err, ebpf.ErrNotSupported) {
			errs = append(errs, err)
		}
		errs = append(errs, l.Close())
	}
	return errors.Join(append(errs, os.Remove(path))...)
}

// ownNetns gives the inode of the caller's network namespace.
func ownNetns() (uint32, error) {
	var s unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &s); err != nil {
		return 0, fmt.Errorf("look up the network namespace: %w", err)
	}
	return uint32(s.Ino), nil
}
