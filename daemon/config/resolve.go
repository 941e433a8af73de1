package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/kube-proxy/config/v1alpha1"
)

// Settings reads the configuration file, if there is one, and says what the daemon is
// asked to be. The error names all that is wrong, in one line.
func (f *Flags) Settings() (Settings, error) {
	s := Settings{}
	c := f.fromFlags()
	if f.ConfigFile != "" {
		var err error
		if c, s.Warnings, err = readFile(f.ConfigFile); err != nil {
			return Settings{}, err
		}
		if names := f.ignored(); len(names) > 0 {
			s.Warnings = append(s.Warnings, fmt.Sprintf("config file %s: these flags do not count beside it: %s", f.ConfigFile, strings.Join(names, ", ")))
		}
	}
	f.overlay(c)
	r := &resolver{flags: f, c: c, s: &s}
	r.resolve()
	if err := oneLine(r.errs); err != nil {
		return Settings{}, err
	}
	return s, nil
}

// A resolver turns a configuration into settings and collects what is wrong with it.
type resolver struct {
	flags *Flags
	c     *v1alpha1.KubeProxyConfiguration
	s     *Settings
	errs  []error
}

func (r *resolver) resolve() {
	r.node()
	r.own()
	r.podNetwork()
	r.client()
	r.features()
	r.mode()
	r.detector()
	r.nodePorts()
	r.servers()
	r.conntrack()
	r.process()
	r.s.Config = r.c
}

// wrong notes what is wrong with a field, by its flag's name if it comes from one.
func (r *resolver) wrong(field, format string, args ...any) {
	err := fmt.Errorf("%s: %s", r.name(field), fmt.Sprintf(format, args...))
	if r.flags.ConfigFile != "" && !strings.HasPrefix(err.Error(), "--") {
		err = fmt.Errorf("config file %s: %w", r.flags.ConfigFile, err)
	}
	r.errs = append(r.errs, err)
}

func (r *resolver) warn(format string, args ...any) {
	r.s.Warnings = append(r.s.Warnings, fmt.Sprintf(format, args...))
}

func (r *resolver) node() {
	name := r.c.HostnameOverride
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			r.errs = append(r.errs, fmt.Errorf("ask for the host's name: %w", err))
			return
		}
		name = host
	}
	r.s.Node = strings.ToLower(strings.TrimSpace(name))
	if r.s.Node == "" {
		r.wrong("hostnameOverride", "the name is blank")
	}
	if r.c.HostnameOverride != "" {
		r.c.HostnameOverride = r.s.Node
	}
}

// own takes the flags that kube-proxy does not have.
func (r *resolver) own() {
	g := r.flags.given
	r.s.Manifests, r.s.RejectWithoutLocalEndpoints, r.s.ResetRemovedEndpoints = g.manifests, g.reject, g.reset
	r.s.BPFDir, r.s.EndpointMetrics = g.bpfDir, g.endpointMetrics
	if g.bpfDir != AutoBPFDir && g.bpfDir != NoBPF && !filepath.IsAbs(g.bpfDir) {
		r.wrong("--bpf-dir", "%q is neither an absolute path, %s nor %s", g.bpfDir, AutoBPFDir, NoBPF)
	}
	if r.s.SysctlDir = g.sysctlDir; !filepath.IsAbs(g.sysctlDir) {
		r.wrong("--sysctl-dir", "%q is no absolute path", g.sysctlDir)
	}
	if !slices.Contains([]string{"off", "service", "endpoint"}, g.endpointMetrics) {
		r.wrong("--endpoint-metrics", "%q is neither off, service nor endpoint", g.endpointMetrics)
	}
	if g.manifests == "" {
		return
	}
	fileSays := r.flags.ConfigFile != "" && r.c.ClientConnection.Kubeconfig != ""
	switch {
	case g.master != "" || r.flags.ConfigFile == "" && r.c.ClientConnection.Kubeconfig != "":
		r.errs = append(r.errs, errors.New("--manifests excludes --kubeconfig and --master"))
	case fileSays:
		r.warn("clientConnection.kubeconfig does not count beside --manifests")
	}
}

func (r *resolver) client() {
	c := r.c.ClientConnection
	r.s.Client = Client{
		Kubeconfig: c.Kubeconfig, Master: r.flags.given.master,
		ContentType: c.ContentType, AcceptContentTypes: c.AcceptContentTypes,
		QPS: c.QPS, Burst: int(c.Burst),
	}
	if c.ContentType == defaultContentType {
		r.s.Client.ContentType = ""
	}
	r.notNegative("clientConnection.burst", int64(c.Burst))
	r.positive("configSyncPeriod", r.c.ConfigSyncPeriod.Duration)
}

