package source

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"onerule/daemon/model"
)

// A conversion is what becomes of webService, changed by in.
type conversion struct {
	name  string
	in    func(*corev1.Service)
	want  func(*model.Service)
	notes []string
}

func convertAll(t *testing.T, conversions []conversion) {
	t.Helper()
	for _, c := range conversions {
		t.Run(c.name, func(t *testing.T) {
			got, notes := newConverter().service(webService(c.in))
			if diff := cmp.Diff(webModel(c.want), got, compareAddresses()); diff != "" {
				t.Errorf("model (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.notes, foundOf(notes)); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
		})
	}
}

// balanced makes a Service one of type LoadBalancer.
func balanced(s *corev1.Service) {
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.Ports[0].NodePort = 30080
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}}
}

func balancedModel(m *model.Service) {
	m.Ports[0].NodePort = 30080
	m.LoadBalancerIPs = addrs("203.0.113.9")
}

func TestNodePortsAreConverted(t *testing.T) {
	convertAll(t, []conversion{
		{name: "of type NodePort", in: func(s *corev1.Service) {
			s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080
		}, want: func(m *model.Service) { m.Ports[0].NodePort = 30080 }},
		{name: "A1.21 a load balancer without", in: func(s *corev1.Service) {
			balanced(s)
			s.Spec.AllocateLoadBalancerNodePorts, s.Spec.Ports[0].NodePort = ptr(false), 0
		}, want: func(m *model.Service) { m.LoadBalancerIPs = addrs("203.0.113.9") }},
		{name: "of type ClusterIP: there is none", in: func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 30080 },
			notes: []string{"invalid-port spec.ports[0].nodePort"}},
		{name: "of no type, which is ClusterIP", in: func(s *corev1.Service) { s.Spec.Type, s.Spec.Ports[0].NodePort = "", 30080 },
			notes: []string{"invalid-port spec.ports[0].nodePort"}},
		{name: "out of range: the port works without", in: func(s *corev1.Service) {
			s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 65536
		}, notes: []string{"invalid-port spec.ports[0].nodePort"}},
		{name: "below zero", in: func(s *corev1.Service) {
			s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, -1
		}, notes: []string{"invalid-port spec.ports[0].nodePort"}},
	})
}

func TestExternalAddressesAreConverted(t *testing.T) {
	convertAll(t, []conversion{
		{name: "A1.22 of a Service of type ClusterIP, both families, each once", in: func(s *corev1.Service) {
			s.Spec.ExternalIPs = []string{"203.0.113.1", "2001:db8::1", "203.0.113.1", "203.0.113.2"}
		}, want: func(m *model.Service) { m.ExternalIPs = addrs("203.0.113.1", "2001:db8::1", "203.0.113.2") }},
		{name: "A1.18 leading zeros", in: func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"203.000.113.041"} },
			want: func(m *model.Service) { m.ExternalIPs = addrs("203.0.113.41") }},
		{name: "bad ones beside a good one", in: func(s *corev1.Service) {
			s.Spec.ExternalIPs = []string{"127.0.0.1", "::1", "169.254.1.1", "fe80::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "example.org", "", "203.0.113.1"}
		}, want: func(m *model.Service) { m.ExternalIPs = addrs("203.0.113.1") }, notes: numbered("invalid-address spec.externalIPs[%d]", 0, 10)},
		{name: "A1.19 of a load balancer: mode VIP and none, not mode Proxy, not a host name", in: func(s *corev1.Service) {
			balanced(s)
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
				corev1.LoadBalancerIngress{IP: "2001:db8::9", IPMode: ptr(corev1.LoadBalancerIPModeVIP)},
				corev1.LoadBalancerIngress{IP: "203.0.113.10", IPMode: ptr(corev1.LoadBalancerIPModeProxy)},
				corev1.LoadBalancerIngress{Hostname: "lb.example.org"},
				corev1.LoadBalancerIngress{IP: "203.0.113.9", Hostname: "lb.example.org"})
		}, want: func(m *model.Service) {
			balancedModel(m)
			m.LoadBalancerIPs = addrs("203.0.113.9", "2001:db8::9")
		}},
		{name: "A1.19 an unknown mode is not for this node", in: func(s *corev1.Service) {
			balanced(s)
			s.Status.LoadBalancer.Ingress[0].IPMode = ptr(corev1.LoadBalancerIPMode("Tunnel"))
		}, want: func(m *model.Service) { m.Ports[0].NodePort = 30080 }},
		{name: "A1.20 whatever its class", in: func(s *corev1.Service) {
			balanced(s)
			s.Spec.LoadBalancerClass = ptr("example.org/other")
		}, want: balancedModel},
		{name: "A1.20 whatever its type: the status decides", in: func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}}
		}, want: func(m *model.Service) { m.LoadBalancerIPs = addrs("203.0.113.9") }},
		{name: "bad ones of a load balancer", in: func(s *corev1.Service) {
			balanced(s)
			for _, ip := range []string{"127.0.0.1", "fe80::1", "::", "224.0.0.1", "203.0.113"} {
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
			}
		}, want: balancedModel, notes: numbered("invalid-address status.loadBalancer.ingress[%d].ip", 1, 6)},
	})
}

