package life_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"onerule/test/cluster"
)

// Nodes move from kube-proxy in nftables mode, ptp, host-local and portmap to onerule one
// by one, and back, as docs/migrate.md says, while connections come and stay.
func TestNodesMoveFromKubeProxyAndBack(t *testing.T) {
	moveAndBack(t, cluster.Options{With: cluster.KubeProxy})
}

// The same in a cluster of IPv6.
func TestNodesOfIPv6MoveFromKubeProxyAndBack(t *testing.T) {
	moveAndBack(t, cluster.Options{With: cluster.KubeProxy, Family: cluster.IPv6})
}

// The same from kube-proxy in iptables mode.
func TestNodesMoveFromKubeProxyInIptablesModeAndBack(t *testing.T) {
	moveAndBack(t, cluster.Options{With: cluster.KubeProxyTables})
}

func moveAndBack(t *testing.T, from cluster.Options) {
	w := newWorld(t, from)
	apps := w.deploy(t)
	before := w.lives(t)
	w.prepareMove(t)
	w.install(t, "podNetwork.exclusive=true", "nodeSelector.onerule=yes")
	tr := w.run(t, w.flows(t, apps))
	goOn(t, 3*time.Second)

	// kube-proxy ends before onerule begins, as where a label decides between the two.
	w.kubectl(t, "label", "node", "n1", "onerule=yes")
	w.stop(t, "n1", "kube-proxy")
	w.awaitOnerule(t, "n1")
	goOn(t, 5*time.Second)
	// Both run for a while.
	w.kubectl(t, "label", "node", "n2", "onerule=yes")
	w.awaitOnerule(t, "n2")
	goOn(t, 5*time.Second)
	w.stop(t, "n2", "kube-proxy")
	w.awaitNoKubeProxy(t, "n1", "n2")
	w.withoutStaticRoutes(t)
	goOn(t, 5*time.Second)
	tr.judge(t)
	w.samePods(t, before)
	w.keepFirst(t, apps.web)
	w.newPods(t, before, 16, "/var/lib/cni/onerule/pods/addresses")
	w.newHostPort(t, "n1")
	w.back(t)
}

// prepareMove does what is done once before the first node moves.
func (w *world) prepareMove(t *testing.T) {
	t.Helper()
	if err := w.Load(t.Context(), filepath.Join(os.Getenv("ONERULE_BIN"), "onerule-image.tar")); err != nil {
		t.Fatal(err)
	}
	api := w.APIServer()
	w.kubectl(t, "-n", "kube-system", "create", "configmap", "onerule-apiserver",
		"--from-literal=KUBERNETES_SERVICE_HOST="+api.Addr().String(),
		fmt.Sprintf("--from-literal=KUBERNETES_SERVICE_PORT=%d", api.Port()))
}

// install applies the chart with some settings.
func (w *world) install(t *testing.T, settings ...string) {
	t.Helper()
	chart, err := filepath.Abs("../../install/chart")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-C", "../helm", "tool", "helm", "template", "onerule", chart, "--namespace", "kube-system"}
	for _, s := range settings {
		args = append(args, "--set", s)
	}
	helm := exec.CommandContext(t.Context(), "go", args...)
	var said strings.Builder
	helm.Stderr = &said
	manifest, err := helm.Output()
	if err != nil {
		t.Fatalf("helm template: %v: %s", err, said.String())
	}
	if err := w.Apply(t.Context(), string(manifest)); err != nil {
		t.Fatal(err)
	}
}

func (w *world) stop(t *testing.T, node, piece string) {
	t.Helper()
	if err := w.Node(node).Stop(t.Context(), piece); err != nil {
		t.Fatal(err)
	}
}

// A life is what of a pod must not change.
type life struct {
	address   string
	container string
	restarts  int32
}

// lives gives those of all pods that are not on the host's network, by name.
func (w *world) lives(t *testing.T) map[string]life {
	t.Helper()
	lives := map[string]life{}
	for _, app := range []string{"web", "host", "client"} {
		pods, err := w.pods(t.Context(), app)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pods {
			lives[p.Name] = life{p.Status.PodIP, p.Status.ContainerStatuses[0].ContainerID, p.Status.ContainerStatuses[0].RestartCount}
		}
	}
	return lives
}

// samePods says which pods were not left alone.
func (w *world) samePods(t *testing.T, before map[string]life) {
	t.Helper()
	now := w.lives(t)
	if len(now) != len(before) {
		t.Errorf("pods: got %d, want the %d that there were", len(now), len(before))
	}
	for name, l := range before {
		if now[name] != l {
			t.Errorf("pod %s: got %+v, want %+v", name, now[name], l)
		}
	}
}

// awaitOnerule waits until onerule answers for a node, and its list is in force.
func (w *world) awaitOnerule(t *testing.T, node string) {
	t.Helper()
	eventually(t, "onerule serves "+node, 90*time.Second, func() error {
		pods, err := w.onerule(t, node)
		if err != nil {
			return err
		}
		if len(pods) != 1 || !ready(pods[0]) {
			return fmt.Errorf("its pod is not ready: %d", len(pods))
		}
		if out, err := w.Node(node).Command(t.Context(), "nft", "list", "table", w.nftFamily(), "onerule").CombinedOutput(); err != nil {
			return fmt.Errorf("list its table: %w: %s", err, out)
		}
		lists, err := w.lists(node)
		if err == nil && !slices.Equal(lists, []string{"10-onerule.conflist"}) {
			err = errWant(lists, "only 10-onerule.conflist")
		}
		return err
	})
}

