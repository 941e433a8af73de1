package source

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"onerule/daemon/model"
)

// compareAddresses lets cmp look at addresses, which have no exported fields.
func compareAddresses() cmp.Options {
	return cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()}
}

// foundOf gives reasons and fields of notes, one text each: details are for people.
func foundOf(notes []model.Note) []string {
	var found []string
	for _, n := range notes {
		found = append(found, strings.TrimSpace(string(n.Reason)+" "+n.Field))
	}
	return found
}

func addrs(texts ...string) []netip.Addr {
	var as []netip.Addr
	for _, s := range texts {
		as = append(as, netip.MustParseAddr(s))
	}
	return as
}

func prefixes(texts ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range texts {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

func newConverter() converter { return converter{strings: newInterner()} }

// webService gives a good Service, changed by f.
func webService(f func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", CreationTimestamp: metav1.Unix(1700000000, 0)},
		Spec: corev1.ServiceSpec{
			Type:       corev1.ServiceTypeClusterIP,
			ClusterIP:  "172.30.0.41",
			ClusterIPs: []string{"172.30.0.41"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	if f != nil {
		f(s)
	}
	return s
}

// webModel gives what webService becomes, changed by f.
func webModel(f func(*model.Service)) *model.Service {
	m := &model.Service{
		Name:       model.Name{Namespace: "default", Name: "web"},
		Created:    1700000000,
		ClusterIPs: addrs("172.30.0.41"),
		Ports:      []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}},
	}
	if f != nil {
		f(m)
	}
	return m
}

func TestServicesThatAreConverted(t *testing.T) {
	v4, v6 := corev1.IPv4Protocol, corev1.IPv6Protocol
	long := strings.Repeat("a", 63)
	convertAll(t, []conversion{
		{name: "A1.1 an ordinary one"},
		{name: "A1.2 one port number in three protocols", in: func(s *corev1.Service) {
			s.Spec.Ports = []corev1.ServicePort{{Name: "t", Port: 80}, {Name: "u", Port: 80, Protocol: "UDP"}, {Name: "s", Port: 80, Protocol: "SCTP"}}
		}, want: func(m *model.Service) {
			m.Ports = []model.ServicePort{{Name: "t", Protocol: model.TCP, Port: 80}, {Name: "u", Protocol: model.UDP, Port: 80}, {Name: "s", Protocol: model.SCTP, Port: 80}}
		}},
		{name: "A1.18 leading zeros in the address", in: func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "172.030.0.041", []string{"172.030.0.041"}
		}},
		{name: "A1.23 two families, IPv6 first", in: func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "fd00::1", []string{"fd00::1", "172.30.0.41"}
			s.Spec.IPFamilies = []corev1.IPFamily{v6, v4}
		}, want: func(m *model.Service) { m.ClusterIPs = addrs("fd00::1", "172.30.0.41") }},
		{name: "A1.23 an address of another family than its place says", in: func(s *corev1.Service) {
			s.Spec.ClusterIPs = []string{"172.30.0.41", "172.30.0.42"}
			s.Spec.IPFamilies = []corev1.IPFamily{v4, v6}
		}, notes: []string{"invalid-address spec.clusterIPs[1]"}},
		{name: "A1.23 more addresses than families", in: func(s *corev1.Service) {
			s.Spec.ClusterIPs = []string{"172.30.0.41", "fd00::1"}
		}, notes: []string{"invalid-address spec.clusterIPs[1]"}},
		{name: "A1.24 no families: told by the address", in: func(s *corev1.Service) {
			s.Spec.IPFamilies, s.Spec.ClusterIPs, s.Spec.ClusterIP = nil, nil, "fd00::1"
		}, want: func(m *model.Service) { m.ClusterIPs = addrs("fd00::1") }},
		{name: "A1.24 no families, two addresses", in: func(s *corev1.Service) {
			s.Spec.IPFamilies, s.Spec.ClusterIPs = nil, []string{"172.30.0.41", "fd00::1"}
		}, want: func(m *model.Service) { m.ClusterIPs = addrs("172.30.0.41", "fd00::1") }},
		{name: "two addresses of one family", in: func(s *corev1.Service) {
			s.Spec.IPFamilies, s.Spec.ClusterIPs = nil, []string{"172.30.0.41", "172.30.0.42"}
		}, notes: []string{"invalid-address spec.clusterIPs[1]"}},
		{name: "one good address and one bad", in: func(s *corev1.Service) {
			s.Spec.IPFamilies, s.Spec.ClusterIPs = nil, []string{"172.30.0.41", "fd00::g"}
		}, notes: []string{"invalid-address spec.clusterIPs[1]"}},
		{name: "A1.26 names at their maximum", in: func(s *corev1.Service) {
			s.Namespace, s.Name, s.Spec.Ports[0].Name = long, long, long
		}, want: func(m *model.Service) {
			m.Name = model.Name{Namespace: long, Name: long}
			m.Ports[0].Name = long
		}},
		{name: "A1.26 a port name beyond the maximum", in: func(s *corev1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: long + "a", Port: 81})
		}, notes: []string{"invalid-name spec.ports[1].name"}},
		{name: "a port name of wrong characters", in: func(s *corev1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "HTTP!", Port: 81})
		}, notes: []string{"invalid-name spec.ports[1].name"}},
		{name: "ports out of range beside a good one", in: func(s *corev1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: 0}, corev1.ServicePort{Port: 65536}, corev1.ServicePort{Port: -1}, corev1.ServicePort{Name: "top", Port: 65535})
		}, want: func(m *model.Service) {
			m.Ports = append(m.Ports, model.ServicePort{Name: "top", Protocol: model.TCP, Port: 65535})
		}, notes: []string{"invalid-port spec.ports[1].port", "invalid-port spec.ports[2].port", "invalid-port spec.ports[3].port"}},
		{name: "an unknown protocol beside a good one", in: func(s *corev1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: 81, Protocol: "tcp"})
		}, notes: []string{"invalid-protocol spec.ports[1].protocol"}},
		{name: "a port twice: the first one is kept", in: func(s *corev1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "again", Port: 80}, corev1.ServicePort{Name: "udp", Port: 80, Protocol: "UDP"}, corev1.ServicePort{Name: "too", Port: 80, Protocol: "UDP"})
		}, want: func(m *model.Service) {
			m.Ports = append(m.Ports, model.ServicePort{Name: "udp", Protocol: model.UDP, Port: 80})
		}, notes: []string{"duplicate-frontend spec.ports[1]", "duplicate-frontend spec.ports[3]"}},
		{name: "a bad port does not hide a good one of the same number", in: func(s *corev1.Service) {
			s.Spec.Ports = []corev1.ServicePort{{Name: "BAD", Port: 80}, {Name: "http", Port: 80}}
		}, notes: []string{"invalid-name spec.ports[0].name"}},
		{name: "no port at all", in: func(s *corev1.Service) { s.Spec.Ports = nil },
			want: func(m *model.Service) { m.Ports = nil }},
		{name: "no creation time", in: func(s *corev1.Service) { s.CreationTimestamp = metav1.Time{} },
			want: func(m *model.Service) { m.Created = 0 }},
	})
}