// numbered gives a format with each number from first to below end.
func numbered(format string, first, end int) []string {
	var texts []string
	for i := first; i < end; i++ {
		texts = append(texts, fmt.Sprintf(format, i))
	}
	return texts
}

func TestSourceRangesAreConverted(t *testing.T) { // A8
	for _, c := range []struct {
		name     string
		in, want []string
		notes    []string
	}{
		{name: "none"},
		{"A8.5 of one family only: the other is open", []string{"203.0.113.0/24"}, []string{"203.0.113.0/24"}, nil},
		{"A1.18 leading zeros and white space", []string{" 203.0.113.000/025\t"}, []string{"203.0.113.0/25"}, nil},
		{"A8.2 everybody", []string{"0.0.0.0/0", "10.0.0.0/8"}, []string{"0.0.0.0/0", "10.0.0.0/8"}, nil},
		{"a bad one beside a good one", []string{"10.0.0.0/33", "10.0.0.0/8"}, []string{"10.0.0.0/8"}, []string{"invalid-address spec.loadBalancerSourceRanges[0]"}},
		{"a bad one alone lets nobody of its family in", []string{"10.0.0.0/33"}, []string{"0.0.0.0/32"}, []string{"invalid-address spec.loadBalancerSourceRanges[0]"}},
		{"a bad one of IPv6 beside a good one of IPv4", []string{"10.0.0.0/8", "2001:db8::/129"}, []string{"10.0.0.0/8", "::/128"}, []string{"invalid-address spec.loadBalancerSourceRanges[1]"}},
		{"a bad one of IPv4 beside a good one of IPv6", []string{"10.0.0/8", "2001:db8::/32"}, []string{"2001:db8::/32", "0.0.0.0/32"}, []string{"invalid-address spec.loadBalancerSourceRanges[0]"}},
		{"one whose family nobody knows", []string{"all"}, []string{"0.0.0.0/32", "::/128"}, []string{"invalid-address spec.loadBalancerSourceRanges[0]"}},
		{"an empty one", []string{""}, []string{"0.0.0.0/32", "::/128"}, []string{"invalid-address spec.loadBalancerSourceRanges[0]"}},
		{"an address without a length", []string{"203.0.113.7"}, []string{"0.0.0.0/32"}, []string{"invalid-address spec.loadBalancerSourceRanges[0]"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, notes := newConverter().service(webService(func(s *corev1.Service) {
				balanced(s)
				s.Spec.LoadBalancerSourceRanges = c.in
			}))
			if diff := cmp.Diff(prefixes(c.want...), got.SourceRanges, compareAddresses()); diff != "" {
				t.Errorf("ranges (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.notes, foundOf(notes)); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPoliciesAreConverted(t *testing.T) {
	local, cluster := corev1.ServiceInternalTrafficPolicyLocal, corev1.ServiceInternalTrafficPolicyCluster
	external := corev1.ServiceExternalTrafficPolicyLocal
	convertAll(t, []conversion{
		{name: "internal Local", in: func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &local },
			want: func(m *model.Service) { m.InternalLocal = true }},
		{name: "internal Cluster", in: func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &cluster }},
		{name: "external Local without a way from outside", in: func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = external }},
		{name: "external Local with external addresses", in: func(s *corev1.Service) {
			s.Spec.ExternalTrafficPolicy, s.Spec.ExternalIPs = external, []string{"203.0.113.1"}
		}, want: func(m *model.Service) { m.ExternalLocal, m.ExternalIPs = true, addrs("203.0.113.1") }},
		{name: "external Local of type NodePort", in: func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceTypeNodePort, external, 32000
		}, want: func(m *model.Service) { m.ExternalLocal = true }},
		{name: "A9.1 external Local of a load balancer", in: func(s *corev1.Service) {
			balanced(s)
			s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = external, 32000
		}, want: func(m *model.Service) {
			balancedModel(m)
			m.ExternalLocal, m.HealthCheckNodePort = true, 32000
		}},
		{name: "A9.1 none where nobody asks", in: func(s *corev1.Service) {
			balanced(s)
			s.Spec.ExternalTrafficPolicy = external
		}, want: func(m *model.Service) { balancedModel(m); m.ExternalLocal = true }},
		{name: "A9.1 a stale one where the policy is Cluster", in: func(s *corev1.Service) {
			balanced(s)
			s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyCluster, 32000
		}, want: balancedModel},
		{name: "A9.1 out of range", in: func(s *corev1.Service) {
			balanced(s)
			s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = external, 70000
		}, want: func(m *model.Service) { balancedModel(m); m.ExternalLocal = true }, notes: []string{"invalid-port spec.healthCheckNodePort"}},
	})
}

func TestAffinityIsConverted(t *testing.T) { // A5.3
	config := func(seconds *int32) *corev1.SessionAffinityConfig {
		return &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: seconds}}
	}
	for _, c := range []struct {
		name     string
		affinity corev1.ServiceAffinity
		config   *corev1.SessionAffinityConfig
		want     uint32
		noted    bool
	}{
		{"none", corev1.ServiceAffinityNone, nil, 0, false},
		{"none, with a stale timeout", corev1.ServiceAffinityNone, config(ptr(int32(60))), 0, false},
		{"ClientIP without a timeout", corev1.ServiceAffinityClientIP, nil, 10800, false},
		{"ClientIP with an empty config", corev1.ServiceAffinityClientIP, &corev1.SessionAffinityConfig{}, 10800, false},
		{"ClientIP with a config of no number", corev1.ServiceAffinityClientIP, config(nil), 10800, false},
		{"the shortest", corev1.ServiceAffinityClientIP, config(ptr(int32(1))), 1, false},
		{"the longest", corev1.ServiceAffinityClientIP, config(ptr(int32(86400))), 86400, false},
		{"zero", corev1.ServiceAffinityClientIP, config(ptr(int32(0))), 10800, true},
		{"below zero", corev1.ServiceAffinityClientIP, config(ptr(int32(-1))), 10800, true},
		{"beyond a day", corev1.ServiceAffinityClientIP, config(ptr(int32(86401))), 10800, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, notes := newConverter().service(webService(func(s *corev1.Service) {
				s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = c.affinity, c.config
			}))
			if got.Affinity != c.want {
				t.Errorf("got affinity %d, want %d", got.Affinity, c.want)
			}
			var want []string
			if c.noted {
				want = []string{"invalid-timeout spec.sessionAffinityConfig.clientIP.timeoutSeconds"}
			}
			if diff := cmp.Diff(want, foundOf(notes)); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
		})
	}
}

