package rows_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/netns"
	"onerule/test/oracle"
	"onerule/test/rig"
)

// detectorTests are the rows about how pods are told from others.
func detectorTests() map[string]func(*testing.T, *world) {
	return map[string]func(*testing.T, *world){
		"A13.1": testClusterRange, "A13.2": testNodeRange, "A13.3": testBridge, "A13.4": testInterfacePrefix,
		"A13.5": testOtherModes, "A13.6": testWrongFamily, "F11": testEveryRange, "R16": testLocalPolicyFromAPod,
	}
}

// A teller is what sends to a ClusterIP: three kinds of clients, a second pod of the
// node and one of the other node.
type teller struct {
	oracle.Packet
	name string
}

func tellers(p addr.Plan) []teller {
	c := hosts.Clients(p)
	return []teller{
		{c[oracle.Pod], "pod"}, {c[oracle.Node], "node"}, {c[oracle.Outside], "outside"},
		{oracle.Packet{From: oracle.Pod, Src: p.Pod(2)}, "second pod"},
		{oracle.Packet{From: oracle.Outside, Src: p.OtherPod(0)}, "pod elsewhere"},
	}
}

// tells checks whose address an endpoint sees in place of the node's: that of those who
// are told to be pods, and nobody else's.
func (w *world) tells(t *testing.T, p addr.Plan, pods ...string) {
	t.Helper()
	w.put(t, "web.yaml", web(p), webSlice(p, here(p)))
	for _, from := range tellers(p) {
		masqueraded := !slices.Contains(pods, from.name)
		for _, to := range clusterPlaces(p) {
			w.sees(t, from.Packet, to, reaches(masqueraded, here(p)))
		}
	}
}

// everybody are all tellers: where nobody is told to be a pod, nobody is masqueraded.
func everybody(p addr.Plan) []string {
	var names []string
	for _, from := range tellers(p) {
		names = append(names, from.name)
	}
	return names
}

// nodeWithRanges is this node with its addresses and these ranges of pods.
func nodeWithRanges(ranges ...netip.Prefix) string {
	var list []string
	for _, r := range ranges {
		list = append(list, quoted(r))
	}
	return nodeWith() + fmt.Sprintf("spec: {podCIDRs: [%s]}\n", strings.Join(list, ", "))
}

func nodeRanges() string { return nodeWithRanges(addr.IPv4().NodePods, addr.IPv6().NodePods) }

func testClusterRange(t *testing.T, w *world) {
	w.restart(t, detectBoth("--detect-local-mode=ClusterCIDR")...)
	each(t, func(t *testing.T, p addr.Plan) { w.tells(t, p, "pod", "second pod", "pod elsewhere") })
	w.restart(t, "--detect-local-mode=ClusterCIDR")
	if w.said("no clusterCIDR", "IPv4") != 1 {
		t.Error("it is not said once that there is no range")
	}
	each(t, func(t *testing.T, p addr.Plan) { w.tells(t, p, everybody(p)...) })
}

// Rules are written when the Node has ranges, and not before.
func testNodeRange(t *testing.T, w *world) {
	p4 := addr.IPv4()
	w.d.Stop()
	w.flags = []string{"--detect-local-mode=NodeCIDR"}
	w.d = rig.New(t, w.h.Node, w.flags...)
	for name, documents := range w.files {
		w.d.Write(name, documents...)
	}
	w.write("node.yaml", nodeWith())
	w.write("web.yaml", web(p4), webSlice(p4, here(p4)))
	before := w.h.Node.Run(t, "nft", "-s", "list", "ruleset")
	w.d.Run()
	rig.Eventually(t, "the Service is known", func() error {
		_, body, err := w.d.Get(10249, "/metrics")
		if err != nil {
			return err
		}
		const changes = "\nkubeproxy_sync_proxy_rules_service_changes_total "
		if !contains(body, changes) || contains(body, changes+"0\n") {
			return errors.New("no change of a Service is counted")
		}
		return nil
	})
	if code, body, err := w.d.Get(10256, "/healthz"); err != nil || code != http.StatusServiceUnavailable {
		t.Errorf("without ranges /healthz: %d %s %v, want 503", code, body, err)
	}
	if w.h.Node.Run(t, "nft", "-s", "list", "ruleset") != before {
		t.Error("something is written without ranges")
	}
	w.write("node.yaml", nodeRanges())
	w.d.AwaitHealthy()
	each(t, func(t *testing.T, p addr.Plan) { w.tells(t, p, "pod", "second pod") })
	w.write("node.yaml", nodeWithRanges(p4.OtherPods))
	rig.Eventually(t, "other ranges end the daemon", func() error {
		if _, _, err := w.d.Get(10256, "/livez"); err == nil {
			return errors.New("it lives")
		}
		if w.said("oneruled: ", "spec.podCIDRs was", "takes a restart") != 1 {
			return errors.New("it has not said why it ends")
		}
		return nil
	})
}

func testBridge(t *testing.T, w *world) {
	w.restart(t, "--detect-local-mode=BridgeInterface", "--pod-bridge-interface=pod0")
	each(t, func(t *testing.T, p addr.Plan) { w.tells(t, p, "pod") })
	w.restart(t, "--detect-local-mode=BridgeInterface", "--pod-bridge-interface=pod")
	each(t, func(t *testing.T, p addr.Plan) { w.tells(t, p) })
	w.endsSaying(t, w.h.Node, "--pod-bridge-interface: it is empty", "--detect-local-mode=BridgeInterface")
}

