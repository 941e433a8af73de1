package config

import (
	"fmt"

	"github.com/spf13/pflag"
	logsapi "k8s.io/component-base/logs/api/v1"
)

func (f *Flags) sources(fs *pflag.FlagSet) {
	c, g := &f.config.ClientConnection, &f.given
	fs.StringVar(&g.manifests, "manifests", "", "`directory` of Services, EndpointSlices, Nodes and ServiceCIDRs as YAML or JSON files, watched; no API server is asked then (onerule's own)")
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "`file` that says how to reach the API server; without it, --master and --manifests: the pod's service account")
	fs.StringVar(&g.master, "master", "", "`address` of the API server, instead of that in the kubeconfig")
	fs.StringVar(&g.hostname, "hostname-override", "", "`name` of this node, instead of the host's name")
	fs.Float32Var(&c.QPS, "kube-api-qps", c.QPS, "`requests` per second to the API server")
	fs.Int32Var(&c.Burst, "kube-api-burst", c.Burst, "`requests` to the API server at once")
	fs.StringVar(&c.ContentType, "kube-api-content-type", c.ContentType, "media `type` of requests to the API server")
	fs.DurationVar(&f.config.ConfigSyncPeriod.Duration, "config-sync-period", f.config.ConfigSyncPeriod.Duration, "`time` after which all objects are looked at again; accepted: changes come as they happen")
}

func (f *Flags) configuration(fs *pflag.FlagSet) {
	fs.StringVar(&f.ConfigFile, "config", "", "`file` with a KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1, watched; only --hostname-override, --master, the flags of logging and onerule's own count beside it")
	f.config.FeatureGates = map[string]bool{}
	fs.Var(gatesValue(f.config.FeatureGates), "feature-gates", "`gates` of Kubernetes 1.37 and their values, like AllowServiceExternalIPs=false,AllAlpha=true; effect have AllowServiceExternalIPs (on) and those of logging and of the API client")
	fs.StringVar(&f.given.mode, "proxy-mode", "", "`mode`: nftables, or empty, which is the same; iptables and ipvs are accepted, with their settings, and served with nftables")
}

func (f *Flags) traffic(fs *pflag.FlagSet) {
	c, g := &f.config, &f.given
	fs.StringVar(&c.BindAddress, "bind-address", c.BindAddress, "primary `IP` of this node, instead of that in the Node object; 0.0.0.0 and :: are none. No socket is bound to it")
	fs.StringVar(&g.detectMode, "detect-local-mode", "", "`how` traffic of pods is told: ClusterCIDR (the default), NodeCIDR, BridgeInterface or InterfaceNamePrefix. What others send to a ClusterIP is masqueraded")
	fs.StringVar(&c.ClusterCIDR, "cluster-cidr", "", "`ranges` of pod addresses, one for each IP family, separated by a comma, for the mode ClusterCIDR; without them nothing that goes to a ClusterIP is masqueraded")
	fs.StringVar(&c.DetectLocal.BridgeInterface, "pod-bridge-interface", "", "`name` of the bridge of pods, for the mode BridgeInterface")
	fs.StringVar(&c.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "", "`prefix` of the names of pod interfaces, for the mode InterfaceNamePrefix")
	fs.BoolVar(&g.masqueradeAll, "masquerade-all", false, "masquerade all traffic to ClusterIPs")
	fs.Uint8Var(&g.masqueradeBit, "masquerade-bit", defaultMasqueradeBit, "`bit` of the packet mark, 0 to 31, that says that a packet is to be masqueraded (onerule's own)")
	fs.StringSliceVar(&c.NodePortAddresses, "nodeport-addresses", nil, "`where` NodePorts are served: ranges of addresses, and the keywords primary (the addresses of the Node object), localhost and all; unless it is set: primary, or all if the mode is iptables or ipvs")
	fs.StringSliceVar(&g.externalIPCIDRs, "external-ip-cidrs", nil, "`ranges` that externalIPs of Services must lie in; unless it is set: any, but never loopback and link-local addresses (onerule's own)")
	fs.BoolVar(&g.reject, "reject-without-local-endpoints", false, "refuse, instead of dropping, what a Local traffic policy without local endpoints can't deliver (onerule's own)")
	fs.DurationVar(&g.sync, "iptables-sync-period", defaultSyncPeriod, "`time` after which a failed sync is tried again at the latest; twice as long without one is unhealthy. The name is historical: it counts in nftables mode")
	fs.DurationVar(&g.minSync, "iptables-min-sync-period", defaultMinSyncPeriod, "`time` between two syncs at least; 0: none. It counts in nftables mode too")
}

