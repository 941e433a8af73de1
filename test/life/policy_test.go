package life_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"onerule/test/cluster"
)

// policyProgram enforces network policies beside us: it decides for the first packet of a
// connection, which the kernel hands to it.
const policyProgram = "sigs.k8s.io/kube-network-policies/cmd"

const policyManifest = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: policies, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: policies}
rules:
- {apiGroups: [""], resources: [pods, namespaces, nodes], verbs: [list, watch]}
- {apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [list, watch]}
- {apiGroups: [events.k8s.io, ""], resources: [events], verbs: [create, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: policies}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: policies}
subjects: [{kind: ServiceAccount, name: policies, namespace: kube-system}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: policies, namespace: kube-system}
spec:
  selector: {matchLabels: {app: policies}}
  template:
    metadata: {labels: {app: policies}}
    spec:
      serviceAccountName: policies
      hostNetwork: true
      dnsPolicy: Default
      volumes: [{name: program, hostPath: {path: FOLDER}}]
      containers:
      - name: policies
        image: localhost/pause:1
        imagePullPolicy: Never
        command: [/program/policies, --hostname-override=$(NODE_NAME), --disable-nri, "--metrics-bind-address=127.0.0.1:9089", --v=2]
        env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        securityContext: {privileged: true}
        volumeMounts: [{name: program, mountPath: /program, readOnly: true}]
`

// clientManifest is somebody who asks; what it may follows from its role.
const clientManifest = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: ROLE}
spec:
  selector: {matchLabels: {app: ROLE}}
  template:
    metadata: {labels: {app: ROLE}}
    spec:
      POD
      containers:
      - name: client
        CONTAINER
`

const policy = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress]
  ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}], ports: [{port: 8080}]}]
`

// kube-network-policies beside onerule: who is allowed is answered, who is not is not, by
// the servers' ClusterIP and by their own addresses. It sees what Services' rules have
// decided, and what stands in its place afterwards does not hide the client.
func TestNetworkPoliciesBesideUs(t *testing.T) {
	w := newWorld(t, cluster.Options{With: cluster.Onerule})
	if err := w.Apply(t.Context(), w.servers(workload, buildServer(t))); err != nil {
		t.Fatal(err)
	}
	for _, role := range []string{"friend", "stranger"} {
		if err := w.Apply(t.Context(), w.servers(strings.ReplaceAll(clientManifest, "ROLE", role), buildServer(t))); err != nil {
			t.Fatal(err)
		}
	}
	a := w.awaitServers(t)
	friends, strangers := w.awaitPods(t, "friend", 2, time.Minute), w.awaitPods(t, "stranger", 2, time.Minute)
	w.startPolicies(t)
	eventually(t, "without a policy strangers are answered", time.Minute, func() error { return w.reach(t, strangers, a.web) })
	if err := w.Apply(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	eventually(t, "strangers are denied everything", time.Minute, func() error { return w.denied(t, strangers, a.web) })
	for range 3 {
		if err := w.denied(t, strangers, a.web); err != nil {
			t.Error(err)
		}
		if err := w.reach(t, friends, a.web); err != nil {
			t.Errorf("who is allowed is not answered: %v", err)
		}
	}
	w.kubectl(t, "delete", "networkpolicy", "web")
	eventually(t, "strangers are answered again without the policy", time.Minute, func() error { return w.reach(t, strangers, a.web) })
}

// startPolicies runs the program on all nodes.
func (w *world) startPolicies(t *testing.T) {
	t.Helper()
	tool := exec.CommandContext(t.Context(), "go", "-C", "policy", "tool", "-n", policyProgram)
	tool.Env = append(os.Environ(), "CGO_ENABLED=0")
	var said strings.Builder
	tool.Stderr = &said
	file, err := tool.Output()
	if err != nil {
		t.Fatalf("build %s: %v: %s", policyProgram, err, said.String())
	}
	program, err := os.ReadFile(strings.TrimSpace(string(file)))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(filepath.Join(dir, "policies"), program, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := w.Apply(t.Context(), strings.ReplaceAll(policyManifest, "FOLDER", dir)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "policies are enforced on all nodes", time.Minute, func() error {
		pods, err := w.podsOf(t.Context(), "kube-system", "app=policies")
		if err != nil {
			return err
		}
		for _, p := range pods {
			if !ready(p) {
				return fmt.Errorf("%s is not ready: %s", p.Name, waiting(p))
			}
		}
		if len(pods) != len(w.Nodes()) {
			return errWant(len(pods), len(w.Nodes()))
		}
		return nil
	})
	for _, n := range w.Nodes() {
		w.handOver(t, n.Name())
	}
}

// handOver sees to it that the kernel hands packets to the program. Its own rule needs the
// expression queue of nftables, without which none of its rules is loaded: then the target
// NFQUEUE of iptables does the same, after Services' rules and before anything is
// masqueraded.
func (w *world) handOver(t *testing.T, node string) {
	t.Helper()
	rules, err := w.machines[node].Output("nft", "list", "ruleset")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(rules, "queue") {
		return
	}
	t.Logf("%s: this kernel has no nftables expression queue (CONFIG_NFT_QUEUE): iptables hands packets over instead", node)
	rule := []string{"-t", "mangle", "-A", "POSTROUTING", "-p", "tcp", "-m", "conntrack", "--ctstate", "NEW",
		"-m", "owner", "!", "--uid-owner", "0", "-j", "NFQUEUE", "--queue-num", "100"}
	if out, err := w.machines[node].Output("iptables", rule...); err != nil {
		t.Skipf("this kernel can hand no packet to a program: neither nftables' queue nor iptables' NFQUEUE: %s", out)
	}
}

// ask connects to all servers from all clients, by ClusterIP and by pod address.
func (w *world) ask(t *testing.T, clients, servers []corev1.Pod) map[string]error {
	t.Helper()
	var flows []flow
	for _, c := range clients {
		from := inPod(t, c)
		flows = append(flows, flow{kind: clusterIP, from: from, to: netip.AddrPortFrom(w.virtual(), 80)})
		for _, s := range servers {
			flows = append(flows, flow{kind: podAddr, from: from, to: netip.AddrPortFrom(addressOf(t, s), serverPort)})
		}
	}
	answers := map[string]error{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, f := range flows {
		all.Go(func() {
			c, _, _, err := f.dial()
			if c != nil {
				_ = c.Close()
			}
			if errors.Is(err, errResent) {
				err = nil // a queue may have been full
			}
			mu.Lock()
			defer mu.Unlock()
			answers[f.String()] = err
		})
	}
	all.Wait()
	return answers
}

// reach names one that was not answered.
func (w *world) reach(t *testing.T, clients, servers []corev1.Pod) error {
	t.Helper()
	for f, err := range w.ask(t, clients, servers) {
		if err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
	}
	return nil
}

// denied says who was answered.
func (w *world) denied(t *testing.T, clients, servers []corev1.Pod) error {
	t.Helper()
	for f, err := range w.ask(t, clients, servers) {
		if err == nil {
			return fmt.Errorf("answered, and should be denied: %s", f)
		}
	}
	return nil
}