func testInterfacePrefix(t *testing.T, w *world) {
	w.restart(t, "--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=pod")
	each(t, func(t *testing.T, p addr.Plan) { w.tells(t, p, "pod", "second pod") })
	w.restart(t, "--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=betw")
	each(t, func(t *testing.T, p addr.Plan) { w.tells(t, p, "pod elsewhere") })
	w.endsSaying(t, w.h.Node, "--pod-interface-name-prefix: it is empty", "--detect-local-mode=InterfaceNamePrefix")
}

// A mode that is not set is ClusterCIDR. Another word than the four is refused, as by
// kube-proxy 1.37: what its rules would do then is never seen.
func testOtherModes(t *testing.T, w *world) {
	w.restart(t)
	each(t, func(t *testing.T, p addr.Plan) { w.tells(t, p, everybody(p)...) })
	w.endsSaying(t, w.h.Node, `--detect-local-mode: "Guess" is none of`, "--detect-local-mode=Guess")
}

// endsSaying runs the daemon in place of the one there is, and checks that it ends by
// itself with an error that says this, and leaves the rules as they are.
func (w *world) endsSaying(t *testing.T, ns *netns.NS, says string, flags ...string) {
	t.Helper()
	dir := w.d.Dir
	w.d.Stop()
	w.flags = nil // the usual one comes back afterwards
	before := ns.Run(t, "nft", "-s", "list", "ruleset")
	out := &rig.Output{}
	cmd := exec.Command(rig.Binary(t, "oneruled", "onerule/daemon/oneruled"), append([]string{"--manifests", dir, "--hostname-override", addr.NodeName}, flags...)...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !late.Stop() {
		t.Errorf("with %q it does not end by itself", flags)
	}
	if err == nil || !contains(out.String(), "oneruled: "+says) {
		t.Errorf("with %q it ends with %v and says %q, want %s", flags, err, out, says)
	}
	if ns.Run(t, "nft", "-s", "list", "ruleset") != before {
		t.Errorf("with %q rules are changed", flags)
	}
}

func testWrongFamily(t *testing.T, w *world) {
	p4, p6 := addr.IPv4(), addr.IPv6()
	single := netns.New(t, "single-stack")
	single.Sysctl(t, "net.ipv6.conf.all.disable_ipv6", "1")
	w.endsSaying(t, single, "clusterCIDR has only IPv6 ranges", "--cluster-cidr="+p6.ClusterCIDR.String())

	w.write("node.yaml", nodeWithRanges(p6.NodePods))
	w.endsSaying(t, w.h.Node, "spec.podCIDRs of node node has only IPv6 ranges", "--detect-local-mode=NodeCIDR")

	// With both families served it is a line, and the other family works.
	w.restart(t, "--cluster-cidr="+p6.ClusterCIDR.String())
	if w.said("clusterCIDR has only IPv6 ranges, and the primary IP family is IPv4") != 1 {
		t.Error("it is not said once that the ranges are of one family")
	}
	w.tells(t, p6, "pod", "second pod", "pod elsewhere")
	w.tells(t, p4, everybody(p4)...)
}

// The Node has two ranges of a family, each with one of its three pods.
func testEveryRange(t *testing.T, w *world) {
	var ranges []netip.Prefix
	for _, p := range addr.Both() {
		for _, i := range []int{0, 2} {
			ranges = append(ranges, netip.PrefixFrom(p.Pod(i), p.PodLinkBits()).Masked())
		}
	}
	w.write("node.yaml", nodeWithRanges(ranges...))
	w.restart(t, "--detect-local-mode=NodeCIDR")
	each(t, func(t *testing.T, p addr.Plan) {
		w.put(t, "web.yaml", web(p), webSlice(p, there(p)))
		for i := range pods {
			pod := oracle.Packet{From: oracle.Pod, Src: p.Pod(i)}
			w.sees(t, pod, at(p.VIP(0), model.TCP, 80), reaches(i == 1, there(p)))
		}
	})
}

// Where pods are told, they reach what outside does not. Where none is, kube-proxy has no
// way either.
func testLocalPolicyFromAPod(t *testing.T, w *world) {
	for name, flags := range map[string][]string{
		"ClusterCIDR":         detectBoth(),
		"NodeCIDR":            {"--detect-local-mode=NodeCIDR"},
		"BridgeInterface":     {"--detect-local-mode=BridgeInterface", "--pod-bridge-interface=pod0"},
		"InterfaceNamePrefix": {"--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=pod"},
		"no detector":         nil,
	} {
		w.write("node.yaml", nodeRanges())
		w.restart(t, flags...)
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, p addr.Plan) {
				w.put(t, "web.yaml", outsideService(p, externalLocal), webSlice(p, there(p)))
				pod, node, outside := hosts.Clients(p)[0], hosts.Clients(p)[1], hosts.Clients(p)[2]
				for _, to := range lbPlaces(p) {
					w.sees(t, node, to, reaches(true, there(p)))
					if flags != nil {
						w.sees(t, pod, to, reaches(false, there(p)))
					}
				}
				if flags == nil {
					w.silent(t, []oracle.Packet{pod, outside}, lbPlaces(p)...)
				}
			})
		})
	}
}