func (r *resolver) features() {
	values, errs := gates(r.c.FeatureGates)
	for _, err := range errs {
		r.wrong("featureGates", "%v", err)
	}
	r.s.Gates, r.s.ExternalIPs = values, values[gateExternalIPs]
	r.logging(values)
}

// mode takes the part of the proxy mode, which is nftables whatever it says.
func (r *resolver) mode() {
	r.bit("iptables.masqueradeBit", *r.c.IPTables.MasqueradeBit)
	n := r.c.NFTables
	part, bit, all, sync, minSync := modeNFTables, n.MasqueradeBit, n.MasqueradeAll, n.SyncPeriod, n.MinSyncPeriod
	switch i, v := r.c.IPTables, r.c.IPVS; r.c.Mode {
	case "", modeNFTables:
		r.bit("nftables.masqueradeBit", *n.MasqueradeBit)
	case modeIPTables:
		part, bit, all, sync, minSync = modeIPTables, i.MasqueradeBit, i.MasqueradeAll, i.SyncPeriod, i.MinSyncPeriod
	case modeIPVS:
		part, bit, all, sync, minSync = modeIPVS, i.MasqueradeBit, i.MasqueradeAll, v.SyncPeriod, v.MinSyncPeriod
		r.ipvs()
	default:
		r.wrong("mode", "unknown proxy mode %q: nftables is served, and iptables and ipvs are accepted", r.c.Mode)
	}
	if part != modeNFTables {
		r.warn("proxy mode %s is served with nftables: its settings count where nftables has them", part)
	}
	if r.flags.changed("masquerade-bit") {
		*bit = int32(r.flags.given.masqueradeBit)
		r.bit("--masquerade-bit", *bit)
	}
	r.s.MasqueradeAll, r.s.MasqueradeBit = all, uint8(*bit)
	r.periods(part, sync.Duration, minSync.Duration)
}

func (r *resolver) periods(part string, sync, minSync time.Duration) {
	r.s.SyncPeriod, r.s.MinSyncPeriod = sync, minSync
	r.positive(part+".syncPeriod", sync)
	r.notNegativeTime(part+".minSyncPeriod", minSync)
	if sync > 0 && minSync > sync {
		r.wrong(part+".minSyncPeriod", "%s is longer than %s, which is %s", minSync, r.name(part+".syncPeriod"), sync)
	}
}

func (r *resolver) ipvs() {
	v := r.c.IPVS
	r.notNegativeTime("ipvs.tcpTimeout", v.TCPTimeout.Duration)
	r.notNegativeTime("ipvs.tcpFinTimeout", v.TCPFinTimeout.Duration)
	r.notNegativeTime("ipvs.udpTimeout", v.UDPTimeout.Duration)
	for i, text := range v.ExcludeCIDRs {
		if _, err := parsePrefix(text); err != nil {
			r.wrong(r.item("ipvs.excludeCIDRs", i), "%v", err)
		}
	}
}

func (r *resolver) detector() {
	d := &r.s.Detector
	d.Mode = LocalMode(r.c.DetectLocalMode)
	switch d.Mode {
	case "":
		d.Mode, r.c.DetectLocalMode = ClusterCIDR, v1alpha1.LocalMode(ClusterCIDR)
		fallthrough
	case ClusterCIDR:
		r.clusterCIDRs()
	case NodeCIDR:
	case BridgeInterface:
		d.Interface = r.c.DetectLocal.BridgeInterface
		r.interfaceName("detectLocal.bridgeInterface", d.Interface)
	case InterfaceNamePrefix:
		d.Interface = r.c.DetectLocal.InterfaceNamePrefix
		r.interfaceName("detectLocal.interfaceNamePrefix", d.Interface)
	default:
		r.wrong("detectLocalMode", "%q is none of ClusterCIDR, NodeCIDR, BridgeInterface and InterfaceNamePrefix", d.Mode)
	}
}

func (r *resolver) clusterCIDRs() {
	list := r.c.ClusterCIDR
	if list == "" {
		return
	}
	texts := strings.Split(list, ",")
	for i, text := range texts {
		if text = strings.TrimSpace(text); text == "" {
			r.wrong("clusterCIDR", "range %d of %q is empty", i+1, list)
			return
		}
		p, err := parsePrefix(text)
		if err != nil {
			r.wrong("clusterCIDR", "%v", err)
			return
		}
		r.s.ClusterCIDRs = append(r.s.ClusterCIDRs, p)
	}
	ranges := r.s.ClusterCIDRs
	if len(ranges) > 2 || len(ranges) == 2 && familyOf(ranges[0].Addr()) == familyOf(ranges[1].Addr()) {
		r.wrong("clusterCIDR", "%q is neither one range nor one of each IP family", list)
	}
}

