package config

import (
	"strings"
	"testing"
)

// Each fault is named in the words of where it comes from.
func TestA14_CA14_FEachFaultIsNamed(t *testing.T) {
	const server = "is not an address, with or without a port, like 0.0.0.0:"
	for _, c := range []struct {
		name, fields string // in a file
		flags        string
		want         string // with the field's or the flag's name for NAME
		field, flag  string
	}{
		{"unknown gate", "featureGates: {Nonsense: true}", "--feature-gates=Nonsense=true", `NAME: unknown feature gate "Nonsense"`, "featureGates", "--feature-gates"},
		{"locked gate", "featureGates: {NFTablesProxyMode: false}", "--feature-gates=NFTablesProxyMode=false", "NAME: feature gate NFTablesProxyMode can't be set to false: it is locked to true", "featureGates", "--feature-gates"},
		{"burst", "clientConnection: {burst: -1}", "--kube-api-burst=-1", "NAME: -1 is negative", "clientConnection.burst", "--kube-api-burst"},
		{"blank name", "hostnameOverride: ' '", "--hostname-override= ", "NAME: the name is blank", "hostnameOverride", "--hostname-override"},
		{"bind address", "bindAddress: here", "--bind-address=here", `NAME: "here" is not an IP address`, "bindAddress", "--bind-address"},
		{"healthz address", "healthzBindAddress: here", "--healthz-bind-address=here", `NAME: "here" ` + server + "10256", "healthzBindAddress", "--healthz-bind-address"},
		{"metrics address", "metricsBindAddress: '127.0.0.1:0'", "--metrics-bind-address=127.0.0.1:0", `NAME: "127.0.0.1:0" ` + server + "10249", "metricsBindAddress", "--metrics-bind-address"},
		{"hidden metrics", "showHiddenMetricsForVersion: v1", "--show-hidden-metrics-for-version=v1", `NAME: "v1" is not a version like 1.36`, "showHiddenMetricsForVersion", "--show-hidden-metrics-for-version"},
		{"mode", "mode: userspace", "--proxy-mode=userspace", `NAME: unknown proxy mode "userspace": nftables is served, and iptables and ipvs are accepted`, "mode", "--proxy-mode"},
		{"iptables bit", "mode: nftables\niptables: {masqueradeBit: 32}", "--proxy-mode=nftables --iptables-masquerade-bit=32", "NAME: 32 is not within 0 to 31", "iptables.masqueradeBit", "--iptables-masquerade-bit"},
		{"negative sync period", "nftables: {syncPeriod: -1s}", "--iptables-sync-period=-1s", "NAME: -1s is not more than 0", "nftables.syncPeriod", "--iptables-sync-period"},
		{"negative least period", "mode: iptables\niptables: {minSyncPeriod: -1s}", "--proxy-mode=iptables --iptables-min-sync-period=-1s", "NAME: -1s is negative", "iptables.minSyncPeriod", "--iptables-min-sync-period"},
		{"ipvs sync period", "mode: ipvs\nipvs: {syncPeriod: -1s}", "--proxy-mode=ipvs --ipvs-sync-period=0 --ipvs-min-sync-period=0", "NAME: -1s is not more than 0", "ipvs.syncPeriod", "--ipvs-sync-period"},
		{"ipvs tcp timeout", "mode: ipvs\nipvs: {tcpTimeout: -1s}", "--proxy-mode=ipvs --ipvs-tcp-timeout=-1s", "NAME: -1s is negative", "ipvs.tcpTimeout", "--ipvs-tcp-timeout"},
		{"ipvs fin timeout", "mode: ipvs\nipvs: {tcpFinTimeout: -1s}", "--proxy-mode=ipvs --ipvs-tcpfin-timeout=-1s", "NAME: -1s is negative", "ipvs.tcpFinTimeout", "--ipvs-tcpfin-timeout"},
		{"ipvs udp timeout", "mode: ipvs\nipvs: {udpTimeout: -1s}", "--proxy-mode=ipvs --ipvs-udp-timeout=-1s", "NAME: -1s is negative", "ipvs.udpTimeout", "--ipvs-udp-timeout"},
		{"detector", "detectLocalMode: Guess", "--detect-local-mode=Guess", `NAME: "Guess" is none of ClusterCIDR, NodeCIDR, BridgeInterface and InterfaceNamePrefix`, "detectLocalMode", "--detect-local-mode"},
		{"bridge", "detectLocalMode: BridgeInterface", "--detect-local-mode=BridgeInterface", "NAME: it is empty, and detectLocalMode is BridgeInterface", "detectLocal.bridgeInterface", "--pod-bridge-interface"},
		{"long bridge", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: sixteen-letters0}", "--detect-local-mode=BridgeInterface --pod-bridge-interface=sixteen-letters0", `NAME: "sixteen-letters0" is longer than 15 characters`, "detectLocal.bridgeInterface", "--pod-bridge-interface"},
		{"prefix", "detectLocalMode: InterfaceNamePrefix", "--detect-local-mode=InterfaceNamePrefix", "NAME: it is empty, and detectLocalMode is InterfaceNamePrefix", "detectLocal.interfaceNamePrefix", "--pod-interface-name-prefix"},
		{"pattern", "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth*}", "--detect-local-mode=InterfaceNamePrefix --pod-interface-name-prefix=veth*", `NAME: "veth*" is no name of an interface`, "detectLocal.interfaceNamePrefix", "--pod-interface-name-prefix"},
		{"range", "clusterCIDR: 10.0.0.0", "--cluster-cidr=10.0.0.0", `NAME: "10.0.0.0" is not a range of addresses, like 10.244.0.0/16`, "clusterCIDR", "--cluster-cidr"},
		{"empty range", "clusterCIDR: '10.0.0.0/8,'", "--cluster-cidr=10.0.0.0/8,", `NAME: range 2 of "10.0.0.0/8," is empty`, "clusterCIDR", "--cluster-cidr"},
		{"two of a family", "clusterCIDR: 10.0.0.0/8,11.0.0.0/8", "--cluster-cidr=10.0.0.0/8,11.0.0.0/8", `NAME: "10.0.0.0/8,11.0.0.0/8" is neither one range nor one of each IP family`, "clusterCIDR", "--cluster-cidr"},
		{"three ranges", "clusterCIDR: 10.0.0.0/8,fd00::/8,11.0.0.0/8", "--cluster-cidr=10.0.0.0/8,fd00::/8,11.0.0.0/8", `NAME: "10.0.0.0/8,fd00::/8,11.0.0.0/8" is neither one range nor one of each IP family`, "clusterCIDR", "--cluster-cidr"},
		{"keyword twice", "nodePortAddresses: [primary, primary]", "--nodeport-addresses=primary,primary", "NAME: primary is there twice", "nodePortAddresses[1]", "--nodeport-addresses"},
		{"no keyword", "nodePortAddresses: [some]", "--nodeport-addresses=some", `NAME: "some" is neither a range of addresses, like 192.0.2.0/24, nor primary, localhost or all`, "nodePortAddresses[0]", "--nodeport-addresses"},
		{"score", "oomScoreAdj: -1001", "--oom-score-adj=-1001", "NAME: -1001 is not within -1000 to 1000", "oomScoreAdj", "--oom-score-adj"},
		{"per core", "conntrack: {maxPerCore: -1}", "--conntrack-max-per-core=-1", "NAME: -1 is negative", "conntrack.maxPerCore", "--conntrack-max-per-core"},
		{"at least", "conntrack: {min: -1}", "--conntrack-min=-1", "NAME: -1 is negative", "conntrack.min", "--conntrack-min"},
		{"established", "conntrack: {tcpEstablishedTimeout: -1s}", "--conntrack-tcp-timeout-established=-1s", "NAME: -1s is negative", "conntrack.tcpEstablishedTimeout", "--conntrack-tcp-timeout-established"},
		{"close wait", "conntrack: {tcpCloseWaitTimeout: -1s}", "--conntrack-tcp-timeout-close-wait=-1s", "NAME: -1s is negative", "conntrack.tcpCloseWaitTimeout", "--conntrack-tcp-timeout-close-wait"},
		{"udp", "conntrack: {udpTimeout: -1s}", "--conntrack-udp-timeout=-1s", "NAME: -1s is negative", "conntrack.udpTimeout", "--conntrack-udp-timeout"},
		{"udp stream", "conntrack: {udpStreamTimeout: -1s}", "--conntrack-udp-timeout-stream=-1s", "NAME: -1s is negative", "conntrack.udpStreamTimeout", "--conntrack-udp-timeout-stream"},
		{"config sync period", "configSyncPeriod: -1s", "--config-sync-period=-1s", "NAME: -1s is not more than 0", "configSyncPeriod", "--config-sync-period"},
		{"log format", "logging: {format: xml}", "--logging-format=xml", `NAME: invalid value: "xml": Unsupported log format`, "logging.format", "--logging-format"},
		{"flush frequency", "logging: {flushFrequency: -1s}", "--log-flush-frequency=-1s", "NAME: invalid value: \"-1s\": Must be greater than zero", "logging.flushFrequency", "--log-flush-frequency"},
		{"split stream", "logging: {options: {text: {splitStream: true}}}", "--log-text-split-stream", "NAME: forbidden: Feature LoggingAlphaOptions is disabled", "logging.options.text.splitStream", "--log-text-split-stream"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := configFile(t, c.fields+"\n")
			if got, want := fault(t, "--config", file), "config file "+file+": "+strings.ReplaceAll(c.want, "NAME", c.field); got != want {
				t.Errorf("file:\ngot  %s\nwant %s", got, want)
			}
			args := strings.Split(c.flags, " --")
			for i := range args[1:] {
				args[i+1] = "--" + args[i+1]
			}
			want := strings.ReplaceAll(c.want, "NAME", c.flag)
			if got := fault(t, args...); got != strings.ReplaceAll(want, "-1s is not more", value(c.flags)+" is not more") {
				t.Errorf("flags:\ngot  %s\nwant %s", got, want)
			}
		})
	}
}

