package plugin_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"onerule/test/netns"
)

// build builds programs that are tools of test/reference, which Go keeps in its cache, and
// puts the plugin beside.
func build(t *testing.T, packages ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range packages {
		cmd := exec.Command("go", "-C", "../test/reference", "tool", "-n", name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		var said strings.Builder
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, said.String())
		}
		if err := os.Symlink(strings.TrimSpace(string(out)), filepath.Join(dir, path.Base(name))); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(binary())
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "onerule"), b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

const plugins = "github.com/containernetworking/plugins/plugins/meta/"

// chain gives a list with this plugin first.
func (n *node) chain(t *testing.T, version string, others ...object) *libcni.NetworkConfigList {
	t.Helper()
	var own object
	if err := json.Unmarshal([]byte(n.config(version, nil)), &own); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(object{"cniVersion": version, "name": "pods", "plugins": append([]object{own}, others...)})
	if err != nil {
		t.Fatal(err)
	}
	list, err := libcni.ConfListFromBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// inNode runs a call of libcni in the node's namespace.
func (n *node) inNode(t *testing.T, what string, f func() error) {
	t.Helper()
	if err := n.Do(f); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// Others behind this plugin: what they add works, and nothing of ours breaks.
func TestChain(t *testing.T) {
	dir := build(t, plugins+"tuning", plugins+"bandwidth", plugins+"sbr", plugins+"firewall")
	for _, version := range []string{"0.4.0", "1.0.0", "1.1.0"} {
		t.Run("C25, C59: tuning, bandwidth, sbr and firewall, with version "+version, func(t *testing.T) { testChain(t, dir, version) })
	}
	// It would add a default route by a gateway that is on no link, and says that it can't. A
	// second interface answers from its own addresses anyway.
	t.Run("C25, C59: sbr without a table is refused, and DEL leaves nothing", func(t *testing.T) {
		n := newNode(t)
		cni := libcni.NewCNIConfigWithCacheDir([]string{dir}, t.TempDir(), nil)
		rt := &libcni.RuntimeConf{ContainerID: "c1", NetNS: netns.New(t, "pod").Path(), IfName: "eth0"}
		list := n.chain(t, "1.0.0", object{"type": "sbr"})
		if _, err := n.addByLibcni(cni, list, rt); err == nil || !strings.Contains(err.Error(), "169.254.1.1") {
			t.Errorf("got %v", err)
		}
		n.inNode(t, "DEL", func() error { return cni.DelNetworkList(context.Background(), list, rt) })
		n.clean(t)
	})
}

func (n *node) addByLibcni(cni *libcni.CNIConfig, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf) (r *types100.Result, err error) {
	err = n.Do(func() error {
		res, err := cni.AddNetworkList(context.Background(), list, rt)
		if err == nil {
			r, err = types100.NewResultFromResult(res)
		}
		return err
	})
	return r, err
}

func testChain(t *testing.T, dir, version string) {
	ctx := context.Background()
	cni := libcni.NewCNIConfigWithCacheDir([]string{dir}, t.TempDir(), nil)
	alone := newNode(t)
	rt := &libcni.RuntimeConf{ContainerID: "c1", NetNS: netns.New(t, "pod").Path(), IfName: "eth0"}
	ours, err := alone.addByLibcni(cni, alone.chain(t, version), rt)
	if err != nil {
		t.Fatal(err)
	}

	n := newNode(t)
	pod, peer := netns.New(t, "pod"), netns.New(t, "peer")
	list := n.chain(t, version,
		object{"type": "tuning", "allmulti": true, "sysctl": object{"net.ipv4.ip_default_ttl": "77"}},
		object{"type": "bandwidth", "ingressRate": 80_000_000, "ingressBurst": 8_000_000, "egressRate": 80_000_000, "egressBurst": 8_000_000},
		object{"type": "sbr", "table": 4711},
		object{"type": "firewall", "backend": "iptables"})
	rt.NetNS = pod.Path()
	r, err := n.addByLibcni(cni, list, rt)
	if err != nil {
		t.Fatal(err)
	}
	n.added(t, add("peer", "eth0", peer, n.config("1.1.0", nil)))
	if d := cmp.Diff(passedOn(ours), passedOn(r)); d != "" {
		t.Errorf("what others passed on of our result (-ours +theirs):\n%s", d)
	}
	for _, a := range addresses(t, r) {
		connect(t, peer, pod, a)
		connect(t, n.outside, pod, a)
	}
	for what, got := range map[string]string{
		"77": pod.Run(t, "sysctl", "-n", "net.ipv4.ip_default_ttl"), "tbf": n.Run(t, "tc", "qdisc", "show", "dev", r.Interfaces[0].Name),
		"lookup 4711": pod.Run(t, "ip", "rule"), "-s " + firstPod6 + "/128 -j ACCEPT": n.Run(t, "ip6tables-save"),
	} {
		if !strings.Contains(got, what) {
			t.Errorf("got %s, want %s", got, what)
		}
	}
	n.inNode(t, "CHECK", func() error { return cni.CheckNetworkList(ctx, list, rt) })
	n.inNode(t, "DEL", func() error { return cni.DelNetworkList(ctx, list, rt) })
	n.succeed(t, add("peer", "eth0", peer, n.config("1.1.0", nil)).as("DEL"))
	n.clean(t)
	podIsClean(t, pod)
}

// passedOn gives what others may add to, and nothing else: bandwidth names a device of its
// own behind ours.
func passedOn(r *types100.Result) types100.Result {
	p := *r
	p.Interfaces = nil
	for _, i := range r.Interfaces[:2] {
		there := *i
		there.Sandbox = "" // a path, which is another one each time
		p.Interfaces = append(p.Interfaces, &there)
	}
	return p
}

func TestChainAfterTheNamespaceIsGone(t *testing.T) {
	dir := build(t, plugins+"tuning", plugins+"bandwidth")
	ctx := context.Background()
	for _, cached := range []bool{true, false} {
		name := "C36, C39: DEL of a list whose namespace is gone"
		if !cached {
			name = "C37, C39, C54: and whose cached result is gone as well"
		}
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			pod := netns.New(t, "pod")
			list := n.chain(t, "1.0.0", object{"type": "tuning"}, object{"type": "bandwidth", "ingressRate": 80_000_000, "ingressBurst": 8_000_000})
			cache := t.TempDir()
			cni := libcni.NewCNIConfigWithCacheDir([]string{dir}, cache, nil)
			rt := &libcni.RuntimeConf{ContainerID: "c1", NetNS: pod.Path(), IfName: "eth0"}
			n.inNode(t, "ADD", func() error { _, err := cni.AddNetworkList(ctx, list, rt); return err })
			if err := pod.Close(); err != nil {
				t.Fatal(err)
			}
			if !cached {
				if err := os.RemoveAll(filepath.Join(cache, "results")); err != nil {
					t.Fatal(err)
				}
			}
			rt.NetNS = ""
			n.inNode(t, "DEL", func() error { return cni.DelNetworkList(ctx, list, rt) })
			n.clean(t)
		})
	}
}

