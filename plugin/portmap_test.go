package plugin_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"onerule/test/netns"
	"onerule/test/wired"
)

// A formerBackend is how portmap led ports of the node: by a variant of iptables, which it
// takes by itself, or by nftables, for which its list has to ask where there is iptables.
type formerBackend struct{ name, iptables, asked string }

func formerBackends() []formerBackend {
	return []formerBackend{
		{"iptables-nft", "iptables-nft", ""},
		{"iptables-legacy", "iptables-legacy", ""},
		{"nftables", "iptables-nft", "nftables"},
	}
}

// formerNetwork is not that of ours: portmap names its chains by it.
const formerNetwork = "former"

// What portmap made for pods that were adopted goes with them, although its list is in force
// no more.
func TestHostPortsOfPortmap(t *testing.T) {
	dir := build(t, mains+"main/ptp", mains+"ipam/host-local", plugins+"portmap")
	for _, b := range formerBackends() {
		t.Run("C58, C37, C53: by "+b.name, func(t *testing.T) { testPortmap(t, dir, b) })
	}
}

func testPortmap(t *testing.T, dir string, b formerBackend) {
	n := newNode(t)
	withIptables(t, n, b.iptables)
	networks := t.TempDir()
	n.Sysctl(t, "net.ipv6.conf.default.accept_dad", "0") // as if old pods' links were there for long
	old := n.oldPodsWithPorts(t, dir, networks, b.asked, 3)
	n.Sysctl(t, "net.ipv6.conf.default.accept_dad", "1")
	more := object{"adopt": filepath.Join(networks, formerNetwork), "quarantine": "0s"}
	wantRules := func(t *testing.T, of ...string) {
		t.Helper()
		for i := range old {
			name := "old" + dec(i)
			if got, want := n.rulesOfPortmap(t, name), slices.Contains(of, name); got != want {
				t.Errorf("rules for %s: %t, want %t", name, got, want)
			}
		}
	}
	wantRules(t, "old0", "old1", "old2")
	n.wantPorts(t, hostPort, "old0")

	t.Run("with a DEL by our list", func(t *testing.T) {
		n.succeed(t, call{
			verb: "DEL", container: "old0", ifName: "eth0", netns: old[0].ns.Path(),
			stdin: n.withPorts(more, bothProtocols(hostPort)...), env: []string{"CNI_PATH=" + dir},
		})
		wantRules(t, "old1", "old2")
	})
	next := netns.New(t, "next")
	n.added(t, add("next", "eth0", next, n.withPorts(more, bothProtocols(hostPort)...)))
	wired.Serve(t, next, "next", netip.AddrPortFrom(netip.Addr{}, podPort))
	t.Run("and a new pod gets what comes to the same port", func(t *testing.T) {
		n.wantPorts(t, hostPort, "next")
		n.wantPorts(t, hostPort+1, "old1")
	})
	t.Run("with a GC whose list does not have the pod", func(t *testing.T) {
		keep := object{"cni.dev/valid-attachments": []object{{"containerID": "old2", "ifname": "eth0"}, {"containerID": "next", "ifname": "eth0"}}}
		keep["adopt"] = more["adopt"]
		n.succeed(t, call{verb: "GC", stdin: n.config("1.1.0", keep), env: []string{"CNI_PATH=" + dir}})
		wantRules(t, "old2")
		n.wantPorts(t, hostPort+2, "old2")
	})
	t.Run("without portmap they stay, which is told", func(t *testing.T) {
		a := n.succeed(t, call{verb: "DEL", container: "old2", ifName: "eth0", stdin: n.withPorts(more, bothProtocols(hostPort+2)...)})
		if !strings.Contains(a.stderr, `old2/eth0: no portmap in CNI_PATH "/nowhere"`) || strings.Count(a.stderr, "portmap") != 1 {
			t.Errorf("got %q", a.stderr)
		}
		if files := n.files(t); slices.Contains(files, old[2].addr.String()) {
			t.Errorf("got files %q", files)
		}
		wantRules(t, "old2")
	})
}

