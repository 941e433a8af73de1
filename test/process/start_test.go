package process_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/rig"
)

// onlyNetAdmin has a program run with one capability, as root of a container that may
// nothing else.
func onlyNetAdmin() []string {
	return []string{"setpriv", "--bounding-set=-all,+net_admin", "--inh-caps=-all,+net_admin", "--"}
}

// What needs privilege is done once; afterwards NET_ADMIN is enough.
func TestA14_12InitOnlyDoesWhatNeedsPrivilege(t *testing.T) {
	w := newWorld(t)
	first := w.daemon(t, "--init-only", "--conntrack-tcp-timeout-established=3h", "--conntrack-tcp-be-liberal")
	first.Run()
	if code := first.Ended(); code != 0 {
		t.Fatalf("exit code %d, want 0", code)
	}
	if last := first.LastLine(); !strings.Contains(last, "this node can be served") {
		t.Errorf("the last line is %q", last)
	}
	if rules := w.h.Node.Run(t, "nft", "list", "ruleset"); rules != "" {
		t.Errorf("it wrote %s", rules)
	}
	for file, want := range map[string]string{"tcp_timeout_established": "10800", "tcp_be_liberal": "1"} {
		if got := w.conntrack(t, file); got != want {
			t.Errorf("%s is %s, want %s", file, got, want)
		}
	}
	second := w.daemon(t, "--conntrack-tcp-timeout-established=3h", "--conntrack-tcp-be-liberal")
	second.By(onlyNetAdmin()...)
	second.Run()
	second.AwaitHealthy()
	if capabilities := status(t, second, "CapEff"); capabilities != "0000000000001000" {
		t.Fatalf("it has the capabilities %s, want NET_ADMIN only: this proves nothing", capabilities)
	}
	for _, p := range addr.Both() {
		w.answered(t, toVIP(p), toNode(p, p.Node()))
	}
	t.Run("A14.18: the score for when memory is short is not set, which is said and nothing else", func(t *testing.T) {
		says(t, second, "the kernel may end this process early when memory is short")
	})
	t.Run("A12.9: no rule of ours speaks of invalid packets", func(t *testing.T) {
		rules := w.h.Node.Run(t, "nft", "list", "ruleset")
		if strings.Contains(rules, "invalid") || !strings.Contains(rules, "table ip6 onerule") {
			t.Errorf("the rules are %s", rules)
		}
	})
}