func TestVersionsOfAList(t *testing.T) {
	n := newNode(t)
	for name, tc := range map[string]struct {
		versions any
		want     string
	}{
		"C22: a runtime takes the newest version that it knows":  {[]string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}, "1.1.0"},
		"C22: one that does not know the array takes cniVersion": {nil, "1.0.0"},
	} {
		t.Run(name, func(t *testing.T) {
			list := readmeExample(t)
			if d := cmp.Diff([]any{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}, list["cniVersions"]); d != "" {
				t.Errorf("the README's example (-want +got):\n%s", d)
			}
			list["plugins"].([]any)[0].(object)["dataDir"] = n.dataDir
			list["cniVersions"] = tc.versions
			if tc.versions == nil {
				delete(list, "cniVersions")
			}
			b, err := json.Marshal(list)
			if err != nil {
				t.Fatal(err)
			}
			conf, err := libcni.ConfListFromBytes(b)
			if err != nil {
				t.Fatal(err)
			}
			cni := libcni.NewCNIConfigWithCacheDir([]string{filepath.Dir(binary())}, t.TempDir(), nil)
			rt := &libcni.RuntimeConf{ContainerID: "c1", NetNS: netns.New(t, "pod").Path(), IfName: "eth0"}
			n.inNode(t, "ADD", func() error {
				r, err := cni.AddNetworkList(context.Background(), conf, rt)
				if err == nil && r.Version() != tc.want {
					t.Errorf("got version %s, want %s", r.Version(), tc.want)
				}
				return err
			})
			n.inNode(t, "DEL", func() error { return cni.DelNetworkList(context.Background(), conf, rt) })
			n.clean(t)
		})
	}
}

func TestGCByLibcni(t *testing.T) {
	n := newNode(t)
	cni := libcni.NewCNIConfigWithCacheDir([]string{filepath.Dir(binary())}, t.TempDir(), nil)
	list := n.conflist(t, "1.1.0")
	ctx := context.Background()
	for _, id := range []string{"c1", "c2", "c3"} {
		rt := &libcni.RuntimeConf{ContainerID: id, NetNS: netns.New(t, id).Path(), IfName: "eth0"}
		n.inNode(t, "ADD", func() error { _, err := cni.AddNetworkList(ctx, list, rt); return err })
	}
	t.Run("C51: what the list leaves out goes by DEL and by GC", func(t *testing.T) {
		args := &libcni.GCArgs{ValidAttachments: gcAttachments("c1", "c3")}
		n.inNode(t, "GC", func() error { return cni.GCNetworkList(ctx, list, args) })
		if got := n.records(t); !slices.Equal(got, []string{"c1:eth0.json", "c3:eth0.json"}) {
			t.Errorf("got %q", got)
		}
	})
	t.Run("C51: without arguments libcni deletes all that it has in its cache", func(t *testing.T) {
		n.inNode(t, "GC", func() error { return cni.GCNetworkList(ctx, list, nil) })
		n.clean(t)
	})
}