// withIptables has a variant be what programs call iptables.
func withIptables(t *testing.T, n *node, variant string) {
	t.Helper()
	dir := t.TempDir()
	for name, target := range map[string]string{"iptables": variant, "ip6tables": "ip6" + strings.TrimPrefix(variant, "ip")} {
		file, err := exec.LookPath(target)
		if err != nil {
			t.Skip(err)
		}
		if err := os.Symlink(file, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(file, "-t", "nat", "-S")
		if err := n.Start(cmd); err != nil {
			t.Fatal(err)
		}
		var failed *exec.ExitError
		if err := cmd.Wait(); errors.As(err, &failed) {
			t.Skipf("the kernel has no tables of %s: %v", target, err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// oldPodsWithPorts wires pods by ptp, host-local and portmap: each answers by its name, at
// ports of the node that begin with hostPort.
func (n *node) oldPodsWithPorts(t *testing.T, dir, networks, backend string, count int) (pods []oldPod) {
	t.Helper()
	portmap := object{"type": "portmap", "capabilities": object{"portMappings": true}}
	if backend != "" {
		portmap["backend"] = backend
	}
	b, err := json.Marshal(object{"cniVersion": "1.0.0", "name": formerNetwork, "plugins": []object{
		{"type": "ptp", "ipam": object{
			"type": "host-local", "dataDir": networks, "ranges": [][]object{{{"subnet": podRange4}}, {{"subnet": podRange6}}},
			"routes": []object{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
		}}, portmap,
	}})
	if err != nil {
		t.Fatal(err)
	}
	list, err := libcni.ConfListFromBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{dir}, t.TempDir(), nil)
	for i := range count {
		name := "old" + dec(i)
		pod := oldPod{ns: netns.New(t, name)}
		pod.ns.Sysctl(t, "net.ipv6.conf.default.accept_dad", "0")
		rt := &libcni.RuntimeConf{
			ContainerID: name, NetNS: pod.ns.Path(), IfName: "eth0",
			CapabilityArgs: object{"portMappings": bothProtocols(hostPort + i)},
		}
		var r *types100.Result
		n.inNode(t, "ADD of "+name, func() error {
			got, err := cni.AddNetworkList(context.Background(), list, rt)
			if err == nil {
				r, err = types100.NewResultFromResult(got)
			}
			return err
		})
		if r == nil {
			t.FailNow()
		}
		pod.addrs = addresses(t, r)
		pod.addr = pod.addrs[0]
		wired.Serve(t, pod.ns, name, netip.AddrPortFrom(netip.Addr{}, podPort))
		pods = append(pods, pod)
	}
	return pods
}

// wantPorts wants a pod to answer at a port of the node, in both families.
func (n *node) wantPorts(t *testing.T, port int, name string) {
	t.Helper()
	for f, at := range nodeAddrs() {
		hears(t, n.outside, netip.AddrPortFrom(at, uint16(port)), name+" saw "+outAddrs()[f].String())
	}
}

// rulesOfPortmap says whether any are there for a pod, by any backend and in any family.
// There are as many chains as pods, where there are chains.
func (n *node) rulesOfPortmap(t *testing.T, name string) bool {
	t.Helper()
	all := n.Run(t, "sh", "-c", `for t in iptables ip6tables; do for v in nft legacy; do $t-$v-save -t nat 2>/dev/null; done; done
		nft list table ip cni_hostport 2>/dev/null; nft list table ip6 cni_hostport 2>/dev/null; true`)
	made, led := 0, map[string]bool{}
	for _, line := range strings.Split(all, "\n") {
		if strings.HasPrefix(line, ":CNI-DN-") {
			made++
		}
		if _, chain, ok := strings.Cut(line, "-A CNI-HOSTPORT-DNAT "); ok {
			led[chain[strings.LastIndex(chain, "CNI-DN-"):]] = true
		}
	}
	if made > 2*len(led) {
		t.Errorf("%d chains of portmap in both families, want those of %d pods: %s", made, len(led), all)
	}
	return strings.Contains(all, `"`+name+`"`) || strings.Contains(all, `\"`+name+`\"`)
}

// A portmap that does what it should not is named, and in nobody's way.
func TestPortmapThatFails(t *testing.T) {
	n := newNode(t)
	reserved, dir := t.TempDir(), t.TempDir()
	calls := filepath.Join(dir, "calls")
	more := object{"adopt": reserved, "quarantine": "0s", "lockTimeout": "300ms"}
	env := []string{"CNI_PATH=/nowhere:" + dir}
	for i := range 4 {
		if err := os.WriteFile(filepath.Join(reserved, "10.1.0.10"+dec(i)), []byte("old"+dec(i)+"\r\neth0"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	called := func(t *testing.T, does, container string, stdin string) (stderr string, got []string) {
		t.Helper()
		script := "#!/bin/sh\necho \"$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME\" $(cat) >>" + calls + "\n" + does + "\n"
		if err := os.WriteFile(filepath.Join(dir, "portmap"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		a := n.succeed(t, call{verb: "DEL", container: container, ifName: "eth0", stdin: stdin, env: env})
		said, err := os.ReadFile(calls)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		_ = os.Remove(calls)
		return a.stderr, strings.Split(strings.TrimSpace(string(said)), "\n")
	}
	ports := n.withPorts(more, bothProtocols(hostPort)...)
	for i, c := range []struct{ does, want string }{
		{`printf '{"code": 7, "msg": "out of order", "details": "again"}'; exit 1`, "out of order again"},
		{`echo broken; exit 3`, "exit status 3: broken"},
		{`exec sleep 60`, "wait for its answer: "},
	} {
		t.Run(c.want, func(t *testing.T) {
			name := "old" + dec(i)
			stderr, got := called(t, c.does, name, ports)
			if strings.Count(stderr, c.want) != 2 || !strings.Contains(stderr, name+"/eth0: ") {
				t.Errorf("got %q, want %q for each backend", stderr, c.want)
			}
			for j, call := range got {
				if !strings.HasPrefix(call, "DEL "+name+" eth0 {") || strings.Contains(call, `"backend":"nftables"`) != (j == 1) {
					t.Errorf("call %d: got %q", j, call)
				}
			}
			if len(got) != 2 {
				t.Errorf("got %d calls, want one for each backend", len(got))
			}
			if files := n.files(t); slices.Contains(files, "10.1.0.10"+dec(i)) {
				t.Errorf("got files %q", files)
			}
		})
	}
	n.added(t, add("ours", "eth0", netns.New(t, "ours"), ports))
	for _, c := range []struct{ what, container, stdin string }{
		{"not called for a pod of ours", "ours", ports},
		{"not called for a pod that is gone", "ours", ports},
		{"not called for an old pod without a port", "old3", n.config("1.1.0", more)},
	} {
		t.Run(c.what, func(t *testing.T) {
			if stderr, got := called(t, "exit 1", c.container, c.stdin); got[0] != "" || strings.Contains(stderr, "portmap") {
				t.Errorf("calls %q; %s", got, stderr)
			}
		})
	}
	n.clean(t)
}

func TestGCTellsOnceThatThereIsNoPortmap(t *testing.T) {
	n := newNode(t)
	reserved := t.TempDir()
	for i := range 3 {
		if err := os.WriteFile(filepath.Join(reserved, "10.1.0.10"+dec(i)), []byte("old"+dec(i)+"\r\neth0"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stdin := n.config("1.1.0", object{"adopt": reserved, "cni.dev/valid-attachments": []object{}})
	a := n.succeed(t, call{verb: "GC", stdin: stdin})
	if strings.Count(a.stderr, "no portmap") != 1 {
		t.Errorf("got %q, want it told once", a.stderr)
	}
	n.clean(t)
}
