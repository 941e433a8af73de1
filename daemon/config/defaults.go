package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	netutils "k8s.io/utils/net"
)

// Ports of the servers.
const (
	healthzPort = 10256
	metricsPort = 10249
)

// The other defaults.
const (
	defaultSyncPeriod    = 30 * time.Second
	defaultMinSyncPeriod = time.Second
	defaultMasqueradeBit = 14
	defaultOOMScoreAdj   = -999
	defaultMaxPerCore    = 32 << 10
	defaultMin           = 128 << 10
	defaultEstablished   = 24 * time.Hour
	defaultCloseWait     = time.Hour
	defaultConfigSync    = 15 * time.Minute
	defaultContentType   = "application/vnd.kubernetes.protobuf"
	defaultQPS           = 5
	defaultBurst         = 10
)

const kind = "KubeProxyConfiguration"

// The proxy modes of kube-proxy on Linux.
const (
	modeNFTables = "nftables"
	modeIPTables = "iptables"
	modeIPVS     = "ipvs"
)

// setDefaults completes a configuration as kube-proxy does. What is zero was not
// given.
func setDefaults(c *v1alpha1.KubeProxyConfiguration) {
	c.APIVersion, c.Kind = v1alpha1.SchemeGroupVersion.String(), kind
	setServerDefaults(c)
	orDefault(&c.OOMScoreAdj, defaultOOMScoreAdj)
	setModeDefaults(c)
	orDefault(&c.Conntrack.MaxPerCore, defaultMaxPerCore)
	orDefault(&c.Conntrack.Min, defaultMin)
	orDefault(&c.Conntrack.TCPEstablishedTimeout, metav1.Duration{Duration: defaultEstablished})
	orDefault(&c.Conntrack.TCPCloseWaitTimeout, metav1.Duration{Duration: defaultCloseWait})
	orDuration(&c.ConfigSyncPeriod, defaultConfigSync)
	c.ClientConnection.ContentType = cmp.Or(c.ClientConnection.ContentType, defaultContentType)
	c.ClientConnection.QPS = cmp.Or(c.ClientConnection.QPS, defaultQPS)
	c.ClientConnection.Burst = cmp.Or(c.ClientConnection.Burst, defaultBurst)
	if c.FeatureGates == nil {
		c.FeatureGates = map[string]bool{}
	}
	logsapi.SetRecommendedLoggingConfiguration(&c.Logging)
}

// setServerDefaults lets the bind address say of which family the servers' are. What
// is no address stays as it is, to be refused.
func setServerDefaults(c *v1alpha1.KubeProxyConfiguration) {
	c.BindAddress = cmp.Or(c.BindAddress, "0.0.0.0")
	healthz, metrics := "0.0.0.0", "127.0.0.1"
	if a, err := parseAddr(c.BindAddress); err == nil && !a.Unmap().Is4() {
		healthz, metrics = "[::]", "[::1]"
	}
	c.HealthzBindAddress = withPort(cmp.Or(c.HealthzBindAddress, healthz), healthzPort)
	c.MetricsBindAddress = withPort(cmp.Or(c.MetricsBindAddress, metrics), metricsPort)
}

// setModeDefaults completes the parts of the proxy modes. A file that names no mode
// was written for iptables: what it says of iptables, and not of nftables, is taken.
func setModeDefaults(c *v1alpha1.KubeProxyConfiguration) {
	n, i := &c.NFTables, &c.IPTables
	if c.Mode == "" {
		if n.MasqueradeBit == nil && i.MasqueradeBit != nil {
			n.MasqueradeBit = new(*i.MasqueradeBit)
		}
		n.MasqueradeAll = n.MasqueradeAll || i.MasqueradeAll
		n.SyncPeriod = cmp.Or(n.SyncPeriod, i.SyncPeriod)
		n.MinSyncPeriod = cmp.Or(n.MinSyncPeriod, i.MinSyncPeriod)
	}
	orDefault(&n.MasqueradeBit, defaultMasqueradeBit)
	orDuration(&n.SyncPeriod, defaultSyncPeriod)
	orDuration(&n.MinSyncPeriod, defaultMinSyncPeriod)
	orDefault(&i.MasqueradeBit, defaultMasqueradeBit)
	orDefault(&i.LocalhostNodePorts, true)
	orDuration(&i.SyncPeriod, defaultSyncPeriod)
	orDuration(&i.MinSyncPeriod, defaultMinSyncPeriod)
	orDuration(&c.IPVS.SyncPeriod, defaultSyncPeriod)
}

func orDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

func orDuration(field *metav1.Duration, value time.Duration) {
	field.Duration = cmp.Or(field.Duration, value)
}

// parseAddr takes what kube-proxy takes, numbers with leading zeros among it, and
// zones.
func parseAddr(text string) (netip.Addr, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return a, nil
	}
	a, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	if !ok {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", text)
	}
	return a.Unmap(), nil
}

// parsePrefix takes what kube-proxy takes, and masks it.
func parsePrefix(text string) (netip.Prefix, error) {
	_, n, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a range of addresses, like 10.244.0.0/16", text)
	}
	a, _ := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if a.Is4In6() && bits == 128 && ones >= 96 {
		ones -= 96 // as in ::ffff:10.0.0.0/104
	}
	return netip.PrefixFrom(a.Unmap(), ones).Masked(), nil
}
