package plugin_test

import (
	"context"
	"encoding/json"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"onerule/test/netns"
)

const mains = "github.com/containernetworking/plugins/plugins/"

// A formerPlugin is what wired the pods of a node before, with host-local.
type formerPlugin struct {
	config object // without addresses
	dual   bool
}

func (f formerPlugin) String() string {
	if f.dual {
		return f.config["type"].(string) + ", both families"
	}
	return f.config["type"].(string) + ", IPv4"
}

func formerPlugins() []formerPlugin {
	ptp := object{"type": "ptp"}
	bridge := object{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipMasq": true, "ipMasqBackend": "nftables"}
	return []formerPlugin{{ptp, false}, {ptp, true}, {bridge, false}, {bridge, true}}
}

// A node moves from another plugin and host-local to this one under its running pods.
func TestAdopt(t *testing.T) {
	dir := build(t, mains+"main/ptp", mains+"main/bridge", mains+"ipam/host-local")
	for _, former := range formerPlugins() {
		t.Run(former.String(), func(t *testing.T) { testAdopt(t, dir, former) })
	}
}

func testAdopt(t *testing.T, dir string, former formerPlugin) {
	n := newNode(t)
	networks := t.TempDir()
	n.Sysctl(t, "net.ipv6.conf.default.accept_dad", "0") // as if the bridge were there for long
	old := oldPodsOf(t, n, dir, networks, former, 3)
	n.Sysctl(t, "net.ipv6.conf.default.accept_dad", "1")
	more := object{"adopt": filepath.Join(networks, "pods"), "quarantine": "0s"}
	stdin := n.config("1.1.0", more)
	// What a reboot left, and what a crash did.
	stale := filepath.Join(networks, "pods", "10.1.0.200")
	for name, content := range map[string]string{stale: "gone\r\neth0", filepath.Join(networks, "pods", "10.1.0.201"): ""} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.Run(t, "touch", "-d", "2020-01-01", stale)

	next := netns.New(t, "next")
	got := addresses(t, n.added(t, add("next", "eth0", next, stdin)))
	t.Run("a new pod gets addresses that no old one has, and they talk", func(t *testing.T) {
		for _, p := range old {
			for i, a := range p.addrs {
				if slices.Contains(got, a) {
					t.Errorf("%s was given twice", a)
				}
				connect(t, next, p.ns, a)
				connect(t, p.ns, next, got[i])
				connect(t, n.outside, p.ns, a)
				connect(t, n.NS, p.ns, a)
			}
			connect(t, p.ns, n.outside, netip.MustParseAddr(outAddr4))
		}
		connect(t, old[0].ns, old[1].ns, old[1].addr)
	})
	t.Run("what is void is not adopted", func(t *testing.T) {
		if files := strings.Join(n.files(t), " "); strings.Contains(files, "10.1.0.20") {
			t.Errorf("got files %s", files)
		}
	})
	endOldPods(t, n, old, more)
}

// endOldPods releases what the plugin took over, in each way that there is.
func endOldPods(t *testing.T, n *node, old []oldPod, more object) {
	t.Helper()
	stdin, perPod := n.config("1.1.0", more), len(old[0].addrs)
	t.Run("C50: GC without a list spares old pods", func(t *testing.T) {
		n.succeed(t, call{verb: "GC", stdin: stdin})
		if files := n.files(t); len(files) != 3*perPod+3 {
			t.Errorf("got files %q, want those of three old pods and three of the new one", files)
		}
	})
	t.Run("C37: DEL of an old pod frees its address", func(t *testing.T) {
		n.succeed(t, call{verb: "DEL", container: "old0", ifName: "eth0", netns: old[0].ns.Path(), stdin: stdin})
		if files := n.files(t); slices.Contains(files, old[0].addr.String()) {
			t.Errorf("got files %q", files)
		}
	})
	t.Run("C48: GC with a list removes those that it does not have", func(t *testing.T) {
		keep := object{"cni.dev/valid-attachments": []object{{"containerID": "old1", "ifname": "eth0"}, {"containerID": "next", "ifname": "eth0"}}}
		keep["adopt"] = more["adopt"]
		n.succeed(t, call{verb: "GC", stdin: n.config("1.1.0", keep)})
		files := n.files(t)
		if len(files) != perPod+3 || !slices.Contains(files, old[1].addr.String()) {
			t.Errorf("got files %q, want those of old1 and three of the new pod", files)
		}
	})
	t.Run("D2: those of an earlier boot are void", func(t *testing.T) {
		n.reboot(t)
		n.succeed(t, call{verb: "GC", stdin: stdin})
		n.clean(t)
	})
}

type oldPod struct {
	ns    *netns.NS
	addr  netip.Addr // the first
	addrs []netip.Addr
}

// oldPods wires pods by ptp and host-local.
func oldPods(t *testing.T, n *node, dir, networks string, count int) []oldPod {
	t.Helper()
	return oldPodsOf(t, n, dir, networks, formerPlugins()[0], count)
}

func oldPodsOf(t *testing.T, n *node, dir, networks string, former formerPlugin, count int) []oldPod {
	t.Helper()
	ranges, routes := [][]object{{{"subnet": podRange4}}}, []object{{"dst": "0.0.0.0/0"}}
	if former.dual {
		ranges, routes = append(ranges, []object{{"subnet": podRange6}}), append(routes, object{"dst": "::/0"})
	}
	conf := maps.Clone(former.config)
	conf["ipam"] = object{"type": "host-local", "dataDir": networks, "ranges": ranges, "routes": routes}
	b, err := json.Marshal(object{"cniVersion": "1.0.0", "name": "pods", "plugins": []object{conf}})
	if err != nil {
		t.Fatal(err)
	}
	list, err := libcni.ConfListFromBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{dir}, t.TempDir(), nil)
	var pods []oldPod
	for i := range count {
		pod := oldPod{ns: netns.New(t, "old")}
		pod.ns.Sysctl(t, "net.ipv6.conf.default.accept_dad", "0")
		rt := &libcni.RuntimeConf{ContainerID: "old" + dec(i), NetNS: pod.ns.Path(), IfName: "eth0"}
		if err := n.Do(func() error {
			res, err := cni.AddNetworkList(context.Background(), list, rt)
			if err != nil {
				return err
			}
			r, err := types100.NewResultFromResult(res)
			if err == nil {
				pod.addrs = addresses(t, r)
				pod.addr = pod.addrs[0]
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		pods = append(pods, pod)
	}
	return pods
}

// A DEL may be the first that comes.
func TestAdoptAtDEL(t *testing.T) {
	n := newNode(t)
	old := t.TempDir()
	for addr, content := range map[string]string{"10.1.0.2": "c1\r\neth0", "10.1.0.3": "c2", "last_reserved_ip.0": "10.1.0.3"} {
		if err := os.WriteFile(filepath.Join(old, addr), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stdin := n.config("1.1.0", object{"adopt": old})
	n.succeed(t, call{verb: "DEL", container: "c1", ifName: "eth0", stdin: stdin})
	if files := n.files(t); !slices.Equal(files, []string{"10.1.0.3"}) {
		t.Errorf("got files %q, want that of c2", files)
	}
	n.succeed(t, call{verb: "DEL", container: "c2", ifName: "eth0", stdin: stdin})
	n.clean(t)
	n.fail(t, call{verb: "DEL", container: "c2", ifName: "eth0", stdin: n.config("1.1.0", object{"adopt": "here"})}, 7, "adopt")
}
