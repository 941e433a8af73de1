package config

import (
	"fmt"
	"time"
)

// flagOf gives the flag that sets a field, without dashes; empty: there is none.
func flagOf(field string) string {
	return map[string]string{
		"bindAddress": "bind-address", "bindAddressHardFail": "bind-address-hard-fail",
		"clientConnection.burst": "kube-api-burst", "clientConnection.contentType": "kube-api-content-type",
		"clientConnection.kubeconfig": "kubeconfig", "clientConnection.qps": "kube-api-qps",
		"clusterCIDR": "cluster-cidr", "configSyncPeriod": "config-sync-period",
		"conntrack.maxPerCore": "conntrack-max-per-core", "conntrack.min": "conntrack-min",
		"conntrack.tcpBeLiberal": "conntrack-tcp-be-liberal", "conntrack.tcpCloseWaitTimeout": "conntrack-tcp-timeout-close-wait",
		"conntrack.tcpEstablishedTimeout": "conntrack-tcp-timeout-established",
		"conntrack.udpStreamTimeout":      "conntrack-udp-timeout-stream", "conntrack.udpTimeout": "conntrack-udp-timeout",
		"detectLocal.bridgeInterface": "pod-bridge-interface", "detectLocal.interfaceNamePrefix": "pod-interface-name-prefix",
		"detectLocalMode": "detect-local-mode", "enableProfiling": "profiling", "featureGates": "feature-gates",
		"healthzBindAddress": "healthz-bind-address", "hostnameOverride": "hostname-override",
		"iptables.localhostNodePorts": "iptables-localhost-nodeports", "iptables.masqueradeAll": "masquerade-all",
		"iptables.masqueradeBit": "iptables-masquerade-bit", "iptables.minSyncPeriod": "iptables-min-sync-period",
		"iptables.syncPeriod": "iptables-sync-period", "ipvs.excludeCIDRs": "ipvs-exclude-cidrs",
		"ipvs.minSyncPeriod": "ipvs-min-sync-period", "ipvs.scheduler": "ipvs-scheduler", "ipvs.strictARP": "ipvs-strict-arp",
		"ipvs.syncPeriod": "ipvs-sync-period", "ipvs.tcpFinTimeout": "ipvs-tcpfin-timeout", "ipvs.tcpTimeout": "ipvs-tcp-timeout",
		"ipvs.udpTimeout": "ipvs-udp-timeout", "logging.flushFrequency": "log-flush-frequency", "logging.format": "logging-format",
		"logging.options.json.infoBufferSize": "log-json-info-buffer-size", "logging.options.json.splitStream": "log-json-split-stream",
		"logging.options.text.infoBufferSize": "log-text-info-buffer-size", "logging.options.text.splitStream": "log-text-split-stream",
		"logging.verbosity": "v", "logging.vmodule": "vmodule",
		"metricsBindAddress": "metrics-bind-address", "mode": "proxy-mode", "nftables.masqueradeAll": "masquerade-all",
		"nftables.masqueradeBit": "iptables-masquerade-bit", "nftables.minSyncPeriod": "iptables-min-sync-period",
		"nftables.syncPeriod": "iptables-sync-period", "nodePortAddresses": "nodeport-addresses", "oomScoreAdj": "oom-score-adj",
		"showHiddenMetricsForVersion": "show-hidden-metrics-for-version",
	}[field]
}

// name gives the flag that a field comes from, or the field.
func (r *resolver) name(field string) string {
	flag := flagOf(field)
	if flag == "" {
		return field
	}
	for address, port := range map[string]string{"healthz-bind-address": "healthz-port", "metrics-bind-address": "metrics-port"} {
		if flag == address && !r.flags.changed(address) && r.flags.changed(port) {
			flag = port
		}
	}
	if r.flags.ConfigFile != "" && !(r.flags.changed(flag) && besideConfig(flag)) {
		return field
	}
	return "--" + flag
}

// item names an item of a list in a file. Flags name the list only: the items are
// quoted in what is said of them.
func (r *resolver) item(field string, i int) string {
	if r.flags.ConfigFile == "" {
		return field
	}
	return fmt.Sprintf("%s[%d]", field, i)
}

func (r *resolver) notNegative(field string, n int64) {
	if n < 0 {
		r.wrong(field, "%d is negative", n)
	}
}

func (r *resolver) notNegativeTime(field string, d time.Duration) {
	if d < 0 {
		r.wrong(field, "%s is negative", d)
	}
}

func (r *resolver) positive(field string, d time.Duration) {
	if d <= 0 {
		r.wrong(field, "%s is not more than 0", d)
	}
}

func (r *resolver) bit(field string, bit int32) {
	if bit < 0 || bit > 31 {
		r.wrong(field, "%d is not within 0 to 31", bit)
	}
}
