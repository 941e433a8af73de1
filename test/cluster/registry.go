package cluster

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// serve writes an image as the registry that agnhost plays has it: a folder for each
// image, with manifests and blobs by their digests, and tags that name a manifest.
func (i image) serve(folder, tag, tmp string) error {
	layers := map[string]layer{}
	var described []map[string]any
	for n, root := range i.layers {
		l, err := packLayer(root, filepath.Join(tmp, fmt.Sprintf("served-%d", n)))
		if err != nil {
			return err
		}
		text, err := os.ReadFile(l.file)
		if err != nil {
			return fmt.Errorf("image in a registry: %w", err)
		}
		layers[root] = l
		d, err := put(filepath.Join(folder, "blobs"), "application/vnd.oci.image.layer.v1.tar", text)
		if err != nil {
			return err
		}
		described = append(described, d)
	}
	text, err := i.configuration(layers)
	if err != nil {
		return fmt.Errorf("image in a registry: %w", err)
	}
	config, err := put(filepath.Join(folder, "blobs"), "application/vnd.oci.image.config.v1+json", text)
	if err != nil {
		return err
	}
	const kind = "application/vnd.oci.image.manifest.v1+json"
	text, err = json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": kind, "config": config, "layers": described})
	if err != nil {
		return fmt.Errorf("image in a registry: %w", err)
	}
	manifest, err := put(filepath.Join(folder, "manifests"), kind, text)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "manifests", tag), fmt.Append(nil, manifest["digest"]), 0o644)
}

// put stores something under its digest, and gives what a manifest says of it.
func put(folder, kind string, text []byte) (map[string]any, error) {
	hash := fmt.Sprintf("%x", sha256.Sum256(text))
	file := filepath.Join(folder, "sha256", hash[:2], hash, "data")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return nil, fmt.Errorf("image in a registry: %w", err)
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return nil, fmt.Errorf("image in a registry: %w", err)
	}
	return map[string]any{"mediaType": kind, "digest": "sha256:" + hash, "size": len(text)}, nil
}
