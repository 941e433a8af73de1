package source

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"onerule/test/apiserver"
	"onerule/test/netns"
	"onerule/test/rig"
)

// A real API server decides what the account of our manifests may do.
func TestTheClusterIsToldThatTheNetworkIsThere(t *testing.T) {
	netns.Privileged(t)
	s := apiserver.Start(t, netns.New(t, "cluster"), apiserver.Options{})
	admin, err := kubernetes.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	if node, err = admin.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	node.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionFalse},
		{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: "NoRouteCreated"},
	}
	if _, err := admin.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	logged, serving := make(chan string, 100), make(chan struct{})
	a := Available{
		Client: clientOf(t, s, "system:serviceaccount:kube-system:oneruled"), Node: "n1", Wait: 50 * time.Millisecond,
		Log: funcr.New(func(_, args string) { logged <- args }, funcr.Options{}),
	}
	ctx, done := t.Context(), make(chan error, 1)
	go func() { done <- a.Run(ctx, serving) }() // ends with the test's context
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	close(serving)
	select {
	case text := <-logged:
		if !strings.Contains(text, "forbidden") {
			t.Errorf("logged %s", text)
		}
	case <-time.After(20 * time.Second):
		t.Error("a refusal is not logged")
	}
	allow(t, admin)
	rig.Eventually(t, "the condition is set, and no other touched", func() error {
		n, err := admin.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
		if err != nil {
			return err
		}
		var got []string
		for _, c := range n.Status.Conditions {
			got = append(got, fmt.Sprintf("%s %s %s", c.Type, c.Status, c.Reason))
		}
		if fmt.Sprint(got) != "[Ready False  NetworkUnavailable False OneruleServes]" {
			return fmt.Errorf("conditions %q", got)
		}
		return nil
	})
	if len(logged) > 0 {
		t.Errorf("logged more: %s", <-logged)
	}
}

func clientOf(t *testing.T, s *apiserver.Server, user string) *Client {
	t.Helper()
	file, err := s.KubeconfigOf(user)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		t.Fatal(err)
	}
	config.Dial = s.Config().Dial
	c, err := newClient(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// allow creates what the manifest says.
func allow(t *testing.T, admin kubernetes.Interface) {
	t.Helper()
	b, err := os.ReadFile("../../install/rbac-network.yaml")
	if err != nil {
		t.Fatal(err)
	}
	role, binding, _ := strings.Cut(string(b), "\n---\n")
	var r rbacv1.ClusterRole
	var to rbacv1.ClusterRoleBinding
	if err := errors.Join(yaml.UnmarshalStrict([]byte(role), &r), yaml.UnmarshalStrict([]byte(binding), &to)); err != nil {
		t.Fatal(err)
	}
	_, err = admin.RbacV1().ClusterRoles().Create(t.Context(), &r, metav1.CreateOptions{})
	_, bindErr := admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &to, metav1.CreateOptions{})
	if err := errors.Join(err, bindErr); err != nil {
		t.Fatal(err)
	}
}
