package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// start starts everything, in the order in which one needs the other.
func (c *Cluster) start(ctx context.Context, o Options) error {
	if err := c.makeCredentials(); err != nil {
		return err
	}
	if err := c.makeCgroups(); err != nil {
		return err
	}
	if err := c.launch(ctx, o.Stay); err != nil {
		return err
	}
	c.say("namespaces of %d nodes (%s)", len(c.nodes), c.settings.Family)
	client, err := c.startControl(ctx)
	if err != nil {
		return err
	}
	if err := c.copyOurs(ctx); err != nil {
		return err
	}
	if err := c.each(func(n *Machine) error { return c.startNode(ctx, n) }); err != nil {
		return err
	}
	c.say("containerd, images and kubelets")
	if c.settings.With == Nothing {
		return nil
	}
	if err := c.apply(ctx); err != nil {
		return err
	}
	if err := c.each(func(n *Machine) error { return c.ready(ctx, client, n) }); err != nil {
		return err
	}
	c.say("nodes are Ready with %s", c.settings.With)
	if err := c.dns(ctx); err != nil {
		return err
	}
	c.say("DNS answers: the cluster is up, in %s", c.dir)
	return nil
}

// startControl starts the control plane, and makes the Node objects: with the ranges
// of pods, since no controller gives them.
func (c *Cluster) startControl(ctx context.Context) (*kubernetes.Clientset, error) {
	for _, piece := range []string{"etcd", "kube-apiserver"} {
		if err := c.control.Start(ctx, piece); err != nil {
			return nil, err
		}
	}
	client, err := c.Client()
	if err != nil {
		return nil, err
	}
	answers := func() error {
		return client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	}
	if err := c.control.whileRuns(ctx, 120*time.Second, "kube-apiserver", answers); err != nil {
		return nil, err
	}
	c.say("API server at %s", c.APIServer())
	// Not before: the controllers end when the API server refuses them.
	for _, piece := range []string{"kube-controller-manager", "kube-scheduler"} {
		if err := c.control.Start(ctx, piece); err != nil {
			return nil, err
		}
	}
	for _, n := range c.nodes {
		if _, err := client.CoreV1().Nodes().Create(ctx, n.object(), metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("make Node object %s: %w", n.name, err)
		}
	}
	account := func() error {
		_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	}
	return client, c.control.whileRuns(ctx, 60*time.Second, "kube-controller-manager", account)
}

// object is the Node. Tests of traffic distribution want several zones, some of them
// three of two nodes each.
func (m *Machine) object() *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name, Labels: map[string]string{
		"kubernetes.io/hostname": m.name, "kubernetes.io/os": "linux",
		"topology.kubernetes.io/region": "test", "topology.kubernetes.io/zone": fmt.Sprintf("zone-%d", (m.number-1)%3+1),
	}}}
	for _, r := range m.PodRanges() {
		node.Spec.PodCIDRs = append(node.Spec.PodCIDRs, r.String())
	}
	node.Spec.PodCIDR = node.Spec.PodCIDRs[0]
	return node
}

// whileRuns waits for something that a piece does, and gives up at once when the piece
// has ended.
func (m *Machine) whileRuns(ctx context.Context, atMost time.Duration, piece string, try func() error) error {
	err := until(ctx, atMost, func() error {
		last := try()
		if last == nil {
			return nil
		}
		runs, how, err := m.Runs(piece)
		if err != nil {
			return err
		}
		if !runs {
			return fmt.Errorf("%w: %s", errEnded, how)
		}
		return last
	})
	if err != nil {
		return m.explain(piece, err)
	}
	return nil
}

// ready waits until a Node is.
func (c *Cluster) ready(ctx context.Context, client *kubernetes.Clientset, n *Machine) error {
	return n.whileRuns(ctx, 180*time.Second, "kubelet", func() error {
		node, err := client.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				return nil
			} else if condition.Type == corev1.NodeReady {
				err = errors.New(condition.Message)
			}
		}
		return errors.Join(errors.New("not Ready"), err)
	})
}

// apply gives the API server what the network needs: its manifest, or only a role.
func (c *Cluster) apply(ctx context.Context) error {
	switch c.settings.With {
	case Onerule:
		return c.Install(ctx)
	case OneruleBinaries:
		text, err := files.ReadFile("files/oneruled-role.yaml")
		if err != nil {
			return fmt.Errorf("role of oneruled: %w", err)
		}
		return c.Apply(ctx, string(text))
	}
	return nil
}

// dns starts the cluster's DNS and waits until it is ready.
func (c *Cluster) dns(ctx context.Context) error {
	text, err := fill("coredns.yaml", map[string]any{"Image": dnsImage, "Address": c.settings.Family.dnsService()})
	if err != nil {
		return err
	}
	if err := c.Apply(ctx, string(text)); err != nil {
		return err
	}
	out, err := c.Kubectl(ctx, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=120s").CombinedOutput()
	if err == nil {
		return nil
	}
	why, _ := c.Kubectl(ctx, "-n", "kube-system", "describe", "pods", "-l", "k8s-app=kube-dns").CombinedOutput()
	return fmt.Errorf("DNS is not ready: %w: %s: %s", err, lastLines(string(out), 1), lastLines(string(why), 5))
}

// copyOurs puts our programs beside the cluster's: a build while it runs does not
// change them.
func (c *Cluster) copyOurs(ctx context.Context) error {
	if c.settings.With != OneruleBinaries {
		return nil
	}
	for _, program := range []string{"oneruled", "onerule"} {
		from := filepath.Join(c.pieces.bin(), program)
		if _, err := os.Stat(from); err != nil {
			return fmt.Errorf("find our programs: %w (make build)", err)
		}
		if err := copyFile(from, filepath.Join(c.dir, "bin", program)); err != nil {
			return fmt.Errorf("copy our programs: %w", err)
		}
	}
	return ctx.Err()
}
