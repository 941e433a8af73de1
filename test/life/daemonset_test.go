package life_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"onerule/test/cluster"
)

// kubeProxy is its DaemonSet as kubeadm makes it, but for where the program comes from.
const kubeProxy = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy, namespace: kube-system, labels: {k8s-app: kube-proxy}}
spec:
  selector: {matchLabels: {k8s-app: kube-proxy}}
  updateStrategy: {type: RollingUpdate}
  template:
    metadata: {labels: {k8s-app: kube-proxy}}
    spec:
      hostNetwork: true
      automountServiceAccountToken: false
      priorityClassName: system-node-critical
      nodeSelector: {kubernetes.io/os: linux}
      tolerations: [{operator: Exists}]
      volumes:
      - {name: program, hostPath: {path: PROGRAM}}
      - {name: configuration, hostPath: {path: DIR}}
      - {name: protocols, configMap: {name: protocols}}
      containers:
      - name: kube-proxy
        image: onerule:dev # for its nft
        imagePullPolicy: Never
        command: [/program, --config=DIR/$(NODE_NAME)/kube-proxy.yaml, --hostname-override=$(NODE_NAME)]
        env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        securityContext: {privileged: true, runAsUser: 0}
        volumeMounts:
        - {name: program, mountPath: /program, readOnly: true}
        - {name: configuration, mountPath: DIR, readOnly: true}
        - {name: protocols, mountPath: /etc/protocols, subPath: protocols}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: protocols, namespace: kube-system}
data: # which our image does not need: without names nft lists numbers, and kube-proxy takes what it has written for another's
  protocols: |
    tcp 6 TCP
    udp 17 UDP
    sctp 132 SCTP
`

// Services move from the DaemonSet of kube-proxy, and back on one node, by the commands of
// docs/migrate.md, while connections come and stay; pods stay with their CNI plugin.
func TestServicesMoveFromTheDaemonSetOfKubeProxy(t *testing.T) {
	w := newWorld(t, cluster.Options{With: cluster.KubeProxy})
	apps := w.deploy(t)
	before := w.lives(t)
	w.prepareMove(t)
	w.kubeProxyInPods(t)
	tr := w.run(t, w.flows(t, apps))
	goOn(t, 3*time.Second)

	w.kubectl(t, "-n", "kube-system", "patch", "daemonset", "kube-proxy", "--type", "merge", "-p", documentedPatch(t))
	w.rolledOut(t, "kube-proxy")
	w.install(t, "podNetwork.enabled=false", "nodeSelector.onerule=yes")
	w.servicesMove(t, "n1")
	w.servicesMove(t, "n2")
	w.servicesBack(t, "n2")
	w.servicesMove(t, "n2")
	w.install(t, "podNetwork.enabled=false")
	w.rolledOut(t, "oneruled")
	w.kubectl(t, "-n", "kube-system", "delete", "daemonset", "kube-proxy")
	w.awaitNoKubeProxy(t, "n1", "n2")
	goOn(t, 5*time.Second)
	tr.judge(t)
	w.samePods(t, before)
	w.newPods(t, before, 8, "/var/lib/cni/networks/reference")
}

// kubeProxyInPods replaces the processes that the cluster began with.
func (w *world) kubeProxyInPods(t *testing.T) {
	t.Helper()
	for _, n := range w.Nodes() {
		w.stop(t, n.Name(), "kube-proxy")
	}
	manifest := strings.NewReplacer("PROGRAM", w.Pieces().Program("kube-proxy"), "DIR", w.Dir()).Replace(kubeProxy)
	if err := w.Apply(t.Context(), manifest); err != nil {
		t.Fatal(err)
	}
	w.rolledOut(t, "kube-proxy")
	for _, n := range w.Nodes() {
		w.awaitKubeProxy(t, n.Name())
	}
}

// rolledOut waits as people do.
func (w *world) rolledOut(t *testing.T, daemonSet string) {
	t.Helper()
	w.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/"+daemonSet, "--timeout=2m")
}

// documentedPatch is the one of docs/migrate.md that keeps kube-proxy off some nodes.
func documentedPatch(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/migrate.md")
	if err != nil {
		t.Fatal(err)
	}
	patch := regexp.MustCompile(`patch daemonset kube-proxy --type merge -p '(.*)'\n`).FindSubmatch(text)
	if patch == nil {
		t.Fatal("docs/migrate.md has no patch for kube-proxy")
	}
	return string(patch[1])
}

// servicesMove moves one node.
func (w *world) servicesMove(t *testing.T, node string) {
	t.Helper()
	w.kubectl(t, "label", "node", node, "onerule=yes")
	w.rolledOut(t, "oneruled")
	w.rolledOut(t, "kube-proxy")
	eventually(t, "only oneruled serves "+node, 90*time.Second, func() error {
		ours, err := w.onerule(t, node)
		if err == nil && (len(ours) != 1 || !ready(ours[0])) {
			err = fmt.Errorf("its pod is not ready: %d", len(ours))
		}
		theirs, errTheirs := w.kubeProxies(t, node)
		if errTheirs == nil && len(theirs) > 0 {
			errTheirs = fmt.Errorf("kube-proxy's pod is still there: %s", theirs[0].Name)
		}
		return errors.Join(err, errTheirs)
	})
	w.awaitNoKubeProxy(t, node)
	goOn(t, 5*time.Second)
}

// servicesBack moves one node back.
func (w *world) servicesBack(t *testing.T, node string) {
	t.Helper()
	w.kubectl(t, "label", "node", node, "onerule-")
	w.rolledOut(t, "kube-proxy")
	eventually(t, "the daemon of "+node+" has ended", time.Minute, func() error {
		if pid, err := w.daemon(node); err == nil {
			return fmt.Errorf("process %d runs", pid)
		}
		return nil
	})
	w.awaitKubeProxy(t, node)
	w.deleteTables(t, node)
	goOn(t, 5*time.Second)
}

// kubeProxies gives its pods on a node.
func (w *world) kubeProxies(t *testing.T, node string) ([]corev1.Pod, error) {
	all, err := w.podsOf(t.Context(), "kube-system", "k8s-app=kube-proxy")
	var here []corev1.Pod
	for _, p := range all {
		if p.Spec.NodeName == node {
			here = append(here, p)
		}
	}
	return here, err
}

// awaitKubeProxy waits until kube-proxy has written its rules.
func (w *world) awaitKubeProxy(t *testing.T, node string) {
	t.Helper()
	written := regexp.MustCompile(`(?m)^kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} [1-9]`)
	eventually(t, "kube-proxy serves "+node, time.Minute, func() error {
		transport := &http.Transport{DialContext: w.Node(node).Dial, DisableKeepAlives: true}
		answer, err := (&http.Client{Timeout: 2 * time.Second, Transport: transport}).Get("http://127.0.0.1:10249/metrics")
		if err != nil {
			return err
		}
		text, err := io.ReadAll(answer.Body)
		if err == nil && !written.Match(text) {
			err = errors.New("it has written nothing yet")
		}
		return errors.Join(err, answer.Body.Close(), w.haveKubeProxy(node))
	})
}
