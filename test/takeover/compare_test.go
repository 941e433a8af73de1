package takeover_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"onerule/daemon/config"
	"onerule/test/netns"
)

// The help of the real kube-proxy names its flags and their defaults.
func TestA14_FFlagsAreThoseOfKubeProxy(t *testing.T) {
	ns := netns.New(t, "node")
	help := ns.Run(t, kubeProxy(t), "--help")
	theirs := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^ +(?:-[a-z], )?--([a-z0-9-]+)(?: \S+)?  .*?(?:\(default (.*)\))?$`).FindAllStringSubmatch(help, -1) {
		theirs[m[1]] = strings.Trim(m[2], `"`)
	}
	if len(theirs) < 50 {
		t.Fatalf("found only %d flags in the help of kube-proxy: %s", len(theirs), help)
	}
	// What their help does not show because it is deprecated.
	theirs["healthz-port"], theirs["metrics-port"] = "10256", "10249"

	ours := pflag.NewFlagSet("ours", pflag.ContinueOnError)
	config.NewFlags().Register(ours)
	for name, want := range theirs {
		f := ours.Lookup(name)
		if f == nil {
			t.Errorf("--%s is not there", name)
			continue
		}
		got := f.DefValue
		if slices.Contains([]string{"false", "0", "0s", "[]"}, got) {
			got = "" // which a help does not show
		}
		if got != want {
			t.Errorf("--%s is %q by default, want %q", name, got, want)
		}
	}
	if f := ours.ShorthandLookup("v"); f == nil || f.Name != "v" {
		t.Error("there is no -v")
	}
}

// everyField is a file that gives each field another value than its default, but for
// those that can't be compared (incomparable).
const everyField = `
mode: nftables
featureGates: {LoggingAlphaOptions: true}
clientConnection: {kubeconfig: /k, acceptContentTypes: application/json, contentType: application/json, qps: 7, burst: 8}
logging:
  format: json
  flushFrequency: 2s
  verbosity: 4
  options: {text: {infoBufferSize: 2Ki}, json: {infoBufferSize: 1Ki}}
hostnameOverride: node-1
bindAddress: "fd00::1"
healthzBindAddress: "192.0.2.1"
metricsBindAddress: "[::1]:80"
bindAddressHardFail: true
enableProfiling: true
iptables: {masqueradeBit: 3, masqueradeAll: true, localhostNodePorts: false, syncPeriod: 9s, minSyncPeriod: 2s}
ipvs: {syncPeriod: 9s, minSyncPeriod: 2s, scheduler: sh, excludeCIDRs: [10.0.0.0/8], strictARP: true, tcpTimeout: 1s, tcpFinTimeout: 2s, udpTimeout: 3s}
nftables: {masqueradeBit: 4, masqueradeAll: true, syncPeriod: 8s, minSyncPeriod: 3s}
winkernel: {networkName: net, sourceVip: 192.0.2.1, enableDSR: true, rootHnsEndpointName: net, forwardHealthCheckVip: true}
windowsRunAsService: true
detectLocalMode: NodeCIDR
detectLocal: {bridgeInterface: cni0, interfaceNamePrefix: veth}
clusterCIDR: 10.0.0.0/8,fd00::/64
nodePortAddresses: [all, localhost, 192.0.2.0/24]
oomScoreAdj: 5
conntrack: {maxPerCore: 1, min: 7, tcpEstablishedTimeout: 5s, tcpCloseWaitTimeout: 2h, tcpBeLiberal: true, udpTimeout: 3s, udpStreamTimeout: 4s}
configSyncPeriod: 1m
portRange: 1-2
`