func (f *Flags) conntrack(fs *pflag.FlagSet) {
	c := &f.config.Conntrack
	fs.Int32Var(c.MaxPerCore, "conntrack-max-per-core", *c.MaxPerCore, "`entries` for each CPU at most; 0 leaves the limit as it is")
	fs.Int32Var(c.Min, "conntrack-min", *c.Min, "`entries` at least that the limit allows, unless --conntrack-max-per-core is 0")
	fs.BoolVar(&c.TCPBeLiberal, "conntrack-tcp-be-liberal", false, "accept TCP segments that are out of the window")
	fs.DurationVar(&c.TCPEstablishedTimeout.Duration, "conntrack-tcp-timeout-established", c.TCPEstablishedTimeout.Duration, "`time` that an idle TCP connection is kept; 0 leaves it as it is")
	fs.DurationVar(&c.TCPCloseWaitTimeout.Duration, "conntrack-tcp-timeout-close-wait", c.TCPCloseWaitTimeout.Duration, "`time` that a TCP connection in CLOSE_WAIT is kept; 0 leaves it as it is")
	fs.DurationVar(&c.UDPTimeout.Duration, "conntrack-udp-timeout", 0, "`time` that a UDP flow without an answer is kept; 0 leaves it as it is")
	fs.DurationVar(&c.UDPStreamTimeout.Duration, "conntrack-udp-timeout-stream", 0, "`time` that a UDP flow with answers is kept; 0 leaves it as it is")
	fs.BoolVar(&f.given.reset, "reset-removed-endpoints", false, "forget TCP connections to endpoints that are in no EndpointSlice any more, so that the client's next packet is reset (onerule's own)")
}

func (f *Flags) servers(fs *pflag.FlagSet) {
	c, g := &f.config, &f.given
	fs.StringVar(&g.healthzAddress, "healthz-bind-address", c.HealthzBindAddress, fmt.Sprintf("`address` of /healthz and /livez, with a port or without: %d then", healthzPort))
	fs.StringVar(&g.metricsAddress, "metrics-bind-address", c.MetricsBindAddress, fmt.Sprintf("`address` of /metrics, with a port or without: %d then", metricsPort))
	fs.BoolVar(&c.BindAddressHardFail, "bind-address-hard-fail", false, "end when one of these addresses is taken, instead of trying again")
	fs.BoolVar(&c.EnableProfiling, "profiling", false, "serve /debug/pprof beside /metrics")
	fs.StringVar(&c.ShowHiddenMetricsForVersion, "show-hidden-metrics-for-version", "", "`version`, like 1.36, whose hidden metrics are shown; accepted: no metric is hidden")
	fs.StringVar(&g.bpfDir, "bpf-dir", AutoBPFDir, "`where` the counters of connections are pinned, so that they outlive this process: a directory in a BPF file system; auto: /sys/fs/bpf/onerule, or nowhere in a network namespace of its own; off: nothing is counted (onerule's own)")
	fs.StringVar(&g.sysctlDir, "sysctl-dir", "/proc/sys", "`folder` below which settings of the kernel are written, in net: another one in a container, which sees /proc/sys read-only (onerule's own)")
	fs.StringVar(&g.endpointMetrics, "endpoint-metrics", "service", "`what` there are metrics of connections for: off, service or endpoint, of which 10,000 at most (onerule's own)")
	fs.Int32Var(c.OOMScoreAdj, "oom-score-adj", *c.OOMScoreAdj, "`score`, -1000 to 1000, that says how gladly the kernel ends this process when memory is short")
	fs.Int32Var(&g.healthzPort, "healthz-port", healthzPort, "`port` of /healthz and /livez where --healthz-bind-address has none; 0: off")
	fs.Int32Var(&g.metricsPort, "metrics-port", metricsPort, "`port` of /metrics where --metrics-bind-address has none")
	for name, instead := range map[string]string{"healthz-port": "--healthz-bind-address", "metrics-port": "--metrics-bind-address"} {
		_ = fs.MarkDeprecated(name, "use "+instead) // fails for an unknown flag only
	}
}

