package life_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"onerule/test/cluster"
	"onerule/test/netns"
)

// What a cluster goes through, with onerule by the manifest that users apply: connections
// come and stay meanwhile.
func TestLifeOfACluster(t *testing.T) {
	w := newWorld(t, cluster.Options{With: cluster.Onerule})
	apps := w.deploy(t)
	w.keepFirst(t, apps.web)
	for _, one := range []struct {
		name string
		run  func(*testing.T, *world, applications)
	}{
		{"rules that somebody flushes come back", flushed},
		{"an update of all daemons loses nothing", updated},
		{"an API server that is away holds nobody up", withoutAPIServer},
		{"a node that is drained loses nothing", drained},
		{"pods that come and go leave nothing", comeAndGo},
		// Last: the controller of DaemonSets holds up an update that begins soon after.
		{"daemons that are killed every 5 s lose nothing", killed},
	} {
		t.Run(one.name, func(t *testing.T) {
			one.run(t, w, w.awaitServers(t))
		})
	}
}

// keepFirst lets pods be the last of their deployment to go: connections are open to them.
func (w *world) keepFirst(t *testing.T, pods []corev1.Pod) {
	t.Helper()
	for _, p := range pods {
		w.kubectl(t, "annotate", "pod", p.Name, "controller.kubernetes.io/pod-deletion-cost=1000")
	}
}

// awaitServers gives the pods, once the kernels of all nodes have all servers.
func (w *world) awaitServers(t *testing.T) applications {
	t.Helper()
	a := w.found(t)
	for _, n := range w.Nodes() {
		eventually(t, "the kernel of "+n.Name()+" has all servers", 2*time.Minute, func() error {
			return w.haveElements(n.Name(), a.web)
		})
	}
	return a
}

// haveElements says whether the servers' ClusterIP leads to these pods in the kernel of a
// node, and to no others.
func (w *world) haveElements(node string, pods []corev1.Pod) error {
	var want []string
	for _, p := range pods {
		want = append(want, p.Status.PodIP)
	}
	slices.Sort(want)
	got, err := w.elements(node)
	if err == nil && !slices.Equal(got, want) {
		err = errWant(got, want)
	}
	return err
}

func (w *world) clients(t *testing.T, a applications) map[string]*netns.NS {
	t.Helper()
	pods := map[string]*netns.NS{}
	for _, p := range a.client {
		pods[p.Spec.NodeName] = inPod(t, p)
	}
	return pods
}

// runWithTurn begins the flows of the workload and those that see changes.
func (w *world) runWithTurn(t *testing.T, a applications) (*traffic, *turn) {
	t.Helper()
	u := w.newTurn(t, a)
	tr := w.run(t, slices.Concat(w.flows(t, a), u.flows(w.clients(t, a))))
	u.begin(t.Context(), tr)
	return tr, u
}

// killed kills the daemon of one node after the other, while servers come and go.
func killed(t *testing.T, w *world, a applications) {
	w.keepFirst(t, a.web) // connections to them are open
	tr, u := w.runWithTurn(t, a)
	kills, replicas := 0, 4
	every := time.NewTicker(5 * time.Second)
	defer every.Stop()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		<-every.C
		w.killDaemon(t, w.Nodes()[kills%2].Name())
		if kills++; kills%3 == 0 {
			replicas = 10 - replicas
			w.kubectl(t, "scale", "deployment/web", fmt.Sprintf("--replicas=%d", replicas))
		}
	}
	w.awaitDaemons(t)
	u.end(t)
	tr.judge(t)
	t.Logf("%d daemons were killed", kills)
	w.kubectl(t, "scale", "deployment/web", "--replicas=4")
}

// killDaemon kills that of a node once there is one. The kubelet waits longer with each
// start of a container that ended so; a new pod begins at once.
func (w *world) killDaemon(t *testing.T, node string) {
	t.Helper()
	eventually(t, "a daemon runs on "+node, 2*time.Minute, func() error {
		pid, err := w.daemon(node)
		if err != nil {
			return errors.Join(err, w.replaceWaiting(t, node))
		}
		return syscall.Kill(pid, syscall.SIGKILL)
	})
}

// daemon gives the number of the daemon's process on a node.
func (w *world) daemon(node string) (int, error) {
	comms, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0, err
	}
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", w.pids[node]))
	if err != nil {
		return 0, fmt.Errorf("network namespace of %s: %w", node, err)
	}
	for _, comm := range comms {
		name, err := os.ReadFile(comm)
		if err != nil || strings.TrimSpace(string(name)) != "oneruled" {
			continue
		}
		dir := filepath.Dir(comm)
		if at, err := os.Readlink(dir + "/ns/net"); err == nil && at == own {
			return strconv.Atoi(filepath.Base(dir))
		}
	}
	return 0, fmt.Errorf("no daemon runs on %s", node)
}

