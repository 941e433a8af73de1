package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// untar reads an archive: texts of files, targets of links, and modes.
func untar(t *testing.T, text []byte) map[string]string {
	t.Helper()
	found := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(text)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s is of %d:%d", h.Name, h.Uid, h.Gid)
		}
		if _, twice := found[h.Name]; twice {
			t.Errorf("%s is there twice", h.Name)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		switch h.Typeflag {
		case tar.TypeSymlink:
			found[h.Name] = "-> " + h.Linkname
		case tar.TypeDir:
			found[h.Name] = fmt.Sprintf("folder %o", h.Mode)
		default:
			found[h.Name] = string(content)
		}
	}
}

func TestArchiveOfImagesThatShareALayer(t *testing.T) {
	tmp := t.TempDir()
	lower, upper := filepath.Join(tmp, "lower"), filepath.Join(tmp, "upper")
	if err := errors.Join(
		os.MkdirAll(filepath.Join(lower, "tmp"), 0o755), os.Chmod(filepath.Join(lower, "tmp"), 0o777|os.ModeSticky),
		os.WriteFile(filepath.Join(lower, "tool"), []byte("a tool"), 0o755), os.Symlink("tool", filepath.Join(lower, "name")),
		os.MkdirAll(upper, 0o755), os.WriteFile(filepath.Join(upper, "program"), []byte("a program"), 0o755),
	); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(tmp, "images.tar")
	if err := writeArchive(file, tmp, []image{
		{names: []string{"a:1", "b:1"}, layers: []string{lower}, command: []string{"sh"}},
		{names: []string{"c:1"}, layers: []string{lower, upper}, entrypoint: []string{"/program"}},
	}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	whole := untar(t, text)
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal([]byte(whole["manifest.json"]), &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest) != 2 || len(whole) != 1+2+2 { // the manifest, two configurations, two layers
		t.Fatalf("%d images in %d files", len(manifest), len(whole))
	}
	if diff := cmp.Diff([]string{"a:1", "b:1"}, manifest[0].RepoTags); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if manifest[0].Layers[0] != manifest[1].Layers[0] || len(manifest[1].Layers) != 2 {
		t.Errorf("layers are %s and %s", manifest[0].Layers, manifest[1].Layers)
	}
	layers := []map[string]string{
		{"tmp": "folder 1777", "tool": "a tool", "name": "-> tool"},
		{"program": "a program"},
	}
	var config struct {
		Config struct{ Entrypoint, Cmd []string }
		Rootfs struct {
			Diffs []string `json:"diff_ids"`
		}
	}
	if err := json.Unmarshal([]byte(whole[manifest[1].Config]), &config); err != nil {
		t.Fatal(err)
	}
	for i, name := range manifest[1].Layers {
		if diff := cmp.Diff(layers[i], untar(t, []byte(whole[name]))); diff != "" {
			t.Errorf("layer %d (-want +got):\n%s", i, diff)
		}
		if got := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(whole[name]))); got != config.Rootfs.Diffs[i] {
			t.Errorf("layer %d has %s, and is %s", i, config.Rootfs.Diffs[i], got)
		}
	}
	if diff := cmp.Diff([]string{"/program"}, config.Config.Entrypoint); diff != "" {
		t.Errorf("entrypoint (-want +got):\n%s", diff)
	}
}
