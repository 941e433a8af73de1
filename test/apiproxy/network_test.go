package apiproxy_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"onerule/test/addr"
	"onerule/test/rig"
)

// Routes follow the Nodes of the API server, and people are told of bad ones, with the role
// that we install.
func testPodNetwork(t *testing.T, c *cluster) {
	kubeconfig, err := c.server.KubeconfigOf(account)
	if err != nil {
		t.Fatal(err)
	}
	c.nodeAt(t, addr.NodeName, addr.IPv4().NodePods.String(), addr.IPv4().Node().String())
	c.nodeAt(t, "other", "10.77.0.0/24", addr.IPv4().Outside().String())
	c.d.Stop()
	usual := c.d
	t.Cleanup(func() {
		c.d.Stop()
		c.h.Node.Run(t, rig.Binary(t, "oneruled", "onerule/daemon/oneruled"), "--cleanup")
		c.d = usual
		c.d.Run()
		c.d.AwaitHealthy()
	})
	c.d = rig.New(t, c.h.Node, "--kubeconfig", kubeconfig, "--manifests", "", "--cluster-cidr", clusterRanges(),
		"--pod-network", "--cni-state", t.TempDir(), "--network-status-file", filepath.Join(t.TempDir(), "network.json"))
	c.d.Run()
	c.d.AwaitHealthy()
	c.routes(t, "10.77.0.0/24 via "+addr.IPv4().Outside().String(), true)

	c.nodeAt(t, "worse", "10.77.0.128/25", addr.IPv4().Outside().String())
	c.awaitEvent(t, "NodeNotConnected", 1)
	c.routes(t, "10.77.0.0/24 via "+addr.IPv4().Outside().String(), true)

	c.h.Node.Run(t, "ip", "route", "del", "10.77.0.0/24")
	c.awaitEvent(t, "NetworkChangedByOthers", 1)
	c.routes(t, "10.77.0.0/24 via "+addr.IPv4().Outside().String(), true)

	for _, name := range []string{"worse", "other"} {
		if err := c.client.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.routes(t, "10.77.0.", false)
	c.nodeAt(t, addr.NodeName, addr.IPv4().NodePods.String(), "")
	// This role is kube-proxy's: it may not say that the network is there, which
	// install/rbac-network.yaml allows, and nothing else hangs on that.
	var others []string
	for line := range strings.Lines(c.d.Log()) {
		if !strings.Contains(line, "NetworkUnavailable") {
			others = append(others, line)
		}
	}
	allowed(t, strings.Join(others, ""))
}

// nodeAt makes a Node have a range of pods and an address, or none.
func (c *cluster) nodeAt(t *testing.T, name, pods, at string) {
	t.Helper()
	nodes := c.client.CoreV1().Nodes()
	n, err := nodes.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		n, err = nodes.Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDR: pods, PodCIDRs: []string{pods}},
		}, metav1.CreateOptions{})
	}
	if err == nil {
		n.Status.Addresses = nil
		if at != "" {
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: at}}
		}
		_, err = nodes.UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// routes waits until there is such a route between nodes, or none any more.
func (c *cluster) routes(t *testing.T, text string, want bool) {
	t.Helper()
	rig.Eventually(t, fmt.Sprintf("a route %s: %t", text, want), func() error {
		out, err := c.h.Node.Output("ip", "route", "show", "proto", "112")
		if err == nil && strings.Contains(out, text) != want {
			err = fmt.Errorf("routes: %s", out)
		}
		return err
	})
}