func hintsOf(zones, nodes []string) *discoveryv1.EndpointHints {
	h := &discoveryv1.EndpointHints{}
	for _, z := range zones {
		h.ForZones = append(h.ForZones, discoveryv1.ForZone{Name: z})
	}
	for _, n := range nodes {
		h.ForNodes = append(h.ForNodes, discoveryv1.ForNode{Name: n})
	}
	return h
}

func TestHintsAreConverted(t *testing.T) { // A4.6, A4.7, A4.11
	for _, c := range []struct {
		name string
		in   *discoveryv1.EndpointHints
		want *model.Hints
	}{
		{"none", nil, nil},
		{"empty ones are none", &discoveryv1.EndpointHints{}, nil},
		{"zones", hintsOf([]string{"a", "b"}, nil), &model.Hints{Zones: []string{"a", "b"}}},
		{"nodes", hintsOf(nil, []string{"n1"}), &model.Hints{Nodes: []string{"n1"}}},
		{"both", hintsOf([]string{"a"}, []string{"n1", "n2"}), &model.Hints{Zones: []string{"a"}, Nodes: []string{"n1", "n2"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, notes := newConverter().slice(webSlice(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Hints = c.in }))
			if diff := cmp.Diff(c.want, got.Endpoints[0].Hints); diff != "" {
				t.Errorf("hints (-want +got):\n%s", diff)
			}
			if len(notes) > 0 {
				t.Errorf("got notes %v, want none", notes)
			}
		})
	}
}

