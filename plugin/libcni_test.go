package plugin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"onerule/test/netns"
)

// readmeExample takes the example out of the README.
func readmeExample(t *testing.T) object {
	t.Helper()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	from, to := bytes.Index(readme, []byte("    {\n")), bytes.Index(readme, []byte("\n    }\n"))
	var list object
	if err := json.Unmarshal(readme[from:to+7], &list); err != nil {
		t.Fatalf("the README's example: %v", err)
	}
	return list
}

func gcAttachments(containers ...string) []types.GCAttachment {
	var all []types.GCAttachment
	for _, c := range containers {
		all = append(all, types.GCAttachment{ContainerID: c, IfName: "eth0"})
	}
	return all
}

// conflist gives the README's example with the node's state directory and a version.
func (n *node) conflist(t *testing.T, version string) *libcni.NetworkConfigList {
	t.Helper()
	list := readmeExample(t)
	list["cniVersion"] = version
	delete(list, "cniVersions")
	plugin := list["plugins"].([]any)[0].(object)
	plugin["dataDir"], plugin["statusFile"] = n.dataDir, n.statusFile()
	b, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	conf, err := libcni.ConfListFromBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	return conf
}

// TestRuntime drives the plugin as container runtimes do, by libcni, with its
// checks of the plugin's answers and its cached results.
func TestRuntime(t *testing.T) {
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run("C8, C20, C23, C34, C43, C58: a list of version "+version, func(t *testing.T) {
			n := newNode(t)
			pod := netns.New(t, "pod")
			conf := n.conflist(t, version)
			cni := libcni.NewCNIConfigWithCacheDir([]string{filepath.Dir(binary())}, t.TempDir(), nil)
			rt := &libcni.RuntimeConf{ContainerID: "c1", NetNS: pod.Path(), IfName: "eth0",
				Args:           [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", "web-0"}},
				CapabilityArgs: map[string]any{"ips": []string{"10.1.0.9"}, "mac": "02:00:00:00:00:09", "portMappings": bothProtocols(hostPort)}}
			ctx := context.Background()
			do := func(what string, f func() error) {
				t.Helper()
				if err := n.Do(f); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			do("validate", func() error { _, err := cni.ValidateNetworkList(ctx, conf); return err })
			do("add", func() error { _, err := cni.AddNetworkList(ctx, conf, rt); return err })
			if out := pod.Run(t, "ip", "addr", "show", "eth0"); !strings.Contains(out, "10.1.0.9/32") || !strings.Contains(out, "02:00:00:00:00:09") {
				t.Errorf("got %s", out)
			}
			if out := n.hostPortRules(t); !strings.Contains(out, "udp . 8080") {
				t.Errorf("got host ports %s", out)
			}
			if version != "0.3.1" {
				do("check", func() error { return cni.CheckNetworkList(ctx, conf, rt) })
			}
			if version == "1.1.0" {
				do("status", func() error { return cni.GetStatusNetworkList(ctx, conf) })
				keep := &libcni.GCArgs{ValidAttachments: gcAttachments("c1")}
				do("gc of nothing", func() error { return cni.GCNetworkList(ctx, conf, keep) })
				do("check", func() error { return cni.CheckNetworkList(ctx, conf, rt) })
			}
			do("del", func() error { return cni.DelNetworkList(ctx, conf, rt) })
			n.clean(t)
		})
	}
	t.Run("C11: libcni reads our error", func(t *testing.T) {
		n := newNode(t)
		cni := libcni.NewCNIConfigWithCacheDir([]string{filepath.Dir(binary())}, t.TempDir(), nil)
		rt := &libcni.RuntimeConf{ContainerID: "c1", NetNS: "/nowhere", IfName: "eth0"}
		err := n.Do(func() error {
			_, err := cni.AddNetworkList(context.Background(), n.conflist(t, "1.0.0"), rt)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), "/nowhere") {
			t.Errorf("got %v", err)
		}
	})
}
