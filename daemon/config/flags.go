package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// Flags are what the command line says. Names, defaults and meaning are kube-proxy's
// where it has them.
type Flags struct {
	// ConfigFile is read instead of most flags. It is empty, or a path.
	ConfigFile string
	// WriteConfigTo is a file to write the configuration to, and no more.
	WriteConfigTo string
	// Cleanup and InitOnly ask for that only.
	Cleanup, InitOnly bool

	all    *pflag.FlagSet
	groups []group
	// config has the defaults and what flags say.
	config v1alpha1.KubeProxyConfiguration
	given  given
}

// given are values that have no field of their own in a configuration, or one that
// depends on the mode.
type given struct {
	manifests, master, hostname    string
	mode, detectMode, version      string
	masqueradeBit                  uint8
	masqueradeAll                  bool
	reject, reset                  bool
	sync, minSync                  time.Duration
	ipvsSync, ipvsMinSync          time.Duration
	healthzPort, metricsPort       int32
	healthzAddress, metricsAddress string
	bpfDir, endpointMetrics        string
	sysctlDir                      string
	externalIPCIDRs                []string
	podNetwork                     podNetworkGiven
}

// What --bpf-dir can be instead of a directory.
const (
	// AutoBPFDir pins in the usual directory if the network is the machine's own, and
	// nowhere if it is not.
	AutoBPFDir = "auto"
	// NoBPF counts nothing.
	NoBPF = "off"
)

// A group is flags that the help shows together.
type group struct {
	title string
	flags *pflag.FlagSet
}

// NewFlags gives flags, none of them given.
func NewFlags() *Flags {
	f := &Flags{all: pflag.NewFlagSet("oneruled", pflag.ContinueOnError)}
	setDefaults(&f.config)
	f.group("Where Services come from", f.sources)
	f.group("Configuration", f.configuration)
	f.group("Traffic", f.traffic)
	f.group("Connection tracking, in the kernel", f.conntrack)
	f.group("Servers and process", f.servers)
	f.group("Pod network (onerule's own)", f.podNetwork)
	f.group("Logging", f.logging)
	f.group("Only this, then exit", f.once)
	f.group("For kube-proxy's other modes: accepted, and checked as there", f.otherModes)
	return f
}

func (f *Flags) group(title string, register func(*pflag.FlagSet)) {
	flags := pflag.NewFlagSet(title, pflag.ContinueOnError)
	flags.SortFlags = false
	register(flags)
	f.groups = append(f.groups, group{title, flags})
	f.all.AddFlagSet(flags)
}

// Register adds the flags to a set that parses a command line.
func (f *Flags) Register(to *pflag.FlagSet) { to.AddFlagSet(f.all) }

// Usage describes the flags in groups, in lines of at most width characters; 0: of
// any length.
func (f *Flags) Usage(width int) string {
	var b strings.Builder
	for i, g := range f.groups {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "%s:\n%s", g.title, g.flags.FlagUsagesWrapped(width))
	}
	return b.String()
}

// Version says whether the version is asked for, as one of "" (no), "true" and "raw".
func (f *Flags) Version() (string, error) {
	switch f.given.version {
	case "", "false":
		return "", nil
	case "true", "raw":
		return f.given.version, nil
	}
	return "", fmt.Errorf("--version: %q is neither true, false nor raw", f.given.version)
}

func (f *Flags) changed(name string) bool {
	flag := f.all.Lookup(name)
	return flag != nil && flag.Changed
}

// besideConfig says whether a flag has its effect also when there is a configuration
// file.
func besideConfig(name string) bool {
	return slices.Contains([]string{
		"config", "hostname-override", "master", "cleanup", "init-only", "write-config-to", "version", "help",
		"logging-format", "log-flush-frequency", "v", "vmodule",
		"log-text-split-stream", "log-text-info-buffer-size", "log-json-split-stream", "log-json-info-buffer-size",
		// Ours: a file has no fields for them.
		"manifests", "masquerade-bit", "reject-without-local-endpoints", "reset-removed-endpoints",
		"bpf-dir", "sysctl-dir", "endpoint-metrics", "external-ip-cidrs", "pod-network", "encapsulation", "vxlan-port", "vxlan-vni",
		"vxlan-checksum-offload", "non-masquerade-cidrs", "cni-state", "network-status-file",
		"install-cni", "cni-plugin", "cni-bin-dir", "cni-conf-dir", "etc-dir", "cni-exclusive", "cni-mtu",
	}, name)
}