// replaceWaiting deletes the daemon's pod if the kubelet waits to start it.
func (w *world) replaceWaiting(t *testing.T, node string) error {
	pods, err := w.onerule(t, node)
	for _, p := range pods {
		if strings.HasPrefix(waiting(p), "CrashLoopBackOff") {
			err = w.Kubectl(t.Context(), "-n", "kube-system", "delete", "pod", p.Name, "--wait=false").Run()
		}
	}
	return err
}

// awaitDaemons waits until there is a ready daemon on each node.
func (w *world) awaitDaemons(t *testing.T) {
	t.Helper()
	for _, n := range w.Nodes() {
		eventually(t, "the daemon of "+n.Name()+" is ready", 2*time.Minute, func() error {
			pods, err := w.onerule(t, n.Name())
			if err != nil {
				return err
			}
			if len(pods) != 1 || !ready(pods[0]) {
				return errors.Join(errWant(len(pods), "1 pod that is ready"), w.replaceWaiting(t, n.Name()))
			}
			return nil
		})
	}
}

// updated replaces all daemons as an update does.
func updated(t *testing.T, w *world, a applications) {
	before := map[string]int{}
	for _, n := range w.Nodes() {
		pid, err := w.daemon(n.Name())
		if err != nil {
			t.Fatal(err)
		}
		before[n.Name()] = pid
	}
	tr, u := w.runWithTurn(t, a)
	goOn(t, 3*time.Second)
	w.kubectl(t, "-n", "kube-system", "rollout", "restart", "daemonset/oneruled")
	w.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/oneruled", "--timeout=180s")
	goOn(t, 3*time.Second)
	u.end(t)
	tr.judge(t)
	for _, n := range w.Nodes() {
		if pid, err := w.daemon(n.Name()); err != nil || pid == before[n.Name()] {
			t.Errorf("daemon of %s: got process %d (%v), want another than before", n.Name(), pid, err)
		}
	}
}

// withoutAPIServer ends servers while nobody is told, and looks at who is answered by
// whom, before and after it is back.
func withoutAPIServer(t *testing.T, w *world, a applications) {
	const away = time.Minute
	pid, err := w.daemon("n2")
	if err != nil {
		t.Fatal(err)
	}
	stay := slices.DeleteFunc(w.flows(t, a), func(f flow) bool { return f.kind == clusterIP || f.kind == nodePorts })
	steady := w.run(t, stay)
	services := w.services(t, a)
	if err := w.Control().Stop(t.Context(), "kube-apiserver"); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	tr := w.run(t, services)
	goOn(t, 3*time.Second)
	if failed := tr.failed(clusterIP); len(failed) > 0 {
		t.Errorf("a connect was lost before a server ended: %s", failed[0])
	}
	for _, p := range a.web {
		if p.Spec.NodeName == "n2" {
			endPod(t, p)
		}
	}
	ended := time.Now()
	for time.Since(begun) < away {
		w.wantElements(t, 4)
		goOn(t, 5*time.Second)
	}
	tr.finish()
	for _, kind := range []string{clusterIP, nodePorts} {
		s := tr.seen[kind]
		t.Logf("%-9s %5d connects without an API server, %d of them to servers that had ended", kind, s.connects, len(s.failures))
		if s.last[podOn(t, a.web, "n1").Name].Before(ended) {
			t.Errorf("%s: servers that live were not reached", kind)
		}
	}
	if err := w.Control().Start(t.Context(), "kube-apiserver"); err != nil {
		t.Fatal(err)
	}
	begun = time.Now()
	now := w.awaitChanged(t, a.web)
	t.Logf("all nodes knew the servers' new addresses %s after it was back", time.Since(begun).Round(time.Second))
	back := w.run(t, services)
	goOn(t, 5*time.Second)
	back.judge(t)
	steady.judge(t)
	w.awaitNews(t)
	for name := range back.seen[clusterIP].answered {
		if !slices.ContainsFunc(now, func(p corev1.Pod) bool { return p.Name == name }) {
			t.Errorf("%s answered, which is no server any more", name)
		}
	}
	if again, err := w.daemon("n2"); err != nil || again != pid {
		t.Errorf("daemon of n2: got process %d (%v), want %d as before", again, err, pid)
	}
}

// awaitNews waits until the controllers, the scheduler and the kubelets hear again what
// changes: they do up to a minute after the API server is back, and until then a pod may be
// put on a node that has been drained since.
func (w *world) awaitNews(t *testing.T) {
	t.Helper()
	w.kubectl(t, "label", "nodes", "--all", "news=heard", "--overwrite")
	if err := w.Apply(t.Context(), news); err != nil {
		t.Fatal(err)
	}
	w.awaitPods(t, "news", len(w.Nodes()), 3*time.Minute)
	w.kubectl(t, "delete", "daemonset", "news", "--cascade=foreground", "--timeout=2m")
	w.kubectl(t, "label", "nodes", "--all", "news-")
}