// taken are files that kube-proxy takes.
func taken() []string {
	return []string{
		everyField,
		"mode: nftables",
		"mode: iptables",
		"mode: ipvs",
		"mode: iptables\niptables: {masqueradeAll: true, syncPeriod: 9s, minSyncPeriod: 2s}",
		"mode: ipvs\niptables: {masqueradeAll: true, masqueradeBit: 3}\nipvs: {syncPeriod: 9s, minSyncPeriod: 2s}",
		"mode: nftables\nbindAddress: '::'",
		"mode: nftables\nbindAddress: 192.0.2.1\nhealthzBindAddress: '0.0.0.0:0010256'",
		"mode: nftables\nclusterCIDR: 10.0.0.0/8",
		"mode: nftables\nclusterCIDR: fd00::/64,10.0.0.0/8",
		"mode: nftables\nnodePortAddresses: [primary, 'fd00::/8']",
		"mode: nftables\ndetectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0}",
		"mode: nftables\ndetectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}",
		"mode: nftables\nnftables: {masqueradeBit: 0, syncPeriod: 5s, minSyncPeriod: 5s}",
		"mode: nftables\nconntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}",
		"mode: nftables\noomScoreAdj: -1000",
		"mode: nftables\nunknownField: 1\noomScoreAdj: 7",
		"mode: nftables\nipvs: {tcpTimeout: -1s, excludeCIDRs: [x]}",
	}
}

// refused are files that kube-proxy refuses, each for one reason.
func refused() []string {
	return []string{
		"featureGates: {Nonsense: true}", "featureGates: {NFTablesProxyMode: false}", "clientConnection: {burst: -1}",
		"logging: {format: xml}", "logging: {flushFrequency: -1s}", "logging: {options: {json: {infoBufferSize: 1Ki}}}",
		"bindAddress: here", "healthzBindAddress: here", "healthzBindAddress: '127.0.0.1:70000'",
		"metricsBindAddress: '127.0.0.1:0'", "metricsBindAddress: 'localhost:10249'", "showHiddenMetricsForVersion: v1",
		"mode: userspace", "iptables: {masqueradeBit: 32}", "nftables: {masqueradeBit: -1}", "nftables: {masqueradeBit: 32}",
		"nftables: {syncPeriod: -1s}", "nftables: {minSyncPeriod: -1s}", "nftables: {syncPeriod: 1s, minSyncPeriod: 2s}",
		"mode: ipvs\nipvs: {tcpTimeout: -1s}", "mode: ipvs\nipvs: {tcpFinTimeout: -1s}", "mode: ipvs\nipvs: {udpTimeout: -1s}",
		"mode: ipvs\nipvs: {excludeCIDRs: [x]}", "mode: ipvs\nipvs: {syncPeriod: 1s, minSyncPeriod: 2s}",
		"mode: iptables\niptables: {syncPeriod: -1s}",
		"detectLocalMode: Guess", "detectLocalMode: BridgeInterface", "detectLocalMode: InterfaceNamePrefix",
		"clusterCIDR: nonsense", "clusterCIDR: 10.0.0.0/8,11.0.0.0/8", "clusterCIDR: '10.0.0.0/8,fd00::/8,11.0.0.0/8'",
		"nodePortAddresses: [some]", "nodePortAddresses: [primary, primary]", "nodePortAddresses: [10.0.0.1]",
		"oomScoreAdj: 1001", "oomScoreAdj: many", "conntrack: {maxPerCore: -1}", "conntrack: {min: -1}",
		"conntrack: {tcpEstablishedTimeout: -1s}", "conntrack: {tcpCloseWaitTimeout: -1s}",
		"conntrack: {udpTimeout: -1s}", "conntrack: {udpStreamTimeout: -1s}", "configSyncPeriod: -1s",
	}
}

// A comparison lets the real kube-proxy and oneruled read the same files.
type comparison struct {
	ns        *netns.NS
	kubeProxy string
}

