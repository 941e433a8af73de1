package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"onerule/test/netns"
)

// What connects pods and serves Services.
const (
	Onerule         = "onerule"             // what users install: image and manifest
	OneruleBinaries = "onerule-binaries"    // oneruled and onerule as programs on the nodes
	KubeProxy       = "kube-proxy"          // kube-proxy in nftables mode, ptp, host-local and portmap
	KubeProxyTables = "kube-proxy-iptables" // the same in iptables mode
	Nothing         = "nothing"             // neither: nodes are not Ready, and there is no DNS
)

// Options say which cluster to start.
type Options struct {
	// Dir is where everything is kept while the cluster runs: gigabytes, on a file
	// system that an overlay can lie on. It must not exist, but for what a cluster
	// that ended without Down has left. Empty: DefaultDir.
	Dir string
	// Nodes is how many there are: n1, n2 and so on. 0: 2.
	Nodes int
	// Family says which IP families nodes, pods and Services have. Empty: IPv4.
	Family Family
	// With says what connects pods and serves Services. Empty: Onerule.
	With string
	// Stay lets the cluster outlive this process. Else it goes with it, however that
	// ends.
	Stay bool
	// Out is told of each step. nil: nobody is.
	Out io.Writer
}

// A Cluster is one that runs.
type Cluster struct {
	dir      string
	pieces   *Cache
	settings settings
	control  *Machine
	nodes    []*Machine
	say      func(format string, args ...any)
	down     sync.Once
}

// settings are what another process must know of a running cluster.
type settings struct {
	Nodes   int
	Family  Family
	With    string
	Pieces  map[string]string // folders of what was built, see Cache
	Cgroups []string          // made for the cluster, one in each hierarchy
}

// Start runs a cluster for a test. It goes with the test. The test is skipped, with
// the reason, where there is no root or not all pieces have been built.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	netns.Privileged(t)
	cache, err := DefaultCache(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if missing := cache.Missing(); len(missing) > 0 {
		t.Skipf("a cluster's pieces have not been built (bin/e2e build does): %s", strings.Join(missing, ", "))
	}
	if o.Dir == "" {
		o.Dir = filepath.Join(t.TempDir(), "c")
	}
	if o.Out == nil {
		o.Out = lines{t}
	}
	c, err := Up(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Down(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// lines are the log of a test.
type lines struct{ t testing.TB }

func (l lines) Write(text []byte) (int, error) {
	l.t.Helper()
	l.t.Log(strings.TrimRight(string(text), "\n"))
	return len(text), nil
}

// Up starts a cluster and returns when its nodes are Ready and its DNS answers. If it
// fails, or the context ends before, nothing is left.
func Up(ctx context.Context, o Options) (*Cluster, error) {
	cache, err := DefaultCache(ctx)
	if err != nil {
		return nil, fmt.Errorf("start a cluster: %w", err)
	}
	return up(ctx, o, cache)
}

// up is Up with the pieces of a cache.
func up(ctx context.Context, o Options, cache *Cache) (*Cluster, error) {
	c, err := prepare(ctx, &o, cache)
	if err == nil {
		if err = c.start(ctx, o); err == nil {
			return c, nil
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause // whatever it was that it broke off
	}
	err = fmt.Errorf("start a cluster: %w", err)
	if c != nil {
		err = errors.Join(err, c.Down())
	}
	return nil, err
}

// Open gives a cluster that another process has started in a folder. Empty:
// DefaultDir.
func Open(ctx context.Context, dir string) (*Cluster, error) {
	c, err := load(ctx, orDefault(dir))
	if err != nil {
		return nil, err
	}
	if err := c.find(); err != nil {
		return nil, err
	}
	return c, nil
}

// Down ends the cluster and removes everything that it left. Of a cluster that is not
// there, it says so.
func (c *Cluster) Down() (err error) {
	c.down.Do(func() { err = remove(c.dir) })
	return err
}

// Control gives the machine of the control plane. Its pieces are etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler.
func (c *Cluster) Control() *Machine { return c.control }

// Nodes gives all nodes in order.
func (c *Cluster) Nodes() []*Machine { return c.nodes }

// Node gives a node by its name. A name that no node has is a mistake of the caller's.
func (c *Cluster) Node(name string) *Machine {
	for _, n := range c.nodes {
		if n.name == name {
			return n
		}
	}
	panic("no node " + name)
}

// Dir gives the folder of the cluster's state. Logs are in MACHINE/log/PIECE.log.
func (c *Cluster) Dir() string { return c.dir }

// Family gives the IP families of the cluster.
func (c *Cluster) Family() Family { return c.settings.Family }

// With gives what connects pods and serves Services.
func (c *Cluster) With() string { return c.settings.With }

// Pieces gives the programs that were built.
func (c *Cluster) Pieces() *Cache { return c.pieces }

// Kubeconfig gives the name of a kubeconfig file of a cluster administrator. Its
// address is reached from the cluster's machines.
func (c *Cluster) Kubeconfig() string { return c.KubeconfigOf("admin") }

// KubeconfigOf gives that of another user: kube-proxy, or a node by its name.
func (c *Cluster) KubeconfigOf(user string) string {
	return filepath.Join(c.dir, "credentials", user+".kubeconfig")
}

// Kubectl gives a kubectl of the administrator that is ready to run. Names of files
// are those of the machine we are on.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) *exec.Cmd {
	args = append([]string{c.pieces.Program("kubectl"), "--kubeconfig", c.Kubeconfig()}, args...)
	return c.control.enter(ctx, "net", args...)
}

// Apply gives manifests to kubectl apply.
func (c *Cluster) Apply(ctx context.Context, manifests string) error {
	cmd := c.Kubectl(ctx, "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(manifests)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apply manifests: %w: %s", err, lastLines(string(out), 5))
	}
	return nil
}

// Config gives a client configuration of the administrator that works everywhere in
// this process: connections begin in the control plane's namespace.
func (c *Cluster) Config() (*rest.Config, error) { return clientConfig(c.Kubeconfig(), c.control.Dial) }

// Client gives a client of the administrator.
func (c *Cluster) Client() (*kubernetes.Clientset, error) {
	config, err := c.Config()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of the API server: %w", err)
	}
	return client, nil
}

// Load gives an image archive to the container runtime of every node.
func (c *Cluster) Load(ctx context.Context, archive string) error {
	if _, err := os.Stat(archive); err != nil {
		return fmt.Errorf("load an image: %w", err)
	}
	return c.each(func(n *Machine) error { return n.load(ctx, archive) })
}

// each does something for all nodes at a time.
func (c *Cluster) each(do func(*Machine) error) error {
	errs := make([]error, len(c.nodes))
	var all sync.WaitGroup
	for i, n := range c.nodes {
		all.Go(func() { errs[i] = do(n) })
	}
	all.Wait()
	return errors.Join(errs...)
}
