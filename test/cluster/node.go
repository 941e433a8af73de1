package cluster

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"onerule/test/cluster/pid1"
)

//go:embed files
var files embed.FS

const containerdSocket = "/run/containerd/containerd.sock"

// nodeCommands are the pieces of a node, but for what is in pods.
func (c *Cluster) nodeCommands(n *Machine) map[string]pid1.Command {
	env := []string{"PATH=" + n.path(), "HOME=/root", "NODE_NAME=" + n.name}
	command := func(program string, args ...string) pid1.Command {
		return pid1.Command{Args: append([]string{program}, args...), Env: env}
	}
	commands := map[string]pid1.Command{
		"containerd": command(c.pieces.Program("containerd"), "--config", filepath.Join(n.dir, "containerd.toml"), "--log-level", "info"),
		"kubelet": command(c.pieces.Program("kubelet"),
			"--config="+filepath.Join(n.dir, "kubelet.yaml"), "--kubeconfig="+c.KubeconfigOf(n.name),
			"--hostname-override="+n.name, "--node-ip="+commas(n.Addresses()),
			"--root-dir=/var/lib/kubelet", "--cert-dir=/var/lib/kubelet/pki", "--v=2"),
		"kube-proxy": command(c.pieces.Program("kube-proxy"),
			"--config="+filepath.Join(n.dir, "kube-proxy.yaml"), "--hostname-override="+n.name, "--v=2"),
		// The same words as in the manifest that users apply.
		"oneruled": command(filepath.Join(c.dir, "bin", "oneruled"),
			"--kubeconfig="+c.KubeconfigOf("oneruled"), "--hostname-override="+n.name,
			"--cluster-cidr="+commas(c.settings.Family.clusterRanges()),
			"--nodeport-addresses=primary,localhost",
			"--pod-network", "--install-cni", "--etc-dir=", "--conntrack-max-per-core=0", "--v=2",
			// A daemon in a network namespace of its own does neither unless it is told to.
			"--socket=/run/onerule/oneruled.sock", "--bpf-dir=/sys/fs/bpf/onerule"),
	}
	return commands
}

// facts are what the files of a node speak of.
type facts struct {
	Name, Dir, Any, Mode, Runc string
	ClusterRanges              string
	NodePorts                  string // where they are served, a list of YAML
	PodRanges                  []netip.Prefix
	DNS                        netip.Addr
	Credentials                string
	Proxy                      string // kubeconfig of kube-proxy
	SandboxImage               string
}

func (c *Cluster) facts(n *Machine) (facts, error) {
	runc, err := exec.LookPath("runc")
	if err != nil {
		return facts{}, fmt.Errorf("find runc: %w", err)
	}
	f := facts{
		Name: n.name, Dir: n.dir, Any: c.settings.Family.any(), Mode: "nftables", Runc: runc,
		ClusterRanges: commas(c.settings.Family.clusterRanges()), NodePorts: c.settings.Family.nodePortAddresses(),
		PodRanges: n.PodRanges(),
		DNS:       c.settings.Family.dnsService(), Credentials: filepath.Join(c.dir, "credentials"),
		Proxy: c.KubeconfigOf("kube-proxy"), SandboxImage: pauseImage,
	}
	if c.settings.With == KubeProxyTables {
		f.Mode = "iptables"
	}
	return f, nil
}

// fill gives the text of a file with the facts in it.
func fill(name string, f any) ([]byte, error) {
	t, err := template.ParseFS(files, "files/"+name)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	var text bytes.Buffer
	if err := t.Execute(&text, f); err != nil {
		return nil, fmt.Errorf("fill in %s: %w", name, err)
	}
	return text.Bytes(), nil
}

// configure writes the files of a node.
func (c *Cluster) configure(n *Machine) error {
	f, err := c.facts(n)
	if err != nil {
		return err
	}
	for _, name := range []string{"containerd.toml", "kubelet.yaml", "kube-proxy.yaml", "ptp.conflist"} {
		text, err := fill(name, f)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(n.dir, name), text, 0o644); err != nil {
			return fmt.Errorf("configure %s: %w", n.name, err)
		}
	}
	return nil
}

// startNode starts the runtime, gives it images, and starts the kubelet and what
// connects pods.
func (c *Cluster) startNode(ctx context.Context, n *Machine) error {
	if err := c.configure(n); err != nil {
		return err
	}
	if err := n.Start(ctx, "containerd"); err != nil {
		return err
	}
	answers := func() error {
		return n.run(ctx, "ctr", "--address", containerdSocket, "--connect-timeout", "5s", "version")
	}
	if err := until(ctx, 60*time.Second, answers); err != nil {
		return n.explain("containerd", err)
	}
	for _, archive := range c.pieces.Images() {
		if err := n.load(ctx, archive); err != nil {
			return err
		}
	}
	if err := c.network(ctx, n); err != nil {
		return err
	}
	return n.Start(ctx, "kubelet")
}

// network starts what connects pods, unless it comes in pods itself.
func (c *Cluster) network(ctx context.Context, n *Machine) error {
	// What container runtimes bring along everywhere.
	if err := n.run(ctx, "cp", c.pieces.Program("loopback"), "/opt/cni/bin/loopback"); err != nil {
		return err
	}
	switch c.settings.With {
	case OneruleBinaries:
		return n.Start(ctx, "oneruled")
	case KubeProxy, KubeProxyTables:
		for _, plugin := range []string{"ptp", "host-local", "portmap"} {
			if err := n.run(ctx, "cp", c.pieces.Program(plugin), "/opt/cni/bin/"+plugin); err != nil {
				return err
			}
		}
		if err := n.run(ctx, "cp", filepath.Join(n.dir, "ptp.conflist"), "/etc/cni/net.d/10-ptp.conflist"); err != nil {
			return err
		}
		return n.Start(ctx, "kube-proxy")
	}
	return nil
}

// staticRoutes says whether nobody makes the routes to other nodes' pods.
func staticRoutes(with string) bool { return with == KubeProxy || with == KubeProxyTables }

// explain adds to an error what a piece said last.
func (m *Machine) explain(piece string, err error) error {
	log, _ := os.ReadFile(m.Log(piece)) // nothing more to say without it
	return fmt.Errorf("%s on %s: %w: %s", piece, m.name, err, strings.TrimSpace(lastLines(string(log), 3)))
}
