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
	f.StringVar(&o.healthzAddress, "healthz-bind-address", "0.0.0.0:10256", "`address:port` of /healthz and /livez; empty: off")
	f.StringVar(&o.metricsAddress, "metrics-bind-address", "127.0.0.1:10249", "`address:port` of /metrics; empty: off")
	f.Float32Var(&o.qps, "kube-api-qps", 5, "`requests` per second to the API server")
	f.IntVar(&o.burst, "kube-api-burst", 10, "`requests` to the API server at once")
	f.StringVar(&o.contentType, "kube-api-content-type", "", "media `type` of requests to the API server (default protobuf)")
}

// A settled option says what it asks for in the words of the packages that do it.
type settled struct {
	node         string
	clusterCIDRs []netip.Prefix
	families     []nft.Family
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
	for _, a := range []struct{ flag, value string }{
		{"--healthz-bind-address", o.healthzAddress}, {"--metrics-bind-address", o.metricsAddress},
	} {
		if a.value == "" {
			continue
		}
		if _, err := netip.ParseAddrPort(a.value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %q is not an address and a port, like 0.0.0.0:10256", a.flag, a.value))
		}
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

func prefixes(list string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	if list == "" {
		return nil, nil
	}
	for text := range strings.SplitSeq(list, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("%q is not a range of addresses, like 10.244.0.0/16", text)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}
