package fabric

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"onerule/daemon/fabric/layout"
	"onerule/daemon/rtnl"
)

// A worker is the one goroutine that writes.
type worker struct {
	fabric  *Fabric
	kernel  *kernel
	journal *rtnl.Journal

	facts layout.Facts
	asked addresses    // whose ways are among the facts, or not there
	have  layout.State // what the kernel is believed to hold
	doubt suspicion    // what must be looked at before it is believed
	begun bool         // the kernel was read: what differs later, others did
	told  []layout.Problem
}

// run does what is due until ctx ends.
func (w *worker) run(ctx context.Context) error {
	verify := time.NewTicker(w.fabric.cfg.Verify)
	defer verify.Stop()
	wait := firstRetry
	var retry, look <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.journal.Wake():
			if err := w.judge(); err != nil {
				return err
			}
			if look == nil && w.doubt != (suspicion{}) {
				look = time.After(gather)
			}
			continue
		case <-w.fabric.wake:
		case <-look:
			look = nil
		case <-retry:
			retry = nil
			w.facts.Refused = nil // it may take them by now
		case <-verify.C:
			w.doubt.settings = true
			w.facts.Refused = nil
		}
		err := w.pass()
		if err == nil {
			wait, retry = firstRetry, nil
			if w.doubt.facts && look == nil {
				look = time.After(gather)
			}
			continue
		}
		if retry == nil {
			w.fabric.cfg.Log.Error(err, "routes between nodes are not as they should be, trying again", "after", wait)
			retry = time.After(wait)
			wait = min(2*wait, lastRetry)
		}
	}
}

// judge looks at what the kernel told.
func (w *worker) judge() error {
	events, lost, err := w.journal.Take()
	if lost {
		w.doubt = suspicion{rules: true, state: true, facts: true, settings: true, links: true}
	}
	for _, m := range events {
		w.doubt.join(w.kernel.suspect(m, belief{have: w.have, facts: w.facts, asked: w.asked}))
	}
	return err
}

// pass brings the kernel to what is wanted now.
func (w *worker) pass() error {
	members, known, absent := w.fabric.latest()
	if !known {
		w.tell(nil, absent)
		return nil
	}
	err := w.bring(members, absent)
	w.fabric.report(w.kernel.counts, w.reach(len(members.Peers)), err)
	return err
}

// reach counts the ways to other nodes.
func (w *worker) reach(peers int) Reach {
	r := Reach{Peers: peers}
	for _, route := range w.have.Routes {
		switch {
		case route.Refuses():
		case route.Link == 0:
			r.Tunnelled++
		default:
			r.Routed++
		}
	}
	return r
}

// rounds is how often what is wanted is thought over at once, when writing it brought news.
const rounds = 3

func (w *worker) bring(m layout.Members, absent string) error {
	if err := w.mendRules(m.Self); err != nil {
		return err
	}
	for round := 1; ; round++ {
		if err := w.learn(m); err != nil {
			return err
		}
		want, problems := layout.Plan(m, w.facts, w.fabric.cfg.Layout)
		news, err := w.change(want)
		if news && round < rounds {
			continue
		}
		w.tell(slices.Concat(m.Problems, problems), absent)
		return err
	}
}

// change brings the kernel to what is wanted. It says whether something else may be wanted
// now: the kernel refused a route, or one of ours that stood before a way to a node is gone.
func (w *worker) change(want layout.State) (news bool, err error) {
	expected := layout.Diff(w.have, want)
	if err := w.look(want); err != nil {
		return false, err
	}
	changes := layout.Diff(w.have, want)
	if w.begun && len(changes) > 0 {
		own := map[layout.Change]bool{}
		for _, c := range expected {
			own[c] = true
		}
		w.foreign(slices.DeleteFunc(slices.Clone(changes), func(c layout.Change) bool { return own[c] }))
	}
	w.begun = true
	before := w.astray()
	news, err = w.write(changes)
	if w.astray() < before {
		w.doubt.facts = true
	}
	return news || w.doubt.facts, err
}

// astray counts our routes that lead to addresses of nodes, which an earlier set of nodes
// wanted: no address that a node may have is in a range of pods.
func (w *worker) astray() (count int) {
	for place := range w.have.Routes {
		if w.asked.within(place.Dst) {
			count++
		}
	}
	return count
}