// interfaceName refuses what no interface is called: the kernel's limits, and what
// nftables would read as something else.
func (r *resolver) interfaceName(field, name string) {
	const longest = 15
	bad := func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`/"\*`, c) }
	switch {
	case name == "":
		r.wrong(field, "it is empty, and detectLocalMode is %s", r.c.DetectLocalMode)
	case len(name) > longest:
		r.wrong(field, "%q is longer than %d characters", name, longest)
	case strings.ContainsFunc(name, bad):
		r.wrong(field, "%q is no name of an interface", name)
	}
}

func (r *resolver) nodePorts() {
	n := &r.s.NodePortAddresses
	keywords := map[string]*bool{"primary": &n.Primary, "all": &n.All, "localhost": &n.Localhost}
	for i, text := range r.c.NodePortAddresses {
		field := r.item("nodePortAddresses", i)
		if keyword, ok := keywords[text]; ok {
			if *keyword {
				r.wrong(field, "%s is there twice", text)
			}
			*keyword = true
			continue
		}
		p, err := parsePrefix(text)
		if err != nil {
			r.wrong(field, "%q is neither a range of addresses, like 192.0.2.0/24, nor primary, localhost or all", text)
			continue
		}
		n.CIDRs = append(n.CIDRs, p)
	}
	if len(r.c.NodePortAddresses) > 0 {
		return
	}
	if slices.Contains([]v1alpha1.ProxyMode{modeIPTables, modeIPVS}, r.c.Mode) {
		n.All, n.unset = true, true
		return
	}
	n.Primary, r.c.NodePortAddresses = true, []string{"primary"}
	if r.c.Mode == "" && r.flags.ConfigFile != "" {
		r.warn("no proxy mode is set: it is nftables, whose NodePorts are open at the primary addresses of the node only, unless nodePortAddresses says more")
	}
}

func (r *resolver) servers() {
	r.s.BindAddressHardFail, r.s.Profiling = r.c.BindAddressHardFail, r.c.EnableProfiling
	if r.c.HealthzBindAddress != "" {
		r.s.Healthz = r.server("healthzBindAddress", r.c.HealthzBindAddress, healthzPort)
	}
	r.s.Metrics = r.server("metricsBindAddress", r.c.MetricsBindAddress, metricsPort)
	a, err := parseAddr(r.c.BindAddress)
	switch {
	case err != nil:
		r.wrong("bindAddress", "%v", err)
	case !a.IsUnspecified():
		r.s.BindAddress = a.Unmap().WithZone("")
	}
}

func (r *resolver) server(field, text string, port int32) string {
	if text == "" {
		r.wrong(field, "this server can't be turned off")
		return ""
	}
	a, err := parseServer(text, port)
	if err != nil {
		r.wrong(field, "%v", err)
		return ""
	}
	return a.String()
}

func (r *resolver) conntrack() {
	c := r.c.Conntrack
	r.s.Conntrack = Conntrack{
		MaxPerCore: int(*c.MaxPerCore), Min: int(*c.Min),
		TCPEstablishedTimeout: c.TCPEstablishedTimeout.Duration, TCPCloseWaitTimeout: c.TCPCloseWaitTimeout.Duration,
		TCPBeLiberal: c.TCPBeLiberal,
		UDPTimeout:   c.UDPTimeout.Duration, UDPStreamTimeout: c.UDPStreamTimeout.Duration,
	}
	r.notNegative("conntrack.maxPerCore", int64(*c.MaxPerCore))
	r.notNegative("conntrack.min", int64(*c.Min))
	r.notNegativeTime("conntrack.tcpEstablishedTimeout", c.TCPEstablishedTimeout.Duration)
	r.notNegativeTime("conntrack.tcpCloseWaitTimeout", c.TCPCloseWaitTimeout.Duration)
	r.notNegativeTime("conntrack.udpTimeout", c.UDPTimeout.Duration)
	r.notNegativeTime("conntrack.udpStreamTimeout", c.UDPStreamTimeout.Duration)
}

func (r *resolver) process() {
	r.s.OOMScoreAdj = int(*r.c.OOMScoreAdj)
	if r.s.OOMScoreAdj < -1000 || r.s.OOMScoreAdj > 1000 {
		r.wrong("oomScoreAdj", "%d is not within -1000 to 1000", r.s.OOMScoreAdj)
	}
	if v := r.c.ShowHiddenMetricsForVersion; v != "" && !isMinor(v) {
		r.wrong("showHiddenMetricsForVersion", "%q is not a version like 1.36", v)
	}
}

// isMinor says whether a text is two numbers with a point between them.
func isMinor(text string) bool {
	major, minor, ok := strings.Cut(text, ".")
	digits := func(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
	return ok && digits(major) && digits(minor)
}