func TestEqualHintsAreOneValue(t *testing.T) {
	i := newInterner()
	first := i.hints(hintsOf([]string{"a", "b"}, []string{"n1"}))
	if again := i.hints(hintsOf([]string{"a", "b"}, []string{"n1"})); again != first {
		t.Error("equal hints are two values")
	}
	for _, other := range []*discoveryv1.EndpointHints{
		hintsOf([]string{"a"}, []string{"b", "n1"}), hintsOf([]string{"a", "b", "n1"}, nil), hintsOf([]string{"ab"}, []string{"n1"}),
		hintsOf([]string{`a"z"b`}, []string{"n1"}), hintsOf(nil, []string{"a", "b", "n1"}),
	} {
		if i.hints(other) == first {
			t.Errorf("%v is one value with others", other)
		}
	}
	for n := range 3 * maxInterned {
		i.hints(hintsOf([]string{fmt.Sprint(n)}, nil))
	}
	if len(i.shared) > maxInterned {
		t.Errorf("got %d hints kept, want at most %d", len(i.shared), maxInterned)
	}
	if len(first.Zones) != 2 || first.Zones[0] != "a" {
		t.Errorf("hints that were given have changed: %v", first)
	}
}

func TestWhenASliceWasTriggered(t *testing.T) { // A11: the latency of programming
	for text, want := range map[string]int64{
		"":                               0,
		"2026-11-30T06:00:00Z":           1796018400000000000,
		"2026-11-30T06:00:00.000000001Z": 1796018400000000001,
		"2026-11-30T07:00:00+01:00":      1796018400000000000,
		"yesterday":                      0,
		"0001-01-01T00:00:00Z":           0,
		"2600-01-01T00:00:00Z":           0,
	} {
		t.Run("at "+text, func(t *testing.T) {
			got, notes := newConverter().slice(webSlice(func(s *discoveryv1.EndpointSlice) {
				s.Annotations = map[string]string{"endpoints.kubernetes.io/last-change-trigger-time": text}
			}))
			if got.Triggered != want || len(notes) > 0 {
				t.Errorf("got %d and notes %v, want %d and none", got.Triggered, notes, want)
			}
		})
	}
}

func TestWhatANodeSaysOfItself(t *testing.T) {
	now := metav1.Now()
	for _, c := range []struct {
		name string
		in   func(*corev1.Node)
		want model.Node
	}{
		{"nothing", func(*corev1.Node) {}, model.Node{}},
		{"A4.7 its zone", func(n *corev1.Node) { n.Labels = map[string]string{"topology.kubernetes.io/zone": "a"} }, model.Node{Zone: "a"}},
		{"not the zone of an old label", func(n *corev1.Node) {
			n.Labels = map[string]string{"failure-domain.beta.kubernetes.io/zone": "a"}
		}, model.Node{}},
		{"A10.3 that it is being deleted", func(n *corev1.Node) { n.DeletionTimestamp = &now }, model.Node{Leaving: true}},
		{"A10.3 that the autoscaler removes it", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "other"}, {Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
		}, model.Node{Leaving: true}},
		{"A10.3 other taints do not count", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/unschedulable"}, {Key: "DeletionCandidateOfClusterAutoscaler"}}
		}, model.Node{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
			c.in(&in)
			got, _ := newConverter().node(&in)
			c.want.Name = "n1"
			if diff := cmp.Diff(&c.want, got, compareAddresses()); diff != "" {
				t.Errorf("node (-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzServiceOutside converts Services of arbitrary text: no special address may come
// out, and no restriction be lost.
func FuzzServiceOutside(f *testing.F) {
	f.Add("203.0.113.1", "203.0.113.9", "10.0.0.0/8", int32(30080), int32(60))
	f.Add("::ffff:127.0.0.1", "fe80::1%eth0", " 2001:db8::/129", int32(-1), int32(1<<30))
	f.Fuzz(func(t *testing.T, external, ingress, source string, nodePort, timeout int32) {
		m, _ := newConverter().service(webService(func(s *corev1.Service) {
			balanced(s)
			s.Spec.ExternalIPs, s.Status.LoadBalancer.Ingress[0].IP = []string{external}, ingress
			s.Spec.LoadBalancerSourceRanges, s.Spec.Ports[0].NodePort = []string{source}, nodePort
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
		}))
		for _, a := range append(m.ExternalIPs, m.LoadBalancerIPs...) {
			if a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified() || a.Is4In6() || a.Zone() != "" {
				t.Errorf("got %v of %q and %q", a, external, ingress)
			}
		}
		if len(m.SourceRanges) == 0 {
			t.Errorf("range %q leaves the Service open", source)
		}
		if p := m.Ports[0].NodePort; p != 0 && int32(p) != nodePort {
			t.Errorf("got NodePort %d of %d", p, nodePort)
		}
		if m.Affinity < 1 || m.Affinity > 86400 {
			t.Errorf("got affinity %d of %d", m.Affinity, timeout)
		}
	})
}
