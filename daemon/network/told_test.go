package network_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"onerule/daemon/inspect"
	"onerule/nft/hostport"
	"onerule/test/netns"
	"onerule/test/rig"
	"onerule/test/wired"
)

// An answer is what a command of oneruled prints, and its exit code.
type answer struct {
	text string
	code int
}

// An asker asks the daemon of a node by the commands of oneruled.
type asker struct {
	*host
	bin, socket string
}

func (a asker) ask(t *testing.T, args ...string) answer {
	t.Helper()
	cmd := exec.Command(a.bin, append(args, "--socket", a.socket)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := a.ns.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return answer{out.String(), cmd.ProcessState.ExitCode()}
}

// says waits until a command prints all that is wanted.
func (a asker) says(t *testing.T, code int, args []string, want ...string) {
	t.Helper()
	rig.Eventually(t, fmt.Sprintf("exit code %d of %v", code, args), func() error {
		got := a.ask(t, args...)
		for _, w := range want {
			if got.code != code || !strings.Contains(got.text, w) {
				return fmt.Errorf("exit code %d, and no %q in\n%s", got.code, w, got.text)
			}
		}
		return nil
	})
}

// Whoever asks how a node is does not hear that all is well while pods get no packet.
func TestStatusSaysWhatIsInTheWayOfPods(t *testing.T) {
	root := t.TempDir()
	at := func(name string) string { return filepath.Join(root, name) }
	bin := rig.Binary(t, "oneruled", "onerule/daemon/oneruled")
	w := newWorld(t, nil, "--socket", at("s"), "--install-cni", "--cni-plugin", rig.Binary(t, "onerule", "onerule/plugin/onerule"),
		"--cni-bin-dir", at("bin"), "--cni-conf-dir", at("net.d"), "--etc-dir=")
	a, other := asker{w.nodes[0], bin, at("s")}, at("net.d/05-other.conflist")
	if err := errors.Join(os.Mkdir(at("net.d"), 0o755), os.WriteFile(other, []byte(`{"name": "old", "plugins": [{"type": "bridge"}]}`), 0o600)); err != nil {
		t.Fatal(err)
	}
	a.ns.Run(t, "nft", "add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }")
	a.ns.Sysctl(t, "net/ipv4/conf/eth0/route_localnet", "1")
	a.daemon.Write("bad.yaml", node("z", 59, []string{"10.1.2.128/25"}, addrs("172.16.1.9")...))
	a.daemon.Run()
	a.daemon.AwaitHealthy()
	t.Run("D14 while something is", func(t *testing.T) {
		a.says(t, 2, []string{"status"},
			"pod network  10.1.1.0/24, fd00:1:0:1::/112; 3 other nodes (2 ranges by routes, 2 by VXLAN); list of plugins not published yet; pods not served yet",
			"degraded:\n", "  - pods are not served yet, and the list of plugins is not published for them\n",
			"  - chain FORWARD of table ip filter at the forward hook drops by its policy: packets of pods that no rule of it accepts are lost\n",
			"  - something is wrong with node z: podCIDR 10.1.2.128/25 overlaps", "  - route_localnet is set on eth0: ")
		var s inspect.Status
		got := a.ask(t, "status", "-o", "json")
		if err := json.Unmarshal([]byte(got.text), &s); err != nil || got.code != 2 {
			t.Fatalf("exit code %d, %v: %s", got.code, err, got.text)
		}
		if n := s.PodNetwork; len(s.Degraded) < 4 || n == nil || n.Served || n.List != "not published yet" || n.Peers != 3 {
			t.Errorf("got %+v and %+v", s.Degraded, n)
		}
	})
	t.Run("D42 a list of others that is taken before ours", func(t *testing.T) {
		a.ns.Run(t, "nft", "delete table ip filter")
		a.ns.Sysctl(t, "net/ipv4/conf/eth0/route_localnet", "0")
		a.daemon.Remove("bad.yaml")
		a.says(t, 2, []string{"status"}, "; list of plugins published; pods served\n",
			"\ndegraded:\n  - 05-other.conflist (network old of bridge) comes before 10-onerule.conflist: pods get its network, not ours\n")
	})
	t.Run("when nothing is any more", func(t *testing.T) {
		if err := os.Remove(other); err != nil {
			t.Fatal(err)
		}
		a.says(t, 0, []string{"status"}, "; 2 other nodes (2 ranges by routes, 2 by VXLAN); list of plugins published; pods served\n", "\nall is well\n")
	})
	e := explained{a, w.router}
	e.claim(t)
	for f, family := range []string{"IPv4", "IPv6"} {
		t.Run("explain: a host port, "+family, func(t *testing.T) { e.hostPort(t, f) })
		t.Run("explain: an address that is not the pod's, "+family, func(t *testing.T) { e.spoofed(t, f) })
		t.Run("explain: a chain of others that drops, "+family, func(t *testing.T) { e.barrier(t, f) })
	}
}

// claimed is a port of the node that the pod has, of TCP and UDP.
const claimed = 8081

// Explained compares what oneruled explain says with what packets meet.
type explained struct {
	asker
	router *netns.NS
}

func (e explained) claim(t *testing.T) {
	t.Helper()
	ports, err := hostport.Open(filepath.Join(e.state, "pods", "hostports"))
	if err != nil {
		t.Fatal(err)
	}
	var claims []hostport.Claim
	for _, pod := range e.pods {
		for _, p := range []hostport.Protocol{hostport.TCP, hostport.UDP} {
			claims = append(claims, hostport.Claim{Protocol: p, HostPort: claimed, Pod: netip.AddrPortFrom(pod, sawPort)})
		}
	}
	if err := e.ns.Do(func() error { return ports.Claim(t.Context(), "pod-a:eth0", claims) }); err != nil {
		t.Fatal(err)
	}
}

// explains wants words about a packet.
func (e explained) explains(t *testing.T, from fmt.Stringer, to netip.AddrPort, protocol string, want ...string) {
	t.Helper()
	e.says(t, 0, []string{"explain", from.String(), fmt.Sprintf("%s/%s", to, protocol)}, append(want, "the kernel holds what it should")...)
}

func (e explained) hostPort(t *testing.T, f int) {
	pod, node, client := e.pods[f], e.addrs[f], outside()[f]
	loopback := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}[f]
	led := fmt.Sprintf("hostports-any has tcp . %d : %s . %d", claimed, pod, sawPort)
	const reached = "translated to 1 endpoint, for a pod (hostPort)"
	to, local := netip.AddrPortFrom(node, claimed), netip.AddrPortFrom(loopback, claimed)
	t.Run("from outside", func(t *testing.T) {
		e.explains(t, client, to, "tcp", reached, led, "(pod-a:eth0: container and interface)", "sees the sender's address")
		hears(t, e.router, client, to, "pod-a saw "+client.String())
	})
	t.Run("from the pod itself", func(t *testing.T) {
		e.explains(t, pod, to, "tcp", reached, fmt.Sprintf("hairpins has %s", pod), "sees an address of this node")
		if got, err := wired.Ask(e.pod, "tcp", netip.AddrPort{}, to); err != nil || !seesTheNode(got, pod) {
			t.Errorf("%q, %v, want that the pod sees an address of the node", got, err)
		}
	})
	t.Run("from a loopback address", func(t *testing.T) {
		e.explains(t, loopback, local, "tcp", "proxied to 1 endpoint, for a pod (hostPort)", "the daemon itself listens there", "sees an address of this node")
		if got, err := wired.Ask(e.ns, "tcp", netip.AddrPort{}, local); err != nil || !seesTheNode(got, pod) {
			t.Errorf("%q, %v, want that the pod sees an address of the node", got, err)
		}
		e.explains(t, loopback, local, "udp", "passes", "it is for no Service")
		if got, err := wired.Ask(e.ns, "udp", netip.AddrPort{}, local); err == nil {
			t.Errorf("by UDP %q answers", got)
		}
	})
	t.Run("from the node's own address to a loopback one", func(t *testing.T) {
		e.explains(t, node, local, "tcp", reached, led)
		hears(t, e.ns, node, local, "pod-a saw "+node.String())
	})
	t.Run("a port that nobody has", func(t *testing.T) {
		none := netip.AddrPortFrom(node, claimed+1)
		e.explains(t, client, none, "tcp", "passes", "it is for no Service")
		if got, err := wired.Ask(e.router, "tcp", netip.AddrPortFrom(client, 0), none); err == nil {
			t.Errorf("%q answers", got)
		}
	})
}

