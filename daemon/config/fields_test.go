package config

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/kube-proxy/config/v1alpha1"

	"onerule/daemon/fabric/layout"
)

// A fieldCase is a field of the file (A14-C), and what it changes.
type fieldCase struct {
	field string
	value string // as YAML
	of    func(Settings) any
	want  any
	more  string // fields that it needs
}

func fieldCases() []fieldCase {
	const (
		nft = "mode: nftables\n"
		ipt = "mode: iptables\n"
		vs  = "mode: ipvs\n"
		lgs = "featureGates: {LoggingAlphaOptions: true}\n"
	)
	config := func(of func(*v1alpha1.KubeProxyConfiguration) any) func(Settings) any {
		return func(s Settings) any { return of(s.Config) }
	}
	return []fieldCase{
		{"featureGates", "{AllowServiceExternalIPs: false}", func(s Settings) any { return s.ExternalIPs }, false, ""},
		{"clientConnection.kubeconfig", "/k", func(s Settings) any { return s.Client.Kubeconfig }, "/k", ""},
		{"clientConnection.acceptContentTypes", "application/json", func(s Settings) any { return s.Client.AcceptContentTypes }, "application/json", ""},
		{"clientConnection.contentType", "application/json", func(s Settings) any { return s.Client.ContentType }, "application/json", ""},
		{"clientConnection.qps", "7", func(s Settings) any { return s.Client.QPS }, float32(7), ""},
		{"clientConnection.burst", "8", func(s Settings) any { return s.Client.Burst }, 8, ""},
		{"logging.format", "json", config(func(c *v1alpha1.KubeProxyConfiguration) any { return c.Logging.Format }), "json", ""},
		{"logging.flushFrequency", "2s", config(func(c *v1alpha1.KubeProxyConfiguration) any { return c.Logging.FlushFrequency.Duration.Duration }), 2 * time.Second, ""},
		{"logging.verbosity", "4", config(func(c *v1alpha1.KubeProxyConfiguration) any { return uint32(c.Logging.Verbosity) }), uint32(4), ""},
		{"logging.vmodule", "[{filePattern: a*, verbosity: 3}]", config(func(c *v1alpha1.KubeProxyConfiguration) any { return fmt.Sprint(c.Logging.VModule) }), "[{a* 3}]", ""},
		{"logging.options.text.splitStream", "true", config(func(c *v1alpha1.KubeProxyConfiguration) any { return c.Logging.Options.Text.SplitStream }), true, lgs},
		{"logging.options.text.infoBufferSize", "2Ki", config(func(c *v1alpha1.KubeProxyConfiguration) any { return c.Logging.Options.Text.InfoBufferSize.Value() }), int64(2048), lgs},
		{"logging.options.json.splitStream", "true", config(func(c *v1alpha1.KubeProxyConfiguration) any { return c.Logging.Options.JSON.SplitStream }), true, lgs},
		{"logging.options.json.infoBufferSize", "2Ki", config(func(c *v1alpha1.KubeProxyConfiguration) any { return c.Logging.Options.JSON.InfoBufferSize.Value() }), int64(2048), lgs},
		{"hostnameOverride", "' Node-1 '", func(s Settings) any { return s.Node }, "node-1", ""},
		{"bindAddress", "fd00::1", func(s Settings) any { return []any{s.BindAddress.String(), s.Healthz, s.Metrics} }, []any{"fd00::1", "[::]:10256", "[::1]:10249"}, ""},
		{"healthzBindAddress", "192.0.2.1", func(s Settings) any { return s.Healthz }, "192.0.2.1:10256", ""},
		{"metricsBindAddress", "'[::1]:80'", func(s Settings) any { return s.Metrics }, "[::1]:80", ""},
		{"bindAddressHardFail", "true", func(s Settings) any { return s.BindAddressHardFail }, true, ""},
		{"enableProfiling", "true", func(s Settings) any { return s.Profiling }, true, ""},
		{"showHiddenMetricsForVersion", "'1.36'", config(func(c *v1alpha1.KubeProxyConfiguration) any { return c.ShowHiddenMetricsForVersion }), "1.36", ""},
		{"mode", "ipvs", func(s Settings) any { return s.NodePortAddresses.All }, true, ""},
		{"iptables.masqueradeBit", "3", func(s Settings) any { return s.MasqueradeBit }, uint8(3), ipt},
		{"iptables.masqueradeAll", "true", func(s Settings) any { return s.MasqueradeAll }, true, ipt},
		{"iptables.localhostNodePorts", "false", config(func(c *v1alpha1.KubeProxyConfiguration) any { return *c.IPTables.LocalhostNodePorts }), false, ipt},
		{"iptables.syncPeriod", "9s", func(s Settings) any { return s.SyncPeriod }, 9 * time.Second, ipt},
		{"iptables.minSyncPeriod", "2s", func(s Settings) any { return s.MinSyncPeriod }, 2 * time.Second, ipt},
		{"ipvs.syncPeriod", "9s", func(s Settings) any { return s.SyncPeriod }, 9 * time.Second, vs},
		{"ipvs.minSyncPeriod", "2s", func(s Settings) any { return s.MinSyncPeriod }, 2 * time.Second, vs},
		{"ipvs.scheduler", "sh", config(func(c *v1alpha1.KubeProxyConfiguration) any { return c.IPVS.Scheduler }), "sh", vs},
		{"ipvs.excludeCIDRs", "[10.0.0.0/8]", config(func(c *v1alpha1.KubeProxyConfiguration) any { return c.IPVS.ExcludeCIDRs }), []string{"10.0.0.0/8"}, vs},
		{"ipvs.strictARP", "true", config(func(c *v1alpha1.KubeProxyConfiguration) any { return c.IPVS.StrictARP }), true, vs},
		{"ipvs.tcpTimeout", "1s", config(func(c *v1alpha1.KubeProxyConfiguration) any { return c.IPVS.TCPTimeout.Duration }), time.Second, vs},
		{"ipvs.tcpFinTimeout", "1s", config(func(c *v1alpha1.KubeProxyConfiguration) any { return c.IPVS.TCPFinTimeout.Duration }), time.Second, vs},
		{"ipvs.udpTimeout", "1s", config(func(c *v1alpha1.KubeProxyConfiguration) any { return c.IPVS.UDPTimeout.Duration }), time.Second, vs},
		{"nftables.masqueradeBit", "4", func(s Settings) any { return s.MasqueradeBit }, uint8(4), nft},
		{"nftables.masqueradeAll", "true", func(s Settings) any { return s.MasqueradeAll }, true, nft},
		{"nftables.syncPeriod", "8s", func(s Settings) any { return s.SyncPeriod }, 8 * time.Second, nft},
		{"nftables.minSyncPeriod", "3s", func(s Settings) any { return s.MinSyncPeriod }, 3 * time.Second, nft},
		{"winkernel.networkName", "net", config(func(c *v1alpha1.KubeProxyConfiguration) any { return c.Winkernel.NetworkName }), "net", ""},
		{"winkernel.sourceVip", "192.0.2.1", config(func(c *v1alpha1.KubeProxyConfiguration) any { return c.Winkernel.SourceVip }), "192.0.2.1", ""},
		{"winkernel.enableDSR", "true", config(func(c *v1alpha1.KubeProxyConfiguration) any { return c.Winkernel.EnableDSR }), true, ""},
		{"winkernel.rootHnsEndpointName", "net", config(func(c *v1alpha1.KubeProxyConfiguration) any { return c.Winkernel.RootHnsEndpointName }), "net", ""},
		{"winkernel.forwardHealthCheckVip", "true", config(func(c *v1alpha1.KubeProxyConfiguration) any { return c.Winkernel.ForwardHealthCheckVip }), true, ""},
		{"windowsRunAsService", "true", config(func(c *v1alpha1.KubeProxyConfiguration) any { return c.WindowsRunAsService }), true, ""},
		{"detectLocalMode", "NodeCIDR", func(s Settings) any { return s.Detector }, Detector{Mode: NodeCIDR}, ""},
		{"detectLocal.bridgeInterface", "cni0", func(s Settings) any { return s.Detector.Interface }, "cni0", "detectLocalMode: BridgeInterface\n"},
		{"detectLocal.interfaceNamePrefix", "veth", func(s Settings) any { return s.Detector.Interface }, "veth", "detectLocalMode: InterfaceNamePrefix\n"},
		{"clusterCIDR", "10.0.0.0/8,fd00::/64", func(s Settings) any { return fmt.Sprint(s.ClusterCIDRs) }, "[10.0.0.0/8 fd00::/64]", ""},
		{"nodePortAddresses", "[all, localhost]", func(s Settings) any { return fmt.Sprint(s.NodePortAddresses) }, "{false true true [] false}", ""},
		{"oomScoreAdj", "5", func(s Settings) any { return s.OOMScoreAdj }, 5, ""},
		{"conntrack.maxPerCore", "0", func(s Settings) any { return s.Conntrack.MaxPerCore }, 0, ""},
		{"conntrack.min", "7", func(s Settings) any { return s.Conntrack.Min }, 7, ""},
		{"conntrack.tcpEstablishedTimeout", "0s", func(s Settings) any { return s.Conntrack.TCPEstablishedTimeout }, time.Duration(0), ""},
		{"conntrack.tcpCloseWaitTimeout", "2h", func(s Settings) any { return s.Conntrack.TCPCloseWaitTimeout }, 2 * time.Hour, ""},
		{"conntrack.tcpBeLiberal", "true", func(s Settings) any { return s.Conntrack.TCPBeLiberal }, true, ""},
		{"conntrack.udpTimeout", "3s", func(s Settings) any { return s.Conntrack.UDPTimeout }, 3 * time.Second, ""},
		{"conntrack.udpStreamTimeout", "4s", func(s Settings) any { return s.Conntrack.UDPStreamTimeout }, 4 * time.Second, ""},
		{"configSyncPeriod", "1m", config(func(c *v1alpha1.KubeProxyConfiguration) any { return c.ConfigSyncPeriod.Duration }), time.Minute, ""},
		{"portRange", "1-2", config(func(c *v1alpha1.KubeProxyConfiguration) any { return c.PortRange }), "1-2", ""},
	}
}