func TestADuplicatePortNamesTheOneThatIsKept(t *testing.T) {
	_, notes := newConverter().service(webService(func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "again", Port: 80})
	}))
	want := []model.Note{{Reason: model.ReasonDuplicateFrontend, Field: "spec.ports[1]", Detail: "TCP 80 is that of spec.ports[0] already"}}
	if diff := cmp.Diff(want, notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

func TestServicesThatAreNotForUs(t *testing.T) {
	for _, c := range []struct {
		name  string
		in    func(*corev1.Service)
		notes []string
	}{
		{name: "A1.6 headless", in: func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }},
		{name: "A1.6 without an address", in: func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil }},
		{name: "A1.7 ExternalName with a stale address", in: func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }},
		{name: "A1.8 another proxy's", in: func(s *corev1.Service) { s.Labels = map[string]string{labelProxyName: ""} }},
		{name: "an address in the plural field only", in: func(s *corev1.Service) { s.Spec.ClusterIP = "" },
			notes: []string{"invalid-address spec.clusterIP"}},
		{name: "an invalid address", in: func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "172.30.0.256", nil },
			notes: []string{"invalid-address spec.clusterIP"}},
		{name: "the loopback address", in: func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"127.0.0.1"} },
			notes: []string{"invalid-address spec.clusterIPs[0]"}},
		{name: "no name", in: func(s *corev1.Service) { s.Name = "" }, notes: []string{"invalid-name metadata.name"}},
		{name: "no namespace", in: func(s *corev1.Service) { s.Namespace = "" }, notes: []string{"invalid-name metadata.namespace"}},
		{name: "A1.26 a name beyond the maximum", in: func(s *corev1.Service) { s.Name = strings.Repeat("a", 64) },
			notes: []string{"invalid-name metadata.name"}},
		{name: "a namespace that is no label", in: func(s *corev1.Service) { s.Namespace = "a.b" },
			notes: []string{"invalid-name metadata.namespace"}},
		{name: "a name that ends in a dash", in: func(s *corev1.Service) { s.Name = "web-" }, notes: []string{"invalid-name metadata.name"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, notes := newConverter().service(webService(c.in))
			if got != nil {
				t.Errorf("got %+v, want none", got)
			}
			if diff := cmp.Diff(c.notes, foundOf(notes)); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

// webSlice gives a good EndpointSlice of one endpoint, changed by f.
func webSlice(f func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-x7k2p", Labels: map[string]string{labelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr("http"), Protocol: ptr(corev1.ProtocolTCP), Port: ptr(int32(8080))}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, NodeName: ptr("n1")}},
	}
	if f != nil {
		f(s)
	}
	return s
}

// webSliceModel gives what webSlice becomes, changed by f.
func webSliceModel(f func(*model.EndpointSlice)) *model.EndpointSlice {
	m := &model.EndpointSlice{
		Name:      model.Name{Namespace: "default", Name: "web-x7k2p"},
		Service:   "web",
		Ports:     []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: 8080}},
		Endpoints: []model.Endpoint{{Addr: netip.MustParseAddr("10.0.0.1"), Node: "n1", Ready: true, Serving: true}},
	}
	if f != nil {
		f(m)
	}
	return m
}

