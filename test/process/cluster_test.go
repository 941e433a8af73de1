package process_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"onerule/test/addr"
	"onerule/test/apiserver"
	"onerule/test/hosts"
	"onerule/test/oracle"
	"onerule/test/rig"
)

// healthNodePort is where load balancers ask for web.
const healthNodePort = 30900

// A cluster is a world whose objects are in an API server outside.
type cluster struct {
	*world
	client     kubernetes.Interface
	kubeconfig string
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{world: newWorld(t)}
	server := apiserver.Start(t, c.h.Outside, apiserver.Options{
		ServiceCIDRs: []netip.Prefix{addr.IPv4().ServiceCIDR, addr.IPv6().ServiceCIDR},
		Address:      addr.IPv4().Outside(),
	})
	var err error
	if c.client, err = kubernetes.NewForConfig(server.Config()); err != nil {
		t.Fatal(err)
	}
	if c.kubeconfig, err = server.KubeconfigOf("system:kube-proxy"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.CoreV1().Services("default").Create(t.Context(), balanced(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, p := range addr.Both() {
		if _, err := c.client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), balancedSlice(p), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// vip is an address that the API server gives to nobody by itself.
func vip(p addr.Plan) netip.Addr { return addr.Nth(p.ServiceCIDR, 11) }

// balanced is web of the API, with a load balancer that asks where its endpoints are.
func balanced() *corev1.Service {
	both := corev1.IPFamilyPolicyRequireDualStack
	ips := []string{vip(addr.IPv4()).String(), vip(addr.IPv6()).String()}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: ips[0], ClusterIPs: ips, IPFamilyPolicy: &both,
			IPFamilies:            []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, HealthCheckNodePort: healthNodePort,
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, NodePort: nodePort, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(target)}},
		},
	}
}

func balancedSlice(p addr.Plan) *discoveryv1.EndpointSlice {
	name, port, proto, node, ready := "http", int32(target), corev1.ProtocolTCP, addr.NodeName, true
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-" + family(p), Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv6,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &proto}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{p.Pod(1).String()}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		}},
	}
	if p.Node().Is4() {
		s.AddressType = discoveryv1.AddressTypeIPv4
	}
	return s
}

func (c *cluster) daemon(t *testing.T, args ...string) *rig.Daemon {
	t.Helper()
	return c.world.daemon(t, append([]string{"--kubeconfig", c.kubeconfig, "--manifests", ""}, args...)...)
}

// toService is a packet of the client pod to the Service of the API.
func toService(p addr.Plan) oracle.Packet {
	packet := toVIP(p)
	packet.Dst = vip(p)
	return packet
}

// address makes the Node say these addresses, and makes the Node if there is none.
func (c *cluster) address(t *testing.T, of func(addr.Plan) netip.Addr) {
	t.Helper()
	nodes := c.client.CoreV1().Nodes()
	node, err := nodes.Get(t.Context(), addr.NodeName, metav1.GetOptions{})
	if err != nil {
		node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: addr.NodeName}}
		if node, err = nodes.Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	node.Status.Addresses = nil
	for _, p := range addr.Both() {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: of(p).String()})
	}
	if _, err := nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// What the daemon makes of a Node that is not there, comes, changes, and goes.
func TestInACluster(t *testing.T) {
	c := newCluster(t)
	c.withNode(t)
	c.withEvents(t)
}

