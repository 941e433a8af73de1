package main

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"onerule/test/addr"
)

const (
	endpointsPerService = 10
	servicePort         = 80
	endpointPort        = 8080
	// nodes is how many nodes the endpoints are spread over: a hundredth is on ours.
	nodes    = 100
	nodeName = "node-0"
)

// Ranges large enough for 30,000 Services of 10 endpoints.
func serviceRange() netip.Prefix { return netip.MustParsePrefix("10.96.0.0/12") }
func podRange() netip.Prefix     { return netip.MustParsePrefix("10.128.0.0/9") }

// A cluster holds Services of one port each, by number, with their endpoints. No
// address of an endpoint is used twice, also not by one that is gone.
type cluster struct {
	endpoints [][]netip.Addr
	mixed     bool // of all kinds, not of ClusterIPs alone
	used      int  // addresses of endpoints so far
}

func newCluster(services int) *cluster {
	c := &cluster{endpoints: make([][]netip.Addr, services)}
	for i := range c.endpoints {
		c.grow(i, endpointsPerService)
	}
	return c
}

// newMix gives a cluster of Services of all kinds.
func newMix(services int) *cluster {
	c := newCluster(services)
	c.mixed = true
	return c
}

// grow adds new endpoints to a Service.
func (c *cluster) grow(service, by int) {
	for range by {
		c.used++
		c.endpoints[service] = append(c.endpoints[service], addr.Nth(podRange(), c.used))
	}
}

// shrink takes endpoints of a Service away, the youngest first.
func (c *cluster) shrink(service, by int) {
	list := c.endpoints[service]
	c.endpoints[service] = list[:len(list)-by]
}

// replace puts a new endpoint in the place of another, and gives the new one.
func (c *cluster) replace(service, endpoint int) netip.Addr {
	c.used++
	fresh := addr.Nth(podRange(), c.used)
	c.endpoints[service][endpoint] = fresh
	return fresh
}

func vip(service int) netip.Addr { return addr.Nth(serviceRange(), service+1) }

// serviceName makes the first Service the one that every cluster has.
func serviceName(service int) types.NamespacedName {
	if service == 0 {
		return types.NamespacedName{Namespace: "default", Name: "kubernetes"}
	}
	return types.NamespacedName{Namespace: fmt.Sprintf("team-%02d", service%50), Name: fmt.Sprintf("web-%05d", service)}
}

// meta is what objects of a real cluster carry: a client has to read past it.
func meta(name types.NamespacedName, kind string, version int64) metav1.ObjectMeta {
	uid := fmt.Sprintf("7d3f0a52-1c7e-4b7e-9d0a-%s-%s", kind, name.Name)
	return metav1.ObjectMeta{
		Namespace:         name.Namespace,
		Name:              name.Name,
		UID:               types.UID(uid),
		ResourceVersion:   fmt.Sprint(version),
		Generation:        1,
		CreationTimestamp: metav1.Unix(1_700_000_000, 0),
		Labels: map[string]string{
			"app.kubernetes.io/name":       name.Name,
			"app.kubernetes.io/instance":   name.Name + "-production",
			"app.kubernetes.io/managed-by": "Helm",
		},
		Annotations: map[string]string{"meta.helm.sh/release-name": name.Name},
		ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1",
			Time:       &metav1.Time{Time: metav1.Unix(1_700_000_000, 0).Time},
			FieldsType: "FieldsV1",
			FieldsV1:   metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{".":{},"f:app.kubernetes.io/name":{}}},"f:spec":{"f:ports":{}}}`),
		}},
	}
}

func (c *cluster) service(i int, version int64) *corev1.Service {
	cluster := corev1.ServiceInternalTrafficPolicyCluster
	single := corev1.IPFamilyPolicySingleStack
	s := &corev1.Service{
		ObjectMeta: meta(serviceName(i), "service", version),
		Spec: corev1.ServiceSpec{
			Type:       corev1.ServiceTypeClusterIP,
			ClusterIP:  vip(i).String(),
			ClusterIPs: []string{vip(i).String()},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: &single,
			SessionAffinity: corev1.ServiceAffinityNone, InternalTrafficPolicy: &cluster,
			Selector: map[string]string{"app.kubernetes.io/name": serviceName(i).Name},
			Ports: []corev1.ServicePort{{
				Name: "http", Protocol: corev1.ProtocolTCP, Port: servicePort, TargetPort: intstr.FromInt32(endpointPort),
			}},
		},
	}
	c.kindOf(i).become(s, i)
	return s
}

func (c *cluster) slice(i int, version int64) *discoveryv1.EndpointSlice {
	name := serviceName(i)
	m := meta(types.NamespacedName{Namespace: name.Namespace, Name: name.Name + "-x7k2p"}, "slice", version)
	m.GenerateName = name.Name + "-"
	m.Labels[discoveryv1.LabelServiceName] = name.Name
	m.Labels[discoveryv1.LabelManagedBy] = "endpointslice-controller.k8s.io"
	yes, no, zones := true, false, []string{"eu-1a", "eu-1b", "eu-1c"}
	port, portName, protocol := int32(endpointPort), "http", corev1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  m,
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Protocol: &protocol, Port: &port}},
	}
	for e, a := range c.endpoints[i] {
		on := c.nodeOf(i, e)
		node, pod := fmt.Sprintf("node-%d", on), fmt.Sprintf("%s-5d9c7b8f6-%05d", name.Name, e)
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{a.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			NodeName:   &node,
			Zone:       &zones[on%len(zones)],
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: name.Namespace, Name: pod, UID: types.UID("0b5e7f9e-8a53-4a57-a3c5-" + pod),
			},
		})
	}
	return s
}

func node(version int64) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: meta(types.NamespacedName{Name: nodeName}, "node", version),
		Spec:       corev1.NodeSpec{PodCIDR: "10.128.0.0/24", PodCIDRs: []string{"10.128.0.0/24"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: nodeAddr().String()},
			{Type: corev1.NodeHostName, Address: nodeName},
		}},
	}
}

func nodeAddr() netip.Addr { return addr.IPv4().Node() }

func serviceCIDR(version int64) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: meta(types.NamespacedName{Name: "kubernetes"}, "servicecidr", version),
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{serviceRange().String()}},
		Status: networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{{
			Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Reason: "Ready",
		}}},
	}
}

// sorted gives the endpoints of a Service, address and port.
func (c *cluster) sorted(service int) []netip.AddrPort {
	var list []netip.AddrPort
	for _, a := range c.endpoints[service] {
		list = append(list, netip.AddrPortFrom(a, endpointPort))
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}
