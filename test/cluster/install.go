package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Where make image puts the image, and what it is called, by users' manifest.
const (
	imageArchive = "onerule-image.tar"
	manifestFile = "install/onerule.yaml"
)

// image says when there is no image of ours yet.
func (o *Options) image(root string) error {
	if o.With != Onerule {
		return nil
	}
	archive := filepath.Join((&Cache{root: root}).bin(), imageArchive)
	if _, err := os.Stat(archive); err != nil {
		return fmt.Errorf("no image yet in %s (make image builds it)", archive)
	}
	return nil
}

// Install gives the nodes our image and the API server our manifest, as users do, and
// says where the API server is.
func (c *Cluster) Install(ctx context.Context) error {
	if err := c.Load(ctx, filepath.Join(c.pieces.bin(), imageArchive)); err != nil {
		return err
	}
	manifest, err := c.installManifest()
	if err != nil {
		return err
	}
	return c.Apply(ctx, manifest)
}

// installManifest is users' manifest, after what tells the daemon where the API server
// is: nobody but the daemon translates the address of its Service.
func (c *Cluster) installManifest() (string, error) {
	text, err := os.ReadFile(filepath.Join(c.pieces.root, manifestFile))
	if err != nil {
		return "", fmt.Errorf("read our manifest: %w", err)
	}
	const mode = "    mode: nftables\n"
	manifest := string(text)
	if strings.Count(manifest, mode) != 1 {
		return "", fmt.Errorf("our manifest %s has no line %q to add settings to", manifestFile, strings.TrimSpace(mode))
	}
	// Upstream tests NodePorts on loopback addresses, which users ask for.
	manifest = strings.Replace(manifest, mode, mode+"    nodePortAddresses: ["+c.settings.Family.nodePortAddresses()+"]\n", 1)
	api := c.APIServer()
	where := fmt.Sprintf(`apiVersion: v1
kind: ConfigMap
metadata: {name: onerule-apiserver, namespace: kube-system}
data: {KUBERNETES_SERVICE_HOST: "%s", KUBERNETES_SERVICE_PORT: "%d"}
---
`, api.Addr(), api.Port())
	return where + manifest, nil
}
