package network

import (
	"os"
	"path/filepath"
	"slices"

	"onerule/install"
)

// newKeeper makes what keeps the CNI plugin installed, if this process is to.
func (n *Network) newKeeper() *install.Keeper {
	to := n.cfg.Settings.Install
	if !to.On {
		return nil
	}
	p := install.Usual()
	p.Binaries, p.Lists, p.State, p.Etc = to.BinDir, to.ConfDir, n.cfg.Settings.CNIState, to.EtcDir
	return &install.Keeper{
		Places: p, Plugin: n.plugin(), Exclusive: to.Exclusive, Log: n.cfg.Log,
		Foreign: n.repaired,
		Others:  n.others,
	}
}

// others takes in which lists of other plugins come before ours.
func (n *Network) others(list []install.Other) {
	var first []string
	for _, o := range list {
		n.event(n.cfg.Node, "OtherCNIConfiguration", o.String())
		first = append(first, o.String())
	}
	n.mu.Lock()
	n.first = first
	n.mu.Unlock()
}

// plugin gives the one that goes with this program.
func (n *Network) plugin() string {
	if path := n.cfg.Settings.Install.Plugin; path != "" {
		return path
	}
	return besideThis()
}

// besideThis gives the plugin that came with this program.
func besideThis() string {
	self, err := os.Executable()
	if err != nil {
		return install.BinaryName // its absence is told
	}
	return filepath.Join(filepath.Dir(self), install.BinaryName)
}

// Serving gives what is closed once everything was in the kernel that pods need.
func (n *Network) Serving() <-chan struct{} { return n.serving }

// unpublished says whether there is something that the container runtime has to be told.
func (n *Network) unpublished() bool {
	ranges, known := n.fabric.Own()
	return known && len(ranges) > 0 && !slices.Equal(n.published, ranges)
}

// publish tells that pods can begin, also the container runtime: everything that they need is there. What is
// published stays when that is no longer so, since the plugin tells it by STATUS; a runtime
// that finds no list gives up pods which it could serve well.
func (n *Network) publish() {
	if n.published == nil {
		close(n.serving)
	}
	n.published, _ = n.fabric.Own()
	if n.keeper == nil {
		return
	}
	n.keeper.Publish(install.List{
		Ranges: n.published, MTU: n.cfg.Settings.Install.MTU, DataDir: n.cfg.Settings.CNIState, StatusFile: n.cfg.Settings.StatusFile,
	})
}
