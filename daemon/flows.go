package daemon

import (
	"net/netip"
	"slices"

	"onerule/daemon/conntrack"
	"onerule/daemon/plan"
	"onerule/nft"
)

// cleaners delete stale flows of a family: one those that have to go at once, the other one
// those that nobody has answered.
type cleaners [2]*conntrack.Cleaner

func (d *Daemon) newCleaners(family nft.Family) (c cleaners) {
	label := familyLabel(family)
	for i, unanswered := range []bool{false, true} {
		c[i] = conntrack.New(conntrack.Config{
			Family:       family,
			ResetRemoved: d.cfg.Settings.ResetRemovedEndpoints,
			Unanswered:   unanswered,
			Passed: func(p conntrack.Pass) {
				d.metrics.ConntrackPass(label, p.Took, p.Deleted())
				d.metrics.Untranslated(label, p.Untranslated)
			},
			Log: d.cfg.Log,
		})
	}
	return c
}

func (c cleaners) expect(f nft.Frontend, facts conntrack.Facts) {
	for _, one := range c {
		one.Expect(f, facts)
	}
}

func (c cleaners) written() {
	for _, one := range c {
		one.Written()
	}
}

func (c cleaners) setNodePortAddrs(list []netip.Addr) {
	for _, one := range c {
		one.SetNodePortAddrs(list)
	}
}

// expect tells the cleaner what is so of frontends once the write that is about to begin
// succeeds. was says whether one was ours before.
func (d *Daemon) expect(family nft.Family, keys plan.Keys, out plan.Outcome, was func(nft.Frontend) bool) {
	for f := range keys.Frontends {
		if f.InFamily() != plan.Family(family) {
			continue
		}
		decision, ours := out.Decisions[f]
		d.cleaners[family].expect(frontend(f), conntrack.Facts{
			Owned: ours, New: ours && !was(frontend(f)), Keep: decision.Keep, Except: d.claimed(family, f),
		})
	}
}

// had gives the frontends among keys that the kernel has, as far as is known.
func had(keys plan.Keys, has func(nft.Frontend) bool) plan.Keys {
	k := plan.NewKeys()
	for f := range keys.Frontends {
		if has(frontend(f)) {
			k.Frontends[f] = true
		}
	}
	return k
}

// expectGone tells the cleaner of frontends that are nobody's any more.
func (d *Daemon) expectGone(family nft.Family, gone []nft.Frontend) {
	for _, f := range gone {
		d.cleaners[family].expect(f, conntrack.Facts{})
	}
}

// claimed gives the addresses where a NodePort's protocol and number are a frontend of
// their own: an external or load balancer IP that the node has.
func (d *Daemon) claimed(family nft.Family, f plan.Frontend) []netip.Addr {
	if f.Addr.IsValid() {
		return nil
	}
	var list []netip.Addr
	for _, a := range d.nodePortAddrs[family] {
		if d.ledger.Owns(nodePortAt(f, a)) {
			list = append(list, a)
		}
	}
	return list
}

// nodePortAt is what a NodePort is at one of the node's addresses.
func nodePortAt(f plan.Frontend, a netip.Addr) plan.Frontend {
	return plan.Frontend{Addr: a, Protocol: f.Protocol, Port: f.Port}
}

// adoptNodePortAddrs tells the cleaner at which addresses NodePorts are. Where they come
// and go, all of them do.
func (d *Daemon) adoptNodePortAddrs(family nft.Family) {
	before, now := d.nodePortAddrs[family], d.addrs.nodePorts(d.settings, family)
	left, came := without(before, now), without(now, before)
	if len(left)+len(came) == 0 {
		return
	}
	d.nodePortAddrs[family] = now
	d.cleaners[family].setNodePortAddrs(now)
	ports := d.ledger.NodePorts(plan.Family(family))
	if len(came) > 0 {
		d.expect(family, ports, d.ledger.Decide(ports), func(nft.Frontend) bool { return false })
	}
	var gone []nft.Frontend
	for f := range ports.Frontends {
		for _, a := range left {
			if at := nodePortAt(f, a); !d.ledger.Owns(at) {
				gone = append(gone, frontend(at))
			}
		}
	}
	d.expectGone(family, gone)
}

// without gives the addresses of a list that are not in another one.
func without(list, other []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return slices.Contains(other, a) })
}
