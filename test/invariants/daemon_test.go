package invariants_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/test/addr"
	"onerule/test/netns"
	"onerule/test/rig"
)

// many gives the manifests of n Services with so many endpoints each.
func many(p addr.Plan, n, endpoints int) []string {
	var docs []string
	for i := range n {
		name := fmt.Sprintf("many-%d", i)
		var list []netip.Addr
		for j := range endpoints {
			list = append(list, addr.Nth(p.OtherPods, 100+(i+j)%100))
		}
		docs = append(docs, rig.Service(name, []netip.Addr{addr.Nth(p.ServiceCIDR, 1000+i)}, "web/TCP/80"),
			rig.Slice(name+"-1", name, list, "web/TCP/8080"))
	}
	return docs
}

// operations gives what the daemon has done in the kernel for IPv4.
func operations(d *rig.Daemon) map[string]float64 {
	m := map[string]float64{}
	for _, op := range []string{"add", "delete", "transaction", "ruleset", "list"} {
		m[op] = d.Metric("onerule_nft_operations_total", "ip_family", "IPv4", "operation", op)
	}
	return m
}

func since(d *rig.Daemon, before map[string]float64) map[string]float64 {
	now := operations(d)
	for op := range now {
		now[op] -= before[op]
	}
	return now
}

// awaitWritten waits until the daemon has written after before.
func awaitWritten(t *testing.T, d *rig.Daemon, before map[string]float64) {
	t.Helper()
	rig.Eventually(t, "a change is written", func() error {
		if since(d, before)["transaction"] == 0 {
			return fmt.Errorf("operations are %v still", before)
		}
		return nil
	})
}

// I1, I3, I5: a change of one endpoint does the same operations at 10 and at 5,000
// Services, and lists nothing.
func TestR1OneEndpointCostsTheSameAtAnySize(t *testing.T) {
	p := addr.IPv4()
	var costs []map[string]float64
	var rules []float64
	for _, services := range []int{10, 5000} {
		ns := netns.New(t, "node")
		d := rig.New(t, ns, "--cluster-cidr", p.ClusterCIDR.String())
		d.Write("many.yaml", many(p, services, 3)...)
		web := func(n int) {
			d.Write("web.yaml", rig.Service("web", []netip.Addr{p.VIP(0)}, "web/TCP/80"), rig.Slice("web-1", "web", addrs(p, n), "web/TCP/8080"))
		}
		web(3)
		d.Run()
		d.AwaitHealthy()
		step := func(n int) map[string]float64 {
			before := operations(d)
			web(n)
			awaitWritten(t, d, before)
			return since(d, before)
		}
		step(4) // brings in the rules for four endpoints
		costs = append(costs, step(3), step(4))
		rules = append(rules, d.Metric("onerule_rules", "ip_family", "IPv4"))
	}
	want := []map[string]float64{
		{"add": 1, "delete": 3, "transaction": 1, "ruleset": 0, "list": 0},
		{"add": 3, "delete": 1, "transaction": 1, "ruleset": 0, "list": 0},
	}
	if diff := cmp.Diff(append(want, want...), costs); diff != "" {
		t.Errorf("operations (-want +got): %s", diff)
	}
	if rules[0] != rules[1] {
		t.Errorf("got %v rules at 10 and %v at 5,000 services", rules[0], rules[1])
	}
}

