package config

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

// kubeProxyFlags are the flags of kube-proxy 1.37 (A14-F) with the defaults that its
// help shows.
func kubeProxyFlags() map[string]string {
	return map[string]string{
		"bind-address": "0.0.0.0", "bind-address-hard-fail": "false", "cleanup": "false", "cluster-cidr": "",
		"config": "", "config-sync-period": "15m0s", "conntrack-max-per-core": "32768", "conntrack-min": "131072",
		"conntrack-tcp-be-liberal": "false", "conntrack-tcp-timeout-close-wait": "1h0m0s",
		"conntrack-tcp-timeout-established": "24h0m0s", "conntrack-udp-timeout": "0s", "conntrack-udp-timeout-stream": "0s",
		"detect-local-mode": "", "feature-gates": "", "healthz-bind-address": "0.0.0.0:10256", "healthz-port": "10256",
		"help": "false", "hostname-override": "", "init-only": "false", "iptables-localhost-nodeports": "true",
		"iptables-masquerade-bit": "14", "iptables-min-sync-period": "1s", "iptables-sync-period": "30s",
		"ipvs-exclude-cidrs": "[]", "ipvs-min-sync-period": "1s", "ipvs-scheduler": "", "ipvs-strict-arp": "false",
		"ipvs-sync-period": "30s", "ipvs-tcp-timeout": "0s", "ipvs-tcpfin-timeout": "0s", "ipvs-udp-timeout": "0s",
		"kube-api-burst": "10", "kube-api-content-type": "application/vnd.kubernetes.protobuf", "kube-api-qps": "5",
		"kubeconfig": "", "log-flush-frequency": "5s", "log-json-info-buffer-size": "0", "log-json-split-stream": "false",
		"log-text-info-buffer-size": "0", "log-text-split-stream": "false", "logging-format": "text",
		"masquerade-all": "false", "master": "", "metrics-bind-address": "127.0.0.1:10249", "metrics-port": "10249",
		"nodeport-addresses": "[]", "oom-score-adj": "-999", "pod-bridge-interface": "", "pod-interface-name-prefix": "",
		"profiling": "false", "proxy-mode": "", "show-hidden-metrics-for-version": "", "v": "0", "version": "",
		"vmodule": "", "write-config-to": "",
	}
}

func TestA14_FFlagsAreKubeProxysAndOurs(t *testing.T) {
	want := kubeProxyFlags()
	for name, value := range map[string]string{
		"manifests": "", "masquerade-bit": "14", "reject-without-local-endpoints": "false", "reset-removed-endpoints": "false",
		"bpf-dir": "auto", "sysctl-dir": "/proc/sys", "endpoint-metrics": "service",
		"external-ip-cidrs": "[]", "pod-network": "false", "encapsulation": "auto", "vxlan-port": "8472", "vxlan-vni": "111",
		"vxlan-checksum-offload": "true", "non-masquerade-cidrs": "[]", "cni-state": "/var/lib/cni/onerule",
		"network-status-file": "/run/onerule/network.json", "install-cni": "false", "cni-plugin": "",
		"cni-bin-dir": "/opt/cni/bin", "cni-conf-dir": "/etc/cni/net.d", "etc-dir": "/etc", "cni-exclusive": "false", "cni-mtu": "0",
	} {
		want[name] = value
	}
	got := map[string]string{}
	NewFlags().all.VisitAll(func(f *pflag.Flag) { got[f.Name] = f.DefValue })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("flags and defaults (-want +got):\n%s", diff)
	}
	if f := NewFlags().all.ShorthandLookup("v"); f == nil || f.Name != "v" {
		t.Error("there is no -v")
	}
}