// In a container without the capability that it takes to run nft apart, an nft that dies is
// named, and not what it was asked.
func TestR4WithoutPrivilegeAnNftThatDiesIsNamed(t *testing.T) {
	dir, nft := t.TempDir(), "nft"
	path, err := exec.LookPath(nft)
	if err == nil {
		script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *-f*) ;; *) exec %s \"$@\";; esac\ncat >%s/script\n! grep -q chain %s/script || kill -SEGV $$\nexec %s \"$@\" <%s/script\n", path, dir, dir, path, dir)
		err = os.WriteFile(filepath.Join(dir, nft), []byte(script), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	d := w.daemon(t)
	d.By(onlyNetAdmin()...)
	d.Env("PATH=" + dir + ":" + os.Getenv("PATH"))
	d.Run()
	if code := d.Ended(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	want := "oneruled: serve IPv4, the primary IP family: try nftables for IPv4: nft dies of tables of others, and to run it apart takes the capability SYS_ADMIN"
	if last := d.LastLine(); !strings.HasPrefix(last, want) {
		t.Errorf("the last line is %q, want %q", last, want)
	}
}

// conntrack gives a setting of the node's.
func (w *world) conntrack(t *testing.T, file string) string {
	t.Helper()
	return strings.TrimSpace(w.h.Node.Run(t, "cat", "/proc/sys/net/netfilter/nf_conntrack_"+file))
}

// status gives a line of the kernel's about the daemon.
func status(t *testing.T, d *rig.Daemon, field string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("no %s in %s", field, text)
	return ""
}

// Where the process may not make itself safer than it was, that is said.
func TestA14_18TheScoreForWhenMemoryIsShortIsSet(t *testing.T) {
	const refused = "the kernel may end this process early when memory is short"
	for _, c := range []struct {
		args []string
		want string
		may  bool // whatever the test itself may do
	}{{nil, "-999", false}, {[]string{"--oom-score-adj=700"}, "700", true}} {
		d := rig.Start(t, netns.New(t, "node"), c.args...)
		score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", d.Pid()))
		if err != nil {
			t.Fatal(err)
		}
		got := strings.TrimSpace(string(score))
		if said := strings.Contains(d.Log(), refused); said == (got == c.want) || said && c.may {
			t.Errorf("with %q: got %s, want %s; that it could not: %t", c.args, got, c.want, said)
		}
	}
}

func TestA14_15AHostWithoutIPv6IsServedInIPv4(t *testing.T) {
	ns := netns.New(t, "node")
	ns.Sysctl(t, "net.ipv6.conf.all.disable_ipv6", "1")
	d := rig.Start(t, ns)
	says(t, d, "IPv6 is not served: net.ipv6.conf.all.disable_ipv6 is 1")
	if rules := ns.Run(t, "nft", "list", "tables"); rules != "table ip onerule\n" {
		t.Errorf("the tables are %s", rules)
	}
	six := rig.New(t, ns, "--bind-address", "fd00::1")
	six.Run()
	const want = "oneruled: serve IPv6, the primary IP family: net.ipv6.conf.all.disable_ipv6 is 1"
	if code, last := six.Ended(), six.LastLine(); code != 1 || last != want {
		t.Errorf("with a primary family that the host does not have: exit code %d, %q, want 1, %q", code, last, want)
	}
}

// An nft that has or lacks this and that.
func TestWhatNftOfTheNodeCannotDo(t *testing.T) {
	w := newWorld(t)
	t.Run("R6: JSON is not needed, nor to find what a daemon before has written", func(t *testing.T) {
		d := w.daemon(t)
		aroundNft(t, d, `case " $* " in *json*|*" -j "*|*" -nj "*) echo "Error: JSON support not compiled-in" >&2; exit 1;; esac
exec "$NFT" "$@"
`)
		for range 2 {
			d.Run()
			d.AwaitHealthy()
			for _, p := range addr.Both() {
				w.answered(t, toVIP(p))
			}
			if strings.Contains(d.Log(), "JSON") {
				t.Error("it asked for JSON")
			}
			if d.Metric("onerule_nft_operations_total", "operation", "transaction") == 0 {
				return // the second one had nothing to write
			}
			d.Stop()
		}
		t.Error("the second one wrote what was there")
	})
	t.Run("R8: without fib NodePorts work, and it is told", func(t *testing.T) {
		d := w.daemon(t)
		aroundNft(t, d, kernelWithout("fib "))
		d.Run()
		d.AwaitHealthy()
		for _, p := range addr.Both() {
			w.answered(t, toVIP(p), toNode(p, p.Node()), toNode(p, p.NodeBetween()))
		}
		says(t, d, "the kernel lacks the expression fib of nftables")
		if got := d.Metric("onerule_kernel_lacks", "expression", "fib"); got != 1 {
			t.Errorf("the metric is %v, want 1", got)
		}
		if rules := w.h.Node.Run(t, "nft", "list", "ruleset"); strings.Contains(rules, "fib ") {
			t.Errorf("there is fib in %s", rules)
		}
	})
	t.Run("R133694: without tables for IPv6 IPv4 is served", func(t *testing.T) {
		d := w.daemon(t)
		aroundNft(t, d, kernelWithout("ip6 onerule"))
		d.Run()
		d.AwaitHealthy()
		w.answered(t, toVIP(addr.IPv4()), toNode(addr.IPv4(), addr.IPv4().Node()))
		says(t, d, "IPv6 is not served: no nftables for IPv6: Could not process rule: No such file or directory")
		if tables := w.h.Node.Run(t, "nft", "list", "tables"); tables != "table ip onerule\n" {
			t.Errorf("the tables are %s", tables)
		}
	})
	t.Run("A14.16, R5525: a kernel that cannot balance ends the start with a line", func(t *testing.T) {
		d := w.daemon(t)
		aroundNft(t, d, kernelWithout("numgen"))
		d.Run()
		const want = "oneruled: serve IPv4, the primary IP family: nftables for IPv4 lack numgen: a module of the kernel, or a newer nft, is needed\n"
		if code := d.Ended(); code != 1 || d.Log() != want {
			t.Errorf("exit code %d, %q, want 1, %q", code, d.Log(), want)
		}
	})
}

// A signal ends the process and nothing else.
func TestA14_3A14_25SignalsLeaveTheRulesInPlace(t *testing.T) {
	w := newWorld(t)
	d := w.daemon(t)
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGKILL} {
		d.Run()
		d.AwaitHealthy()
		before := w.h.Node.Run(t, "nft", "-s", "list", "ruleset")
		d.Signal(signal)
		want := 0
		if signal == unix.SIGKILL {
			want = -1
		}
		if code := d.Ended(); code != want {
			t.Errorf("%s: exit code %d, want %d", signal, code, want)
		}
		if diff := cmp.Diff(before, w.h.Node.Run(t, "nft", "-s", "list", "ruleset")); diff != "" {
			t.Errorf("%s: the rules (-before +after): %s", signal, diff)
		}
		for _, p := range addr.Both() {
			for _, packet := range []string{"ClusterIP", "NodePort"} {
				to := toVIP(p)
				if packet == "NodePort" {
					to = toNode(p, p.Node())
				}
				if err := w.reaches(to); err != nil {
					t.Errorf("%s: %v", signal, err)
				}
			}
		}
	}
}

