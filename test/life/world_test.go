// Package life_test proves onerule in the life of a real cluster: nodes that move to it
// and back, daemons that are killed or replaced, an API server that is away, pods that
// come and go.
package life_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"onerule/test/cluster"
	"onerule/test/cluster/pid1"
	"onerule/test/netns"
)

// clusterDir is where clusters of these tests are: always the same, so that what a test
// left that was killed goes with the next one.
const clusterDir = "/var/tmp/onerule-life"

// world is a cluster with servers, and clients in it and beside it.
type world struct {
	*cluster.Cluster
	api      *kubernetes.Clientset
	machines map[string]*netns.NS // network namespaces of the machines by name
	pids     map[string]int       // numbers of their first processes
}

// newWorld starts a cluster of two nodes. The test is skipped where nobody asked for one.
func newWorld(t *testing.T, o cluster.Options) *world {
	t.Helper()
	if os.Getenv("ONERULE_CLUSTER") != "1" {
		t.Skip("needs a cluster and minutes: make cluster-test")
	}
	o.Dir, o.Out = clusterDir, progress{t}
	c := cluster.Start(t, o)
	downOnSignals(t, c)
	api, err := c.Client()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Cluster: c, api: api, machines: map[string]*netns.NS{}, pids: map[string]int{}}
	for _, m := range append([]*cluster.Machine{c.Control()}, c.Nodes()...) {
		pid, err := pid1.PID(filepath.Join(c.Dir(), m.Name(), "s"))
		if err != nil {
			t.Fatal(err)
		}
		w.pids[m.Name()] = pid
		w.machines[m.Name()] = openNetwork(t, m.Name(), pid)
	}
	return w
}

func (w *world) isIPv6() bool { return w.Family() == cluster.IPv6 }

// nftFamily is what nft calls the family of the cluster.
func (w *world) nftFamily() string {
	if w.isIPv6() {
		return "ip6"
	}
	return "ip"
}

// progress prints lines as they come.
type progress struct{ t *testing.T }

func (p progress) Write(text []byte) (int, error) {
	p.t.Log(strings.TrimRight(string(text), "\n"))
	return len(text), nil
}

// downOnSignals takes the cluster down before an interrupt ends us: the testing package
// runs no cleanup then.
func downOnSignals(t *testing.T, c *cluster.Cluster) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() { // ends with the test
		select {
		case <-done:
		case s := <-signals:
			fmt.Fprintln(os.Stderr, "taking the cluster down:", s)
			if err := c.Down(); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
			os.Exit(1)
		}
	}()
	t.Cleanup(func() {
		signal.Stop(signals)
		close(done)
	})
}

func openNetwork(t *testing.T, name string, pid int) *netns.NS {
	t.Helper()
	n, err := netns.At(name, fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// kubectl runs kubectl to its end.
func (w *world) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := w.Kubectl(t.Context(), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// on runs a command on a node to its end.
func (w *world) on(t *testing.T, node string, args ...string) string {
	t.Helper()
	out, err := w.Node(node).Command(t.Context(), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s on %s: %v: %s", strings.Join(args, " "), node, err, out)
	}
	return string(out)
}

// eventually tries something again until it succeeds.
func eventually(t *testing.T, what string, atMost time.Duration, try func() error) {
	t.Helper()
	deadline := time.Now().Add(atMost)
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s: %v", what, atMost, err)
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("%s: %v", what, err)
		case <-again.C:
		}
	}
}

// goOn lets traffic go on for a while.
func goOn(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	case <-time.After(d):
	}
}

// pods gives the running pods of an application, sorted by name. Those that are about to
// end do not count.
func (w *world) pods(ctx context.Context, app string) ([]corev1.Pod, error) {
	return w.podsOf(ctx, "default", "app="+app)
}

func (w *world) podsOf(ctx context.Context, namespace, selector string) ([]corev1.Pod, error) {
	list, err := w.api.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list pods with %s: %w", selector, err)
	}
	pods := slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods, nil
}

// awaitPods waits until an application has so many pods, and all are ready.
func (w *world) awaitPods(t *testing.T, app string, want int, atMost time.Duration) []corev1.Pod {
	t.Helper()
	var pods []corev1.Pod
	eventually(t, fmt.Sprintf("%d pods of %s are ready", want, app), atMost, func() (err error) {
		if pods, err = w.pods(t.Context(), app); err != nil {
			return err
		}
		if len(pods) != want {
			return fmt.Errorf("there are %d", len(pods))
		}
		for _, p := range pods {
			if !ready(p) {
				return fmt.Errorf("%s is not ready: %s", p.Name, waiting(p))
			}
		}
		return nil
	})
	return pods
}

func ready(p corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func waiting(p corev1.Pod) string {
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Waiting != nil {
			return s.State.Waiting.Reason + " " + s.State.Waiting.Message
		}
	}
	return string(p.Status.Phase)
}

// podOn gives a pod that is on a node.
func podOn(t *testing.T, pods []corev1.Pod, node string) corev1.Pod {
	t.Helper()
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node })
	if i < 0 {
		t.Fatalf("no pod of %d is on %s", len(pods), node)
	}
	return pods[i]
}

func addressOf(t *testing.T, p corev1.Pod) netip.Addr {
	t.Helper()
	a, err := netip.ParseAddr(p.Status.PodIP)
	if err != nil {
		t.Fatalf("address of pod %s: %v", p.Name, err)
	}
	return a
}

// inPod gives the network namespace of a pod.
func inPod(t *testing.T, p corev1.Pod) *netns.NS {
	t.Helper()
	pid, err := processOf(p.Name)
	if err != nil {
		t.Fatal(err)
	}
	return openNetwork(t, "pod on "+p.Spec.NodeName, pid)
}

// buildServer builds the program of the pods, into a folder that nodes mount.
func buildServer(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", filepath.Join(dir, "server"), "./server")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build server: %v: %s", err, out)
	}
	// A container's root gets no further than this by a folder of ours.
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// errWant is an error that says what there is and what there should be.
func errWant(got, want any) error { return fmt.Errorf("got %v, want %v", got, want) }