// learn finds out about this node what is not known, or not believed.
func (w *worker) learn(m layout.Members) error {
	before := w.asked
	w.asked = addressesOf(m)
	w.kernel.missed = false
	if w.doubt.facts {
		return w.learnAll()
	}
	for _, a := range w.asked {
		if before.has(a) {
			continue
		}
		if err := w.kernel.way(&w.facts, a); err != nil {
			w.doubt.facts = true
			return err
		}
	}
	w.doubt.facts = w.kernel.missed
	maps.DeleteFunc(w.facts.Ways, func(a netip.Addr, _ layout.Way) bool { return !w.asked.has(a) })
	if !w.doubt.settings && !w.doubt.links {
		return nil
	}
	var err error
	w.facts.PodLinks, err = w.kernel.linksOfPods()
	return err
}

// learnAll asks for everything again. A way by routers that is lost while its link is
// there, such as when a lease ends, is believed to come back: VXLAN needs no other routes
// for it, and what it sends meanwhile goes nowhere. Without a direct way, packets would
// leave by whatever default route there is.
func (w *worker) learnAll() error {
	now, err := w.kernel.facts(w.asked)
	if err != nil {
		return err
	}
	for _, a := range w.asked {
		way, known := w.facts.Ways[a]
		if _, found := now.Ways[a]; found || !known || !way.Gateway {
			continue
		}
		if err := w.kernel.link(&now, way.Link); err != nil {
			return err
		}
		if _, there := now.Links[way.Link]; there {
			now.Ways[a] = way
		}
	}
	w.facts, w.doubt.facts = now, w.kernel.missed
	return nil
}

// look reads what is not believed any more.
func (w *worker) look(want layout.State) error {
	switch {
	case w.doubt.state:
		have, err := w.kernel.read(want.Settings)
		if err != nil {
			return err
		}
		w.have = have
	case w.doubt.settings:
		if err := w.kernel.readSettings(w.have, want.Settings); err != nil {
			return err
		}
	case w.doubt.links:
		news := maps.Clone(want.Settings)
		maps.DeleteFunc(news, func(path, _ string) bool { _, known := w.have.Settings[path]; return known })
		if err := w.kernel.readSettings(w.have, news); err != nil {
			return err
		}
	}
	w.doubt.state, w.doubt.settings, w.doubt.links = false, false, false
	return nil
}

// write makes changes. One that fails keeps no other from being made, except that nothing
// is written to a device that could not be made, and that what stands in the stead of a route
// that could not be made stays. Afterwards what the kernel holds is not known. It says
// whether there is news about routes that the kernel refused.
func (w *worker) write(changes []layout.Change) (news bool, err error) {
	var failed failures
	var refused []layout.Change
	broken := false
	unmade := map[netip.Prefix]bool{}
	for _, c := range changes {
		if c.Kind == layout.KindRoute && c.Delete && unmade[c.Route.Dst] {
			continue
		}
		if broken && c.OnDevice() {
			unmade[c.Route.Dst] = true
			continue
		}
		err := w.kernel.apply(c)
		if err == nil {
			w.have = w.have.Apply(c)
			continue
		}
		unmade[c.Route.Dst] = true
		if refuses(c, err) {
			refused = append(refused, c)
			continue
		}
		failed = append(failed, err)
		broken = broken || c.Kind == layout.KindDevice
	}
	failed = append(failed, w.insist(refused)...)
	if len(failed) == 0 {
		return len(refused) > 0, nil
	}
	w.doubt.state = true
	return len(refused) > 0, failed
}

// refuses says that the kernel does not take a route to a peer as it is. What goes wrong
// otherwise, such as that a device is down, is this node's matter.
func refuses(c layout.Change, err error) bool {
	return c.Kind == layout.KindRoute && !c.Delete && !c.Route.Refuses() && errors.Is(err, unix.EINVAL)
}

// insist tries routes again that the kernel refused: the next hop may have been an address
// of this node's own, which is gone with what is not wanted any more. What it refuses now is
// no failure: there is something about the peer.
func (w *worker) insist(refused []layout.Change) (failed failures) {
	for _, c := range refused {
		err := w.kernel.apply(c)
		switch {
		case err == nil:
			w.have = w.have.Apply(c)
		case !refuses(c, err):
			failed = append(failed, err)
		default:
			if w.facts.Refused == nil {
				w.facts.Refused = map[layout.Route]string{}
			}
			w.facts.Refused[c.Route] = unix.EINVAL.Error()
		}
	}
	return failed
}

// Failures are why some changes could not be made.
type failures []error

// Error names a few: where one link is down, thousands of routes can fail.
func (f failures) Error() string {
	const few = 3
	if len(f) > few {
		return fmt.Sprintf("%v, and %d more", errors.Join(f[:few]...), len(f)-few)
	}
	return errors.Join(f...).Error()
}

func (f failures) Unwrap() []error { return f }
