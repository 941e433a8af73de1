package rows_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/oracle"
	"onerule/test/rig"
)

// liveTests are the rows about a configuration file that changes while the daemon runs.
func liveTests() map[string]func(*testing.T, *world) {
	return map[string]func(*testing.T, *world){"A14.8": testChangedFile, "R38": testChangedConfigMap}
}

// configuration is a file with these fields.
func configuration(fields string) []byte {
	return []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n" + fields)
}

// A live is a daemon whose configuration file changes.
type live struct {
	*world
	write func(fields string)
}

// live starts the daemon with a configuration file, which write puts in place.
func (w *world) live(t *testing.T, file string, write func(fields string), fields string) live {
	t.Helper()
	write(fields)
	w.restart(t, "--config", file)
	return live{w, write}
}

const applied = "the changed config file is applied"

// change changes the file and waits until these fields of it are applied.
func (l live) change(t *testing.T, fields, named string) {
	t.Helper()
	before := l.said(applied)
	l.write(fields)
	rig.Eventually(t, "a change of "+named+" is applied", func() error {
		if l.said(applied) != before+1 || l.said(applied, `changed="`+named+`"`) == 0 {
			return errors.New("it is not said")
		}
		return nil
	})
	l.settle(t)
	l.h.Forget(t)
}

// written gives a function that writes fields to a file: in place, or over it.
func written(t *testing.T, file string, inPlace bool) func(fields string) {
	return func(fields string) {
		t.Helper()
		to := file
		if !inPlace {
			to += ".new"
		}
		if err := os.WriteFile(to, configuration(fields), 0o600); err != nil {
			t.Fatal(err)
		}
		if inPlace {
			return
		}
		if err := os.Rename(to, file); err != nil {
			t.Fatal(err)
		}
	}
}

func testChangedFile(t *testing.T, w *world) {
	w.write("node.yaml", nodeRanges())
	file := filepath.Join(t.TempDir(), "config.conf")
	l := w.live(t, file, written(t, file, true), "")
	t.Run("ways to tell pods", l.testDetectors)
	t.Run("masquerade", l.testMasquerade)
	t.Run("addresses of NodePorts", l.testNodePorts)
	t.Run("connection tracking", l.testConntrack)
	t.Run("verbosity", l.testVerbosity)
	t.Run("a broken file", l.testBroken)
	if n := l.said("oneruled begins"); n != 1 {
		t.Errorf("the daemon has begun %d times, want once", n)
	}
	l.write = written(t, file, false)
	l.change(t, clusterRanges(), "masqueradeAll")
	t.Run("what takes a restart", l.testRestart)
}

// told checks in both families who is told to be a pod.
func (l live) told(t *testing.T, names ...string) {
	t.Helper()
	for _, p := range addr.Both() {
		l.tells(t, p, names...)
	}
}

func clusterRanges() string {
	return fmt.Sprintf("clusterCIDR: %q\n", fmt.Sprintf("%s,%s", addr.IPv4().ClusterCIDR, addr.IPv6().ClusterCIDR))
}

func (l live) testDetectors(t *testing.T) {
	l.told(t, everybody(addr.IPv4())...)
	l.change(t, clusterRanges(), "clusterCIDR")
	l.told(t, "pod", "second pod", "pod elsewhere")
	l.change(t, "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: pod0}\n", "clusterCIDR, detectLocal, detectLocalMode")
	l.told(t, "pod")
	l.change(t, "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: pod}\n", "detectLocal, detectLocalMode")
	l.told(t, "pod", "second pod")
	l.change(t, "detectLocalMode: NodeCIDR\n", "detectLocal, detectLocalMode")
	l.told(t, "pod", "second pod")
	l.change(t, clusterRanges(), "clusterCIDR, detectLocalMode")
}

// What is open stays open while the rules change.
func (l live) testMasquerade(t *testing.T) {
	l.webBoth(t, 1)
	alive := l.open(t)
	before := l.said(applied)
	l.write(clusterRanges() + "nftables: {masqueradeAll: true, masqueradeBit: 3}\n")
	rig.Eventually(t, "the change is applied", func() error {
		if l.said(applied, `changed="masqueradeAll, masqueradeBit"`) == 0 || l.said(applied) != before+1 {
			return errors.New("it is not said")
		}
		return nil
	})
	l.settle(t)
	alive("when the rules have changed")
	for _, p := range addr.Both() {
		l.remove(t, familyOf(p)+".yaml")
	}
	l.told(t)
	l.change(t, clusterRanges(), "masqueradeAll, masqueradeBit")
	l.told(t, "pod", "second pod", "pod elsewhere")
}

func (l live) testNodePorts(t *testing.T) {
	l.takes(t, addr.IPv4(), []netip.Addr{addr.IPv4().Node()}, []netip.Addr{addr.IPv4().NodeBetween()})
	l.change(t, clusterRanges()+fmt.Sprintf("nodePortAddresses: [%q, %q]\n", addr.IPv4().Between, addr.IPv6().Between), "nodePortAddresses")
	for _, p := range addr.Both() {
		l.takes(t, p, []netip.Addr{p.NodeBetween()}, []netip.Addr{p.Node()})
	}
	l.change(t, clusterRanges(), "nodePortAddresses")
}

func (l live) testConntrack(t *testing.T) {
	timeout := func(want string) {
		t.Helper()
		rig.Eventually(t, "the kernel has the timeout "+want, func() error {
			out, err := l.h.Node.Output("cat", "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established")
			if got := strings.TrimSpace(out); err == nil && got != want {
				err = fmt.Errorf("it has %s", got)
			}
			return err
		})
	}
	timeout("86400")
	l.change(t, clusterRanges()+"conntrack: {tcpEstablishedTimeout: 2h}\n", "conntrack")
	timeout("7200")
	l.change(t, clusterRanges(), "conntrack")
	timeout("86400")
}