// seesTheNode says whether a pod answered that saw an address which is not its own.
func seesTheNode(answer string, pod netip.Addr) bool {
	return strings.HasPrefix(answer, "pod-a saw ") && answer != "pod-a saw "+pod.String()
}

func (e explained) spoofed(t *testing.T, f int) {
	to := netip.AddrPortFrom(outside()[f], sawPort)
	forged := []netip.Addr{netip.MustParseAddr("10.1.1.77"), netip.MustParseAddr("fd00:1:0:1::77")}[f]
	link := e.podLink(t)
	e.explains(t, forged, to, "tcp", "dropped\n", "from-pods", "it is spoofed: no pod has the address "+forged.String())
	e.says(t, 0, []string{"explain", outside()[f].String(), to.String() + "/tcp", "--in", link}, "dropped\n", "it is spoofed", "by "+link)
	e.says(t, 0, []string{"explain", e.pods[f].String(), to.String() + "/tcp", "--in", link}, "passes")
	e.pod.Addr(t, "eth0", netip.PrefixFrom(forged, forged.BitLen()).String())
	if got, err := wired.Ask(e.pod, "udp", netip.AddrPortFrom(forged, 0), to); err == nil {
		t.Errorf("%q answers", got)
	}
	if got, err := wired.Ask(e.pod, "udp", netip.AddrPortFrom(e.pods[f], 0), to); err != nil {
		t.Errorf("with its own address: %q, %v", got, err)
	}
}

func (e explained) barrier(t *testing.T, f int) {
	family, to := []string{"ip", "ip6"}[f], netip.AddrPortFrom(outside()[f], sawPort)
	e.ns.Run(t, "nft", fmt.Sprintf("add table %[1]s filter; add chain %[1]s filter FORWARD { type filter hook forward priority 0; policy drop; }", family))
	e.explains(t, e.pods[f], to, "tcp", "passes", "note: chain FORWARD of table "+family+" filter at the forward hook drops by its policy")
	e.explains(t, outside()[f], netip.AddrPortFrom(e.addrs[f], claimed), "tcp", "translated", "note: chain FORWARD")
	if got, err := wired.Ask(e.pod, "udp", netip.AddrPort{}, to); err == nil {
		t.Errorf("%q answers", got)
	}
	e.ns.Run(t, "nft", "delete table "+family+" filter")
	if got := e.ask(t, "explain", e.pods[f].String(), to.String()+"/tcp"); got.code != 0 || strings.Contains(got.text, "note:") {
		t.Errorf("exit code %d, and a note is left:\n%s", got.code, got.text)
	}
}