// lists are the lists of plugins that a node's runtime reads.
func (w *world) lists(node string) ([]string, error) {
	files, err := filepath.Glob(w.file(node, "/etc/cni/net.d/*.conflist"))
	for i, f := range files {
		files[i] = filepath.Base(f)
	}
	return files, err
}

// awaitNoKubeProxy waits until nothing of kube-proxy is left on nodes.
func (w *world) awaitNoKubeProxy(t *testing.T, nodes ...string) {
	t.Helper()
	for _, n := range nodes {
		eventually(t, "kube-proxy's rules go from "+n, 90*time.Second, func() error {
			rules := w.on(t, n, "nft", "list", "ruleset")
			for _, trace := range []string{"kube-proxy", "KUBE-SERVICES", "KUBE-SVC-", "KUBE-SEP-"} {
				if strings.Contains(rules, trace) {
					return fmt.Errorf("%s is still there", trace)
				}
			}
			return nil
		})
	}
}

// withoutStaticRoutes takes away the routes that the cluster had before onerule.
func (w *world) withoutStaticRoutes(t *testing.T) {
	t.Helper()
	for i, n := range w.Nodes() {
		other := w.Nodes()[1-i]
		w.on(t, n.Name(), "ip", "route", "del", other.PodRanges()[0].String(), "proto", "boot")
	}
}

// newPods looks at pods that begin after a move: they get addresses that no other pod has,
// all addresses are on record where they should be, and the new pods are reached.
func (w *world) newPods(t *testing.T, old map[string]life, replicas int, records string) {
	t.Helper()
	w.kubectl(t, "scale", "deployment/web", fmt.Sprintf("--replicas=%d", replicas))
	w.awaitPods(t, "web", replicas, 2*time.Minute)
	owner := map[string]string{}
	var flows []flow
	for _, p := range w.all(t) {
		if o := owner[p.Status.PodIP]; o != "" {
			t.Errorf("pods %s and %s have the same address %s", o, p.Name, p.Status.PodIP)
		}
		owner[p.Status.PodIP] = p.Name
		if _, isOld := old[p.Name]; !isOld {
			flows = append(flows, flow{kind: podAddr, from: w.machines["control"], to: netip.AddrPortFrom(addressOf(t, p), serverPort)})
		}
	}
	w.wantRecords(t, records)
	tr := w.run(t, flows)
	goOn(t, 2*time.Second)
	tr.judge(t)
}

// all gives the pods of the workload.
func (w *world) all(t *testing.T) (all []corev1.Pod) {
	t.Helper()
	for _, app := range []string{"web", "host", "client"} {
		pods, err := w.pods(t.Context(), app)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, pods...)
	}
	return all
}

// wantRecords waits until the addresses on record on each node are those of its pods, and
// no others.
func (w *world) wantRecords(t *testing.T, dir string) {
	t.Helper()
	for _, n := range w.Nodes() {
		eventually(t, "addresses on record on "+n.Name()+" in "+dir+" are those of its pods", time.Minute, func() error {
			pods, err := w.api.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.Name()})
			if err != nil {
				return err
			}
			var want, got []string
			for _, p := range pods.Items {
				if !p.Spec.HostNetwork {
					want = append(want, p.Status.PodIP)
				}
			}
			files, err := os.ReadDir(w.file(n.Name(), dir))
			for _, f := range files {
				if _, err := netip.ParseAddr(f.Name()); err == nil {
					got = append(got, f.Name())
				}
			}
			slices.Sort(want)
			slices.Sort(got)
			if err == nil && !slices.Equal(got, want) {
				err = errWant(got, want)
			}
			return err
		})
	}
}

// newHostPort replaces the pod with a host port of a node: the new one has it, whatever is
// left of the old one.
func (w *world) newHostPort(t *testing.T, node string) {
	t.Helper()
	pods, err := w.pods(t.Context(), "host")
	if err != nil {
		t.Fatal(err)
	}
	w.kubectl(t, "delete", "pod", podOn(t, pods, node).Name, "--grace-period=1")
	now := podOn(t, w.awaitPods(t, "host", 2, 2*time.Minute), node)
	f := flow{kind: hostPorts, from: w.machines["control"], to: netip.AddrPortFrom(w.Node(node).Addresses()[0], hostPort)}
	eventually(t, "the new pod has the host port", 30*time.Second, func() error {
		c, name, _, err := f.dial()
		if err != nil {
			return err
		}
		if name != now.Name {
			err = errWant(name, now.Name)
		}
		return errors.Join(err, c.Close())
	})
}

// onerule gives the daemon's pods on a node that are not about to end.
func (w *world) onerule(t *testing.T, node string) ([]corev1.Pod, error) {
	pods, err := w.podsOf(t.Context(), "kube-system", "app.kubernetes.io/name=onerule")
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName != node }), err
}

// file gives the name here of a node's file.
func (w *world) file(node, name string) string {
	return filepath.Join("/proc", fmt.Sprint(w.pids[node]), "root", name)
}