func TestSlicesThatAreConverted(t *testing.T) {
	for _, c := range []struct {
		name  string
		in    func(*discoveryv1.EndpointSlice)
		want  func(*model.EndpointSlice)
		notes []string
	}{
		{name: "A1.10 an ordinary one"},
		{name: "A1.12 a port without a name, without a number and of number 0 beside good ones", in: func(s *discoveryv1.EndpointSlice) {
			s.Ports = append(s.Ports,
				discoveryv1.EndpointPort{Port: ptr(int32(1))},
				discoveryv1.EndpointPort{Name: ptr("no-number")},
				discoveryv1.EndpointPort{Name: ptr("zero"), Port: ptr(int32(0))},
				discoveryv1.EndpointPort{Name: ptr(""), Port: ptr(int32(53)), Protocol: ptr(corev1.ProtocolUDP)})
		}, want: func(m *model.EndpointSlice) {
			m.Ports = append(m.Ports, model.SlicePort{Protocol: model.UDP, Port: 53})
		}},
		{name: "a port without a protocol is TCP", in: func(s *discoveryv1.EndpointSlice) { s.Ports[0].Protocol = nil }},
		{name: "a port out of range and one of an unknown protocol beside a good one", in: func(s *discoveryv1.EndpointSlice) {
			s.Ports = append(s.Ports,
				discoveryv1.EndpointPort{Name: ptr("high"), Port: ptr(int32(70000))},
				discoveryv1.EndpointPort{Name: ptr("odd"), Port: ptr(int32(1)), Protocol: ptr(corev1.Protocol("ICMP"))})
		}, notes: []string{"invalid-port ports[1].port", "invalid-protocol ports[2].protocol"}},
		{name: "A1.13 the first address of an endpoint only", in: func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].Addresses = []string{"10.0.0.1", "10.0.0.2"}
		}},
		{name: "A1.14 an endpoint of no node", in: func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].NodeName = nil },
			want: func(m *model.EndpointSlice) { m.Endpoints[0].Node = "" }},
		{name: "A1.18 leading zeros", in: func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses[0] = "010.0.0.001" }},
		{name: "IPv6", in: func(s *discoveryv1.EndpointSlice) {
			s.AddressType, s.Endpoints[0].Addresses[0] = discoveryv1.AddressTypeIPv6, "fd00::1"
		}, want: func(m *model.EndpointSlice) { m.Endpoints[0].Addr = netip.MustParseAddr("fd00::1") }},
		{name: "A1.11 addresses of the other family, bad ones and none beside a good one", in: func(s *discoveryv1.EndpointSlice) {
			for _, a := range [][]string{{"fd00::1"}, {"10.0.0"}, {}, {"0.0.0.0"}, {"127.0.0.1"}, {"169.254.1.1"}} {
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: a})
			}
		}, notes: []string{
			"invalid-address endpoints[1].addresses", "invalid-address endpoints[2].addresses", "invalid-address endpoints[3].addresses",
			"invalid-address endpoints[4].addresses", "invalid-address endpoints[5].addresses", "invalid-address endpoints[6].addresses",
		}},
		{name: "an IPv4 address written as IPv6 in an IPv6 slice", in: func(s *discoveryv1.EndpointSlice) {
			s.AddressType, s.Endpoints[0].Addresses[0] = discoveryv1.AddressTypeIPv6, "::ffff:10.0.0.1"
		}, want: func(m *model.EndpointSlice) { m.Endpoints = nil }, notes: []string{"invalid-address endpoints[0].addresses"}},
		{name: "A1.26 names at their maximum", in: func(s *discoveryv1.EndpointSlice) {
			s.Namespace, s.Labels[labelServiceName] = strings.Repeat("n", 63), strings.Repeat("s", 63)
		}, want: func(m *model.EndpointSlice) {
			m.Name.Namespace, m.Service = strings.Repeat("n", 63), strings.Repeat("s", 63)
		}},
		{name: "a port name beyond the maximum beside a good one", in: func(s *discoveryv1.EndpointSlice) {
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: ptr(strings.Repeat("p", 64)), Port: ptr(int32(1))})
		}, notes: []string{"invalid-name ports[1].name"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, notes := newConverter().slice(webSlice(c.in))
			if diff := cmp.Diff(webSliceModel(c.want), got, compareAddresses()); diff != "" {
				t.Errorf("model (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.notes, foundOf(notes)); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConditionsOfEndpoints(t *testing.T) { // A1.15, A4.3, A4.4
	yes, no := ptr(true), ptr(false)
	for _, c := range []struct {
		name string
		in   discoveryv1.EndpointConditions
		want model.Endpoint
	}{
		{"A1.15 all unknown", discoveryv1.EndpointConditions{}, model.Endpoint{Ready: true, Serving: true}},
		{"A4.3 not ready but serving", discoveryv1.EndpointConditions{Ready: no, Serving: yes}, model.Endpoint{Serving: true}},
		{"A4.3 neither", discoveryv1.EndpointConditions{Ready: no, Serving: no, Terminating: no}, model.Endpoint{}},
		{"terminating and serving", discoveryv1.EndpointConditions{Ready: no, Serving: yes, Terminating: yes}, model.Endpoint{Serving: true, Terminating: true}},
		{"terminating, serving unknown", discoveryv1.EndpointConditions{Ready: no, Terminating: yes}, model.Endpoint{Serving: true, Terminating: true}},
		{"A4.4 published although not serving", discoveryv1.EndpointConditions{Ready: yes, Serving: no}, model.Endpoint{Ready: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _ := newConverter().slice(webSlice(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions = c.in }))
			c.want.Addr, c.want.Node = netip.MustParseAddr("10.0.0.1"), "n1"
			if diff := cmp.Diff([]model.Endpoint{c.want}, got.Endpoints, compareAddresses()); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSlicesThatAreNotForUs(t *testing.T) {
	for _, c := range []struct {
		name  string
		in    func(*discoveryv1.EndpointSlice)
		notes []string
	}{
		{name: "A1.9 a headless Service's", in: func(s *discoveryv1.EndpointSlice) { s.Labels[labelHeadless] = "" }},
		{name: "A1.10 without a Service", in: func(s *discoveryv1.EndpointSlice) { s.Labels = nil },
			notes: []string{"no-service metadata.labels[kubernetes.io/service-name]"}},
		{name: "A1.10 with an empty label", in: func(s *discoveryv1.EndpointSlice) { s.Labels[labelServiceName] = "" },
			notes: []string{"no-service metadata.labels[kubernetes.io/service-name]"}},
		{name: "A1.10 without a name", in: func(s *discoveryv1.EndpointSlice) { s.Name = "" }, notes: []string{"invalid-name metadata.name"}},
		{name: "A1.10 without a namespace", in: func(s *discoveryv1.EndpointSlice) { s.Namespace = "" },
			notes: []string{"invalid-name metadata.namespace"}},
		{name: "a Service whose name can be none", in: func(s *discoveryv1.EndpointSlice) { s.Labels[labelServiceName] = "We_b" },
			notes: []string{"invalid-name metadata.labels[kubernetes.io/service-name]"}},
		{name: "A1.11 names instead of addresses", in: func(s *discoveryv1.EndpointSlice) {
			s.AddressType, s.Endpoints[0].Addresses[0] = discoveryv1.AddressTypeFQDN, "example.org"
		}, notes: []string{"address-type addressType"}},
		{name: "A1.11 an unknown type", in: func(s *discoveryv1.EndpointSlice) { s.AddressType = "IPV4" }, notes: []string{"address-type addressType"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, notes := newConverter().slice(webSlice(c.in))
			if got != nil {
				t.Errorf("got %+v, want none", got)
			}
			if diff := cmp.Diff(c.notes, foundOf(notes)); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNodesAreConverted(t *testing.T) {
	for _, c := range []struct {
		name  string
		in    corev1.Node
		want  *model.Node
		notes []string
	}{
		{
			name: "internal addresses before external ones, twice named ones once",
			in: corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "n1.example", CreationTimestamp: metav1.Unix(7, 0)},
				Spec:       corev1.NodeSpec{PodCIDR: "10.1.0.0/24", PodCIDRs: []string{"10.1.0.0/24", "fd01::/64"}},
				Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
					{Type: corev1.NodeHostName, Address: "n1"},
					{Type: corev1.NodeExternalIP, Address: "198.51.100.1"},
					{Type: corev1.NodeInternalIP, Address: "192.168.0.01"},
					{Type: corev1.NodeInternalIP, Address: "fd02::1"},
					{Type: corev1.NodeInternalIP, Address: "fd02::1"},
				}},
			},
			want: &model.Node{
				Name: "n1.example", Created: 7, PodCIDRs: prefixes("10.1.0.0/24", "fd01::/64"),
				Addrs: addrs("192.168.0.1", "fd02::1", "198.51.100.1"), InternalIPs: addrs("192.168.0.1", "fd02::1"),
			},
		},
		{
			name: "the single range where there are no others",
			in:   corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDR: "010.1.0.0/024"}},
			want: &model.Node{Name: "n1", PodCIDRs: prefixes("10.1.0.0/24")},
		},
		{
			name: "bad ranges and addresses",
			in: corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "n1"},
				Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.1.0.0", "fd01::/64"}},
				Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "n1"}}},
			},
			want:  &model.Node{Name: "n1", PodCIDRs: prefixes("fd01::/64")},
			notes: []string{"invalid-address spec.podCIDRs[0]", "invalid-address status.addresses[0].address"},
		},
		{name: "no name", notes: []string{"invalid-name metadata.name"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, notes := newConverter().node(&c.in)
			if diff := cmp.Diff(c.want, got, compareAddresses()); diff != "" {
				t.Errorf("model (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.notes, foundOf(notes)); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestServiceCIDRsAreConverted(t *testing.T) { // A1.5, A1.18
	in := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"172.30.0.000/016", "fd00::/108", "fd00::"}},
	}
	got, notes := newConverter().serviceCIDR(in)
	want := &model.ServiceCIDR{Name: "kubernetes", CIDRs: prefixes("172.30.0.0/16", "fd00::/108")}
	if diff := cmp.Diff(want, got, compareAddresses()); diff != "" {
		t.Errorf("model (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"invalid-address spec.cidrs[2]"}, foundOf(notes)); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

func TestNotesOfOneObjectAreBounded(t *testing.T) {
	_, notes := newConverter().slice(webSlice(func(s *discoveryv1.EndpointSlice) {
		for range 1000 {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{"fd00::1"}})
		}
	}))
	if len(notes) != maxNotes {
		t.Fatalf("got %d notes, want %d", len(notes), maxNotes)
	}
	if last, want := notes[maxNotes-1].Detail, "(and 984 more)"; !strings.HasSuffix(last, want) {
		t.Errorf("got last detail %q, want it to end in %q", last, want)
	}
}

// TestConversionAllocatesLittle guards the memory of a large cluster: a slice is the
// value, its ports and its endpoints, whatever the number of endpoints and their hints.
func TestConversionAllocatesLittle(t *testing.T) {
	s := webSlice(func(s *discoveryv1.EndpointSlice) {
		s.Endpoints = nil
		for i := range 10 {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{fmt.Sprintf("10.0.0.%d", i+1)},
				NodeName:  ptr(fmt.Sprintf("node-%d", i%3)),
				Hints:     hintsOf([]string{fmt.Sprintf("zone-%d", i%3), "zone-3"}, []string{fmt.Sprintf("node-%d", i%3)}),
			})
		}
	})
	c := newConverter()
	if got := testing.AllocsPerRun(100, func() { c.slice(s) }); got > 3 {
		t.Errorf("got %v allocations for a slice of 10 endpoints, want at most 3", got)
	}
	kept := map[*model.Hints]bool{}
	for range 10 {
		m, _ := c.slice(s)
		for _, e := range m.Endpoints {
			kept[e.Hints] = true
		}
	}
	if len(kept) != 3 {
		t.Errorf("got %d values for 3 different hints, want 3", len(kept))
	}
}