func (f *Flags) logging(fs *pflag.FlagSet) {
	l := &f.config.Logging
	fs.VarP(logsapi.VerbosityLevelPflag(&l.Verbosity), "v", "v", "`level` of what is logged: 0 is the least, 4 and more are for debugging")
	fs.Var(logsapi.VModuleConfigurationPflag(&l.VModule), "vmodule", "`levels` of single source files, like api=4,plan*=2; text format only")
	fs.StringVar(&l.Format, "logging-format", l.Format, "`format`: text or json")
	fs.DurationVar(&l.FlushFrequency.Duration.Duration, "log-flush-frequency", l.FlushFrequency.Duration.Duration, "`time` that lines stay in a buffer at most")
	fs.BoolVar(&l.Options.Text.SplitStream, "log-text-split-stream", false, "text format: errors to stderr and the rest to stdout (needs the gate LoggingAlphaOptions)")
	fs.Var(&l.Options.Text.InfoBufferSize, "log-text-info-buffer-size", "`bytes` of the buffer for stdout then, like 512, 1k or 2Ki (needs the gate LoggingAlphaOptions)")
	fs.BoolVar(&l.Options.JSON.SplitStream, "log-json-split-stream", false, "JSON format: errors to stderr and the rest to stdout (needs the gate LoggingAlphaOptions)")
	fs.Var(&l.Options.JSON.InfoBufferSize, "log-json-info-buffer-size", "`bytes` of the buffer for stdout then, like 512, 1k or 2Ki (needs the gate LoggingAlphaOptions)")
}

func (f *Flags) once(fs *pflag.FlagSet) {
	fs.BoolVar(&f.Cleanup, "cleanup", false, "remove the tables of onerule, its routes between nodes and its counters, and what kube-proxy left in nftables, iptables and ipvs")
	fs.BoolVar(&f.InitOnly, "init-only", false, "do what needs more than the capability NET_ADMIN")
	fs.StringVar(&f.WriteConfigTo, "write-config-to", "", "write the configuration, with all defaults, to this `file`")
	fs.StringVar(&f.given.version, "version", "", "print the `version`; --version=raw: with what it was built of")
	fs.Lookup("version").NoOptDefVal = "true"
	fs.BoolP("help", "h", false, "print this")
}

func (f *Flags) otherModes(fs *pflag.FlagSet) {
	i, v, g := &f.config.IPTables, &f.config.IPVS, &f.given
	fs.Int32Var(i.MasqueradeBit, "iptables-masquerade-bit", *i.MasqueradeBit, "`bit` of the packet mark, unless the mode is nftables")
	fs.BoolVar(i.LocalhostNodePorts, "iptables-localhost-nodeports", *i.LocalhostNodePorts, "NodePorts on 127.0.0.1")
	fs.DurationVar(&g.ipvsSync, "ipvs-sync-period", defaultSyncPeriod, "`time`, as --iptables-sync-period, if the mode is ipvs")
	fs.DurationVar(&g.ipvsMinSync, "ipvs-min-sync-period", defaultMinSyncPeriod, "`time`, as --iptables-min-sync-period, if the mode is ipvs")
	fs.StringVar(&v.Scheduler, "ipvs-scheduler", "", "`name` of the scheduler")
	fs.StringSliceVar(&v.ExcludeCIDRs, "ipvs-exclude-cidrs", nil, "`ranges` of addresses not to clean up")
	fs.BoolVar(&v.StrictARP, "ipvs-strict-arp", false, "arp_ignore 1 and arp_announce 2")
	fs.DurationVar(&v.TCPTimeout.Duration, "ipvs-tcp-timeout", 0, "`time` that an idle TCP connection is kept")
	fs.DurationVar(&v.TCPFinTimeout.Duration, "ipvs-tcpfin-timeout", 0, "`time` that a TCP connection is kept after FIN")
	fs.DurationVar(&v.UDPTimeout.Duration, "ipvs-udp-timeout", 0, "`time` that a UDP flow is kept")
}
