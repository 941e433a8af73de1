package life_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"onerule/test/cluster"
)

// back moves all nodes back to kube-proxy, ptp, host-local and portmap under the pods that
// run, and one of them to onerule again.
func (w *world) back(t *testing.T) {
	t.Helper()
	apps := applications{
		web:    w.awaitPods(t, "web", 16, 2*time.Minute),
		host:   w.awaitPods(t, "host", 2, 2*time.Minute),
		client: w.awaitPods(t, "client", 2, 2*time.Minute),
	}
	before := w.lives(t)
	w.prepareBack(t)
	tr := w.run(t, w.flows(t, apps))
	goOn(t, 2*time.Second)
	for _, n := range w.Nodes() {
		w.nodeBack(t, n)
		goOn(t, 5*time.Second)
	}
	tr.judge(t)
	w.samePods(t, before)
	w.newPods(t, before, 20, "/var/lib/cni/networks/reference")
	w.nothingLeft(t)
	w.again(t)
}

// prepareBack does what is done once: other nodes are reached by the routes that there
// were, and what takes onerule away waits for nodes that have a label.
func (w *world) prepareBack(t *testing.T) {
	t.Helper()
	for i, n := range w.Nodes() {
		other := w.Nodes()[1-i]
		w.on(t, n.Name(), "ip", "route", "add", other.PodRanges()[0].String(), "via", other.Addresses()[0].String())
	}
	manifest, err := os.ReadFile("../../install/uninstall.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const selector = "nodeSelector:\n"
	if strings.Count(string(manifest), selector) != 1 {
		t.Fatal("install/uninstall.yaml has no selector of nodes")
	}
	if err := w.Apply(t.Context(), strings.Replace(string(manifest), selector, selector+"        onerule: \"off\"\n", 1)); err != nil {
		t.Fatal(err)
	}
}

// nodeBack moves one node.
func (w *world) nodeBack(t *testing.T, n *cluster.Machine) {
	t.Helper()
	w.kubectl(t, "label", "node", n.Name(), "onerule-")
	eventually(t, "the daemon of "+n.Name()+" has ended", time.Minute, func() error {
		if pid, err := w.daemon(n.Name()); err == nil {
			return fmt.Errorf("process %d runs", pid)
		}
		return nil
	})
	if err := n.Start(t.Context(), "kube-proxy"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "kube-proxy serves "+n.Name(), time.Minute, func() error {
		if runs, how, err := n.Runs("kube-proxy"); err != nil || !runs {
			log, _ := os.ReadFile(n.Log("kube-proxy")) // nothing more to say without it
			return fmt.Errorf("it does not run: %s (%w): %s", how, err, log[max(0, len(log)-1000):])
		}
		return w.haveKubeProxy(n.Name())
	})
	// From here on kube-proxy decides.
	w.deleteTables(t, n.Name())
	w.kubectl(t, "label", "node", n.Name(), "onerule=off")
	eventually(t, "the list of plugins of "+n.Name()+" is ptp's", time.Minute, func() error {
		lists, err := w.lists(n.Name())
		if err == nil && !slices.Equal(lists, []string{"10-ptp.conflist"}) {
			err = errWant(lists, "only 10-ptp.conflist")
		}
		return err
	})
}

// deleteTables lets what else there is decide about Services.
func (w *world) deleteTables(t *testing.T, node string) {
	t.Helper()
	for _, family := range []string{"ip", "ip6"} {
		w.on(t, node, "nft", "delete", "table", family, "onerule")
	}
}

// haveKubeProxy says whether kube-proxy's rules know the servers, in whichever mode.
func (w *world) haveKubeProxy(node string) error {
	table := "nat"
	if w.With() == cluster.KubeProxy {
		table = "kube-proxy"
	}
	rules, err := w.machines[node].Output("nft", "list", "table", w.nftFamily(), table)
	if err == nil && !strings.Contains(rules, w.virtual().String()) {
		err = fmt.Errorf("table %s has no %s", table, w.virtual())
	}
	return err
}

// nothingLeft lets the pods go that onerule has wired, and looks for what is left of it.
func (w *world) nothingLeft(t *testing.T) {
	t.Helper()
	w.kubectl(t, "scale", "deployment/web", "--replicas=4")
	w.newHostPort(t, "n1")
	w.awaitPods(t, "web", 4, 2*time.Minute)
	for _, n := range w.Nodes() {
		eventually(t, "nothing is left of onerule on "+n.Name(), 2*time.Minute, func() error {
			tables := w.on(t, n.Name(), "nft", "list", "tables")
			routes := w.on(t, n.Name(), "ip", "route", "show", "proto", "112") + w.on(t, n.Name(), "ip", "-6", "route", "show", "proto", "112")
			links := w.on(t, n.Name(), "ls", "/sys/class/net")
			if strings.Contains(tables, "onerule") || routes != "" || exists(w.file(n.Name(), "/opt/cni/bin/onerule")) {
				return fmt.Errorf("tables %q, routes %q, links %q", tables, routes, links)
			}
			return nil
		})
	}
	w.wantRecords(t, "/var/lib/cni/networks/reference")
}

// again moves a node once more: what it kept of the first time is no obstacle.
func (w *world) again(t *testing.T) {
	t.Helper()
	before := w.lives(t)
	w.kubectl(t, "label", "node", "n1", "onerule=yes", "--overwrite")
	w.stop(t, "n1", "kube-proxy")
	w.awaitOnerule(t, "n1")
	w.samePods(t, before)
	w.kubectl(t, "scale", "deployment/web", "--replicas=12")
	w.awaitPods(t, "web", 12, 2*time.Minute)
	owner := map[string]string{}
	for _, p := range w.all(t) {
		if o := owner[p.Status.PodIP]; o != "" {
			t.Errorf("moved again: pods %s and %s have the same address %s", o, p.Name, p.Status.PodIP)
		}
		owner[p.Status.PodIP] = p.Name
	}
}
