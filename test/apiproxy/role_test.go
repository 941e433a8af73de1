package apiproxy_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"onerule/test/addr"
	"onerule/test/rig"
)

// account is who oneruled is with the manifest that we install.
const account = "system:serviceaccount:kube-system:oneruled"

// An audit is what an API server was asked for.
type audit struct{ policy, log string }

func newAudit(t *testing.T) audit {
	t.Helper()
	dir := t.TempDir()
	a := audit{policy: filepath.Join(dir, "policy.yaml"), log: filepath.Join(dir, "audit.log")}
	text := "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata, users: [\"" + account + "\"]}]\n"
	if err := os.WriteFile(a.policy, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return a
}

// args make the API server note each request before it is answered.
func (a audit) args() []string {
	return []string{"--audit-policy-file=" + a.policy, "--audit-log-path=" + a.log, "--audit-log-mode=blocking-strict"}
}

// A request is a line of the audit's log.
type request struct {
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	Object     *struct {
		Group    string `json:"apiGroup"`
		Resource string `json:"resource"`
	} `json:"objectRef"`
	Response struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
}

// asked counts requests as "VERB RESOURCE.GROUP", and fails for those that were refused,
// those for no object, and those for Nodes of others.
func (a audit) asked(t *testing.T) map[string]int {
	t.Helper()
	text, err := os.ReadFile(a.log)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for line := range bytes.Lines(text) {
		var r request
		switch err := json.Unmarshal(line, &r); {
		case err != nil:
			t.Fatalf("read audit: %v: %s", err, line)
		case r.Object == nil:
			t.Errorf("it asks for %s", r.RequestURI)
			continue
		case r.Response.Code == 401 || r.Response.Code == 403:
			t.Errorf("it may not %s %s", r.Verb, r.RequestURI)
		case r.Object.Resource == "nodes" && !strings.Contains(r.RequestURI, "fieldSelector=metadata.name%3Dnode"):
			t.Errorf("it asks for more than its Node: %s", r.RequestURI)
		}
		counts[right(r.Verb, r.Object.Resource, r.Object.Group)]++
	}
	return counts
}

func right(verb, resource, group string) string {
	return strings.TrimSuffix(fmt.Sprintf("%s %s.%s", verb, resource, group), ".")
}

// rights are what a role allows, in the same words.
func rights(role *rbacv1.ClusterRole) []string {
	var list []string
	for _, rule := range role.Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					list = append(list, right(verb, resource, group))
				}
			}
		}
	}
	slices.Sort(list)
	return list
}

// install creates what the manifest says, and gives the role.
func (c *cluster) install(t *testing.T) *rbacv1.ClusterRole {
	t.Helper()
	f, err := os.Open("../../install/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	holder, role, binding := &corev1.ServiceAccount{}, &rbacv1.ClusterRole{}, &rbacv1.ClusterRoleBinding{}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(f))
	for _, of := range []any{holder, role, binding} {
		text, err := documents.Read()
		if err == nil {
			err = yaml.UnmarshalStrict(text, of)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if text, err := documents.Read(); !errors.Is(err, io.EOF) {
		t.Errorf("install/rbac.yaml has more than the test looks at: %s", text)
	}
	_, err = c.client.CoreV1().ServiceAccounts(holder.Namespace).Create(t.Context(), holder, metav1.CreateOptions{})
	if err == nil {
		_, err = c.client.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = c.client.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	c.awaitRights(t)
	return role
}

// awaitRights waits until the server has read the role.
func (c *cluster) awaitRights(t *testing.T) {
	t.Helper()
	ask := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:               account,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: "services"},
	}}
	rig.Eventually(t, "the role counts", func() error {
		answer, err := c.client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), ask, metav1.CreateOptions{})
		if err == nil && !answer.Status.Allowed {
			err = errors.New("not allowed")
		}
		return err
	})
}

// makeWay stops the usual daemon for the rest of the test.
func (c *cluster) makeWay(t *testing.T) {
	usual := c.d
	usual.Stop()
	t.Cleanup(func() {
		c.d = usual
		c.d.Run()
		c.d.AwaitHealthy()
	})
}

