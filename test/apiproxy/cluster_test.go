package apiproxy_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/apiserver"
	"onerule/test/hosts"
	"onerule/test/oracle"
	"onerule/test/rig"
)

// pods is how many pods each node has. Pod 0 is the client.
const pods = 3

// A cluster is an API server outside and the daemon on the node, which may do what the
// cluster lets every kube-proxy do.
type cluster struct {
	h      *hosts.Hosts
	server *apiserver.Server
	client kubernetes.Interface
	d      *rig.Daemon
	audit  audit
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{h: hosts.New(t, pods, 8080, 8081), audit: newAudit(t)}
	for _, p := range addr.Both() {
		// Somebody outside has an address that could be a ClusterIP.
		c.h.Outside.Addr(t, "eth0", netip.PrefixFrom(stranger(p), stranger(p).BitLen()).String())
		c.h.ServeOn(t, c.h.Outside, netip.AddrPortFrom(stranger(p), 80))
	}
	c.server = apiserver.Start(t, c.h.Outside, apiserver.Options{
		ServiceCIDRs: []netip.Prefix{addr.IPv4().ServiceCIDR, addr.IPv6().ServiceCIDR},
		Address:      addr.IPv4().Outside(),
		Args:         c.audit.args(),
	})
	client, err := kubernetes.NewForConfig(c.server.Config())
	if err != nil {
		t.Fatal(err)
	}
	c.client = client
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: addr.NodeName, Labels: map[string]string{corev1.LabelHostname: addr.NodeName}},
		Spec:       corev1.NodeSpec{PodCIDRs: []string{addr.IPv4().NodePods.String()}, PodCIDR: addr.IPv4().NodePods.String()},
	}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := c.server.KubeconfigOf("system:kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	c.d = rig.Start(t, c.h.Node, "--kubeconfig", kubeconfig, "--manifests", "", "--cluster-cidr", clusterRanges())
	return c
}

func clusterRanges() string {
	return fmt.Sprintf("%s,%s", addr.IPv4().ClusterCIDR, addr.IPv6().ClusterCIDR)
}

// stranger is the address of somebody outside in a range that is no ServiceCIDR yet.
func stranger(p addr.Plan) netip.Addr { return addr.Nth(p.SecondServiceCIDR, 9) }

// vip is the address of the Service web: none that the API server gives out by itself.
func vip(p addr.Plan) netip.Addr { return addr.Nth(p.ServiceCIDR, 11) }

// web is a Service of both families whose port 80 leads to 8080.
func web() *corev1.Service {
	families := corev1.IPFamilyPolicyRequireDualStack
	ips := []string{vip(addr.IPv4()).String(), vip(addr.IPv6()).String()}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{
			ClusterIP: ips[0], ClusterIPs: ips, IPFamilyPolicy: &families,
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			Ports:      []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
		},
	}
}

// sliceOf is a slice of web in a family, with these pods of the node ready.
func sliceOf(p addr.Plan, podNumbers ...int) *discoveryv1.EndpointSlice {
	name, port, proto, node, ready := "http", int32(8080), corev1.ProtocolTCP, addr.NodeName, true
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: sliceName(p), Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv6,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &proto}},
	}
	if p.VIP(0).Is4() {
		s.AddressType = discoveryv1.AddressTypeIPv4
	}
	for _, i := range podNumbers {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{p.Pod(i).String()}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return s
}

func sliceName(p addr.Plan) string {
	if p.VIP(0).Is4() {
		return "web-ipv4"
	}
	return "web-ipv6"
}