// value says which period is not more than 0 in a case: a file's 0 is not given.
func value(flags string) string {
	if strings.Contains(flags, "sync-period=0") {
		return "0s"
	}
	return "-1s"
}

func TestA14_CA14_FPeriodsThatContradict(t *testing.T) {
	file := configFile(t, "nftables: {syncPeriod: 1s, minSyncPeriod: 2s}\n")
	if got, want := fault(t, "--config", file), "config file "+file+": nftables.minSyncPeriod: 2s is longer than nftables.syncPeriod, which is 1s"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	want := "--iptables-min-sync-period: 2s is longer than --iptables-sync-period, which is 1s"
	if got := fault(t, "--iptables-sync-period=1s", "--iptables-min-sync-period=2s"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestAllFaultsAreToldAtOnceInALine(t *testing.T) {
	got := fault(t, "--manifests=/m", "--master=https://api", "--hostname-override= ", "--cluster-cidr=,", "--masquerade-bit=32",
		"--healthz-bind-address=here", "--metrics-bind-address=there", "--conntrack-min=-1")
	for _, flag := range []string{"--hostname-override", "--cluster-cidr", "--masquerade-bit", "--healthz-bind-address", "--metrics-bind-address", "--conntrack-min"} {
		if strings.Count(got, flag+": ") != 1 {
			t.Errorf("got %q, want %s to be named once", got, flag)
		}
	}
	if !strings.Contains(got, "--manifests excludes --kubeconfig and --master") || strings.Contains(got, "\n") {
		t.Errorf("got %q, want one line that has --manifests too", got)
	}
}

// Faults of a flag beside a file carry the flag's name.
func TestFaultsOfFlagsBesideAFile(t *testing.T) {
	file := configFile(t, "conntrack: {min: -1}\n")
	want := "--hostname-override: the name is blank; --logging-format: invalid value: \"xml\": Unsupported log format; config file " + file + ": conntrack.min: -1 is negative"
	if got := fault(t, "--config", file, "--hostname-override= ", "--logging-format=xml"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// What the other modes say of themselves does not matter in this one, as with
// kube-proxy.
func TestFaultsOfOtherModesDoNotMatter(t *testing.T) {
	s := settings(t, "--config", configFile(t, "mode: nftables\nipvs: {tcpTimeout: -1s, excludeCIDRs: [x], syncPeriod: -1s}\niptables: {syncPeriod: -1s}\ndetectLocalMode: NodeCIDR\nclusterCIDR: nonsense\n"))
	if len(s.ClusterCIDRs) > 0 {
		t.Errorf("got ranges %v of a mode that is not asked for", s.ClusterCIDRs)
	}
	if got, want := fault(t, "--proxy-mode=ipvs", "--ipvs-exclude-cidrs=10.0.0.0/8,x"), `--ipvs-exclude-cidrs: "x" is not a range of addresses, like 10.244.0.0/16`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestManifestsComeBeforeTheFilesKubeconfig(t *testing.T) {
	s := settings(t, "--manifests=/m", "--config", configFile(t, "mode: nftables\nclientConnection: {kubeconfig: /k}\n"))
	if got, want := strings.Join(s.Warnings, ";"), "clientConnection.kubeconfig does not count beside --manifests"; got != want || s.Manifests != "/m" {
		t.Errorf("got %q and %q, want %q and /m", got, s.Manifests, want)
	}
}

func TestServerAddressesHaveADefaultPort(t *testing.T) {
	for text, want := range map[string]string{
		"127.0.0.1": "127.0.0.1:10256", "127.0.0.1:80": "127.0.0.1:80",
		"::": "[::]:10256", "[::]": "[::]:10256", "fd00::1": "[fd00::1]:10256", "[fd00::1]": "[fd00::1]:10256",
		"[fd00::1]:80": "[fd00::1]:80", "[fe80::1%eth0]:80": "[fe80::1%eth0]:80", "0.0.0.0:65535": "0.0.0.0:65535",
		"here": "", ":10256": "", "127.0.0.1:": "", "127.0.0.1:0": "", "127.0.0.1:65536": "", "127.0.0.1:http": "",
		"[127.0.0.1]": "", "[127.0.0.1]:80": "", "[::": "", "[fd00::1]80": "", "localhost:10256": "", "127.0.0.1 ": "",
		"127.0.0.1,10.0.0.1": "", "127.0.0.1:+80": "",
	} {
		a, err := parseServer(text, healthzPort)
		if got := a.String(); err == nil && got != want || err != nil && want != "" {
			t.Errorf("%q: got %s, %v, want %q", text, got, err, want)
		}
	}
}