func TestSharedStringsAreKeptOnce(t *testing.T) {
	i := newInterner()
	first := i.of("node-1")
	if n := testing.AllocsPerRun(100, func() {
		if i.of("node-1") != first {
			t.Fatal("another string came back")
		}
	}); n != 0 {
		t.Errorf("got %v allocations for a known string, want 0", n)
	}
	for n := range 3 * maxInterned {
		i.of(fmt.Sprint(n))
	}
	if len(i.seen) > maxInterned {
		t.Errorf("got %d strings kept, want at most %d", len(i.seen), maxInterned)
	}
}

// FuzzSlice converts slices of arbitrary text: nothing that comes out may be of the
// wrong family, special, or have more ports than were given.
func FuzzSlice(f *testing.F) {
	f.Add("default", "web-1", "web", "IPv4", "10.0.0.1", "http", int32(80), "TCP")
	f.Add("", "", "", "FQDN", "example.org", "", int32(0), "")
	f.Add("a.b", strings.Repeat("a", 254), "Web", "IPv6", "::ffff:10.0.0.1", "HTTP", int32(65536), "tcp")
	f.Fuzz(func(t *testing.T, namespace, name, service, family, address, port string, number int32, protocol string) {
		in := webSlice(func(s *discoveryv1.EndpointSlice) {
			s.Namespace, s.Name, s.Labels[labelServiceName] = namespace, name, service
			s.AddressType = discoveryv1.AddressType(family)
			s.Endpoints[0].Addresses[0] = address
			s.Ports = []discoveryv1.EndpointPort{{Name: &port, Port: &number, Protocol: ptr(corev1.Protocol(protocol))}}
		})
		m, notes := newConverter().slice(in)
		if m == nil {
			if len(notes) == 0 {
				t.Error("a slice vanished without a note")
			}
			return
		}
		for _, e := range m.Endpoints {
			if e.Addr.Is4() != (family == "IPv4") || e.Addr.IsUnspecified() || e.Addr.IsLoopback() {
				t.Errorf("got endpoint %v in a slice of %s", e.Addr, family)
			}
		}
		for _, p := range m.Ports {
			if p.Port == 0 || int32(p.Port) != number || p.Protocol.String() == "unknown" || len(p.Name) > 63 {
				t.Errorf("got port %+v of %q, %d, %q", p, port, number, protocol)
			}
		}
		if len(m.Endpoints) == 0 && len(notes) == 0 {
			t.Error("an endpoint vanished without a note")
		}
	})
}