// Of pins that go it is told from verbosity 2 on.
func (l live) testVerbosity(t *testing.T) {
	const told = "deleted pins to endpoints that left"
	unpin := func() {
		t.Helper()
		p := addr.IPv4()
		l.put(t, "web.yaml", rawService("name: web", webSpec(p.VIP(0).String(), sticky(1000))), webSlice(p, here(p)))
		l.visit(t, hosts.Clients(p)[0], at(p.VIP(0), model.TCP, 80))
		l.put(t, "web.yaml", rawService("name: web", webSpec(p.VIP(0).String(), sticky(1000))), webSlice(p, there(p)))
		rig.Eventually(t, "the pin is gone", func() error {
			for _, pin := range l.pinnedTo(t, p, "") {
				if pin.to == here(p) {
					return errors.New("it is there")
				}
			}
			return nil
		})
	}
	unpin()
	if l.said(told) != 0 {
		t.Error("verbosity 2 is told without being asked for")
	}
	l.change(t, clusterRanges()+"logging: {verbosity: 2}\n", "logging.verbosity")
	unpin()
	rig.Eventually(t, "verbosity 2 is told", func() error {
		if l.said(told) == 0 {
			return errors.New("nothing is said")
		}
		return nil
	})
	l.change(t, clusterRanges(), "logging.verbosity")
}

// Until it is mended, what it said before counts.
func (l live) testBroken(t *testing.T) {
	const said = "the config file can't be used, the settings stay as they were"
	for fields, why := range map[string]string{
		"masqueradeAll: [\n":           "did not find expected node content",
		"oomScoreAdj: 5000\n":          "oomScoreAdj: 5000 is not within",
		"clusterCIDR: nonsense\n":      "clusterCIDR",
		"detectLocalMode: Guess\n":     "detectLocalMode",
		"conntrack: {min: \"many\"}\n": "conntrack.min",
	} {
		l.write(fields)
		rig.Eventually(t, "it is said that the file is broken", func() error {
			if l.said(said, why) == 0 {
				return errors.New("it is not said")
			}
			return nil
		})
	}
	l.told(t, "pod", "second pod", "pod elsewhere")
	l.change(t, clusterRanges()+"nftables: {masqueradeAll: true}\n", "masqueradeAll")
	if l.said("the config file is right again") == 0 {
		t.Error("it is not said that the file is right again")
	}
	l.told(t)
}

// The rules go on until somebody starts the daemon again.
func (l live) testRestart(t *testing.T) {
	p := addr.IPv4()
	l.put(t, "web.yaml", outsideService(p, ""), webSlice(p, here(p)))
	external := at(p.ExternalIP(0), model.TCP, 80)
	outside := hosts.Clients(p)[oracle.Outside]
	l.sees(t, outside, external, reaches(true, here(p)))
	l.write("featureGates: {AllowServiceExternalIPs: false}\nnftables: {masqueradeAll: true}\n")
	rig.Eventually(t, "the daemon ends", func() error {
		if l.said("oneruled: ", "it is changed in what takes a restart: featureGates") != 1 {
			return errors.New("it has not said so")
		}
		return nil
	})
	l.sees(t, outside, external, reaches(true, here(p)))
	l.d.Stop()
	l.d.Run()
	l.d.AwaitHealthy()
	l.h.Forget(t)
	l.sees(t, outside, at(p.BalancerIP(0), model.TCP, 80), reaches(true, here(p)))
	if out := l.h.Node.Run(t, "nft", "list", "map", "ip", "onerule", "service-ips"); contains(out, p.ExternalIP(0).String()+" . ") {
		t.Errorf("an external IP is served: %s", out)
	}
}

// The kubelet puts a new version of a ConfigMap beside the old one, exchanges a symlink,
// and removes the old one: the file that the daemon was given never changes.
func testChangedConfigMap(t *testing.T, w *world) {
	volume, n := t.TempDir(), 0
	link := func(to, at string) {
		t.Helper()
		if err := errors.Join(os.Symlink(to, at+".new"), os.Rename(at+".new", at)); err != nil {
			t.Fatal(err)
		}
	}
	swap := func(fields string) {
		t.Helper()
		n++
		folder := filepath.Join(volume, fmt.Sprint("..v", n))
		if err := errors.Join(os.Mkdir(folder, 0o755), os.WriteFile(filepath.Join(folder, "config.conf"), configuration(fields), 0o600)); err != nil {
			t.Fatal(err)
		}
		link(filepath.Base(folder), filepath.Join(volume, "..data"))
		if err := os.RemoveAll(filepath.Join(volume, fmt.Sprint("..v", n-1))); err != nil {
			t.Fatal(err)
		}
	}
	link("..data/config.conf", filepath.Join(volume, "config.conf"))
	l := w.live(t, filepath.Join(volume, "config.conf"), swap, "")
	l.told(t, everybody(addr.IPv4())...)
	l.change(t, clusterRanges(), "clusterCIDR")
	l.told(t, "pod", "second pod", "pod elsewhere")
	l.change(t, clusterRanges()+"nftables: {masqueradeAll: true}\n", "masqueradeAll")
	l.told(t)
	if n := l.said("oneruled begins"); n != 1 {
		t.Errorf("the daemon has begun %d times, want once", n)
	}
}