// news are pods that a node has once its new label is known.
const news = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: news}
spec:
  selector: {matchLabels: {app: news}}
  template:
    metadata: {labels: {app: news}}
    spec:
      nodeSelector: {news: heard}
      terminationGracePeriodSeconds: 1
      automountServiceAccountToken: false
      enableServiceLinks: false
      containers: [{name: pause, image: "localhost/pause:1", imagePullPolicy: Never}]
`

// services are the flows to Services only, which hold no connection open.
func (w *world) services(t *testing.T, a applications) []flow {
	t.Helper()
	flows := slices.DeleteFunc(w.flows(t, a), func(f flow) bool { return f.kind != clusterIP && f.kind != nodePorts })
	for i := range flows {
		flows[i].short = true
	}
	return flows
}

// endPod kills all processes of a pod: for the kubelet it has to begin anew, with another
// address.
func endPod(t *testing.T, p corev1.Pod) {
	t.Helper()
	pid, err := processOf(p.Name)
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		t.Fatal(err)
	}
	links, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	killed := 0
	for _, link := range links {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(link))))
		if at, linkErr := os.Readlink(link); err == nil && linkErr == nil && at == own {
			killed++
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Fatal(err)
			}
		}
	}
	if killed < 2 {
		t.Errorf("pod %s: killed %d processes, want the server and the one that holds its namespaces", p.Name, killed)
	}
}

// elements counts the endpoints of the servers' ClusterIP in the kernel of a node.
func (w *world) elements(node string) (addresses []string, err error) {
	out, err := w.machines[node].Output("nft", "list", "map", "ip", "onerule", "endpoints-tcp")
	if err != nil {
		return nil, err
	}
	for line := range strings.SplitSeq(out, ",") {
		if _, endpoint, found := strings.Cut(line, w.virtual().String()+" . 80 . "); found {
			_, endpoint, _ = strings.Cut(endpoint, ": ")
			addresses = append(addresses, strings.Fields(endpoint)[0])
		}
	}
	slices.Sort(addresses)
	return addresses, nil
}

func (w *world) wantElements(t *testing.T, want int) {
	t.Helper()
	for _, n := range w.Nodes() {
		if got, err := w.elements(n.Name()); err != nil || len(got) != want {
			t.Errorf("endpoints in the kernel of %s: got %v (%v), want %d", n.Name(), got, err, want)
		}
	}
}

// awaitChanged waits until the servers have other addresses than before, and the kernels
// of all nodes these only.
func (w *world) awaitChanged(t *testing.T, before []corev1.Pod) []corev1.Pod {
	t.Helper()
	var pods []corev1.Pod
	eventually(t, "the API server tells of the servers that began anew", 2*time.Minute, func() (err error) {
		if pods, err = w.pods(t.Context(), "web"); err != nil {
			return err
		}
		changed, ended := 0, 0
		for i, p := range pods {
			if !ready(p) {
				return fmt.Errorf("%s is not ready", p.Name)
			}
			if p.Spec.NodeName == "n2" {
				ended++
			}
			if i < len(before) && p.Status.PodIP != before[i].Status.PodIP {
				changed++
			}
		}
		if len(pods) != len(before) || changed != ended || ended == 0 {
			return errWant(fmt.Sprintf("%d pods, %d of them with another address", len(pods), changed), ended)
		}
		return nil
	})
	for _, n := range w.Nodes() {
		eventually(t, "the kernel of "+n.Name()+" has the servers' addresses", 2*time.Minute, func() error {
			return w.haveElements(n.Name(), pods)
		})
	}
	return pods
}

// drained drains a node: its servers say that they end, and go on until nobody asks them
// any more.
func drained(t *testing.T, w *world, a applications) {
	stay := slices.DeleteFunc(w.flows(t, a), func(f flow) bool { return f.kind == clusterIP || f.kind == nodePorts })
	tr := w.run(t, slices.Concat(stay, w.services(t, a)))
	goOn(t, 2*time.Second)
	w.kubectl(t, "drain", "n2", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s")
	goOn(t, 2*time.Second)
	w.kubectl(t, "uncordon", "n2")
	pods := w.awaitPods(t, "web", 4, 2*time.Minute)
	tr.judge(t)
	for _, p := range pods {
		if p.Spec.NodeName != "n1" {
			t.Errorf("server %s is on %s, which was drained", p.Name, p.Spec.NodeName)
		}
	}
}