// With the role that we install the daemon does everything, and each right of it is one
// that it uses: with servers that stream their lists, and with those that do not.
func testRole(t *testing.T, c *cluster) {
	role := c.install(t)
	kubeconfig, err := c.server.KubeconfigOf(account)
	if err != nil {
		t.Fatal(err)
	}
	c.makeWay(t)
	taken := c.takePort(t)
	for _, streams := range []string{"true", "false"} {
		t.Setenv("KUBE_FEATURE_WatchListClient", streams)
		c.d = rig.New(t, c.h.Node, "--kubeconfig", kubeconfig, "--manifests", "", "--cluster-cidr", clusterRanges())
		c.d.Run()
		c.d.AwaitHealthy()
		c.create(t, 1)
		c.answers(t, "it answers", 1)
		c.endpoints(t, 2)
		c.answers(t, "and follows changes", 2)
		c.remove(t)
		c.tellsEvents(t, taken)
		c.d.Stop()
		allowed(t, c.d.Log())
	}
	counts := c.audit.asked(t)
	t.Logf("requests: %v", counts)
	if diff := cmp.Diff(rights(role), slices.Sorted(maps.Keys(counts))); diff != "" {
		t.Errorf("what it may do and what it asks for (-may +asks):\n%s", diff)
	}
}

// In a pod the daemon finds the server by the environment, and is who the token of its
// service account says.
func testServiceAccount(t *testing.T, c *cluster) {
	files := t.TempDir()
	token, err := c.client.CoreV1().ServiceAccounts("kube-system").CreateToken(t.Context(), "oneruled", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"token": []byte(token.Status.Token), "ca.crt": c.server.Config().CAData, "namespace": []byte("kube-system")} {
		if err := os.WriteFile(filepath.Join(files, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.makeWay(t)
	t.Setenv("ONERULE_BIN", inPod(t, files))
	server := netip.AddrPortFrom(addr.IPv4().Outside(), 6443)
	t.Setenv("KUBERNETES_SERVICE_HOST", server.Addr().String())
	t.Setenv("KUBERNETES_SERVICE_PORT", fmt.Sprint(server.Port()))
	c.d = rig.Start(t, c.h.Node, "--manifests", "", "--cluster-cidr", clusterRanges())
	c.create(t, 1)
	c.answers(t, "it answers", 1)
	c.remove(t)
	c.d.Stop()
	allowed(t, c.d.Log())
}

// inPod gives a directory with an oneruled that sees these files where a pod has those of
// its service account.
func inPod(t *testing.T, files string) string {
	t.Helper()
	const at = "/run/secrets/kubernetes.io/serviceaccount"
	binary, dir := rig.Binary(t, "oneruled", "onerule/daemon/oneruled"), t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\nexec unshare --mount sh -ec 'mount -t tmpfs pod /run; mkdir -p %[1]s; cp %[2]s/* %[1]s; exec %[3]s \"$@\"' sh \"$@\"\n", at, files, binary)
	if err := os.WriteFile(filepath.Join(dir, "oneruled"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// takePort listens on the node where the Service checked wants to be asked for its health.
func (c *cluster) takePort(t *testing.T) (port int32) {
	t.Helper()
	err := c.h.Node.Do(func() error {
		l, err := net.Listen("tcp", ":32000")
		if err == nil {
			t.Cleanup(func() { _ = l.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return 32000
}

// tellsEvents makes the daemon tell of a Service, and twice of its node.
func (c *cluster) tellsEvents(t *testing.T, taken int32) {
	t.Helper()
	none := false
	checked := web()
	checked.Name, checked.Spec.ClusterIP, checked.Spec.ClusterIPs = "checked", "", nil
	checked.Spec.Type, checked.Spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeLoadBalancer, &none
	checked.Spec.ExternalTrafficPolicy, checked.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, taken
	c.createService(t, checked)
	c.awaitEvent(t, "FailedToStartServiceHealthcheck", 1)
	for n := range int32(2) {
		c.flushRanges(t)
		c.awaitEvent(t, "RulesChangedByOthers", n+1)
	}
	c.awaitEvent(t, "Starting", 1)
	if err := c.client.CoreV1().Services("default").Delete(t.Context(), "checked", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.client.EventsV1().Events("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
}

// flushRanges empties a set of ours, once the daemon has filled it.
func (c *cluster) flushRanges(t *testing.T) {
	t.Helper()
	rig.Eventually(t, "the ranges of ClusterIPs are there", func() error {
		out, err := c.h.Node.Output("nft", "list", "set", "ip", "onerule", "service-cidrs")
		if err == nil && !strings.Contains(out, "elements") {
			err = errors.New(out)
		}
		return err
	})
	c.h.Node.Run(t, "nft", "flush", "set", "ip", "onerule", "service-cidrs")
}

// awaitEvent waits until an event has been seen so often.
func (c *cluster) awaitEvent(t *testing.T, reason string, count int32) {
	t.Helper()
	rig.Eventually(t, fmt.Sprintf("event %s is told %d times", reason, count), func() error {
		list, err := c.client.EventsV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Reason == reason && (count == 1 || e.Series != nil && e.Series.Count >= count) {
				return nil
			}
		}
		return fmt.Errorf("not among %d events", len(list.Items))
	})
}