// ignored names the flags that the configuration file stands for.
func (f *Flags) ignored() []string {
	var names []string
	f.all.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed && !besideConfig(flag.Name) {
			names = append(names, "--"+flag.Name)
		}
	})
	return names
}

// fromFlags gives the configuration that the flags alone are.
func (f *Flags) fromFlags() *v1alpha1.KubeProxyConfiguration {
	c, g := f.config.DeepCopy(), f.given
	c.Mode, c.DetectLocalMode = v1alpha1.ProxyMode(g.mode), v1alpha1.LocalMode(g.detectMode)
	f.setMode(c)
	c.HealthzBindAddress = f.server("healthz", g.healthzAddress, g.healthzPort)
	c.MetricsBindAddress = f.server("metrics", g.metricsAddress, g.metricsPort)
	return c
}

// setMode puts what flags say of each mode into the part of the one that is asked
// for.
func (f *Flags) setMode(c *v1alpha1.KubeProxyConfiguration) {
	g := f.given
	switch c.Mode {
	case modeIPVS:
		c.IPTables.MasqueradeAll = g.masqueradeAll
		c.IPVS.SyncPeriod.Duration, c.IPVS.MinSyncPeriod.Duration = g.ipvsSync, g.ipvsMinSync
	case modeIPTables:
		c.IPTables.MasqueradeAll = g.masqueradeAll
		c.IPTables.SyncPeriod.Duration, c.IPTables.MinSyncPeriod.Duration = g.sync, g.minSync
	default:
		c.NFTables.MasqueradeAll = g.masqueradeAll
		c.NFTables.SyncPeriod.Duration, c.NFTables.MinSyncPeriod.Duration = g.sync, g.minSync
		if c.Mode == "" && f.changed("iptables-masquerade-bit") {
			c.NFTables.MasqueradeBit = new(*c.IPTables.MasqueradeBit)
		}
	}
}

// server gives the address of a server from the flags of its address and its port:
// the port is for an address without one, and 0 turns the server off. An empty
// address is none.
func (f *Flags) server(name, address string, port int32) string {
	portGiven := f.changed(name + "-port")
	if portGiven && port == 0 {
		return ""
	}
	normally := f.all.Lookup(name + "-bind-address").DefValue
	if address != "" && (f.changed(name+"-bind-address") || !portGiven) {
		return withPort(address, port)
	}
	host, _, _ := strings.Cut(normally, ":") // it is of IPv4
	return withPort(host, port)
}

// overlay puts the flags that have an effect beside a configuration file over it.
func (f *Flags) overlay(c *v1alpha1.KubeProxyConfiguration) {
	if f.given.hostname != "" {
		c.HostnameOverride = f.given.hostname
	}
	if f.ConfigFile == "" {
		return // logging is there already
	}
	l, from := &c.Logging, f.config.Logging
	for name, set := range map[string]func(){
		"logging-format":            func() { l.Format = from.Format },
		"log-flush-frequency":       func() { l.FlushFrequency = from.FlushFrequency },
		"v":                         func() { l.Verbosity = from.Verbosity },
		"vmodule":                   func() { l.VModule = slices.Concat(from.VModule, l.VModule) },
		"log-text-split-stream":     func() { l.Options.Text.SplitStream = from.Options.Text.SplitStream },
		"log-text-info-buffer-size": func() { l.Options.Text.InfoBufferSize = from.Options.Text.InfoBufferSize },
		"log-json-split-stream":     func() { l.Options.JSON.SplitStream = from.Options.JSON.SplitStream },
		"log-json-info-buffer-size": func() { l.Options.JSON.InfoBufferSize = from.Options.JSON.InfoBufferSize },
	} {
		if f.changed(name) {
			set()
		}
	}
}
