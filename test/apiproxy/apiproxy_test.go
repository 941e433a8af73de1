// Package apiproxy_test runs the real daemon against a real API server and sends real
// packets: what people do with kubectl must be seen by clients.
package apiproxy_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"onerule/test/addr"
	"onerule/test/oracle"
	"onerule/test/rig"
)

func TestClientsSeeWhatTheAPISays(t *testing.T) {
	c := newCluster(t)
	c.is(t, "an address that no Service holds is silent", vip, oracle.Dropped)
	before := c.elements()
	for _, step := range []struct {
		name string
		test func(*testing.T, *cluster)
	}{
		{"the API server's own Service answers", testOwnService},
		{"endpoints come and go", testEndpoints},
		{"ports change", testPorts},
		{"A1.7: ExternalName and back", testExternalName},
		{"A1.8: another proxy's label and back", testOtherProxy},
		{"A1.9: a slice with the headless label and without", testHeadlessSlice},
		{"A14.23: a ServiceCIDR comes and goes", testServiceCIDR},
		{"the Node changes", testNode},
		{"R12: deleted and made a hundred times", testDeletedAndMade},
		{"an outage of the API server", testOutage},
		{"R76338: an outage of the way to it, in silence", testSilentOutage},
		{"A14.21: its own role is as wide as what it asks for", testRole},
		{"A14.22: in a pod its service account is enough", testServiceAccount},
		{"I6: a restart of the daemon writes nothing", testRestart},
		{"routes between nodes follow the Nodes", testPodNetwork},
	} {
		t.Run(step.name, func(t *testing.T) { step.test(t, c) })
		rig.Eventually(t, "the tables hold what they did before: "+step.name, func() error {
			if diff := cmp.Diff(before, c.elements()); diff != "" {
				return fmt.Errorf("elements (-before +after): %s", diff)
			}
			return nil
		})
	}
}

// Through its ClusterIP a pod reaches the API server itself.
func testOwnService(t *testing.T, c *cluster) {
	own := netip.AddrPortFrom(addr.IPv4().ServiceCIDR.Addr().Next(), 443)
	err := c.h.Pods[0].Do(func() error {
		conn, err := net.DialTimeout("tcp", own.String(), 400*time.Millisecond)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		t.Error(err)
	}
}

func testEndpoints(t *testing.T, c *cluster) {
	c.createService(t, web())
	c.is(t, "a new Service refuses", vip, oracle.Refused)
	for _, p := range addr.Both() {
		if _, err := c.client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), sliceOf(p, 1), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.answers(t, "its first endpoint answers", 1)
	c.endpoints(t, 1, 2)
	c.answers(t, "both endpoints answer", 1, 2)
	c.endpoints(t, 2)
	c.answers(t, "only the one that stayed answers", 2)
	c.endpoints(t)
	c.is(t, "without endpoints it refuses", vip, oracle.Refused)
	c.remove(t)
	c.is(t, "deleted it is silent", vip, oracle.Dropped)
}

func testPorts(t *testing.T, c *cluster) {
	c.create(t, 1)
	c.answers(t, "it answers", 1)
	c.service(t, func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 })
	c.is(t, "the old port refuses", vip, oracle.Refused)
	c.service(t, func(s *corev1.Service) { s.Spec.Ports[0].Port = 80 })
	c.answers(t, "the port is back", 1)
	c.remove(t)
}

func testExternalName(t *testing.T, c *cluster) {
	c.create(t, 1)
	c.answers(t, "it answers", 1)
	c.service(t, func(s *corev1.Service) {
		s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com", Ports: s.Spec.Ports}
	})
	c.is(t, "as ExternalName it is silent", vip, oracle.Dropped)
	c.service(t, func(s *corev1.Service) { s.Spec = web().Spec })
	c.answers(t, "with a ClusterIP it answers again", 1)
	c.remove(t)
}

func testOtherProxy(t *testing.T, c *cluster) {
	const label = "service.kubernetes.io/service-proxy-name"
	c.create(t, 1)
	c.answers(t, "it answers", 1)
	c.service(t, func(s *corev1.Service) { s.Labels = map[string]string{label: "other"} })
	c.is(t, "labelled for another proxy it is silent", vip, oracle.Dropped)
	c.service(t, func(s *corev1.Service) { s.Labels = nil })
	c.answers(t, "without the label it answers again", 1)
	c.remove(t)
}

func testHeadlessSlice(t *testing.T, c *cluster) {
	const label = "service.kubernetes.io/headless"
	c.create(t, 1)
	c.answers(t, "it answers", 1)
	c.slices(t, func(_ addr.Plan, s *discoveryv1.EndpointSlice) { s.Labels[label] = "" })
	c.is(t, "its slices labelled headless, it refuses", vip, oracle.Refused)
	c.slices(t, func(_ addr.Plan, s *discoveryv1.EndpointSlice) { delete(s.Labels, label) })
	c.answers(t, "without the label it answers again", 1)
	c.remove(t)
}

