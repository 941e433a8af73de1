package daemon

import (
	"context"
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

// podCIDRs are the ranges of pods that the Node object says.
type podCIDRs struct {
	list  []netip.Prefix
	known bool
}

// clusterCIDRs gives the ranges that tell pods from others.
func (d *Daemon) clusterCIDRs() []netip.Prefix {
	switch d.settings.Detector.Mode {
	case config.ClusterCIDR:
		return d.settings.ClusterCIDRs
	case config.NodeCIDR:
		return d.podCIDRs.list
	}
	return nil
}

func (d *Daemon) planConfig() plan.Config {
	return plan.Config{
		NodeName:           d.settings.Node,
		ClusterCIDRs:       d.clusterCIDRs(),
		WithoutExternalIPs: !d.settings.ExternalIPs,
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
		d.cleaner.hostAddrs(l.host)
	}
	if hasNode {
		d.adoptNode(node.Node)
	}
	d.warn()
	if at := d.listenAt(); !slices.Equal(at, d.listening) {
		d.listening = at
		d.checks.Listen(at)
	}
	for _, family := range d.cfg.Families {
		d.wanted[family] = d.addrs.held(d.settings, family, !d.cfg.WithoutFib)
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
	return model.Key{Kind: model.KindNode, Name: model.Name{Name: d.settings.Node}}
}

// adoptNode takes the Node object in. Its ranges of pods must not change where pods
// are told by them.
func (d *Daemon) adoptNode(n *model.Node) {
	if n == nil {
		if d.cfg.KnownNode && d.hadNode {
			d.end(fmt.Errorf("node %s was deleted", d.settings.Node))
		}
		d.health.SetEligible(!d.cfg.KnownNode)
		d.addrs.node = config.FindNodeIPs(d.settings.BindAddress, nil)
		return
	}
	d.hadNode = true
	d.health.SetEligible(!n.Leaving)
	d.addrs.node = config.FindNodeIPs(d.settings.BindAddress, n.Addrs)
	if d.settings.Detector.Mode != config.NodeCIDR || len(n.PodCIDRs) == 0 {
		return
	}
	if d.podCIDRs.known && !slices.Equal(d.podCIDRs.list, n.PodCIDRs) {
		d.end(fmt.Errorf("node %s: spec.podCIDRs was %v and is %v: pods are told by them, which takes a restart", n.Name, d.podCIDRs.list, n.PodCIDRs))
		return
	}
	if !d.podCIDRs.known {
		close(d.hasPodCIDRs)
	}
	d.podCIDRs = podCIDRs{slices.Clone(n.PodCIDRs), true}
}

// awaitsNode says whether rules cannot be written yet, because the ranges of pods are
// not known.
func (d *Daemon) awaitsNode() bool {
	return d.settings.Detector.Mode == config.NodeCIDR && !d.podCIDRs.known
}

// warn logs once where NodePorts are open at more addresses than one may think.
func (d *Daemon) warn() {
	for _, line := range d.settings.NodePortWarnings(d.addrs.node, d.podCIDRs.list) {
		if !d.warned[line] {
			d.warned[line] = true
			d.cfg.Log.Info(line)
		}
	}
}

// awaitPodCIDRs ends the daemon if the Node object gets no ranges in time.
func (d *Daemon) awaitPodCIDRs(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-d.hasPodCIDRs:
	case <-time.After(podCIDRsPatience):
		d.end(fmt.Errorf("node %s has no spec.podCIDRs after %s: pods are told by them", d.cfg.Settings.Node, podCIDRsPatience))
	}
}
