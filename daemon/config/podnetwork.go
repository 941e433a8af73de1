package config

import (
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"

	"onerule/daemon/fabric/layout"
	"onerule/install"
)

// podNetworkGiven is what flags say of the pod network.
type podNetworkGiven struct {
	on                   bool
	encapsulation        string
	port, vni            int
	checksums            bool
	nonMasquerade        []string
	cniState, statusFile string
	installCNI           installGiven
}

// installGiven is what flags say of installing the CNI plugin.
type installGiven struct {
	on, exclusive  bool
	binDir, netDir string
	etcDir         string
	plugin         string
	mtu            int
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
	f.installCNI(fs)
}

func (f *Flags) installCNI(fs *pflag.FlagSet) {
	g, usual := &f.given.podNetwork.installCNI, install.Usual()
	fs.BoolVar(&g.on, "install-cni", false, "with --pod-network: place the CNI plugin, publish its list of plugins once this node's pods can be served, and keep both there")
	fs.StringVar(&g.plugin, "cni-plugin", "", "`file` of the CNI plugin to place; empty: onerule beside this program")
	fs.StringVar(&g.binDir, "cni-bin-dir", usual.Binaries, "`folder` where the container runtime looks for CNI plugins")
	fs.StringVar(&g.netDir, "cni-conf-dir", usual.Lists, "`folder` where the container runtime looks for lists of CNI plugins")
	fs.StringVar(&g.etcDir, "etc-dir", usual.Etc, "`folder` below which NetworkManager and systemd-networkd are told to leave links of pods alone, where they are; empty: they are not told")
	fs.BoolVar(&g.exclusive, "cni-exclusive", false, "set lists of other CNI plugins aside, until oneruled uninstall brings them back")
	fs.IntVar(&g.mtu, "cni-mtu", 0, "`MTU` of pods; 0: that of the way out")
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
	paths := map[string]string{
		"--cni-state": g.cniState, "--network-status-file": g.statusFile,
		"--cni-plugin": g.installCNI.plugin, "--cni-bin-dir": g.installCNI.binDir, "--cni-conf-dir": g.installCNI.netDir,
		"--etc-dir": g.installCNI.etcDir,
	}
	for flag, path := range paths {
		if path != "" && !filepath.IsAbs(path) {
			r.wrong(flag, "%q is no absolute path", path)
		}
	}
	r.s.ExternalIPCIDRs = r.prefixes("--external-ip-cidrs", r.flags.given.externalIPCIDRs)
	r.vain(r.s.ExternalIPCIDRs)
	r.s.PodNetwork = PodNetwork{
		On:            g.on,
		Layout:        layout.Config{Encapsulation: encapsulation, Port: g.port, VNI: g.vni, ChecksumOffload: g.checksums},
		NonMasquerade: r.prefixes("--non-masquerade-cidrs", g.nonMasquerade),
		CNIState:      g.cniState,
		StatusFile:    g.statusFile,
		Install:       r.installCNI(),
	}
}

func (r *resolver) installCNI() InstallCNI {
	g := r.flags.given.podNetwork.installCNI
	switch {
	case g.on && !r.flags.given.podNetwork.on:
		r.wrong("--install-cni", "it needs --pod-network, which says when pods can be served")
	case g.on && (g.binDir == "" || g.netDir == ""):
		r.wrong("--install-cni", "it needs --cni-bin-dir and --cni-conf-dir")
	case g.mtu != 0 && (g.mtu < 1280 || g.mtu > 65535):
		r.wrong("--cni-mtu", "%d is neither 0 nor within 1280 to 65535", g.mtu)
	}
	return InstallCNI{On: g.on, Plugin: g.plugin, BinDir: g.binDir, ConfDir: g.netDir, EtcDir: g.etcDir, Exclusive: g.exclusive, MTU: g.mtu}
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

// vain warns of ranges in which no external IP is accepted whatever is asked for.
func (r *resolver) vain(list []netip.Prefix) {
	never := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fe80::/10")}
	for _, p := range list {
		if slices.ContainsFunc(never, func(n netip.Prefix) bool { return n.Bits() <= p.Bits() && n.Contains(p.Addr()) }) {
			r.warn("--external-ip-cidrs: %s has no effect: loopback and link-local addresses are no external IPs of any Service", p)
		}
	}
}