// create makes the Service web with these pods of both families.
func (c *cluster) create(t *testing.T, podNumbers ...int) {
	t.Helper()
	c.createService(t, web())
	for _, p := range addr.Both() {
		if _, err := c.client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), sliceOf(p, podNumbers...), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func (c *cluster) createService(t *testing.T, s *corev1.Service) {
	t.Helper()
	if _, err := c.client.CoreV1().Services("default").Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// service changes the Service web.
func (c *cluster) service(t *testing.T, change func(*corev1.Service)) {
	t.Helper()
	services := c.client.CoreV1().Services("default")
	s, err := services.Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	change(s)
	if _, err := services.Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// slices changes the slices of both families.
func (c *cluster) slices(t *testing.T, change func(p addr.Plan, s *discoveryv1.EndpointSlice)) {
	t.Helper()
	slices := c.client.DiscoveryV1().EndpointSlices("default")
	for _, p := range addr.Both() {
		s, err := slices.Get(t.Context(), sliceName(p), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		change(p, s)
		if _, err := slices.Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// endpoints makes these pods the endpoints of web.
func (c *cluster) endpoints(t *testing.T, podNumbers ...int) {
	t.Helper()
	c.slices(t, func(p addr.Plan, s *discoveryv1.EndpointSlice) { s.Endpoints = sliceOf(p, podNumbers...).Endpoints })
}

// remove deletes the Service web and its slices.
func (c *cluster) remove(t *testing.T) {
	t.Helper()
	err := c.client.CoreV1().Services("default").Delete(t.Context(), "web", metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range addr.Both() {
		err = errors.Join(err, c.client.DiscoveryV1().EndpointSlices("default").Delete(t.Context(), sliceName(p), metav1.DeleteOptions{}))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// elements gives how much each set holds, without empty ones.
func (c *cluster) elements() map[string]float64 {
	sizes := c.d.Series("onerule_elements") // by family and set
	maps.DeleteFunc(sizes, func(_ string, n float64) bool { return n == 0 })
	return sizes
}

// packet is one of a client to port 80 of an address.
func packet(client oracle.Packet, to netip.Addr) oracle.Packet {
	client.Dst, client.Protocol, client.Port = to, model.TCP, 80
	return client
}

// reached is what must come of a client's packets to web with these pods.
func reached(client oracle.Packet, p addr.Plan, podNumbers ...int) oracle.Outcome {
	want := oracle.Outcome{Verdict: oracle.Reached}
	for _, i := range podNumbers {
		want.Arrivals = append(want.Arrivals, oracle.Arrival{Endpoint: netip.AddrPortFrom(p.Pod(i), 8080), Masqueraded: client.From != oracle.Pod})
	}
	return want
}

// becomes waits until an address shows what is wanted to a pod, the node and somebody
// outside, in both families, and checks that it stays so.
func (c *cluster) becomes(t *testing.T, what string, address func(addr.Plan) netip.Addr, want func(oracle.Packet, addr.Plan) oracle.Outcome) {
	t.Helper()
	for _, p := range addr.Both() {
		for _, client := range hosts.Clients(p) {
			if client.From == oracle.Outside && address(p) == stranger(p) {
				continue // who has it himself
			}
			patience := hosts.Lost
			if want(client, p).Verdict == oracle.Reached {
				patience = hosts.Patience
			}
			see := func() error {
				c.h.Forget(t)
				wrong, err := c.h.Check(packet(client, address(p)), want(client, p), patience)
				if err == nil && wrong != "" {
					err = fmt.Errorf("from %s to %s: %s", client.From, address(p), wrong)
				}
				return err
			}
			rig.Eventually(t, what, see)
			if want(client, p).Verdict != oracle.Reached {
				continue
			}
			for range 10 {
				if err := see(); err != nil {
					t.Errorf("%s, and then: %v", what, err)
				}
			}
		}
	}
}

func (c *cluster) answers(t *testing.T, what string, podNumbers ...int) {
	t.Helper()
	c.becomes(t, what, vip, func(client oracle.Packet, p addr.Plan) oracle.Outcome { return reached(client, p, podNumbers...) })
}

func (c *cluster) is(t *testing.T, what string, address func(addr.Plan) netip.Addr, verdict oracle.Verdict) {
	t.Helper()
	c.becomes(t, what, address, func(oracle.Packet, addr.Plan) oracle.Outcome { return oracle.Outcome{Verdict: verdict} })
}

// written gives how many elements the daemon has written since it began.
func (c *cluster) written() float64 {
	return c.d.Metric("onerule_nft_operations_total", "operation", "add") + c.d.Metric("onerule_nft_operations_total", "operation", "delete")
}

// allowed fails if the daemon was not allowed something, in a part of its log. A server
// that comes up forbids everything for a moment: that is no fault.
func allowed(t *testing.T, log string) {
	t.Helper()
	for line := range strings.Lines(log) {
		if strings.Contains(strings.ToLower(line), "forbidden") || strings.Contains(line, "does not offer") {
			t.Errorf("the daemon said: %s", line)
		}
	}
}

// traffic connects to web from a pod, every few milliseconds in both families, until
// stop is called, which gives how often, and what failed.
func (c *cluster) traffic(ctx context.Context) (stop func() (int, error)) {
	ctx, cancel := context.WithCancel(ctx)
	type result struct {
		connects int
		err      error
	}
	done := make(chan result, 1)
	go func() { // ends with ctx
		var r result
		for ctx.Err() == nil {
			for _, p := range addr.Both() {
				client := hosts.Clients(p)[0]
				wrong, err := c.h.Check(packet(client, vip(p)), reached(client, p, 1), hosts.Patience)
				if r.connects++; err == nil && wrong != "" {
					err = errors.New(wrong)
				}
				r.err = errors.Join(r.err, err)
			}
		}
		done <- r
	}()
	return func() (int, error) {
		cancel()
		r := <-done
		return r.connects, r.err
	}
}