// flagCases have for each flag what it changes in the settings.
func flagCases() map[string]struct {
	args []string
	of   func(Settings) any
	want any
} {
	type c = struct {
		args []string
		of   func(Settings) any
		want any
	}
	ipvs := "--proxy-mode=ipvs"
	return map[string]c{
		"bind-address":                      {[]string{"--bind-address=192.0.2.1"}, func(s Settings) any { return s.BindAddress }, netip.MustParseAddr("192.0.2.1")},
		"bind-address-hard-fail":            {[]string{"--bind-address-hard-fail"}, func(s Settings) any { return s.BindAddressHardFail }, true},
		"cluster-cidr":                      {[]string{"--cluster-cidr=10.1.2.3/8,fd00::/48"}, func(s Settings) any { return fmt.Sprint(s.ClusterCIDRs) }, "[10.0.0.0/8 fd00::/48]"},
		"config-sync-period":                {[]string{"--config-sync-period=1m"}, func(s Settings) any { return s.Config.ConfigSyncPeriod.Duration }, time.Minute},
		"conntrack-max-per-core":            {[]string{"--conntrack-max-per-core=0"}, func(s Settings) any { return s.Conntrack.MaxPerCore }, 0},
		"conntrack-min":                     {[]string{"--conntrack-min=7"}, func(s Settings) any { return s.Conntrack.Min }, 7},
		"conntrack-tcp-be-liberal":          {[]string{"--conntrack-tcp-be-liberal"}, func(s Settings) any { return s.Conntrack.TCPBeLiberal }, true},
		"conntrack-tcp-timeout-close-wait":  {[]string{"--conntrack-tcp-timeout-close-wait=0"}, func(s Settings) any { return s.Conntrack.TCPCloseWaitTimeout }, time.Duration(0)},
		"conntrack-tcp-timeout-established": {[]string{"--conntrack-tcp-timeout-established=2h"}, func(s Settings) any { return s.Conntrack.TCPEstablishedTimeout }, 2 * time.Hour},
		"conntrack-udp-timeout":             {[]string{"--conntrack-udp-timeout=3s"}, func(s Settings) any { return s.Conntrack.UDPTimeout }, 3 * time.Second},
		"conntrack-udp-timeout-stream":      {[]string{"--conntrack-udp-timeout-stream=4s"}, func(s Settings) any { return s.Conntrack.UDPStreamTimeout }, 4 * time.Second},
		"detect-local-mode":                 {[]string{"--detect-local-mode=NodeCIDR"}, func(s Settings) any { return s.Detector }, Detector{Mode: NodeCIDR}},
		"feature-gates":                     {[]string{"--feature-gates=AllowServiceExternalIPs=false", "--feature-gates=AllAlpha=true"}, func(s Settings) any { return []bool{s.ExternalIPs, s.Gates["KubeProxyNFTablesLocalhostNodePorts"]} }, []bool{false, true}},
		"healthz-bind-address":              {[]string{"--healthz-bind-address=::1"}, func(s Settings) any { return s.Healthz }, "[::1]:10256"},
		"healthz-port":                      {[]string{"--healthz-port=0"}, func(s Settings) any { return s.Healthz }, ""},
		"hostname-override":                 {[]string{"--hostname-override= Node-1 "}, func(s Settings) any { return []string{s.Node, s.Config.HostnameOverride} }, []string{"node-1", "node-1"}},
		"iptables-localhost-nodeports":      {[]string{"--iptables-localhost-nodeports=false"}, func(s Settings) any { return *s.Config.IPTables.LocalhostNodePorts }, false},
		"iptables-masquerade-bit":           {[]string{"--iptables-masquerade-bit=3"}, func(s Settings) any { return s.MasqueradeBit }, uint8(3)},
		"iptables-min-sync-period":          {[]string{"--iptables-min-sync-period=0"}, func(s Settings) any { return s.MinSyncPeriod }, time.Duration(0)},
		"iptables-sync-period":              {[]string{"--iptables-sync-period=5s"}, func(s Settings) any { return s.SyncPeriod }, 5 * time.Second},
		"ipvs-exclude-cidrs":                {[]string{"--ipvs-exclude-cidrs=10.0.0.0/8,fd00::/8"}, func(s Settings) any { return s.Config.IPVS.ExcludeCIDRs }, []string{"10.0.0.0/8", "fd00::/8"}},
		"ipvs-min-sync-period":              {[]string{ipvs, "--ipvs-min-sync-period=2s"}, func(s Settings) any { return s.MinSyncPeriod }, 2 * time.Second},
		"ipvs-scheduler":                    {[]string{"--ipvs-scheduler=sh"}, func(s Settings) any { return s.Config.IPVS.Scheduler }, "sh"},
		"ipvs-strict-arp":                   {[]string{"--ipvs-strict-arp"}, func(s Settings) any { return s.Config.IPVS.StrictARP }, true},
		"ipvs-sync-period":                  {[]string{ipvs, "--ipvs-sync-period=9s"}, func(s Settings) any { return s.SyncPeriod }, 9 * time.Second},
		"ipvs-tcp-timeout":                  {[]string{"--ipvs-tcp-timeout=1s"}, func(s Settings) any { return s.Config.IPVS.TCPTimeout.Duration }, time.Second},
		"ipvs-tcpfin-timeout":               {[]string{"--ipvs-tcpfin-timeout=1s"}, func(s Settings) any { return s.Config.IPVS.TCPFinTimeout.Duration }, time.Second},
		"ipvs-udp-timeout":                  {[]string{"--ipvs-udp-timeout=1s"}, func(s Settings) any { return s.Config.IPVS.UDPTimeout.Duration }, time.Second},
		"kube-api-burst":                    {[]string{"--kube-api-burst=7"}, func(s Settings) any { return s.Client.Burst }, 7},
		"kube-api-content-type":             {[]string{"--kube-api-content-type=application/json"}, func(s Settings) any { return s.Client.ContentType }, "application/json"},
		"kube-api-qps":                      {[]string{"--kube-api-qps=2.5"}, func(s Settings) any { return s.Client.QPS }, float32(2.5)},
		"kubeconfig":                        {[]string{"--kubeconfig=/k"}, func(s Settings) any { return s.Client.Kubeconfig }, "/k"},
		"log-flush-frequency":               {[]string{"--log-flush-frequency=2s"}, func(s Settings) any { return s.Config.Logging.FlushFrequency.Duration.Duration }, 2 * time.Second},
		"log-json-info-buffer-size":         {[]string{"--feature-gates=LoggingAlphaOptions=true", "--log-json-info-buffer-size=2Ki"}, func(s Settings) any { return s.Config.Logging.Options.JSON.InfoBufferSize.Value() }, int64(2048)},
		"log-json-split-stream":             {[]string{"--feature-gates=LoggingAlphaOptions=true", "--log-json-split-stream"}, func(s Settings) any { return s.Config.Logging.Options.JSON.SplitStream }, true},
		"log-text-info-buffer-size":         {[]string{"--feature-gates=LoggingAlphaOptions=true", "--log-text-info-buffer-size=1k"}, func(s Settings) any { return s.Config.Logging.Options.Text.InfoBufferSize.Value() }, int64(1000)},
		"log-text-split-stream":             {[]string{"--feature-gates=LoggingAlphaOptions=true", "--log-text-split-stream"}, func(s Settings) any { return s.Config.Logging.Options.Text.SplitStream }, true},
		"logging-format":                    {[]string{"--logging-format=json"}, func(s Settings) any { return s.Config.Logging.Format }, "json"},
		"manifests":                         {[]string{"--manifests=/m"}, func(s Settings) any { return s.Manifests }, "/m"},
		"masquerade-all":                    {[]string{"--masquerade-all"}, func(s Settings) any { return s.MasqueradeAll }, true},
		"masquerade-bit":                    {[]string{"--masquerade-bit=31", "--iptables-masquerade-bit=3"}, func(s Settings) any { return []int{int(s.MasqueradeBit), int(*s.Config.NFTables.MasqueradeBit)} }, []int{31, 31}},
		"bpf-dir":                           {[]string{"--bpf-dir=/sys/fs/bpf/x"}, func(s Settings) any { return s.BPFDir }, "/sys/fs/bpf/x"},
		"sysctl-dir":                        {[]string{"--sysctl-dir=/host/proc/sys"}, func(s Settings) any { return s.SysctlDir }, "/host/proc/sys"},
		"endpoint-metrics":                  {[]string{"--endpoint-metrics=endpoint"}, func(s Settings) any { return s.EndpointMetrics }, "endpoint"},
		"external-ip-cidrs":                 {[]string{"--external-ip-cidrs=192.0.2.7/24,fd00::/64"}, func(s Settings) any { return fmt.Sprint(s.ExternalIPCIDRs) }, "[192.0.2.0/24 fd00::/64]"},
		"pod-network":                       {[]string{"--pod-network"}, func(s Settings) any { return s.PodNetwork.On }, true},
		"encapsulation":                     {[]string{"--encapsulation=never"}, func(s Settings) any { return s.PodNetwork.Layout.Encapsulation.String() }, "never"},
		"vxlan-port":                        {[]string{"--vxlan-port=4789"}, func(s Settings) any { return s.PodNetwork.Layout.Port }, 4789},
		"vxlan-vni":                         {[]string{"--vxlan-vni=7"}, func(s Settings) any { return s.PodNetwork.Layout.VNI }, 7},
		"vxlan-checksum-offload":            {[]string{"--vxlan-checksum-offload=false"}, func(s Settings) any { return s.PodNetwork.Layout.ChecksumOffload }, false},
		"non-masquerade-cidrs":              {[]string{"--non-masquerade-cidrs=10.0.0.0/8", "--non-masquerade-cidrs=fd00::/8"}, func(s Settings) any { return fmt.Sprint(s.PodNetwork.NonMasquerade) }, "[10.0.0.0/8 fd00::/8]"},
		"cni-state":                         {[]string{"--cni-state=/state"}, func(s Settings) any { return s.PodNetwork.CNIState }, "/state"},
		"install-cni":                       {[]string{"--pod-network", "--install-cni"}, func(s Settings) any { return s.PodNetwork.Install.On }, true},
		"cni-plugin":                        {[]string{"--cni-plugin=/plugin"}, func(s Settings) any { return s.PodNetwork.Install.Plugin }, "/plugin"},
		"cni-bin-dir":                       {[]string{"--cni-bin-dir=/bin"}, func(s Settings) any { return s.PodNetwork.Install.BinDir }, "/bin"},
		"cni-conf-dir":                      {[]string{"--cni-conf-dir=/conf"}, func(s Settings) any { return s.PodNetwork.Install.ConfDir }, "/conf"},
		"etc-dir":                           {[]string{"--etc-dir=/other"}, func(s Settings) any { return s.PodNetwork.Install.EtcDir }, "/other"},
		"cni-exclusive":                     {[]string{"--cni-exclusive"}, func(s Settings) any { return s.PodNetwork.Install.Exclusive }, true},
		"cni-mtu":                           {[]string{"--cni-mtu=1400"}, func(s Settings) any { return s.PodNetwork.Install.MTU }, 1400},
		"network-status-file":               {[]string{"--network-status-file="}, func(s Settings) any { return s.PodNetwork.StatusFile }, ""},
		"master":                            {[]string{"--master=https://api"}, func(s Settings) any { return s.Client.Master }, "https://api"},
		"metrics-bind-address":              {[]string{"--metrics-bind-address=0.0.0.0:80"}, func(s Settings) any { return s.Metrics }, "0.0.0.0:80"},
		"metrics-port":                      {[]string{"--metrics-port=81"}, func(s Settings) any { return s.Metrics }, "127.0.0.1:81"},
		"nodeport-addresses":                {[]string{"--nodeport-addresses=localhost,192.0.2.7/24", "--nodeport-addresses=primary"}, func(s Settings) any { return fmt.Sprint(s.NodePortAddresses) }, "{true false true [192.0.2.0/24] false}"},
		"oom-score-adj":                     {[]string{"--oom-score-adj=-5"}, func(s Settings) any { return s.OOMScoreAdj }, -5},
		"pod-bridge-interface":              {[]string{"--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cni0"}, func(s Settings) any { return s.Detector }, Detector{BridgeInterface, "cni0"}},
		"pod-interface-name-prefix":         {[]string{"--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=veth"}, func(s Settings) any { return s.Detector }, Detector{InterfaceNamePrefix, "veth"}},
		"profiling":                         {[]string{"--profiling"}, func(s Settings) any { return s.Profiling }, true},
		"proxy-mode":                        {[]string{"--proxy-mode=iptables"}, func(s Settings) any { return []any{string(s.Config.Mode), s.NodePortAddresses.All} }, []any{"iptables", true}},
		"reject-without-local-endpoints":    {[]string{"--reject-without-local-endpoints"}, func(s Settings) any { return s.RejectWithoutLocalEndpoints }, true},
		"reset-removed-endpoints":           {[]string{"--reset-removed-endpoints"}, func(s Settings) any { return s.ResetRemovedEndpoints }, true},
		"show-hidden-metrics-for-version":   {[]string{"--show-hidden-metrics-for-version=1.36"}, func(s Settings) any { return s.Config.ShowHiddenMetricsForVersion }, "1.36"},
		"v":                                 {[]string{"-v=4"}, func(s Settings) any { return uint32(s.Config.Logging.Verbosity) }, uint32(4)},
		"vmodule":                           {[]string{"--vmodule=api=3"}, func(s Settings) any { return fmt.Sprint(s.Config.Logging.VModule) }, "[{api 3}]"},
	}
}