// I6: killing the daemon changes nothing in the kernel, and a restart writes nothing.
func TestI6KillAndRestartWriteNothing(t *testing.T) {
	p := addr.IPv4()
	h := newHosts(t)
	h.serve(t, p)
	d := rig.New(t, h.node, "--cluster-cidr", p.ClusterCIDR.String())
	d.Write("web.yaml", rig.Service("web", []netip.Addr{p.VIP(0)}, "web/TCP/80"), rig.Slice("web-1", "web", addrs(p, 2), "web/TCP/8080"))
	d.Write("many.yaml", many(p, 100, 3)...)
	d.Run()
	d.AwaitHealthy()
	before := h.node.Run(t, "nft", "-s", "list", "ruleset")
	reach := func(when string) {
		t.Helper()
		err := h.client.Do(func() error {
			_, _, err := connect(netip.AddrPortFrom(p.VIP(0), 80), lost)
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	reach("before")
	d.Kill()
	reach("while it is dead")
	d.Run()
	d.AwaitHealthy()
	if ops := operations(d); ops["transaction"] != 0 || ops["list"] == 0 {
		t.Errorf("a restart did %v, want listings only", ops)
	}
	if diff := cmp.Diff(before, h.node.Run(t, "nft", "-s", "list", "ruleset")); diff != "" {
		t.Errorf("the ruleset is another one after a restart: %s", diff)
	}
	d.Stop()
	reach("after it stopped")
}

// Killed at any moment of its first load, the daemon makes it whole the next time.
func TestKillsDuringTheFirstLoadAreHealed(t *testing.T) {
	const services, ports, kills, least = 800, 15, 6, 2
	p := addr.IPv4()
	ns := netns.New(t, "node")
	d := rig.New(t, ns)
	d.Write("many.yaml", withPorts(p, services, ports)...)
	d.Run()
	awaitTable(t, ns)
	begin := time.Now()
	d.AwaitHealthy()
	load := time.Since(begin)
	want := terse(t, ns)
	d.Kill()

	inside := 0
	for i := range kills {
		ns.Run(t, "nft", "delete", "table", "ip", "onerule")
		d.Run()
		awaitTable(t, ns)
		await(t, load*time.Duration(i+1)/(kills+2))
		d.Kill()
		if n := frontends(t, ns); 0 < n && n < services*ports {
			inside++
		}
		d.Run()
		d.AwaitHealthy()
		if diff := cmp.Diff(want, terse(t, ns)); diff != "" {
			t.Errorf("rules after kill %d (-undisturbed +killed): %s", i, diff)
		}
		if n := frontends(t, ns); n != services*ports {
			t.Errorf("got %d frontends after kill %d, want %d", n, i, services*ports)
		}
		for set, n := range map[string]float64{"endpoints-tcp": 5 * services * ports, "lb-tcp-5": services * ports, "cluster-ips": services} {
			if got := d.Metric("onerule_elements", "ip_family", "IPv4", "set", set); got != n {
				t.Errorf("got %v elements of %s after kill %d, want %v", got, set, i, n)
			}
		}
		d.Kill()
	}
	t.Logf("%d of %d kills in a load of %s found a part of the frontends", inside, kills, load)
	if inside < least {
		t.Errorf("only %d of %d kills found a part of the frontends, want %d: the others prove little", inside, kills, least)
	}
}

// withPorts gives the manifests of n Services with five endpoints and so many ports
// each: the most elements for the least to parse.
func withPorts(p addr.Plan, n, ports int) []string {
	var front, back []string
	for i := range ports {
		front = append(front, fmt.Sprintf("p%d/TCP/%d", i, 80+i))
		back = append(back, fmt.Sprintf("p%d/TCP/%d", i, 8080+i))
	}
	var docs []string
	for i := range n {
		name := fmt.Sprintf("many-%d", i)
		docs = append(docs, rig.Service(name, []netip.Addr{addr.Nth(p.ServiceCIDR, 1000+i)}, front...),
			rig.Slice(name+"-1", name, addrs(p, 5), back...))
	}
	return docs
}

// awaitTable waits until a load has begun.
func awaitTable(t *testing.T, ns *netns.NS) {
	t.Helper()
	rig.Eventually(t, "a load begins", func() error {
		_, err := ns.Output("nft", "--terse", "list", "table", "ip", "onerule")
		return err
	})
}

// frontends counts the frontends in the kernel.
func frontends(t *testing.T, ns *netns.NS) int {
	t.Helper()
	return strings.Count(ns.Run(t, "nft", "list", "map", "ip", "onerule", "service-ips"), " : goto ")
}

// terse lists everything but elements.
func terse(t *testing.T, ns *netns.NS) string {
	t.Helper()
	return ns.Run(t, "nft", "-s", "--terse", "list", "table", "ip", "onerule")
}

// I5: a write that fails because somebody deleted our table is repaired by a load.
func TestA14_5AFailedWriteIsRepaired(t *testing.T) {
	p := addr.IPv4()
	h := newHosts(t)
	h.serve(t, p)
	d := rig.New(t, h.node)
	web := func(n int) {
		d.Write("web.yaml", rig.Service("web", []netip.Addr{p.VIP(0)}, "web/TCP/80"), rig.Slice("web-1", "web", addrs(p, n), "web/TCP/8080"))
	}
	web(2)
	d.Run()
	d.AwaitHealthy()
	h.node.Run(t, "nft", "delete", "table", "ip", "onerule")
	web(3)
	rig.Eventually(t, "the Service answers again", func() error {
		return h.client.Do(func() error {
			_, _, err := connect(netip.AddrPortFrom(p.VIP(0), 80), lost)
			return err
		})
	})
	// It failed, or what others did was seen before it was tried.
	rig.Eventually(t, "it is counted", func() error {
		failed := d.Metric("kubeproxy_sync_proxy_rules_nftables_sync_failures_total", "ip_family", "IPv4")
		if seen := d.Metric("onerule_foreign_changes_total", "kind", "table-deleted"); failed+seen < 1 {
			return fmt.Errorf("got %v failures and %v changes by others, want any", failed, seen)
		}
		return nil
	})
}

// A10.6 bettered: 503 until everything is in the kernel, while the daemon lives.
func TestA10_6A14_1UnhealthyUntilTheFirstLoad(t *testing.T) {
	ns := netns.New(t, "node")
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	config := "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
	if err := os.WriteFile(kubeconfig, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	d := rig.New(t, ns, "--kubeconfig", kubeconfig, "--manifests", "")
	d.Run()
	rig.Eventually(t, "oneruled lives and is not healthy", func() error {
		code, body, err := d.Get(10256, "/livez")
		if err != nil || code != http.StatusOK {
			return fmt.Errorf("/livez: %d %s %w", code, body, err)
		}
		code, body, err = d.Get(10256, "/healthz")
		if err != nil || code != http.StatusServiceUnavailable || !strings.Contains(body, `"healthy":false`) {
			return fmt.Errorf("/healthz: %d %s %w", code, body, err)
		}
		return nil
	})
	// A14.1: nothing is written before everything has been delivered once.
	if out := ns.Run(t, "nft", "list", "ruleset"); out != "" {
		t.Errorf("there are rules before the first load: %s", out)
	}
}

// What a machine lacks, and what a person mistypes, is said in one line.
func TestWhatIsWrongAtTheStartIsSaidInOneLine(t *testing.T) {
	netns.Privileged(t)
	ns := netns.New(t, "node")
	old := filepath.Join(t.TempDir(), "nft")
	if err := os.WriteFile(old, []byte("#!/bin/sh\necho 'nftables v1.0.2 (Lester Gooch)'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	binary := readable(t, rig.Binary(t, "oneruled", "onerule/daemon/oneruled"))
	for _, c := range []struct {
		name string
		path string
		user uint32
		args []string
		want string
	}{
		{"A14.16: no nft", "/nonexistent", 0, []string{"--manifests", dir}, "oneruled: no nft in PATH: install the package nftables, version 1.0.6 or later"},
		{"A14.16: old nft", filepath.Dir(old), 0, []string{"--manifests", dir}, "oneruled: nft v1.0.2 (Lester Gooch) is too old: 1.0.6 or later is needed"},
		{"no privilege", os.Getenv("PATH"), 65534, []string{"--manifests", dir}, "oneruled: not permitted to use nftables: root, or the capability NET_ADMIN, is needed"},
		{"an unknown flag", os.Getenv("PATH"), 0, []string{"--manifest", dir}, "oneruled: unknown flag: --manifest (oneruled --help lists the flags)"},
		{"an argument", os.Getenv("PATH"), 0, []string{dir}, fmt.Sprintf("oneruled: unexpected argument %q (oneruled --help lists the flags)", dir)},
		{"no source", os.Getenv("PATH"), 0, nil, "oneruled: neither --manifests nor a way to the API server: use the pod's service account: unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined"},
		{"a bad range", os.Getenv("PATH"), 0, []string{"--manifests", dir, "--cluster-cidr", "10.0.0.0"}, `oneruled: --cluster-cidr: "10.0.0.0" is not a range of addresses, like 10.244.0.0/16`},
		{"a bad address", os.Getenv("PATH"), 0, []string{"--manifests", dir, "--healthz-bind-address", "here"}, `oneruled: --healthz-bind-address: "here" is not an address, with or without a port, like 0.0.0.0:10256`},
		{"an empty range", os.Getenv("PATH"), 0, []string{"--manifests", dir, "--cluster-cidr", "10.0.0.0/8,"}, `oneruled: --cluster-cidr: range 2 of "10.0.0.0/8," is empty`},
		{"a bad bit", os.Getenv("PATH"), 0, []string{"--manifests", dir, "--masquerade-bit", "32"}, "oneruled: --masquerade-bit: 32 is not within 0 to 31"},
		{"a blank name", os.Getenv("PATH"), 0, []string{"--manifests", dir, "--hostname-override", " "}, "oneruled: --hostname-override: the name is blank"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stderr strings.Builder
			cmd := exec.Command(binary, c.args...)
			cmd.Env, cmd.Stderr = []string{"PATH=" + c.path}, &stderr
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.user, Gid: c.user}}
			if err := ns.Start(cmd); err != nil {
				t.Fatal(err)
			}
			err := cmd.Wait()
			if err == nil {
				t.Error("exit status 0")
			}
			if got := strings.TrimSuffix(stderr.String(), "\n"); got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

// readable copies a binary to where every user may run it.
func readable(t *testing.T, binary string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "onerule")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, filepath.Base(binary))
	if err := errors.Join(os.WriteFile(to, b, 0o600), os.Chmod(to, 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	return to
}

func TestAMissingDirectoryEndsTheDaemon(t *testing.T) {
	ns := netns.New(t, "node")
	cmd := exec.Command(rig.Binary(t, "oneruled", "onerule/daemon/oneruled"), "--manifests", "/nonexistent/dir")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("exit status 0")
	}
	last := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	if got := last[len(last)-1]; !strings.HasPrefix(got, "oneruled: ") || !strings.Contains(got, "/nonexistent/dir") {
		t.Errorf("got %q, want a line that names the directory", got)
	}
}
