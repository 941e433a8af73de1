package main

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"onerule/nft"
	"onerule/test/addr"
)

// A serviceKind is what a Service is besides a name for endpoints.
type serviceKind int

// The kinds of a mixed cluster. Every Service has a ClusterIP.
const (
	clusterIP serviceKind = iota
	nodePort
	balancer // a load balancer IP with source ranges, and a NodePort
	sticky   // session affinity ClientIP
	local    // a NodePort, both traffic policies Local
)

func serviceKinds() []serviceKind {
	return []serviceKind{clusterIP, nodePort, balancer, sticky, local}
}

func (k serviceKind) String() string {
	return [...]string{
		"ClusterIP", "NodePort", "LoadBalancer with source ranges", "ClientIP affinity", "Local policies",
	}[k]
}

// mixEvery is after how many Services the kinds of a mix come again, and shares how
// many of these are of each kind.
const mixEvery = 20

func shares() map[serviceKind]int {
	n := map[serviceKind]int{}
	for i := range mixEvery {
		n[mixedKind(i)]++
	}
	return n
}

// mixedKind gives the kind of a Service in a mixed cluster.
func mixedKind(service int) serviceKind {
	switch service % mixEvery {
	case 3, 9, 16:
		return nodePort
	case 6:
		return balancer
	case 12:
		return sticky
	case 19:
		return local
	}
	return clusterIP
}

func (c *cluster) kindOf(service int) serviceKind {
	if !c.mixed {
		return clusterIP
	}
	return mixedKind(service)
}

// ofKind lists the Services of a kind.
func (c *cluster) ofKind(k serviceKind) []int {
	var list []int
	for i := range c.endpoints {
		if c.kindOf(i) == k {
			list = append(list, i)
		}
	}
	return list
}

// nodeOf gives the number of the node that an endpoint is on. Ours is 0, and has the
// first endpoint of every Service whose policies are Local.
func (c *cluster) nodeOf(service, endpoint int) int {
	if c.kindOf(service) == local {
		return endpoint % nodes
	}
	return (service + endpoint) % nodes
}

// balancerRange is large enough for a twentieth of the Services, and sourceRanges are
// what a guarded load balancer lets in.
func balancerRange() netip.Prefix { return netip.MustParsePrefix("198.18.0.0/15") }
func sourceRanges() []string {
	return []string{"192.0.2.0/25", "198.51.100.0/24", "203.0.113.0/26", "203.0.113.128/25"}
}

// balancerIP and nodePortOf give a Service's own, for kinds that have one.
func balancerIP(service int) netip.Addr { return addr.Nth(balancerRange(), service/mixEvery+1) }

// lastNodePort is the end of the range that clusters have by default. 10,000 Services
// of the mix fit into it.
const lastNodePort = 32767

func nodePortOf(service int) uint16 {
	before := 0 // Services with a NodePort in each twenty before this one
	for i := range service % mixEvery {
		if hasNodePort(mixedKind(i)) {
			before++
		}
	}
	each := shares()
	perTwenty := each[nodePort] + each[balancer] + each[local]
	return uint16(lastNodePort - perTwenty*(service/mixEvery) - before)
}

func hasNodePort(k serviceKind) bool { return k == nodePort || k == balancer || k == local }

// become makes a Service one of its kind.
func (k serviceKind) become(s *corev1.Service, service int) {
	if hasNodePort(k) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		s.Spec.Ports[0].NodePort = int32(nodePortOf(service))
	}
	switch k {
	case balancer:
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.LoadBalancerSourceRanges = sourceRanges()
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: balancerIP(service).String()}}
	case sticky:
		seconds := int32(corev1.DefaultClientIPServiceAffinitySeconds)
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	case local:
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		policy := corev1.ServiceInternalTrafficPolicyLocal
		s.Spec.InternalTrafficPolicy = &policy
	}
}

// A frontend is where clients find a Service, and which endpoints the kernel must have
// for it in one of its maps.
type frontend struct {
	addr      netip.Addr // none: a NodePort
	port      uint16
	slots     nft.SlotMap
	sticky    bool
	endpoints []netip.AddrPort // sorted
}

// frontends gives those of a Service. One whose policy is Local for clients outside is
// in two maps: pods reach all its endpoints.
func (c *cluster) frontends(service int) []frontend {
	all, kind := c.sorted(service), c.kindOf(service)
	front := clusterIPOf(service)
	front.endpoints, front.sticky = all, kind == sticky
	number := frontend{port: nodePortOf(service), slots: nft.NodePortEndpoints, endpoints: all}
	switch kind {
	case nodePort:
		return []frontend{front, number}
	case balancer:
		outside := front
		outside.addr = balancerIP(service)
		return []frontend{front, number, outside}
	case local:
		front.slots, front.endpoints = nft.LocalEndpoints, c.here(service)
		inside := number
		number.slots, number.endpoints = nft.NodePortLocalEndpoints, front.endpoints
		return []frontend{front, number, inside}
	}
	return []frontend{front}
}

// clusterIPOf gives the frontend that every Service has, without its endpoints.
func clusterIPOf(service int) frontend {
	return frontend{addr: vip(service), port: servicePort, slots: nft.Endpoints}
}

// here gives the endpoints of a Service that are on our node, sorted.
func (c *cluster) here(service int) []netip.AddrPort {
	var list []netip.AddrPort
	for e, a := range c.endpoints[service] {
		if c.nodeOf(service, e) == 0 {
			list = append(list, netip.AddrPortFrom(a, endpointPort))
		}
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}
