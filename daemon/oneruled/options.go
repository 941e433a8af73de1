package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"onerule/nft"
)

// Ports of the servers, as kube-proxy has them.
const (
	healthzPort = 10256
	metricsPort = 10249
)

// options are the flags, as given. Names, defaults and meaning are kube-proxy's
// where it has them.
type options struct {
	manifests        string
	kubeconfig       string
	master           string
	hostnameOverride string
	clusterCIDR      string
	masqueradeAll    bool
	masqueradeBit    uint8
	healthzAddress   string
	metricsAddress   string
	qps              float32
	burst            int
	contentType      string
}

func (o *options) register(f *pflag.FlagSet) {
	f.StringVar(&o.manifests, "manifests", "", "`directory` of Services, EndpointSlices, Nodes and ServiceCIDRs as YAML or JSON files, watched; no API server is asked then")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` that says how to reach the API server; without it and --manifests: the pod's service account")
	f.StringVar(&o.master, "master", "", "`address` of the API server, instead of that in the kubeconfig")
	f.StringVar(&o.hostnameOverride, "hostname-override", "", "`name` of this node, instead of the host's name")
	f.StringVar(&o.clusterCIDR, "cluster-cidr", "", "`ranges` of pod addresses, separated by commas: what comes from elsewhere to a ClusterIP is masqueraded; without them nothing is")
	f.BoolVar(&o.masqueradeAll, "masquerade-all", false, "masquerade all traffic to ClusterIPs")
	f.Uint8Var(&o.masqueradeBit, "masquerade-bit", 14, "`bit` of the packet mark, 0 to 31, that says that a packet is to be masqueraded")
	f.StringVar(&o.healthzAddress, "healthz-bind-address", fmt.Sprint("0.0.0.0:", healthzPort), fmt.Sprintf("`address` of /healthz and /livez, with a port or without: %d then; empty: off", healthzPort))
	f.StringVar(&o.metricsAddress, "metrics-bind-address", fmt.Sprint("127.0.0.1:", metricsPort), fmt.Sprintf("`address` of /metrics, with a port or without: %d then; empty: off", metricsPort))
	f.Float32Var(&o.qps, "kube-api-qps", 5, "`requests` per second to the API server")
	f.IntVar(&o.burst, "kube-api-burst", 10, "`requests` to the API server at once")
	f.StringVar(&o.contentType, "kube-api-content-type", "", "media `type` of requests to the API server (default protobuf)")
}

// A settled option says what it asks for in the words of the packages that do it.
type settled struct {
	node         string
	clusterCIDRs []netip.Prefix
	families     []nft.Family
	// The addresses of the servers, with ports; empty: off.
	healthz, metrics string
}

// settle checks the options, and names each that is wrong.
func (o *options) settle() (settled, error) {
	var s settled
	var errs []error
	var err error
	if s.node, err = nodeName(o.hostnameOverride); err != nil {
		errs = append(errs, err)
	}
	if s.clusterCIDRs, err = prefixes(o.clusterCIDR); err != nil {
		errs = append(errs, fmt.Errorf("--cluster-cidr: %w", err))
	}
	if o.masqueradeBit > 31 {
		errs = append(errs, fmt.Errorf("--masquerade-bit: %d is not within 0 to 31", o.masqueradeBit))
	}
	if o.manifests != "" && (o.kubeconfig != "" || o.master != "") {
		errs = append(errs, errors.New("--manifests excludes --kubeconfig and --master"))
	}
	if s.healthz, err = bindAddress(o.healthzAddress, healthzPort); err != nil {
		errs = append(errs, fmt.Errorf("--healthz-bind-address: %w", err))
	}
	if s.metrics, err = bindAddress(o.metricsAddress, metricsPort); err != nil {
		errs = append(errs, fmt.Errorf("--metrics-bind-address: %w", err))
	}
	s.families = families("/proc/net/if_inet6")
	return s, oneLine(errs)
}

// oneLine joins errors in a line, as all others are.
func oneLine(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}

// families leaves IPv6 out on a host whose kernel does not speak it.
func families(ifInet6 string) []nft.Family {
	if _, err := os.Stat(ifInet6); err != nil {
		return []nft.Family{nft.IPv4}
	}
	return []nft.Family{nft.IPv4, nft.IPv6}
}

// nodeName is the override, or the host's name, in lower case and without spaces
// around it, as the kubelet registers it.
func nodeName(override string) (string, error) {
	name := override
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("ask for the host's name: %w", err)
		}
		name = host
	}
	name = strings.ToLower(strings.TrimSpace(name))
	if name == "" {
		return "", errors.New("--hostname-override: the name is blank")
	}
	return name, nil
}

// bindAddress gives an address with a port, the default one where it has none: an
// IPv6 address may stand in brackets or not then.
func bindAddress(text string, port uint16) (string, error) {
	if text == "" {
		return "", nil
	}
	bare := text
	if inner, ok := strings.CutPrefix(text, "["); ok && strings.HasSuffix(inner, "]") && strings.Contains(inner, ":") {
		bare = strings.TrimSuffix(inner, "]")
	}
	if a, err := netip.ParseAddr(bare); err == nil {
		return netip.AddrPortFrom(a, port).String(), nil
	}
	a, err := netip.ParseAddrPort(text)
	if err != nil || a.Port() == 0 {
		return "", fmt.Errorf("%q is not an address, with or without a port, like 0.0.0.0:%d", text, port)
	}
	return a.String(), nil
}

func prefixes(list string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	if list == "" {
		return nil, nil
	}
	for i, text := range strings.Split(list, ",") {
		if strings.TrimSpace(text) == "" {
			return nil, fmt.Errorf("range %d of %q is empty", i+1, list)
		}
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("%q is not a range of addresses, like 10.244.0.0/16", text)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}
