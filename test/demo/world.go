package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"onerule/test/addr"
	"onerule/test/netns"
)

// A world is everything that the demo makes: hosts in namespaces, a folder, and the
// programs that run.
type world struct {
	options
	dir           string // for everything that is written, absolute
	node, outside host
	pods          []pod
	proxy         *proxy // nil: not running
	undo          []func() error
}

// A family is what one IP family is called, and the addresses it has here.
type family struct {
	name  string // for people
	table string // nft's word
	plan  addr.Plan
}

// families gives both, IPv4 first.
func families() []family {
	return []family{{"IPv4", "ip", addr.IPv4()}, {"IPv6", "ip6", addr.IPv6()}}
}

// unallocated is an address of the ServiceCIDR that no Service holds.
func (f family) unallocated() netip.Addr { return addr.Nth(f.plan.ServiceCIDR, 60000) }

// single gives an address with the prefix length that makes it a single one.
func single(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

// onLink gives an address with the prefix length of its link.
func onLink(a netip.Addr, link netip.Prefix) string {
	return netip.PrefixFrom(a, link.Bits()).String()
}

// newWorld makes the node and the host outside. Its close is needed also after an
// error.
func newWorld(o options) (*world, error) {
	w := &world{options: o}
	dir, err := os.MkdirTemp("", "onerule-demo-")
	if err != nil {
		return w, fmt.Errorf("make a folder for the demo: %w", err)
	}
	w.dir = dir
	w.onClose(func() error { return os.RemoveAll(dir) })
	if err := os.Mkdir(w.manifests(), 0o755); err != nil {
		return w, fmt.Errorf("make a folder for manifests: %w", err)
	}
	for _, h := range []*host{&w.node, &w.outside} {
		name := map[*host]string{&w.node: "node", &w.outside: "outside"}[h]
		if *h, err = w.newHost(name); err != nil {
			return w, err
		}
	}
	if err := w.connectHosts(); err != nil {
		return w, err
	}
	for _, f := range families() {
		if err := w.connect(f.plan, f.unallocated()); err != nil {
			return w, err
		}
	}
	stop, err := w.outside.serve(80)
	if err != nil {
		return w, err
	}
	w.onClose(func() error { stop(); return nil })
	return w, nil
}

// connect gives addresses of a family to the node and to the host outside, which
// also holds and would answer for an unallocated address: what the node lets go
// there is seen.
func (w *world) connect(p addr.Plan, unallocated netip.Addr) error {
	return errors.Join(
		w.node.ns.AddAddr("uplink", onLink(p.Node(), p.Uplink)),
		w.outside.ns.AddAddr("eth0", onLink(p.Outside(), p.Uplink)),
		w.outside.ns.AddAddr("lo", single(unallocated)),
		w.node.ns.AddRoute("default", p.Outside().String()),
		w.outside.ns.AddRoute(p.ClusterCIDR.String(), p.Node().String()),
		w.outside.ns.AddRoute(p.ServiceCIDR.String(), p.Node().String()),
	)
}

func (w *world) newHost(name string) (host, error) {
	ns, err := netns.Open(name)
	if err != nil {
		return host{}, err
	}
	w.onClose(ns.Close)
	return host{name, ns}, nil
}

func (w *world) onClose(f func() error) { w.undo = append(w.undo, f) }

// close undoes everything, what was made last first.
func (w *world) close() error {
	var errs []error
	if w.proxy != nil {
		errs = append(errs, w.kill())
	}
	for i := len(w.undo) - 1; i >= 0; i-- {
		errs = append(errs, w.undo[i]())
	}
	return errors.Join(errs...)
}

func (w *world) manifests() string { return filepath.Join(w.dir, "manifests") }

// write puts a manifest in place. It is written beside and renamed, so that nobody
// reads half of it. It gives the moment from which on it can be read.
func (w *world) write(name, text string) (time.Time, error) {
	beside := filepath.Join(w.dir, name)
	if err := os.WriteFile(beside, []byte(text), 0o644); err != nil {
		return time.Time{}, fmt.Errorf("write manifest: %w", err)
	}
	now := time.Now()
	if err := os.Rename(beside, filepath.Join(w.manifests(), name)); err != nil {
		return now, fmt.Errorf("put manifest in place: %w", err)
	}
	return now, nil
}

// connectHosts makes the wire outside, usable at once. The links that the node gets
// later, those of pods, are as anywhere.
func (w *world) connectHosts() error {
	const detection = "/proc/sys/net/ipv6/conf/default/accept_dad"
	set := func(h host, value string) error {
		return h.ns.Do(func() error { return os.WriteFile(detection, []byte(value), 0o644) })
	}
	if err := errors.Join(set(w.node, "0"), set(w.outside, "0")); err != nil {
		return fmt.Errorf("turn off detection of duplicate addresses: %w", err)
	}
	if err := netns.Connect(w.node.ns, "uplink", w.outside.ns, "eth0"); err != nil {
		return err
	}
	if err := set(w.node, "1"); err != nil {
		return fmt.Errorf("turn on detection of duplicate addresses: %w", err)
	}
	return nil
}

// show makes a world, plays all scenes in it and cleans up. An interruption is no
// error, but what it leaves behind is.
func show(ctx context.Context, s *screen, o options) error {
	w, err := newWorld(o)
	if err == nil {
		err = play(ctx, s, w)
	}
	if ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, w.close())
}

// play shows one scene after the other, for no longer than the limit.
func play(ctx context.Context, s *screen, w *world) error {
	ctx, cancel := context.WithTimeoutCause(ctx, w.limit, fmt.Errorf("not done after %s: the machine is too busy, or something hangs", w.limit))
	defer cancel()
	s.title("onerule", "a CNI plugin and a Service proxy whose rules do not grow with the Services")
	s.say("Everything below happens now, on this kernel, in namespaces of its own. What stands behind ✓ was measured.")
	for _, scene := range []func(context.Context, *screen, *world) error{
		podsScene, spreadScene, exchangeScene, refuseScene, rulesetScene, restartScene, partingScene,
	} {
		err := scene(ctx, s, w)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