// nested gives YAML of one field.
func nested(field, value string) string {
	var b strings.Builder
	parts := strings.Split(field, ".")
	for i, part := range parts {
		fmt.Fprintf(&b, "%s%s:", strings.Repeat("  ", i), part)
		if i < len(parts)-1 {
			b.WriteString("\n")
		}
	}
	return b.String() + " " + value + "\n"
}

func TestA14_CEachFieldOfTheFileHasItsEffect(t *testing.T) {
	known := map[string]bool{}
	for _, c := range fieldCases() {
		known[c.field] = true
		t.Run(c.field, func(t *testing.T) {
			s := settings(t, "--config", configFile(t, nested(c.field, c.value)+c.more))
			if diff := cmp.Diff(c.want, c.of(s)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			with := strings.TrimSpace(c.more)
			if strings.HasPrefix(with, "detectLocalMode") { // it needs the field
				with = ""
			}
			if plain := c.of(settings(t, "--config", configFile(t, with+"\n"))); cmp.Equal(c.want, plain) {
				t.Errorf("%v is there without it", plain)
			}
			for _, w := range s.Warnings {
				if strings.Contains(w, "is ignored") {
					t.Errorf("the field is not known: %s", w)
				}
			}
		})
	}
	for _, field := range leaves("", reflect.TypeFor[v1alpha1.KubeProxyConfiguration]()) {
		if !known[field] {
			t.Errorf("field %s has no case", field)
		}
	}
}

// leaves names all fields of the file that hold a value.
func leaves(path string, of reflect.Type) []string {
	whole := []string{"featureGates", "logging.flushFrequency", "logging.vmodule"}
	var found []string
	for i := range of.NumField() {
		f := of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		at := strings.TrimPrefix(path+"."+name, ".")
		switch {
		case name == "" && f.Name == "TypeMeta":
		case name == "":
			found = append(found, leaves(path, f.Type)...)
		case f.Type.Kind() == reflect.Struct && f.Type.PkgPath() != "k8s.io/apimachinery/pkg/apis/meta/v1" &&
			f.Type.Name() != "QuantityValue" && !slices.Contains(whole, at):
			found = append(found, leaves(at, f.Type)...)
		default:
			found = append(found, at)
		}
	}
	return found
}

func TestA14_CA14_FDefaults(t *testing.T) {
	for name, s := range map[string]Settings{
		"flags": settings(t, "--hostname-override=n"),
		"file":  settings(t, "--hostname-override=n", "--config", configFile(t, "")),
	} {
		t.Run(name, func(t *testing.T) {
			want := Settings{
				Node: "n", Client: Client{QPS: 5, Burst: 10}, Detector: Detector{Mode: ClusterCIDR},
				NodePortAddresses: NodePortAddresses{Primary: true}, MasqueradeBit: 14, BPFDir: AutoBPFDir, SysctlDir: "/proc/sys", EndpointMetrics: "service",
				SyncPeriod: 30 * time.Second, MinSyncPeriod: time.Second,
				Healthz: "0.0.0.0:10256", Metrics: "127.0.0.1:10249",
				Conntrack:   Conntrack{MaxPerCore: 32768, Min: 131072, TCPEstablishedTimeout: 24 * time.Hour, TCPCloseWaitTimeout: time.Hour},
				OOMScoreAdj: -999, ExternalIPs: true,
				PodNetwork: PodNetwork{
					Layout:   layout.Config{Encapsulation: layout.Auto, Port: 8472, VNI: 111, ChecksumOffload: true},
					CNIState: "/var/lib/cni/onerule", StatusFile: "/run/onerule/network.json",
					Install: InstallCNI{BinDir: "/opt/cni/bin", ConfDir: "/etc/cni/net.d", EtcDir: "/etc"},
				},
				Gates: s.Gates, Config: s.Config, Warnings: s.Warnings,
			}
			if !reflect.DeepEqual(s, want) {
				t.Errorf("got %+v\nwant %+v", s, want)
			}
			if s.Gates["NFTablesProxyMode"] != true || s.Gates["AllAlpha"] {
				t.Error("gates do not have their defaults")
			}
		})
	}
}

// What counts beside a file, and a line that says what does not.
func TestA14_7FileAndFlags(t *testing.T) {
	file := configFile(t, "mode: nftables\nhostnameOverride: of-file\nclusterCIDR: 10.0.0.0/8\nlogging: {verbosity: 1, vmodule: [{filePattern: b, verbosity: 2}]}\nclientConnection: {kubeconfig: /f}\n")
	s := settings(t, "--config", file, "--hostname-override=Of-Flag", "--master=https://m", "-v=5", "--vmodule=a=1",
		"--cluster-cidr=192.168.0.0/16", "--masquerade-all", "--healthz-port=0", "--masquerade-bit=9",
		"--reject-without-local-endpoints", "--reset-removed-endpoints", "--init-only")
	got := []any{s.Node, s.Client.Master, s.Client.Kubeconfig, uint32(s.Config.Logging.Verbosity), fmt.Sprint(s.Config.Logging.VModule),
		fmt.Sprint(s.ClusterCIDRs), s.MasqueradeAll, s.Healthz, s.MasqueradeBit, s.RejectWithoutLocalEndpoints, s.ResetRemovedEndpoints}
	want := []any{"of-flag", "https://m", "/f", uint32(5), "[{a 1} {b 2}]",
		"[10.0.0.0/8]", false, "0.0.0.0:10256", uint8(9), true, true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	line := "config file " + file + ": these flags do not count beside it: --cluster-cidr, --healthz-port, --masquerade-all"
	if diff := cmp.Diff([]string{line}, s.Warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	if s := settings(t, "--config", file); s.Node != "of-file" || len(s.Warnings) > 0 {
		t.Errorf("got node %s and warnings %q, want of-file and none", s.Node, s.Warnings)
	}
}

// A file without a mode was written for iptables; both parts are looked at.
func TestFileWithoutAModeTakesBothParts(t *testing.T) {
	iptables := "iptables: {masqueradeAll: true, masqueradeBit: 3, syncPeriod: 10s, minSyncPeriod: 2s}\n"
	for _, c := range []struct{ fields, want string }{
		{iptables, "true 3 10s 2s"},
		{iptables + "nftables: {masqueradeBit: 4, syncPeriod: 20s}\n", "true 4 20s 2s"},
		{iptables + "mode: nftables\n", "false 14 30s 1s"},
		{"nftables: {masqueradeAll: true, masqueradeBit: 4}\nmode: iptables\n", "false 14 30s 1s"},
	} {
		s := settings(t, "--config", configFile(t, c.fields))
		if got := fmt.Sprint(s.MasqueradeAll, s.MasqueradeBit, s.SyncPeriod, s.MinSyncPeriod); got != c.want {
			t.Errorf("%q: got %s, want %s", c.fields, got, c.want)
		}
	}
}

func TestModesAreServedAndNamed(t *testing.T) {
	for mode, want := range map[string]string{
		"iptables": "proxy mode iptables is served with nftables: its settings count where nftables has them",
		"ipvs":     "proxy mode ipvs is served with nftables: its settings count where nftables has them",
		"nftables": "",
		"":         "no proxy mode is set: it is nftables, whose NodePorts are open at the primary addresses of the node only, unless nodePortAddresses says more",
	} {
		s := settings(t, "--config", configFile(t, "mode: '"+mode+"'\n"))
		if got := strings.Join(s.Warnings, "; "); got != want {
			t.Errorf("mode %q: got warnings %q, want %q", mode, got, want)
		}
	}
}

func TestAddressesAsKubeProxyReadsThem(t *testing.T) {
	for text, want := range map[string]string{"010.0.0.01": "10.0.0.1", "::ffff:192.0.2.1": "192.0.2.1", "fd00::1": "fd00::1"} {
		if got := settings(t, "--bind-address="+text).BindAddress; got != netip.MustParseAddr(want) {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
	for _, text := range []string{"0.0.0.0", "::"} {
		if got := settings(t, "--bind-address="+text).BindAddress; got.IsValid() {
			t.Errorf("%s: got %s, want none", text, got)
		}
	}
	for text, want := range map[string]string{"010.1.0.0/8": "10.0.0.0/8", "::ffff:10.0.0.0/104": "10.0.0.0/8"} {
		if got := settings(t, "--cluster-cidr="+text).ClusterCIDRs; fmt.Sprint(got) != "["+want+"]" {
			t.Errorf("%s: got %v, want %s", text, got, want)
		}
	}
}
