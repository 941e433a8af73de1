package takeover_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"onerule/daemon/model"
	"onerule/nft/takeover"
	"onerule/test/addr"
	"onerule/test/apiserver"
	"onerule/test/hosts"
	"onerule/test/oracle"
	"onerule/test/rig"
)

const (
	pods     = 3 // of the node; pod 0 is the client
	port     = 80
	nodePort = 30080
	target   = 8080
)

// A world is a node on which kube-proxy serves before oneruled does, and an API server
// outside that both listen to, as what the cluster lets every kube-proxy be.
type world struct {
	h          *hosts.Hosts
	client     kubernetes.Interface
	kubeconfig string
	kubeProxy  string // the executable
}

func newWorld(t *testing.T) *world {
	w := &world{h: hosts.New(t, pods, target), kubeProxy: kubeProxy(t)}
	server := apiserver.Start(t, w.h.Outside, apiserver.Options{
		ServiceCIDRs: []netip.Prefix{addr.IPv4().ServiceCIDR, addr.IPv6().ServiceCIDR},
		Address:      addr.IPv4().Outside(),
	})
	var err error
	if w.client, err = kubernetes.NewForConfig(server.Config()); err != nil {
		t.Fatal(err)
	}
	if w.kubeconfig, err = server.KubeconfigOf("system:kube-proxy"); err != nil {
		t.Fatal(err)
	}
	w.create(t)
	return w
}

func vip(p addr.Plan) netip.Addr { return addr.Nth(p.ServiceCIDR, 11) }

// endpoints are two pods of the node and one of the other node.
func endpoints(p addr.Plan) []netip.Addr { return []netip.Addr{p.Pod(1), p.Pod(2), p.OtherPod(0)} }

// create makes the Node, and a Service of both families with a NodePort.
func (w *world) create(t *testing.T) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: addr.NodeName}}
	node, err := w.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range addr.Both() {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: p.Node().String()})
	}
	if _, err := w.client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.CoreV1().Services("default").Create(t.Context(), service(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, p := range addr.Both() {
		if _, err := w.client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), slice(p), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func service() *corev1.Service {
	both := corev1.IPFamilyPolicyRequireDualStack
	ips := []string{vip(addr.IPv4()).String(), vip(addr.IPv6()).String()}
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, ClusterIP: ips[0], ClusterIPs: ips, IPFamilyPolicy: &both,
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		},
	}
	for _, proto := range protocols() {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: name(proto), Protocol: proto, Port: port, NodePort: nodePort, TargetPort: intstr.FromInt32(target)})
	}
	return s
}

func protocols() []corev1.Protocol { return []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} }

func name(p corev1.Protocol) string { return map[corev1.Protocol]string{"TCP": "tcp", "UDP": "udp"}[p] }

func slice(p addr.Plan) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-ipv6", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv6,
	}
	if p.Node().Is4() {
		s.Name, s.AddressType = "web-ipv4", discoveryv1.AddressTypeIPv4
	}
	for _, proto := range protocols() {
		port, name := int32(target), name(proto)
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port, Protocol: &proto})
	}
	ready := true
	for _, e := range endpoints(p) {
		node := addr.NodeName
		if p.OtherPods.Contains(e) {
			node = addr.OtherNodeName
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{e.String()}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return s
}

// touch changes a Service that nobody uses, so that every proxy has something to write.
func (w *world) touch(t *testing.T) {
	t.Helper()
	s := service()
	s.Name, s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.Type = "", "", nil, corev1.ServiceTypeClusterIP
	s.GenerateName = "unused-"
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = 0
	}
	if _, err := w.client.CoreV1().Services("default").Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// daemon makes an oneruled that is not started yet.
func (w *world) daemon(t *testing.T) *rig.Daemon {
	t.Helper()
	ranges := fmt.Sprintf("%s,%s", addr.IPv4().ClusterCIDR, addr.IPv6().ClusterCIDR)
	return rig.New(t, w.h.Node, "--kubeconfig", w.kubeconfig, "--manifests", "", "--cluster-cidr", ranges)
}

// clear leaves no rule on the node.
func (w *world) clear(t *testing.T) {
	t.Helper()
	w.remove(t)
	w.h.Node.Run(t, "nft", "flush", "ruleset")
	w.h.Forget(t)
}

// remove removes what of kube-proxy's is on the node, also when a test has ended.
func (w *world) remove(t *testing.T) {
	t.Helper()
	if err := w.h.Node.Do(func() error {
		l, err := takeover.Find(context.Background())
		return errors.Join(err, takeover.Remove(context.Background(), l))
	}); err != nil {
		t.Error(err)
	}
}

// left gives what of kube-proxy's is on the node.
func (w *world) left(t *testing.T) (l takeover.Leftovers) {
	t.Helper()
	if err := w.h.Node.Do(func() (err error) { l, err = takeover.Find(t.Context()); return err }); err != nil {
		t.Fatal(err)
	}
	return l
}

// A flow is a kind of packet to the Service, and whether its source is replaced.
type flow struct {
	packet      oracle.Packet
	masqueraded bool
}

// flows are those of every client to the ClusterIP and the NodePort in both families.
func flows(protocol model.Protocol) []flow {
	var list []flow
	for _, p := range addr.Both() {
		for _, client := range hosts.Clients(p) {
			client.Protocol = protocol
			toVIP, toNode := client, client
			toVIP.Dst, toVIP.Port = vip(p), port
			toNode.Dst, toNode.Port = p.Node(), nodePort
			list = append(list, flow{toVIP, client.From != oracle.Pod}, flow{toNode, true})
		}
	}
	return list
}

// wrong says what is wrong with an answer, nil if nothing is.
func (w *world) wrong(f flow, seen hosts.Seen) error {
	want, known := f.packet.Src, false
	for _, p := range addr.Both() {
		for _, e := range endpoints(p) {
			if seen.Endpoint == netip.AddrPortFrom(e, target) {
				known = p.Node().Is4() == f.packet.Dst.Is4()
				if f.masqueraded {
					want = facing(p, e)
				}
			}
		}
	}
	to := netip.AddrPortFrom(f.packet.Dst, f.packet.Port)
	switch {
	case seen.Verdict != hosts.Answered || !known:
		return fmt.Errorf("from %s to %s: %s", f.packet.From, to, seen)
	case seen.Peer.Addr() != want:
		return fmt.Errorf("from %s to %s: %s saw %s, want %s", f.packet.From, to, seen.Endpoint, seen.Peer, want)
	}
	return nil
}

// facing gives the node's address on the link to an endpoint, by which the endpoint
// sees masqueraded clients.
func facing(p addr.Plan, endpoint netip.Addr) netip.Addr {
	for i := range pods {
		if endpoint == p.Pod(i) {
			return p.PodGateway(i)
		}
	}
	return p.NodeBetween()
}