func (c *cluster) withNode(t *testing.T) {
	d := c.daemon(t, "--nodeport-addresses=primary")
	d.Run()
	t.Run("R83791: without a Node object Services work, with loopback as the node's address", func(t *testing.T) {
		for _, p := range addr.Both() {
			c.answered(t, toService(p), toNode(p, p.Node()), toNode(p, p.NodeBetween()))
		}
		if code, body, err := d.Get(healthPort, "/healthz"); err != nil || code != 503 || !strings.Contains(body, `"nodeEligible":false,"healthy":true`) {
			t.Errorf("/healthz: %d %s %v, want 503 for the node alone", code, body, err)
		}
	})
	pid := d.Pid()
	t.Run("A14.14: the node's addresses are those of the Node", func(t *testing.T) {
		c.address(t, addr.Plan.Node)
		d.AwaitHealthy()
		c.openAt(t, addr.Plan.Node, addr.Plan.NodeBetween)
	})
	t.Run("A10.8: when they change, NodePorts follow", func(t *testing.T) {
		c.address(t, addr.Plan.NodeBetween)
		c.openAt(t, addr.Plan.NodeBetween, addr.Plan.Node)
		if status(t, d, "Pid") != fmt.Sprint(pid) {
			t.Error("it is another process")
		}
	})
	t.Run("A10.8: when the Node is deleted the process ends, and Services work on", func(t *testing.T) {
		if err := c.client.CoreV1().Nodes().Delete(t.Context(), addr.NodeName, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if code, last := d.Ended(), d.LastLine(); code != 1 || last != "oneruled: node node was deleted" {
			t.Errorf("exit code %d, %q", code, last)
		}
		for _, p := range addr.Both() {
			if err := c.reaches(toService(p)); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("A14.14: the bind address comes before the Node's", func(t *testing.T) {
		c.address(t, addr.Plan.Node)
		bound := c.daemon(t, "--nodeport-addresses=primary", "--bind-address", addr.IPv4().NodeBetween().String())
		bound.Run()
		bound.AwaitHealthy()
		p := addr.IPv4()
		c.answered(t, toNode(p, p.NodeBetween()))
		if seen, err := c.h.Probe(toNode(p, p.Node()), hosts.Lost); err != nil || seen.Verdict == hosts.Answered {
			t.Errorf("at the Node's address: %s (%v)", seen, err)
		}
	})
}

// openAt waits until NodePorts are at one address of the node, and checks that they are
// not at another one.
func (c *cluster) openAt(t *testing.T, one, other func(addr.Plan) netip.Addr) {
	t.Helper()
	for _, p := range addr.Both() {
		c.answered(t, toNode(p, one(p)))
		rig.Eventually(t, fmt.Sprintf("no NodePort is at %s", other(p)), func() error {
			seen, err := c.h.Probe(toNode(p, other(p)), hosts.Lost)
			if err == nil && seen.Verdict == hosts.Answered {
				err = fmt.Errorf("there is: %s", seen)
			}
			return err
		})
	}
}

func (c *cluster) withEvents(t *testing.T) {
	c.address(t, addr.Plan.Node)
	t.Run("A14.19: the start, and ports that are taken", func(t *testing.T) {
		c.forget(t)
		for _, port := range []int{healthPort, metricsPort, healthNodePort} {
			take(t, c.h.Node, port)
		}
		c.daemon(t).Run()
		c.told(t, "Normal Starting of Node node: oneruled begins to serve")
		c.told(t, "Warning FailedToStartProxierHealthcheck of Node node: healthz server: listen tcp")
		c.told(t, "Warning FailedToStartMetricServer of Node node: metrics server: listen tcp")
		c.told(t, "Warning FailedToStartServiceHealthcheck of Service web: node node failed to start healthcheck \"default/web\" on port 30900: listen tcp")
	})
	t.Run("R8: an expression that the kernel lacks", func(t *testing.T) {
		c.forget(t)
		d := c.daemon(t)
		aroundNft(t, d, kernelWithout("fib "))
		d.Run()
		c.told(t, "Warning KernelLacksNftables of Node node: the kernel lacks the expression fib of nftables")
	})
	t.Run("R5525: a kernel that cannot balance", func(t *testing.T) {
		c.forget(t)
		d := c.daemon(t)
		aroundNft(t, d, kernelWithout("numgen"))
		d.Run()
		if code := d.Ended(); code != 1 {
			t.Errorf("exit code %d, want 1", code)
		}
		c.told(t, "Warning NodeNotServed of Node node: serve IPv4, the primary IP family: nftables for IPv4 lack numgen")
	})
}

func (c *cluster) forget(t *testing.T) {
	t.Helper()
	events := c.client.EventsV1().Events(metav1.NamespaceDefault)
	if err := events.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
}

// told waits for an event that begins like this, by kube-proxy's name.
func (c *cluster) told(t *testing.T, want string) {
	t.Helper()
	rig.Eventually(t, "an event "+want, func() error {
		list, err := c.client.EventsV1().Events(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var all []string
		for _, e := range list.Items {
			text := fmt.Sprintf("%s %s of %s %s: %s", e.Type, e.Reason, e.Regarding.Kind, e.Regarding.Name, e.Note)
			if byUs(e) && strings.HasPrefix(text, want) {
				return nil
			}
			all = append(all, text)
		}
		return fmt.Errorf("there are only %q", all)
	})
}

func byUs(e eventsv1.Event) bool {
	return e.ReportingController == "kube-proxy" && e.ReportingInstance == "kube-proxy-"+addr.NodeName
}