func TestA14_FEachFlagHasItsEffect(t *testing.T) {
	cases := flagCases()
	plain := settings(t)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, c.of(settings(t, c.args...)), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("%q (-want +got):\n%s", c.args, diff)
			}
			if cmp.Equal(c.want, c.of(plain), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })) {
				t.Errorf("%q asks for what is there without it", c.args)
			}
		})
	}
	elsewhere := []string{"cleanup", "config", "help", "init-only", "version", "write-config-to"}
	NewFlags().all.VisitAll(func(f *pflag.Flag) {
		if _, ok := cases[f.Name]; !ok && !slices.Contains(elsewhere, f.Name) {
			t.Errorf("--%s has no case", f.Name)
		}
	})
}

func TestA14_FFlagsOfOneAction(t *testing.T) {
	f := parse(t, "--cleanup", "--init-only", "--write-config-to=/w", "--config=/c")
	if !f.Cleanup || !f.InitOnly || f.WriteConfigTo != "/w" || f.ConfigFile != "/c" {
		t.Errorf("got %+v", f)
	}
	for args, want := range map[string]string{"": "", "--version": "true", "--version=raw": "raw", "--version=false": ""} {
		got, err := parse(t, slices.DeleteFunc([]string{args}, func(a string) bool { return a == "" })...).Version()
		if got != want || err != nil {
			t.Errorf("%q: got %q, %v, want %q", args, got, err, want)
		}
	}
	if _, err := parse(t, "--version=old").Version(); err == nil || !strings.Contains(err.Error(), "--version") {
		t.Errorf("got error %v, want one that names --version", err)
	}
}

