package life_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"onerule/test/netns"
)

// What the servers are reached by.
const (
	serverPort = 8080
	nodePort   = 30080
	hostPort   = 9080
	// serveOn is how long a server goes on after it was asked to end.
	serveOn = 15
)

// Kinds of addresses.
const (
	clusterIP = "ClusterIP"
	nodePorts = "NodePort"
	podAddr   = "pod"
	hostPorts = "hostPort"
)

// virtual is the ClusterIP of the servers.
func (w *world) virtual() netip.Addr {
	if w.isIPv6() {
		return netip.MustParseAddr("fd00:10:96::707")
	}
	return netip.MustParseAddr("10.96.7.7")
}

// workload are the objects: servers behind a Service, which say when they are about to
// end, a server with a host port on each node, and a client on each node.
const workload = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  clusterIP: VIRTUAL
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080, nodePort: 30080}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      POD
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: web}}}
      containers:
      - name: server
        CONTAINER
        readinessProbe: {httpGet: {path: /, port: 8081}, periodSeconds: 1}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: host}
spec:
  selector: {matchLabels: {app: host}}
  template:
    metadata: {labels: {app: host}}
    spec:
      POD
      containers:
      - name: server
        CONTAINER
        ports: [{containerPort: 8080, hostPort: 9080}]
        readinessProbe: {httpGet: {path: /, port: 8081}, periodSeconds: 1}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: client}
spec:
  selector: {matchLabels: {app: client}}
  template:
    metadata: {labels: {app: client}}
    spec:
      POD
      containers:
      - name: client
        CONTAINER
`

// servers fills in a manifest the pods' own parts.
func (w *world) servers(manifest, dir string) string {
	pod := fmt.Sprintf(`terminationGracePeriodSeconds: %d
      automountServiceAccountToken: false
      enableServiceLinks: false
      volumes: [{name: program, hostPath: {path: %s}}]`, serveOn+5, dir)
	container := fmt.Sprintf(`image: localhost/pause:1
        imagePullPolicy: Never
        command: [/program/server, "%d", "%d"]
        volumeMounts: [{name: program, mountPath: /program, readOnly: true}]`, serverPort, serveOn)
	return strings.NewReplacer("VIRTUAL", w.virtual().String(), "POD", pod, "CONTAINER", container).Replace(manifest)
}

// applications are the pods of the workload.
type applications struct{ web, host, client []corev1.Pod }

// deploy starts the workload and waits until it is ready.
func (w *world) deploy(t *testing.T) applications {
	t.Helper()
	if err := w.Apply(t.Context(), w.servers(workload, buildServer(t))); err != nil {
		t.Fatal(err)
	}
	return w.found(t)
}

// found gives the pods that there are, all of them.
func (w *world) found(t *testing.T) applications {
	t.Helper()
	return applications{
		web:    w.awaitPods(t, "web", 4, 2*time.Minute),
		host:   w.awaitPods(t, "host", 2, 2*time.Minute),
		client: w.awaitPods(t, "client", 2, 2*time.Minute),
	}
}

// flows are those from pods, nodes and somebody outside to everything that the workload
// has. The pods whose addresses are called stay.
func (w *world) flows(t *testing.T, a applications) []flow {
	t.Helper()
	at := func(addr netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(addr, port) }
	outside := w.machines["control"]
	pods := map[string]*netns.NS{}
	for _, p := range a.client {
		pods[p.Spec.NodeName] = inPod(t, p)
	}
	var flows []flow
	for node, other := range map[string]string{"n1": "n2", "n2": "n1"} {
		own := w.Node(node).Addresses()[0]
		flows = append(flows,
			flow{kind: clusterIP, from: pods[node], to: at(w.virtual(), 80)},
			flow{kind: clusterIP, from: w.machines[node], to: at(w.virtual(), 80)},
			flow{kind: nodePorts, from: outside, to: at(own, nodePort)},
			flow{kind: nodePorts, from: pods[other], to: at(own, nodePort)},
			flow{kind: podAddr, from: pods[node], to: at(addressOf(t, podOn(t, a.host, other)), serverPort)},
			flow{kind: podAddr, from: pods[node], to: at(addressOf(t, podOn(t, a.host, node)), serverPort)},
			flow{kind: podAddr, from: outside, to: at(addressOf(t, podOn(t, a.host, node)), serverPort)},
			flow{kind: hostPorts, from: outside, to: at(own, hostPort)},
		)
	}
	return flows
}

// run begins all flows, once each of them has been answered with its first SYN.
func (w *world) run(t *testing.T, flows []flow) *traffic {
	t.Helper()
	for _, f := range flows {
		eventually(t, f.String()+" is answered", 30*time.Second, func() error {
			c, _, _, err := f.dial()
			if err == nil {
				err = c.Close()
			}
			return err
		})
	}
	tr, err := begin(t.Context(), flows)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.finish)
	return tr
}

// judge ends the traffic, prints what it saw, and says what is wrong with it.
func (tr *traffic) judge(t *testing.T) {
	t.Helper()
	tr.finish()
	for kind, s := range tr.seen {
		t.Logf("%-9s %5d connects, %d lost, slowest %s, %d over %s with their first SYN, %d answered",
			kind, s.connects, len(s.failures), s.slowest.Round(100*time.Microsecond), s.stalls, slow, len(s.answered))
		for _, f := range s.failures[:min(len(s.failures), 3)] {
			t.Errorf("a connect was lost: %s", f)
		}
		if len(s.failures) > 3 {
			t.Errorf("%d more connects to a %s were lost", len(s.failures)-3, kind)
		}
		if s.connects == 0 || len(s.answered) == 0 {
			t.Errorf("nobody was connected to a %s: the test shows nothing", kind)
		}
	}
	tr.judgeOpen(t)
}

// judgeOpen says what is wrong with connections that were to stay open.
func (tr *traffic) judgeOpen(t *testing.T) {
	t.Helper()
	echoes, resent, broken, longest := 0, uint32(0), 0, time.Duration(0)
	for _, o := range tr.open {
		echoes, resent, longest = echoes+o.echoes, resent+o.resent, max(longest, o.longest)
		if o.err != nil {
			broken++
			t.Errorf("an open connection was lost: %s after %d echoes: %v", o.flow, o.echoes, o.err)
		}
		if o.echoes < 2 {
			t.Errorf("an open connection was not used: %s", o.flow)
		}
	}
	t.Logf("%-9s %5d connections, %d lost, %d echoes, longest %s, %d segments sent again",
		"open", len(tr.open), broken, echoes, longest.Round(100*time.Microsecond), resent)
}

func exists(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}
