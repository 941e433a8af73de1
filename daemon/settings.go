package daemon

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"onerule/daemon/config"
	"onerule/daemon/model"
	"onerule/daemon/plan"
	"onerule/nft"
)

// podCIDRsPatience is how long the detector NodeCIDR waits for the Node object to have
// ranges.
const podCIDRsPatience = 5 * time.Minute

// clusterCIDRs gives the ranges that tell pods from others.
func (d *Daemon) clusterCIDRs() []netip.Prefix {
	switch d.settings.Detector.Mode {
	case config.ClusterCIDR:
		return d.settings.ClusterCIDRs
	case config.NodeCIDR:
		return d.podCIDRs
	}
	return nil
}

func (d *Daemon) planConfig() plan.Config {
	return plan.Config{
		NodeName:           d.cfg.Settings.Node,
		ClusterCIDRs:       d.clusterCIDRs(),
		WithoutExternalIPs: !d.settings.ExternalIPs,
		ExternalIPs:        d.settings.ExternalIPCIDRs,
		KeepListed:         d.cfg.Settings.ResetRemovedEndpoints,
	}
}

// skeleton gives the configuration of a table's rules.
func (d *Daemon) skeleton(family nft.Family) nft.Config {
	c := nft.Config{
		Family:              family,
		MasqueradeBit:       d.settings.MasqueradeBit,
		MasqueradeAll:       d.settings.MasqueradeAll,
		NodePortsEverywhere: d.addrs.everywhere(d.settings, family),
		RefuseWithoutLocal:  d.settings.RejectWithoutLocalEndpoints,
		LocalhostNodePorts:  d.onLoopback(family),
		WithoutFib:          d.cfg.WithoutFib,
	}
	switch d.settings.Detector.Mode {
	case config.BridgeInterface:
		c.Detector, c.PodInterface = nft.DetectInterface, d.settings.Detector.Interface
	case config.InterfaceNamePrefix:
		c.Detector, c.PodInterface = nft.DetectInterface, d.settings.Detector.Interface+"*"
	default:
		if slices.ContainsFunc(d.clusterCIDRs(), func(p netip.Prefix) bool { return isOf(family, p.Addr()) }) {
			c.Detector = nft.DetectCIDR
		}
	}
	return c
}

// adopt takes in settings, addresses and what the Node object says, which rules and
// addresses follow from. It gives what plans say otherwise now.
func (d *Daemon) adopt(l letters) plan.Applied {
	node, hasNode := l.changes[d.nodeKey()]
	if l.settings == nil && !l.hasHost && !hasNode {
		return plan.NewApplied() // as with nearly every change
	}
	before := map[nft.Family]nft.Config{}
	for _, family := range d.cfg.Families {
		before[family] = d.skeleton(family)
	}
	planned := d.planConfig()
	if l.settings != nil {
		d.settings = *l.settings
		d.health.SetStaleAfter(staleAfter(d.settings))
	}
	if l.hasHost {
		d.addrs.host = l.host
	}
	if hasNode {
		d.adoptNode(node.Node)
	}
	d.checkPodCIDRs()
	d.awaitPodCIDRs()
	d.warn()
	if at := d.listenAt(); !slices.Equal(at, d.listening) {
		d.listening = at
		d.checks.Listen(at)
	}
	for _, family := range d.cfg.Families {
		d.wanted[family] = d.addrs.held(d.settings, family, !d.cfg.WithoutFib)
		d.adoptNodePortAddrs(family)
	}
	for family, old := range before {
		if now := d.skeleton(family); now != old {
			d.programs[family].Reconfigure(now)
		}
	}
	if now := d.planConfig(); now.WithoutExternalIPs != planned.WithoutExternalIPs || !slices.Equal(now.ClusterCIDRs, planned.ClusterCIDRs) {
		return d.ledger.Reconfigure(now)
	}
	return plan.NewApplied()
}

func (d *Daemon) nodeKey() model.Key {
	return model.Key{Kind: model.KindNode, Name: model.Name{Name: d.cfg.Settings.Node}}
}

// adoptNode takes the Node object in.
func (d *Daemon) adoptNode(n *model.Node) {
	if n == nil {
		if d.cfg.KnownNode && d.hadNode {
			d.end(fmt.Errorf("node %s was deleted", d.cfg.Settings.Node))
		}
		d.health.SetEligible(!d.cfg.KnownNode)
		d.addrs.node = config.FindNodeIPs(d.settings.BindAddress, nil)
		return
	}
	d.hadNode = true
	d.health.SetEligible(!n.Leaving)
	d.addrs.node = config.FindNodeIPs(d.settings.BindAddress, n.Addrs)
	d.adoptPodCIDRs(n)
}

// adoptPodCIDRs takes in which ranges of pods the Node object says. They must not change
// where pods are told by them.
func (d *Daemon) adoptPodCIDRs(n *model.Node) {
	changed := len(d.podCIDRs) > 0 && !slices.Equal(d.podCIDRs, n.PodCIDRs)
	switch {
	case len(n.PodCIDRs) == 0:
	case changed && d.byPodCIDRs():
		d.end(fmt.Errorf("node %s: spec.podCIDRs was %v and is %v: pods are told by them, which takes a restart", n.Name, d.podCIDRs, n.PodCIDRs))
	default:
		d.podCIDRs = slices.Clone(n.PodCIDRs)
	}
}

// byPodCIDRs says whether pods are told by the ranges of the Node object.
func (d *Daemon) byPodCIDRs() bool { return d.settings.Detector.Mode == config.NodeCIDR }

// checkPodCIDRs ends the daemon if pods are told by ranges that are all of the family
// that is not the node's primary one. Which one is primary follows from its addresses:
// as long as it has none, two families are both taken for it.
func (d *Daemon) checkPodCIDRs() {
	if !d.byPodCIDRs() || len(d.cfg.Families) > 1 && !d.addrs.node.Known() {
		return
	}
	families := []config.Family{d.addrs.node.Primary}
	if len(d.cfg.Families) == 1 {
		families[0] = config.Family(d.cfg.Families[0])
	}
	if _, err := d.settings.CheckFamilies(families, d.podCIDRs); err != nil {
		d.podCIDRs = nil // nothing is written with them
		d.end(err)
	}
}

// awaitsPodCIDRs says whether rules cannot be written yet, because the ranges of pods
// are not known.
func (d *Daemon) awaitsPodCIDRs() bool { return d.byPodCIDRs() && len(d.podCIDRs) == 0 }

// awaitPodCIDRs ends the daemon if the Node object gets no ranges in time.
func (d *Daemon) awaitPodCIDRs() {
	switch awaits := d.awaitsPodCIDRs(); {
	case awaits && d.patience == nil:
		d.patience = time.AfterFunc(podCIDRsPatience, func() {
			d.end(fmt.Errorf("node %s has no spec.podCIDRs after %s: pods are told by them", d.cfg.Settings.Node, podCIDRsPatience))
		})
	case !awaits:
		d.stopWaiting()
	}
}

func (d *Daemon) stopWaiting() {
	if d.patience != nil {
		d.patience.Stop()
		d.patience = nil
	}
}

// warn logs once where NodePorts are open at more addresses than one may think.
func (d *Daemon) warn() {
	var ranges []netip.Prefix
	if d.byPodCIDRs() {
		ranges = d.podCIDRs
	}
	for _, line := range d.settings.NodePortWarnings(d.addrs.node, ranges) {
		if !d.warned[line] {
			d.warned[line] = true
			d.cfg.Log.Info(line)
		}
	}
}