// An API server that takes connections and never answers must not hold up the end, nor
// the start anything that works.
func TestA14_1A14_25AnAPIServerThatHangsHoldsUpNothing(t *testing.T) {
	w := newWorld(t)
	before := w.daemon(t)
	before.Run()
	before.AwaitHealthy()
	before.Stop()
	rules := w.h.Node.Run(t, "nft", "-s", "list", "ruleset")

	d := w.daemon(t, "--kubeconfig", kubeconfig(t, w.deaf(t)), "--manifests", "", "-v", "4")
	d.Run()
	rig.Eventually(t, "it lives and knows that it is not ready", func() error {
		alive, _, err := d.Get(10256, "/livez")
		ready, _, err2 := d.Get(10256, "/healthz")
		if err != nil || err2 != nil || alive != 200 || ready != 503 {
			return fmt.Errorf("/livez %d %w, /healthz %d %w", alive, err, ready, err2)
		}
		return nil
	})
	if diff := cmp.Diff(rules, w.h.Node.Run(t, "nft", "-s", "list", "ruleset")); diff != "" {
		t.Errorf("rules before anything is known (-before +after): %s", diff)
	}
	for _, p := range addr.Both() {
		if err := w.reaches(toVIP(p)); err != nil {
			t.Errorf("by the rules of a daemon before: %v", err)
		}
	}
	d.Signal(unix.SIGTERM)
	if code := d.Ended(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// kubeconfig writes one for a server.
func kubeconfig(t *testing.T, server string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: 'http://" + server + "'}}]\nusers: [{name: u, user: {}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// deaf gives the address of a server on the node that takes connections and says nothing.
func (w *world) deaf(t *testing.T) string {
	t.Helper()
	var l net.Listener
	if err := w.h.Node.Do(func() (err error) { l, err = net.Listen("tcp", "127.0.0.1:0"); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // the kernel takes the connections
	return l.Addr().String()
}

func TestA14_24VerbosityIsAskedForAsAWholeOrByFile(t *testing.T) {
	w := newWorld(t)
	server := kubeconfig(t, w.deaf(t))
	for args, want := range map[string]bool{"": false, "-v=4": true, "--vmodule=reflector=4": true, "--vmodule=cleaner=4": false} {
		d := w.daemon(t, append(strings.Fields(args), "--kubeconfig", server, "--manifests", "")...)
		d.Run()
		says(t, d, "oneruled begins")
		if want {
			says(t, d, "] \"Starting reflector\"")
		}
		rig.Eventually(t, "it lives", func() error {
			_, _, err := d.Get(10256, "/livez")
			return err
		})
		d.Kill()
		if got := strings.Contains(d.Log(), "Starting reflector"); got != want {
			t.Errorf("with %q: said %t, want %t", args, got, want)
		}
	}
}

func TestA14_24TheLogIsTextOrJSON(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		name string
		args []string
		json bool
	}{
		{"text", nil, false},
		{"JSON", []string{"--logging-format=json"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := w.daemon(t, c.args...)
			aroundNft(t, d, kernelWithout("add map ip6 onerule"))
			d.Run()
			says(t, d, "the tables are not as they should be, trying again")
			said := d.Log()
			d.Kill()
			if reason := "table ip6 onerule: Could not process rule: No such file or directory"; !strings.Contains(said, reason) {
				t.Errorf("a failed write is said without %q", reason)
			}
			for line := range strings.Lines(said) {
				object := map[string]any{}
				if isJSON := json.Unmarshal([]byte(line), &object) == nil; isJSON != c.json {
					t.Fatalf("a line of the log is %q", line)
				}
				if c.json && (object["ts"] == nil || object["msg"] == nil) {
					t.Errorf("no time or message in %q", line)
				}
			}
		})
	}
}

func node(cidrs ...string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s}\nspec: {podCIDRs: [%q]}\n", rig.NodeName, strings.Join(cidrs, `", "`))
}

// Where pods are told by the Node's ranges, other ranges take a restart. The Services work
// meanwhile, and afterwards as the new ranges say.
func TestA10_8OtherPodCIDRsEndTheProcess(t *testing.T) {
	w := newWorld(t)
	p := addr.IPv4()
	d := w.daemon(t, "--detect-local-mode=NodeCIDR", "--cluster-cidr=")
	d.Write("node.yaml", node(p.NodePods.String()))
	d.Run()
	d.AwaitHealthy()
	d.Write("node.yaml", node(p.OtherPods.String()))
	want := fmt.Sprintf("oneruled: node %s: spec.podCIDRs was [%s] and is [%s]: pods are told by them, which takes a restart", rig.NodeName, p.NodePods, p.OtherPods)
	if code, last := d.Ended(), d.LastLine(); code != 1 || last != want {
		t.Errorf("exit code %d, %q, want 1, %q", code, last, want)
	}
	w.answered(t, toVIP(p))
	d.Run()
	d.AwaitHealthy()
	w.answered(t, toVIP(p))
	ranges := w.h.Node.Run(t, "nft", "list", "set", "ip", "onerule", "pod-cidrs")
	if !strings.Contains(ranges, p.OtherPods.String()) || strings.Contains(ranges, p.NodePods.String()) {
		t.Errorf("pods are told by %s", ranges)
	}
}
