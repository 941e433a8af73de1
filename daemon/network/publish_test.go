package network_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"onerule/install"
	"onerule/test/netns"
	"onerule/test/rig"
	"onerule/test/wired"
)

// A runtime reads what the daemon of a node publishes, and begins pods with it.
func TestD6D8TheDaemonInstallsThePlugin(t *testing.T) {
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, name) }
	ns := wired.Quiet(t, "node")
	netns.Wire(t, ns, "eth0", wired.Quiet(t, "router"), "eth0")
	ns.Addr(t, "eth0", "172.16.1.1/24", "fd00:16:1::1/64")
	ns.Route(t, "default", "172.16.1.254")
	d := rig.New(t, ns, "--hostname-override", "a", "--pod-network", "--cni-state", at("state"), "--network-status-file", at("run/network.json"),
		"--cluster-cidr", "10.1.0.0/16,fd00:1::/48", "--install-cni", "--cni-plugin", rig.Binary(t, "onerule", "onerule/plugin/onerule"),
		"--cni-bin-dir", at("bin"), "--cni-conf-dir", at("net.d"), "--etc-dir", at("etc"))
	if err := os.MkdirAll(at("etc/systemd/network"), 0o755); err != nil {
		t.Fatal(err)
	}
	d.Write("services.yaml", rig.ServiceCIDR("kubernetes", netip.MustParsePrefix("10.96.0.0/16")))
	d.Run()
	list := at("net.d/" + install.ListName)
	rig.Eventually(t, "the binary is there", func() error { _, err := os.Stat(at("bin/onerule")); return err })
	rig.Eventually(t, "D12 systemd-networkd is told", func() error { _, err := os.Stat(at("etc/systemd/network/00-onerule.network")); return err })
	d.AwaitHealthy()
	t.Run("D8 no list as long as this node's ranges are not known", func(t *testing.T) {
		if _, err := os.Stat(list); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("D8 nor while a chain of others drops what is forwarded", func(t *testing.T) {
		ns.Run(t, "nft", "add table ip foreign; add chain ip foreign f { type filter hook forward priority 0; policy drop; }")
		d.Write("node.yaml", node("a", 1, []string{"10.1.1.0/24", "fd00:1:0:1::/112"}, addrs("172.16.1.1", "fd00:16:1::1")...))
		rig.Eventually(t, "the plugin is told", func() error { return conditions(at("run/network.json"), 1) })
		if _, err := os.Stat(list); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("D8 then there is one, and pods begin with it", func(t *testing.T) {
		ns.Run(t, "nft", "delete table ip foreign")
		rig.Eventually(t, "the list is there", func() error { _, err := os.Stat(list); return err })
		begin(t, ns, list, at("bin"))
	})
	t.Run("a list that others remove is back, and counted", func(t *testing.T) {
		if err := os.Remove(list); err != nil {
			t.Fatal(err)
		}
		rig.Eventually(t, "the list is back", func() error {
			if _, err := os.Stat(list); err != nil {
				return err
			}
			if n := d.Metric("onerule_foreign_changes_total", "kind", install.KindList); n != 1 {
				return fmt.Errorf("counted %v", n)
			}
			return nil
		})
	})
}

// conditions wants that many in a status file.
func conditions(path string, want int) error {
	b, err := os.ReadFile(path)
	var s struct{ Conditions []any }
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err == nil && len(s.Conditions) != want {
		err = fmt.Errorf("it holds %s", b)
	}
	return err
}

// begin has libcni begin and end a pod.
func begin(t *testing.T, ns *netns.NS, list, bin string) {
	t.Helper()
	l, err := libcni.NetworkConfFromFile(list)
	if err != nil {
		t.Fatal(err)
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{bin}, t.TempDir(), nil)
	pod := &libcni.RuntimeConf{ContainerID: "pod", NetNS: wired.Quiet(t, "pod").Path(), IfName: "eth0"}
	err = ns.Do(func() error {
		ctx := context.WithoutCancel(t.Context())
		if err := cni.GetStatusNetworkList(ctx, l); err != nil {
			return fmt.Errorf("STATUS: %w", err)
		}
		var r types.Result
		if r, err = cni.AddNetworkList(ctx, l, pod); err != nil {
			return fmt.Errorf("ADD: %w", err)
		}
		t.Logf("ADD gave %v", r)
		return cni.DelNetworkList(ctx, l, pod)
	})
	if err != nil {
		t.Error(err)
	}
}