// read gives what either makes of a file, as it writes it, or that it refuses it.
func (c comparison) read(t *testing.T, fields string) (theirs, ours map[string]any, theirErr, ourErr error) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "config")
	if !strings.Contains(fields, "mode: ") {
		fields = "mode: nftables\n" + fields
	}
	text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n" + fields + "\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, theirErr = c.ns.Output(c.kubeProxy, "--config", file, "--write-config-to", filepath.Join(dir, "theirs"))
	flags, set := config.NewFlags(), pflag.NewFlagSet("ours", pflag.ContinueOnError)
	flags.Register(set)
	if err := set.Parse([]string{"--config", file}); err != nil {
		t.Fatal(err)
	}
	var s config.Settings
	if s, ourErr = flags.Settings(); ourErr == nil {
		ourErr = s.Write(filepath.Join(dir, "ours"))
	}
	return written(t, filepath.Join(dir, "theirs"), theirErr), written(t, filepath.Join(dir, "ours"), ourErr), theirErr, ourErr
}

func written(t *testing.T, file string, err error) map[string]any {
	t.Helper()
	if err != nil {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var of map[string]any
	if err := yaml.Unmarshal(text, &of); err != nil {
		t.Fatal(err)
	}
	return of
}

// common takes out what kube-proxy does not keep of a file: what it says of modes that are
// not asked for, and the range that nothing uses.
func common(of map[string]any) map[string]any {
	delete(of, "portRange")
	for _, mode := range []string{"iptables", "nftables", "ipvs"} {
		if part, ok := of[mode].(map[string]any); ok && mode != of["mode"] {
			for _, field := range []string{"masqueradeAll", "syncPeriod", "minSyncPeriod"} {
				delete(part, field)
			}
		}
	}
	return of
}

func TestA14_CFilesSayWhatTheySayToKubeProxy(t *testing.T) {
	c := comparison{ns: netns.New(t, "node"), kubeProxy: kubeProxy(t)}
	for _, fields := range taken() {
		name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(fields), "mode: nftables\n"), "\n")
		t.Run("taken: "+name, func(t *testing.T) {
			theirs, ours, theirErr, ourErr := c.read(t, fields)
			if theirErr != nil || ourErr != nil {
				t.Fatalf("kube-proxy: %v\noneruled: %v\nwant both to take it", theirErr, ourErr)
			}
			if diff := cmp.Diff(common(theirs), common(ours)); diff != "" {
				t.Errorf("(-kube-proxy +oneruled):\n%s", diff)
			}
		})
	}
	for _, fields := range refused() {
		t.Run("refused: "+fields, func(t *testing.T) {
			if _, _, theirErr, ourErr := c.read(t, fields); theirErr == nil || ourErr == nil {
				t.Errorf("kube-proxy: %v\noneruled: %v\nwant both to refuse it", theirErr, ourErr)
			}
		})
	}
}

// The file that is compared has all fields there are, so that none is forgotten.
func TestA14_CEveryFieldIsCompared(t *testing.T) {
	var of v1alpha1.KubeProxyConfiguration
	if err := yaml.UnmarshalStrict([]byte(everyField), &of); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(incomparable(), unset("", reflect.ValueOf(of))); diff != "" {
		t.Errorf("fields without a value (-want +got):\n%s", diff)
	}
}

// incomparable are the fields that this kube-proxy has no use for: it is built without a
// version, which the one of hidden metrics has to precede, loses splitStream of a file,
// and refuses vmodule in JSON.
func incomparable() []string {
	return []string{
		".TypeMeta", ".Logging.VModule", ".Logging.Options.Text.OutputRoutingOptions.SplitStream", ".Logging.Options.JSON.OutputRoutingOptions.SplitStream",
		".ShowHiddenMetricsForVersion",
	}
}

// unset names the fields without a value.
func unset(path string, v reflect.Value) []string {
	switch {
	case v.IsZero():
		return []string{path}
	case v.Kind() == reflect.Slice && v.Len() == 0:
		return []string{path}
	case v.Kind() != reflect.Struct || strings.HasPrefix(v.Type().PkgPath(), "k8s.io/apimachinery"):
		return nil
	}
	var found []string
	for i := range v.NumField() {
		found = append(found, unset(fmt.Sprint(path, ".", v.Type().Field(i).Name), v.Field(i))...)
	}
	return found
}
