// Package podlink keeps the node's ends of pods' links as the CNI plugin made them: up, with
// their MAC, addresses, neighbours and routes. Programs that manage a machine's network take
// such links for theirs, and give back nothing of what they take away.
package podlink

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"onerule/daemon/rtnl"
)

const (
	// gather is how long after something is told links are looked at: what comes together
	// is looked at together, and whoever goes on changing what is ours does not keep the
	// machine busy.
	gather = 100 * time.Millisecond
	// verify is how often all links are looked at: the kernel does not tell of all.
	verify = 30 * time.Second
	// inFlight is how long the plugin may be at work on a link. It would take what is made
	// meanwhile for another's.
	inFlight = time.Minute
	// again is after how long what could not be mended is tried again.
	again = time.Second
)

// Kinds gives the words for changes by others, for counters.
func Kinds() []string {
	return []string{"link", "address", "neighbour", "route", "accept_ra", "sysctl"}
}

// A Config says what a Keeper is to do.
type Config struct {
	// State is the folder of the plugin's state, with a folder for each network.
	State string
	// Sysctls is where the kernel's settings are: /proc/sys/net.
	Sysctls string
	Log     logr.Logger
	// Foreign is told of each change by others that is put right, by one of Kinds. It must
	// not wait.
	Foreign func(kind, note string)
}

// A Keeper keeps the links of pods as they were made.
type Keeper struct {
	cfg    Config
	kernel *kernel
	boot   string
	wires  map[string]wire       // by link, of records that were read
	links  map[int]string        // by index
	owners map[netip.Addr]string // links, by address of their pods
	seen   map[string]int        // indexes of links that were whole: the plugin is done with them
	doubt  map[string]bool       // links that must be looked at
	all    bool                  // which are all
	failed string                // what was logged
	// shadowed are addresses of links whose routes count for nothing, as logged.
	shadowed map[string]string
}

// New makes a Keeper. It does nothing before Run runs.
func New(cfg Config) *Keeper {
	return &Keeper{
		cfg: cfg, wires: map[string]wire{}, links: map[int]string{}, seen: map[string]int{}, doubt: map[string]bool{},
		shadowed: map[string]string{},
	}
}

// Run works until ctx ends, in the network namespace of the calling thread, which its
// goroutine must not leave. What it has made stays.
func (k *Keeper) Run(ctx context.Context) (err error) {
	if k.boot, err = bootID(); err != nil {
		return err
	}
	if k.kernel, err = openKernel(k.cfg.Sysctls); err != nil {
		return err
	}
	defer k.kernel.close()
	j, err := rtnl.Listen(unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return err
	}
	defer j.Close()
	k.all = true
	return k.run(ctx, j)
}

func (k *Keeper) run(ctx context.Context, j *rtnl.Journal) error {
	every := time.NewTicker(verify)
	defer every.Stop()
	look := time.After(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-j.Wake():
			if err := k.judge(j); err != nil {
				return err
			}
			if look == nil && (k.all || len(k.doubt) > 0) {
				look = time.After(gather)
			}
			continue
		case <-look:
			look = nil
		case <-every.C:
			k.all = true
		}
		if err := k.pass(); err != nil {
			k.say(err)
			look = time.After(again)
		} else {
			k.failed = ""
		}
	}
}

// say logs an error once.
func (k *Keeper) say(err error) {
	if k.failed != err.Error() {
		k.failed = err.Error()
		k.cfg.Log.Error(err, "links of pods are not as they should be, trying again", "after", again)
	}
}

// judge looks at what the kernel told.
func (k *Keeper) judge(j *rtnl.Journal) error {
	events, lost, err := j.Take()
	k.all = k.all || lost
	for _, m := range events {
		if link := k.linkOf(m); link != "" {
			k.doubt[link] = true
		}
	}
	return err
}

// linkOf gives the link of a pod that a message is about.
func (k *Keeper) linkOf(m rtnl.Message) string {
	index := 0
	switch m.Kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return k.podLink(m)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		if len(m.Data) >= unix.SizeofIfAddrmsg {
			index = int(nl.DeserializeIfAddrmsg(m.Data).Index)
		}
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		const at = 4 // where struct ndmsg has it
		if len(m.Data) >= at+4 {
			index = int(nl.NativeEndian().Uint32(m.Data[at:]))
		}
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		// One that is in the place of another is told alone, and leads elsewhere.
		var dst netip.Addr
		if index, dst = routeOf(m.Data); k.owners[dst] != "" {
			return k.owners[dst]
		}
	}
	return k.links[index]
}

// podLink gives the name of a link if it is a pod's. A pod that goes and one that comes may
// have links of one name.
func (k *Keeper) podLink(m rtnl.Message) string {
	if len(m.Data) < unix.SizeofIfInfomsg {
		return ""
	}
	attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofIfInfomsg:])
	if err != nil {
		return ""
	}
	info := nl.DeserializeIfInfomsg(m.Data)
	for _, a := range attrs {
		if name := strings.TrimRight(string(a.Value), "\x00"); a.Attr.Type == unix.IFLA_IFNAME && ofPod(name) {
			if k.replaced(name, int(info.Index)) || m.Kind == unix.RTM_DELLINK && info.Family == unix.AF_UNSPEC {
				k.forget(name)
			}
			k.links[int(info.Index)] = name
			return name
		}
	}
	return ""
}

