package cluster

import (
	"fmt"
	"net/netip"
	"strings"
)

// A Family says which IP families a cluster has.
type Family string

// The families.
const (
	IPv4  Family = "ipv4"
	Dual  Family = "dual"  // IPv4 is the primary one
	Dual6 Family = "dual6" // IPv6 is the primary one
	IPv6  Family = "ipv6"  // there is no IPv4 but on loopbacks
)

// Families are all of them.
func Families() []Family { return []Family{IPv4, Dual, Dual6, IPv6} }

// HasBoth says whether a cluster has both IP families.
func (f Family) HasBoth() bool { return f == Dual || f == Dual6 }

// of gives those of an IPv4 and an IPv6 thing that the family has, the primary one
// first.
func of[T any](f Family, four, six T) []T {
	switch f {
	case Dual:
		return []T{four, six}
	case Dual6:
		return []T{six, four}
	case IPv6:
		return []T{six}
	default:
		return []T{four}
	}
}

// The addressing plan. All of it lies in namespaces, the same in every cluster.
const maxNodes = 200

// controlAddresses are those of the control plane, with the length of the nodes' range.
func (f Family) controlAddresses() []netip.Prefix {
	return of(f, netip.MustParsePrefix("10.99.0.1/24"), netip.MustParsePrefix("fd00:99::1/64"))
}

// nodeAddresses are those of the nth node, from 1.
func (f Family) nodeAddresses(n int) []netip.Prefix {
	return of(f, netip.MustParsePrefix(fmt.Sprintf("10.99.0.%d/24", 10+n)),
		netip.MustParsePrefix(fmt.Sprintf("fd00:99::%x/64", 16+n)))
}

// podRanges are those of the nth node's pods.
func (f Family) podRanges(n int) []netip.Prefix {
	return of(f, netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", n)),
		netip.MustParsePrefix(fmt.Sprintf("fd00:10:244:%x::/64", n)))
}

// clusterRanges hold the ranges of all nodes' pods.
func (f Family) clusterRanges() []netip.Prefix {
	return of(f, netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48"))
}

// serviceRanges are those of ClusterIPs.
func (f Family) serviceRanges() []netip.Prefix {
	return of(f, netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112"))
}

// apiService is the ClusterIP of the API server in a range of Services: the first.
func apiService(services netip.Prefix) netip.Addr { return services.Addr().Next() }

// dnsService is the ClusterIP of the cluster's DNS.
func (f Family) dnsService() netip.Addr {
	return of(f, netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::a"))[0]
}

// any is the address that stands for all of the machine's.
func (f Family) any() string { return of(f, "0.0.0.0", "::")[0] }

// commas joins addresses or ranges as Kubernetes wants them.
func commas[T fmt.Stringer](list []T) string {
	texts := make([]string, 0, len(list))
	for _, e := range list {
		texts = append(texts, e.String())
	}
	return strings.Join(texts, ",")
}

// bare are addresses without the length of their range.
func bare(list []netip.Prefix) []netip.Addr {
	addrs := make([]netip.Addr, 0, len(list))
	for _, p := range list {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}

// nodePortAddresses are the nodes' ranges and the loopback, where NodePorts are served.
func (f Family) nodePortAddresses() string {
	ranges := of(f, netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"))
	for _, a := range f.controlAddresses() {
		ranges = append(ranges, a.Masked())
	}
	return `"` + strings.ReplaceAll(commas(ranges), ",", `", "`) + `"`
}
