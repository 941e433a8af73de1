package network_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"onerule/daemon/network"
	"onerule/test/netns"
	"onerule/test/rig"
	"onerule/test/wired"
)

const (
	sawPort  = 7 // pods say whom they saw
	echoPort = 9 // pods send back what comes
)

// outside gives addresses outside the cluster, which the router has.
func outside() []netip.Addr { return addrs("192.0.2.7", "fd00:9::7") }

func addrs(list ...string) []netip.Addr {
	var as []netip.Addr
	for _, s := range list {
		as = append(as, netip.MustParseAddr(s))
	}
	return as
}

// A world is a cluster with daemons.
type world struct {
	router *netns.NS
	nodes  []*host
}

// A host is a node with its daemon and a pod, which the real plugin wires.
type host struct {
	*wired.Member
	name   string
	addrs  []netip.Addr
	ns     *netns.NS
	pod    *netns.NS
	pods   []netip.Addr // the addresses of pod
	state  string       // of the plugin
	status string       // file
	daemon *rig.Daemon
}

// ranges gives the node's pod ranges.
func (h *host) ranges() []string { return texts(h.Ranges) }

func texts(ranges []netip.Prefix) []string {
	var list []string
	for _, p := range ranges {
		list = append(list, p.String())
	}
	return list
}

// object gives the Node's manifest.
func (h *host) object() string {
	return node(h.name, h.Number, h.ranges(), h.addrs...)
}

func node(name string, created int, ranges []string, internal ...netip.Addr) string {
	var list, cidrs []string
	for _, a := range internal {
		list = append(list, fmt.Sprintf("{type: InternalIP, address: %q}", a))
	}
	for _, r := range ranges {
		cidrs = append(cidrs, fmt.Sprintf("%q", r))
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Node
metadata: {name: %s, creationTimestamp: "2026-01-01T00:00:%02dZ"}
spec: {podCIDRs: [%s]}
status: {addresses: [%s]}
`, name, created, strings.Join(cidrs, ", "), strings.Join(list, ", "))
}

func newNS(t *testing.T, name string) *netns.NS {
	t.Helper()
	return wired.Quiet(t, name)
}

// newWorld makes nodes with pods, and daemons that do not run yet. What they are told
// beside the nodes is in manifests.
func newWorld(t *testing.T, manifests []string, flags ...string) *world {
	t.Helper()
	return newWorldOf(t, wired.Dual(), manifests, flags...)
}

func newWorldOf(t *testing.T, shape wired.Shape, manifests []string, flags ...string) *world {
	t.Helper()
	c := wired.NewCluster(t, shape)
	w := &world{router: c.Router}
	for _, a := range outside() {
		w.router.Addr(t, "lo", netip.PrefixFrom(a, a.BitLen()).String())
		wired.Serve(t, w.router, "outside", netip.AddrPortFrom(a, sawPort))
	}
	for _, m := range c.Members {
		h := &host{Member: m, name: m.Name, addrs: m.Addrs, ns: m.NS, pod: m.Pod}
		h.state, h.status = filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "run", "network.json")
		h.wire(t)
		w.nodes = append(w.nodes, h)
	}
	var cluster, services []string
	for _, f := range shape.Pods {
		cluster = append(cluster, []string{"10.1.0.0/16", "fd00:1::/48"}[f])
		services = append(services, []string{"10.96.0.0/16", "fd00:96::/112"}[f])
	}
	for _, h := range w.nodes {
		h.daemon = rig.New(t, h.ns, append([]string{
			"--hostname-override", h.name, "--pod-network", "--cni-state", h.state, "--network-status-file", h.status,
			"--cluster-cidr", strings.Join(cluster, ","),
		}, flags...)...)
		for _, other := range w.nodes {
			h.daemon.Write("node-"+other.name+".yaml", other.object())
		}
		h.daemon.Write("services.yaml", append([]string{rig.ServiceCIDR("kubernetes", netip.MustParsePrefix(services[0]))}, manifests...)...)
	}
	return w
}

// wire has the plugin make a pod.
func (h *host) wire(t *testing.T) {
	t.Helper()
	out, err := h.plugin(t, "ADD")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal(out, &result); err != nil || len(result.IPs) != len(h.Ranges) {
		t.Fatalf("the plugin gave %s: %v", out, err)
	}
	for _, ip := range result.IPs {
		h.pods = append(h.pods, ip.Address.Addr())
		wired.Serve(t, h.pod, "pod-"+h.name, netip.AddrPortFrom(ip.Address.Addr(), sawPort))
		wired.Echo(t, h.pod, netip.AddrPortFrom(ip.Address.Addr(), echoPort))
	}
}

// plugin runs the real plugin, which is told where the daemon writes its status.
func (h *host) plugin(t *testing.T, verb string) (stdout []byte, err error) {
	t.Helper()
	var sets []string
	for _, r := range h.Ranges {
		sets = append(sets, fmt.Sprintf(`[{"subnet": %q}]`, r))
	}
	config := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "pods", "type": "onerule", "dataDir": %q, "statusFile": %q,
		"ipam": {"ranges": [%s]}}`, h.state, h.status, strings.Join(sets, ", "))
	cmd := exec.Command(rig.Binary(t, "onerule", "onerule/plugin/onerule"))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID=pod-"+h.name, "CNI_NETNS="+h.pod.Path(), "CNI_IFNAME=eth0", "CNI_PATH=/nowhere")
	cmd.Stdin = strings.NewReader(config)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err = h.ns.Start(cmd); err == nil {
		err = cmd.Wait()
	}
	return out.Bytes(), err
}

// start runs all daemons, and waits until each has all in the kernel.
func (w *world) start(t *testing.T) {
	t.Helper()
	for _, h := range w.nodes {
		h.daemon.Run()
	}
	for _, h := range w.nodes {
		h.daemon.AwaitHealthy()
		h.awaitStatus(t)
	}
}

// awaitStatus waits until the plugin is told that these conditions hold, and no others. Each
// is a part of a message.
func (h *host) awaitStatus(t *testing.T, want ...string) {
	t.Helper()
	rig.Eventually(t, "status file of node "+h.name, func() error {
		b, err := os.ReadFile(h.status)
		if err != nil {
			return err
		}
		var got network.Status
		if err := json.Unmarshal(b, &got); err != nil {
			return err
		}
		if len(got.Conditions) != len(want) || time.Since(got.Time) > time.Minute {
			return fmt.Errorf("it holds %s, want %q", b, want)
		}
		for i, c := range got.Conditions {
			if c.Code != 51 || !strings.Contains(c.Message, want[i]) {
				return fmt.Errorf("it holds %s, want %q", b, want)
			}
		}
		return nil
	})
}

// hears asks until the answer is the one that is wanted: neighbours are looked for first.
func hears(t *testing.T, on *netns.NS, from netip.Addr, to netip.AddrPort, want string) {
	t.Helper()
	for _, protocol := range []string{"udp", "tcp"} {
		source := netip.AddrPort{}
		if from.IsValid() {
			source = netip.AddrPortFrom(from, 0)
		}
		rig.Eventually(t, fmt.Sprintf("%s from %s to %s", protocol, on.Name(), to), func() error {
			got, err := wired.Ask(on, protocol, source, to)
			if err == nil && got != want {
				err = fmt.Errorf("got %q, want %q", got, want)
			}
			return err
		})
	}
}