// replaced says whether a link is not the one that was whole.
func (k *Keeper) replaced(name string, index int) bool {
	was, whole := k.seen[name]
	return whole && was != index
}

// forget has the record of a link read anew: it may be another pod's now.
func (k *Keeper) forget(name string) {
	delete(k.seen, name)
	delete(k.wires, name)
	delete(k.shadowed, name)
}

// routeOf gives the index of the device that a route leads to, 0 if it leads to none, and
// the address that it is for, if it is for one only.
func routeOf(data []byte) (index int, dst netip.Addr) {
	if len(data) < unix.SizeofRtMsg {
		return 0, dst
	}
	attrs, err := nl.ParseRouteAttr(data[unix.SizeofRtMsg:])
	if err != nil {
		return 0, dst
	}
	for _, a := range attrs {
		switch {
		case a.Attr.Type == unix.RTA_OIF && len(a.Value) >= 4:
			index = int(nl.NativeEndian().Uint32(a.Value))
		case a.Attr.Type == unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(a.Value)
		}
	}
	if int(nl.DeserializeRtMsg(data).Dst_len) != dst.BitLen() {
		dst = netip.Addr{}
	}
	return index, dst
}

// pass looks at the links in doubt, and mends them. What is in doubt after an error stays
// so.
func (k *Keeper) pass() error {
	if err := k.read(); err != nil {
		return err
	}
	k.kernel.begin()
	links := make([]string, 0, len(k.doubt))
	for link := range k.doubt {
		links = append(links, link)
	}
	slices.Sort(links)
	var errs []error
	for _, link := range links {
		if err := k.mend(link); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(k.doubt, link)
	}
	return errors.Join(errs...)
}

// read reads the records, if links are in doubt that none is known of: a pod came.
func (k *Keeper) read() error {
	news := k.all
	for link := range k.doubt {
		_, known := k.wires[link]
		_, seen := k.seen[link]
		news = news || !known || !seen
	}
	if !news {
		return nil
	}
	wires, err := records(k.cfg.State, k.boot)
	if err != nil {
		return err
	}
	k.wires, k.owners = wires, map[netip.Addr]string{}
	for link, w := range wires {
		for _, a := range w.addrs {
			k.owners[a] = link
		}
	}
	if k.all {
		for link := range wires {
			k.doubt[link] = true
		}
		k.all = false
	}
	return nil
}

// mend puts right what is wrong with a link, unless the plugin may be at work on it.
func (k *Keeper) mend(name string) error {
	w, known := k.wires[name]
	link, err := k.kernel.find(name)
	if err != nil {
		return err
	}
	if !known || link == nil { // the pod is gone; what is left of it is swept elsewhere
		k.forget(name)
		maps.DeleteFunc(k.links, func(_ int, n string) bool { return n == name && link == nil })
		return nil
	}
	index := link.Attrs().Index
	if k.replaced(name, index) { // since the records were read: what the kernel tells of it is still to come
		k.forget(name)
		return nil
	}
	looked, err := k.kernel.look(link, w)
	if err != nil {
		return err
	}
	found := looked.faults
	k.tellShadowed(name, strings.Join(looked.shadowed, ", "))
	k.links[index] = name
	_, whole := k.seen[name]
	switch {
	case len(found) == 0:
		k.seen[name] = index
		return nil
	case !whole && time.Since(w.created) < inFlight:
		return nil
	}
	k.tell(found, whole)
	var errs []error
	for _, f := range found {
		if err := f.mend(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.note, err))
		}
	}
	if len(errs) == 0 {
		k.seen[name] = index
	}
	return errors.Join(errs...)
}

// tell tells each kind once. What was changed while nobody looked is logged only.
func (k *Keeper) tell(found []fault, count bool) {
	notes := map[string][]string{}
	for _, f := range found {
		notes[f.kind] = append(notes[f.kind], f.note)
	}
	for _, kind := range Kinds() {
		if len(notes[kind]) == 0 {
			continue
		}
		note := "it is put right: " + strings.Join(notes[kind], ", ")
		k.cfg.Log.Info("others changed the link of a pod", "kind", kind, "note", note)
		if count {
			k.cfg.Foreign(kind, note)
		}
	}
}

// tellShadowed tells once that packets to addresses of a pod do not go by its link although
// our routes stand. Whoever wants another way has made it beside ours, and it is theirs.
func (k *Keeper) tellShadowed(name, addrs string) {
	if addrs == k.shadowed[name] {
		return
	}
	k.shadowed[name] = addrs
	if addrs == "" {
		delete(k.shadowed, name)
		return
	}
	k.cfg.Log.Info("another route or rule comes before those to a pod", "link", name, "addresses", addrs)
}
