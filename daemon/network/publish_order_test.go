package network_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"onerule/daemon/network"
	"onerule/install"
	"onerule/test/netns"
	"onerule/test/rig"
	"onerule/test/wired"
)

// A publisher is a node whose daemon installs the plugin.
type publisher struct {
	ns     *netns.NS
	daemon *rig.Daemon
	root   string
}

func newPublisher(t *testing.T) *publisher {
	t.Helper()
	p := &publisher{ns: wired.Quiet(t, "node"), root: t.TempDir()}
	netns.Wire(t, p.ns, "eth0", wired.Quiet(t, "router"), "eth0")
	p.ns.Addr(t, "eth0", "172.16.1.1/24", "fd00:16:1::1/64")
	p.ns.Route(t, "default", "172.16.1.254")
	p.daemon = rig.New(t, p.ns, "--hostname-override", "a", "--pod-network", "--cni-state", p.at("state"), "--network-status-file", p.at("run/network.json"),
		"--cluster-cidr", "10.1.0.0/16,fd00:1::/48", "--install-cni", "--cni-plugin", rig.Binary(t, "onerule", "onerule/plugin/onerule"),
		"--cni-bin-dir", p.at("bin"), "--cni-conf-dir", p.at("net.d"), "--etc-dir=")
	p.daemon.Write("services.yaml", rig.ServiceCIDR("kubernetes", netip.MustParsePrefix("10.96.0.0/16")))
	p.daemon.Write("node.yaml", node("a", 1, []string{"10.1.1.0/24", "fd00:1:0:1::/112"}, addrs("172.16.1.1", "fd00:16:1::1")...))
	return p
}

func (p *publisher) at(name string) string { return filepath.Join(p.root, name) }

func (p *publisher) list() string { return p.at("net.d/" + install.ListName) }

func (p *publisher) isPublished() bool {
	_, err := os.Stat(p.list())
	return err == nil
}

// refuseServices has nft refuse the table of Services as long as a file is there; all else
// goes on.
func (p *publisher) refuseServices(t *testing.T) (file string) {
	t.Helper()
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal(err)
	}
	file = p.at("refuses")
	script := fmt.Sprintf(`#!/bin/sh
case "$*" in *--check*) exec %[1]s "$@" ;; *-f*) ;; *) exec %[1]s "$@" ;; esac
input=$(cat; echo .)
if [ -e %[2]s ]; then
	case "$input" in *"table ip onerule"[!-]*|*"table ip6 onerule"[!-]*) echo 'Error: refused' >&2; exit 1 ;; esac
fi
printf %%s "${input%%.}" | exec %[1]s "$@"
`, nft, file)
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.MkdirAll(p.at("path"), 0o755), os.WriteFile(p.at("path/nft"), []byte(script), 0o700)); err != nil {
		t.Fatal(err)
	}
	p.daemon.Env("PATH=" + p.at("path") + ":" + os.Getenv("PATH"))
	return file
}

// saysItIsWell waits until the daemon says so in the status file, and gives whether all was
// loaded.
func (p *publisher) saysItIsWell(t *testing.T) (served bool) {
	t.Helper()
	rig.Eventually(t, "the daemon says that nothing is wrong", func() error {
		b, err := os.ReadFile(p.at("run/network.json"))
		var s network.Status
		if err == nil {
			err = json.Unmarshal(b, &s)
		}
		if err == nil && len(s.Conditions) > 0 {
			err = fmt.Errorf("it says %s", b)
		}
		served = s.Served
		return err
	})
	return served
}

