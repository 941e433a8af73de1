package network_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"onerule/test/apiserver"
	"onerule/test/netns"
	"onerule/test/rig"
	"onerule/test/wired"
)

// A cluster keeps pods off a node of some clouds until somebody says that its network is
// there.
func TestTheClusterIsToldWhenPodsAreConnected(t *testing.T) {
	ns := wired.Quiet(t, "node")
	netns.Wire(t, ns, "eth0", wired.Quiet(t, "router"), "eth0")
	ns.Addr(t, "eth0", "172.16.1.1/24", "fd00:16:1::1/64")
	s := apiserver.Start(t, ns, apiserver.Options{Address: addrs("172.16.1.1")[0]})
	admin, err := kubernetes.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	nodes := admin.CoreV1().Nodes()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{PodCIDR: "10.1.1.0/24", PodCIDRs: []string{"10.1.1.0/24"}}}
	if n, err = nodes.Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.16.1.1"}}
	if _, err := nodes.UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	told := func() (string, error) {
		n, err := nodes.Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		list := ""
		for _, c := range n.Status.Conditions {
			list += fmt.Sprint(c.Type, " ", c.Status)
		}
		return list, nil
	}
	ns.Run(t, "nft", "add table ip foreign; add chain ip foreign f { type filter hook forward priority 0; policy drop; }")
	state := t.TempDir()
	d := rig.New(t, ns, "--manifests", "", "--kubeconfig", s.Kubeconfig(), "--hostname-override", "a", "--pod-network",
		"--cni-state", state, "--network-status-file", state+"/network.json", "--cluster-cidr", "10.1.0.0/16")
	d.Run()
	d.AwaitHealthy()
	rig.Eventually(t, "the plugin is told of the foreign chain", func() error { return conditions(state+"/network.json", 1) })
	if got, err := told(); err != nil || got != "" {
		t.Errorf("while nothing of pods is forwarded the cluster is told %q, %v", got, err)
	}
	ns.Run(t, "nft", "delete table ip foreign")
	rig.Eventually(t, "the cluster is told", func() error {
		if got, err := told(); err != nil || got != "NetworkUnavailable False" {
			return fmt.Errorf("conditions %q, %w", got, err)
		}
		return nil
	})
}