// Flags that kube-proxy's nftables mode does not know by another name (A14-F notes).
func TestA14_FModesTakeTheirOwnPeriodsAndBits(t *testing.T) {
	all := []string{
		"--iptables-sync-period=10s", "--iptables-min-sync-period=2s", "--ipvs-sync-period=20s", "--ipvs-min-sync-period=3s",
		"--iptables-masquerade-bit=5", "--masquerade-all",
	}
	for mode, want := range map[string]string{
		"":         "10s 2s bit 5 all true",
		"nftables": "10s 2s bit 14 all true",
		"iptables": "10s 2s bit 5 all true",
		"ipvs":     "20s 3s bit 5 all true",
	} {
		s := settings(t, append(all, "--proxy-mode="+mode)...)
		got := fmt.Sprintf("%s %s bit %d all %t", s.SyncPeriod, s.MinSyncPeriod, s.MasqueradeBit, s.MasqueradeAll)
		if got != want {
			t.Errorf("mode %q: got %s, want %s", mode, got, want)
		}
	}
}

// A10.7 and the deprecated flags.
func TestPortsOfServers(t *testing.T) {
	for _, c := range []struct{ args, healthz, metrics string }{
		{"", "0.0.0.0:10256", "127.0.0.1:10249"},
		{"--healthz-port=0", "", "127.0.0.1:10249"},
		{"--healthz-port=0 --healthz-bind-address=::1", "", "127.0.0.1:10249"},
		{"--healthz-port=80", "0.0.0.0:80", "127.0.0.1:10249"},
		{"--healthz-port=80 --healthz-bind-address=::1", "[::1]:80", "127.0.0.1:10249"},
		{"--healthz-port=80 --healthz-bind-address=[::1]:81", "[::1]:81", "127.0.0.1:10249"},
		{"--metrics-port=80 --metrics-bind-address=192.0.2.1", "0.0.0.0:10256", "192.0.2.1:80"},
		{"--healthz-bind-address= --metrics-bind-address=", "0.0.0.0:10256", "127.0.0.1:10249"},
		{"--bind-address=::", "0.0.0.0:10256", "127.0.0.1:10249"},
	} {
		s := settings(t, strings.Fields(c.args)...)
		if s.Healthz != c.healthz || s.Metrics != c.metrics {
			t.Errorf("%q: got %q and %q, want %q and %q", c.args, s.Healthz, s.Metrics, c.healthz, c.metrics)
		}
	}
	if got, want := fault(t, "--metrics-port=0"), "--metrics-port: this server can't be turned off"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := fault(t, "--healthz-port=70000"), `--healthz-port: "0.0.0.0:70000" is not an address, with or without a port, like 0.0.0.0:10256`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestUsageShowsEachFlagOnceInItsGroup(t *testing.T) {
	usage := NewFlags().Usage(100)
	shown := map[string]int{}
	for _, line := range regexp.MustCompile(`(?m)^(?:  -[a-z], |      )--([a-z-]+)`).FindAllStringSubmatch(usage, -1) {
		shown[line[1]]++
	}
	NewFlags().all.VisitAll(func(f *pflag.Flag) {
		want := 1
		if f.Deprecated != "" {
			want = 0
		}
		if shown[f.Name] != want {
			t.Errorf("--%s is shown %d times, want %d", f.Name, shown[f.Name], want)
		}
	})
	for line := range strings.Lines(usage) {
		if n := len(strings.TrimSuffix(line, "\n")); n > 110 {
			t.Errorf("a line of %d characters: %s", n, line)
		}
	}
}