// Routes are there, and nothing is in the way: but as long as the rules for Services are
// not, pods would begin that reach none.
func TestD8NoListBeforeTheTablesOfServicesAreLoaded(t *testing.T) {
	p := newPublisher(t)
	refuses := p.refuseServices(t)
	p.daemon.Run()
	if served := p.saysItIsWell(t); served {
		t.Fatal("it says that all is loaded")
	}
	rig.Eventually(t, "the binary is there", func() error { _, err := os.Stat(p.at("bin/onerule")); return err })
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range 10 { // what is published lands after 0.2 s
		<-tick.C
		if p.isPublished() {
			t.Fatal("D8 there is a list")
		}
	}
	if err := os.Remove(refuses); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, "the list is there once they are loaded", func() error { _, err := os.Stat(p.list()); return err })
	if served := p.saysItIsWell(t); !served {
		t.Error("it does not say that all is loaded")
	}
}

// A node that can't serve for a while, or for long, keeps its list: without one, runtimes
// can't end pods either, and take the next list that they find.
func TestD8AListStaysWhenTheNodeCanNotServe(t *testing.T) {
	p := newPublisher(t)
	p.daemon.Run()
	rig.Eventually(t, "the list is there", func() error { _, err := os.Stat(p.list()); return err })
	l, err := libcni.NetworkConfFromFile(p.list())
	if err != nil {
		t.Fatal(err)
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{p.at("bin")}, t.TempDir(), nil)
	pod := &libcni.RuntimeConf{ContainerID: "pod", NetNS: wired.Quiet(t, "pod").Path(), IfName: "eth0"}
	ctx := context.WithoutCancel(t.Context())
	if err := p.ns.Do(func() error { _, err := cni.AddNetworkList(ctx, l, pod); return err }); err != nil {
		t.Fatal(err)
	}
	p.ns.Run(t, "nft", "add table ip foreign; add chain ip foreign f { type filter hook forward priority 0; policy drop; }")
	rig.Eventually(t, "the plugin is told", func() error { return conditions(p.at("run/network.json"), 1) })
	t.Run("D8 STATUS tells it, and the list stays", func(t *testing.T) {
		status := func() error { return p.ns.Do(func() error { return cni.GetStatusNetworkList(ctx, l) }) }
		// What may pass by itself is reported when it is seen the third time.
		if err := errors.Join(status(), status()); err != nil {
			t.Errorf("STATUS gave %v at once", err)
		}
		err := status()
		var said *types.Error
		if !errors.As(err, &said) || said.Code != types.ErrLimitedConnectivity {
			t.Errorf("STATUS gave %v, want code %d", err, types.ErrLimitedConnectivity)
		}
		if !p.isPublished() {
			t.Error("the list is gone")
		}
	})
	t.Run("D8 also when the daemon begins again meanwhile", func(t *testing.T) {
		p.daemon.Stop()
		p.daemon.Run()
		p.daemon.AwaitHealthy()
		rig.Eventually(t, "the plugin is told", func() error { return conditions(p.at("run/network.json"), 1) })
		if !p.isPublished() {
			t.Error("the list is gone")
		}
	})
	t.Run("D8 pods end with it", func(t *testing.T) {
		if err := p.ns.Do(func() error { return cni.DelNetworkList(ctx, l, pod) }); err != nil {
			t.Errorf("DEL gave %v", err)
		}
	})
}

// Without the plugin no pod can begin, whatever serves them: a node that can't place it says
// so, and does when it can.
func TestD6ANodeThatCanNotPlaceThePluginSaysSo(t *testing.T) {
	p := newPublisher(t)
	if err := os.MkdirAll(p.at("bin/onerule/in the way"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.daemon.Run()
	p.daemon.AwaitHealthy()
	fails := func(want float64, published bool) {
		t.Helper()
		rig.Eventually(t, fmt.Sprintf("onerule_pod_network_failing is %v", want), func() error {
			if got := p.daemon.Metric("onerule_pod_network_failing"); got != want || p.isPublished() != published {
				return fmt.Errorf("got %v, published %t", got, p.isPublished())
			}
			return nil
		})
	}
	fails(1, false)
	if err := os.RemoveAll(p.at("bin/onerule")); err != nil {
		t.Fatal(err)
	}
	fails(0, true)
}
