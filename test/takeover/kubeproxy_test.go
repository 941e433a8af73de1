package takeover_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"onerule/daemon/model"
	"onerule/test/addr"
	"onerule/test/hosts"
	"onerule/test/rig"
)

// A mode is one of kube-proxy's, with a variant of iptables.
type mode struct {
	name   string
	mode   string
	legacy bool
	trace  string // what stands in a description of what it left
}

func modes() []mode {
	return []mode{
		{"nftables mode", "nftables", false, "table ip kube-proxy"},
		{"iptables mode by iptables-nft", "iptables", false, "table ip nat of iptables-nft"},
		{"iptables mode by iptables-legacy", "iptables", true, "table ip nat of iptables-legacy"},
	}
}

// kubeProxy gives the path of the executable: from ONERULE_KUBE_PROXY, or built here, minutes
// the first time.
func kubeProxy(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("ONERULE_KUBE_PROXY"); path != "" {
		return path
	}
	cmd := exec.Command("go", "-C", filepath.Join("..", "cluster", "kubernetes"), "tool", "-n", "k8s.io/kubernetes/cmd/kube-proxy")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		t.Fatalf("build kube-proxy: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// A proxy is a running kube-proxy.
type proxy struct {
	cmd   *exec.Cmd
	out   *rig.Output
	ended chan struct{}
}

// run starts kube-proxy on the node, which writes all its rules again this often, and waits
// until every flow is served. It ends with the test.
func (w *world) run(t *testing.T, m mode, syncPeriod string) *proxy {
	t.Helper()
	p := &proxy{cmd: exec.Command(w.kubeProxy, "--config", w.config(t, m, syncPeriod)), out: &rig.Output{}, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	if m.legacy {
		p.cmd.Env = append(os.Environ(), "PATH="+legacyOnly(t)+":"+os.Getenv("PATH"))
	}
	// It gets the signal when the thread ends that started it: with this process.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() { // ends with kube-proxy
		defer close(p.ended)
		_ = w.h.Node.Do(func() error {
			err := p.cmd.Start()
			started <- err
			if err == nil {
				_ = p.cmd.Wait() // it is killed
			}
			return nil
		})
	}()
	if err := <-started; err != nil {
		t.Fatalf("start kube-proxy: %v", err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("kube-proxy said:\n%s", p.out)
		}
	})
	rig.Eventually(t, "kube-proxy serves", func() error {
		for _, f := range append(flows(model.TCP), flows(model.UDP)...) {
			seen, err := w.h.Probe(f.packet, hosts.Lost)
			if err == nil {
				err = w.wrong(f, seen)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if l := w.left(t); !strings.Contains(l.String(), m.trace) {
		t.Fatalf("found %s, want %s", l, m.trace)
	}
	return p
}

// kill ends kube-proxy, whose rules stay.
func (p *proxy) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.ended
}

// config writes a configuration that leaves everything of the machine as it is, and the
// usual ports to oneruled.
func (w *world) config(t *testing.T, m mode, syncPeriod string) string {
	t.Helper()
	text := fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %q
clientConnection: {kubeconfig: %q}
hostnameOverride: %s
detectLocalMode: ClusterCIDR
clusterCIDR: "%s,%s"
healthzBindAddress: 127.0.0.1:20256
metricsBindAddress: 127.0.0.1:20249
oomScoreAdj: 0
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
iptables: {syncPeriod: %s}
nftables: {syncPeriod: %s}
`, m.mode, w.kubeconfig, addr.NodeName, addr.IPv4().ClusterCIDR, addr.IPv6().ClusterCIDR, syncPeriod, syncPeriod)
	file := filepath.Join(t.TempDir(), "kube-proxy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// legacyOnly gives a directory in which iptables is iptables-legacy.
func legacyOnly(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, base := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			program, err := exec.LookPath(base + "-legacy" + suffix)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(program, filepath.Join(dir, base+suffix)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}
