package plugin_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"onerule/test/netns"
)

// build builds programs that are tools of test/reference, and puts the plugin beside.
func build(t *testing.T, packages ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	cmd := exec.Command("go", append([]string{"-C", "../test/reference", "build", "-o", dir + "/"}, packages...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %v: %v\n%s", packages, err, out)
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
	dir := build(t, plugins+"tuning", plugins+"bandwidth")
	ctx := context.Background()
	for _, version := range []string{"0.4.0", "1.0.0", "1.1.0"} {
		t.Run("C25, C59: tuning and bandwidth, with version "+version, func(t *testing.T) {
			n := newNode(t)
			pod, peer := netns.New(t, "pod"), netns.New(t, "peer")
			n.added(t, add("peer", "eth0", peer, n.config("1.1.0", nil)))
			list := n.chain(t, version,
				object{"type": "tuning", "allmulti": true, "sysctl": object{"net.ipv4.ip_default_ttl": "77"}},
				object{"type": "bandwidth", "ingressRate": 80_000_000, "ingressBurst": 8_000_000, "egressRate": 80_000_000, "egressBurst": 8_000_000})
			cni := libcni.NewCNIConfigWithCacheDir([]string{dir}, t.TempDir(), nil)
			rt := &libcni.RuntimeConf{ContainerID: "c1", NetNS: pod.Path(), IfName: "eth0"}
			var r *types100.Result
			n.inNode(t, "ADD", func() error {
				res, err := cni.AddNetworkList(ctx, list, rt)
				if err == nil {
					r, err = types100.NewResultFromResult(res)
				}
				return err
			})
			if t.Failed() {
				return
			}
			addrs := addresses(t, r)
			for _, a := range addrs {
				connect(t, peer, pod, a)
				connect(t, n.outside, pod, a)
			}
			if ttl := strings.TrimSpace(pod.Run(t, "sysctl", "-n", "net.ipv4.ip_default_ttl")); ttl != "77" {
				t.Errorf("ttl: got %s", ttl)
			}
			if out := n.Run(t, "tc", "qdisc", "show", "dev", r.Interfaces[0].Name); !strings.Contains(out, "tbf") {
				t.Errorf("got qdisc %s, want tbf", out)
			}
			n.inNode(t, "CHECK", func() error { return cni.CheckNetworkList(ctx, list, rt) })
			n.inNode(t, "DEL", func() error { return cni.DelNetworkList(ctx, list, rt) })
			n.succeed(t, add("peer", "eth0", peer, n.config("1.1.0", nil)).as("DEL"))
			n.clean(t)
		})
	}
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

// TestCnitool drives the plugin by another program than ours.
func TestCnitool(t *testing.T) {
	dir := build(t, "github.com/containernetworking/cni/cnitool")
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run("C13, C60: add, check, status, gc and del with version "+version, func(t *testing.T) {
			n := newNode(t)
			pod := netns.New(t, "pod")
			conf := t.TempDir()
			if err := os.WriteFile(filepath.Join(conf, "10-onerule.conflist"), n.conflist(t, version).Bytes, 0o600); err != nil {
				t.Fatal(err)
			}
			cnitool := func(verb string) string {
				t.Helper()
				cmd := exec.Command(filepath.Join(dir, "cnitool"), verb, "pods", pod.Path())
				cmd.Env = append(os.Environ(), "CNI_PATH="+dir, "NETCONFPATH="+conf, "CNI_CACHE_DIR="+conf+"/cache",
					`CAP_ARGS={"ips":["10.1.0.9"],"mac":"02:00:00:00:00:09"}`)
				var out strings.Builder
				cmd.Stdout, cmd.Stderr = &out, &out
				if err := n.Start(cmd); err != nil {
					t.Fatal(err)
				}
				if err := cmd.Wait(); err != nil {
					t.Fatalf("cnitool %s: %v\n%s", verb, err, out.String())
				}
				return out.String()
			}
			var r struct {
				CNIVersion string
				IPs        []struct{ Address string }
			}
			if out := cnitool("add"); json.Unmarshal([]byte(out), &r) != nil || r.CNIVersion != version {
				t.Fatalf("got result %s", out)
			}
			if len(r.IPs) != 2 || r.IPs[0].Address != "10.1.0.9/32" {
				t.Errorf("got addresses %v", r.IPs)
			}
			if version != "0.3.1" {
				cnitool("check")
			}
			if version == "1.1.0" {
				cnitool("status")
			}
			if version == "1.1.0" {
				cnitool("gc")
			}
			cnitool("del")
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