func testServiceCIDR(t *testing.T, c *cluster) {
	cidrs := c.client.NetworkingV1().ServiceCIDRs()
	c.is(t, "an address of no range passes", stranger, oracle.Untouched)
	second := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "second"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{addr.IPv4().SecondServiceCIDR.String(), addr.IPv6().SecondServiceCIDR.String()}},
	}
	if _, err := cidrs.Create(t.Context(), second, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.is(t, "within a new ServiceCIDR it is silent", stranger, oracle.Dropped)
	if err := cidrs.Delete(t.Context(), "second", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.is(t, "it passes again", stranger, oracle.Untouched)
}

// A Node concerns no ClusterIP: it may not cost or break anything.
func testNode(t *testing.T, c *cluster) {
	c.create(t, 1)
	c.answers(t, "it answers", 1)
	before := c.written()
	nodes := c.client.CoreV1().Nodes()
	for _, zone := range []string{"zone-a", "zone-b"} {
		node, err := nodes.Get(t.Context(), addr.NodeName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		node.Labels[corev1.LabelTopologyZone] = zone
		if _, err := nodes.Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.answers(t, "it answers still", 1)
	if n := c.written() - before; n != 0 {
		t.Errorf("%v elements were written for a Node", n)
	}
	c.remove(t)
}

// The API server chooses the addresses: one that it must give out again at once it
// sometimes believes to be in use still.
func testDeletedAndMade(t *testing.T, c *cluster) {
	c.create(t, 1)
	c.answers(t, "it answers", 1)
	before, written := c.elements(), c.written()
	anew := web()
	anew.Spec.ClusterIP, anew.Spec.ClusterIPs = "", nil
	services := c.client.CoreV1().Services("default")
	var last *corev1.Service
	start := time.Now()
	for range 100 {
		err := services.Delete(t.Context(), "web", metav1.DeleteOptions{})
		if err == nil {
			last, err = services.Create(t.Context(), anew, metav1.CreateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("deleted and made 100 times in %s, %v elements written", time.Since(start).Round(time.Millisecond), c.written()-written)
	of := func(p addr.Plan) netip.Addr { return netip.MustParseAddr(last.Spec.ClusterIPs[familyIndex(p)]) }
	c.becomes(t, "it answers in the end", of, func(client oracle.Packet, p addr.Plan) oracle.Outcome { return reached(client, p, 1) })
	if c.written() == written {
		t.Error("nothing was written meanwhile: the test shows nothing")
	}
	if diff := cmp.Diff(before, c.elements()); diff != "" {
		t.Errorf("elements (-before +after): %s", diff)
	}
	c.remove(t)
}

// familyIndex is where the address of a family stands in the Service web.
func familyIndex(p addr.Plan) int {
	if p.VIP(0).Is4() {
		return 0
	}
	return 1
}

func testOutage(t *testing.T, c *cluster) {
	allowed(t, c.d.Log())
	c.create(t, 1)
	c.answers(t, "it answers", 1)
	stop := c.traffic(t.Context())
	c.server.Stop()
	<-time.After(2 * time.Second) // an outage lasts
	if err := c.server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	connects, err := stop()
	t.Logf("%d connects during the outage", connects)
	if err != nil {
		t.Errorf("during the outage: %v", err)
	}
	if connects < 100 {
		t.Errorf("only %d connects during the outage: the test shows nothing", connects)
	}
	// The daemon has not come back to the server yet, or is just about to.
	c.endpoints(t, 2)
	c.answers(t, "what was changed meanwhile arrives", 2)
	c.remove(t)
	c.is(t, "what was deleted afterwards goes", vip, oracle.Dropped)
}

func testRestart(t *testing.T, c *cluster) {
	c.create(t, 1, 2)
	c.answers(t, "it answers", 1, 2)
	c.d.Kill()
	// Listed when nobody is there to write: the daemon puts the rules for numbers of
	// endpoints in order every ten seconds.
	ruleset := c.h.Node.Run(t, "nft", "-s", "list", "ruleset")
	said := len(c.d.Log())
	c.d.Run()
	c.d.AwaitHealthy()
	if n := c.written(); n != 0 {
		t.Errorf("the daemon wrote %v elements after its restart", n)
	}
	for _, operation := range []string{"transaction", "ruleset"} {
		if n := c.d.Metric("onerule_nft_operations_total", "operation", operation); n != 0 {
			t.Errorf("the daemon did %v operations of kind %s after its restart", n, operation)
		}
	}
	if diff := cmp.Diff(ruleset, c.h.Node.Run(t, "nft", "-s", "list", "ruleset")); diff != "" {
		t.Errorf("ruleset (-before +after): %s", diff)
	}
	c.answers(t, "it answers after a restart", 1, 2)
	c.endpoints(t, 1)
	c.answers(t, "and follows changes", 1)
	c.remove(t)
	allowed(t, c.d.Log()[said:])
}
