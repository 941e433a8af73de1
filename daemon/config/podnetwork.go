package config

import (
	"net/netip"
	"path/filepath"

	"github.com/spf13/pflag"

	"onerule/daemon/fabric/layout"
)

// podNetworkGiven is what flags say of the pod network.
type podNetworkGiven struct {
	on                   bool
	encapsulation        string
	port, vni            int
	checksums            bool
	nonMasquerade        []string
	cniState, statusFile string
}

func (f *Flags) podNetwork(fs *pflag.FlagSet) {
	g := &f.given.podNetwork
	fs.BoolVar(&g.on, "pod-network", false, "make routes to the pods of all nodes, guard this node's pods and masquerade them to the outside; what it made stays when it is switched off, until --cleanup")
	fs.StringVar(&g.encapsulation, "encapsulation", layout.Auto.String(), "`which` nodes are reached by VXLAN: auto (those behind routers), always or never; the same on all nodes, as all of VXLAN")
	fs.IntVar(&g.port, "vxlan-port", 8472, "UDP `port` of VXLAN")
	fs.IntVar(&g.vni, "vxlan-vni", 111, "`number` of the VXLAN network")
	fs.BoolVar(&g.checksums, "vxlan-checksum-offload", true, "leave checksums of what is encapsulated to the network card; false where its driver gets them wrong: ping works then, and TCP stalls")
	fs.StringSliceVar(&g.nonMasquerade, "non-masquerade-cidrs", nil, "`ranges` that pods reach with their own address, beside the ranges of pods")
	fs.StringVar(&g.cniState, "cni-state", "/var/lib/cni/onerule", "`folder` of the CNI plugin's state, in which host ports stand")
	fs.StringVar(&g.statusFile, "network-status-file", "/run/onerule/network.json", "`file` in which the CNI plugin reads what this process knows; empty: none")
}

func (r *resolver) podNetwork() {
	g := r.flags.given.podNetwork
	encapsulation, err := layout.ParseEncapsulation(g.encapsulation)
	if err != nil {
		r.wrong("--encapsulation", "%q is neither auto, always nor never", g.encapsulation)
	}
	if g.port < 1 || g.port > 65535 {
		r.wrong("--vxlan-port", "%d is not within 1 to 65535", g.port)
	}
	if g.vni < 1 || g.vni >= 1<<24 {
		r.wrong("--vxlan-vni", "%d is not within 1 to %d", g.vni, 1<<24-1)
	}
	for flag, path := range map[string]string{"--cni-state": g.cniState, "--network-status-file": g.statusFile} {
		if path != "" && !filepath.IsAbs(path) {
			r.wrong(flag, "%q is no absolute path", path)
		}
	}
	r.s.ExternalIPCIDRs = r.prefixes("--external-ip-cidrs", r.flags.given.externalIPCIDRs)
	r.s.PodNetwork = PodNetwork{
		On:            g.on,
		Layout:        layout.Config{Encapsulation: encapsulation, Port: g.port, VNI: g.vni, ChecksumOffload: g.checksums},
		NonMasquerade: r.prefixes("--non-masquerade-cidrs", g.nonMasquerade),
		CNIState:      g.cniState,
		StatusFile:    g.statusFile,
	}
}

// prefixes gives the ranges that a flag says, nil for none.
func (r *resolver) prefixes(flag string, texts []string) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range texts {
		p, err := parsePrefix(text)
		if err != nil {
			r.wrong(flag, "%v", err)
			continue
		}
		list = append(list, p)
	}
	return list
}
