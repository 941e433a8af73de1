package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	_ "crypto/sha256" // by which go-digest names what it is given
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// containerdName is the annotation by which containerd names an image that it imports, whole:
// the kubelet asks for it so.
const containerdName = "io.containerd.image.name"

// An image is what a container begins with. Of the same files it is the same, byte by byte:
// no time, no owner and no order of a directory goes in.
type image struct {
	name, version, arch string
	files               []file
}

// A savedImage is what manifest.json says of an image, for a Docker that reads no OCI layout.
type savedImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// A part is a file of the archive.
type part struct {
	name    string
	content []byte
}

// A layer is a tar file, packed; its digest is that of what it unpacks to.
type layer struct {
	packed []byte
	digest digest.Digest
}

// write writes the archive: what changes with the machine's packages is a layer of its own, so
// that an update brings the programs only.
func (i image) write(w io.Writer) error {
	base, err := pack(i.files, true)
	if err != nil {
		return err
	}
	ours, err := pack(i.files, false)
	if err != nil {
		return err
	}
	parts, err := i.layout(base, ours)
	if err != nil {
		return err
	}
	t := tar.NewWriter(w)
	for _, p := range parts {
		if err := add(t, p.name, p.content, 0o644); err != nil {
			return err
		}
	}
	return t.Close()
}

// layout gives the files of an OCI layout with this image (OCI image format 1.1), and Docker's
// manifest.json over the same blobs.
func (i image) layout(layers ...layer) ([]part, error) {
	whole, err := reference.ParseNormalizedNamed(i.name)
	if err != nil {
		return nil, fmt.Errorf("name %q: %w", i.name, err)
	}
	config, err := json.Marshal(i.configuration(layers))
	if err != nil {
		return nil, fmt.Errorf("spell configuration: %w", err)
	}
	saved := savedImage{Config: blob(config), RepoTags: []string{reference.FamiliarString(reference.TagNameOnly(whole))}}
	parts := []part{{v1.ImageLayoutFile, []byte(`{"imageLayoutVersion":"` + v1.ImageLayoutVersion + `"}`)}, {saved.Config, config}}
	manifest := v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		Config: descriptor(v1.MediaTypeImageConfig, config),
	}
	for _, l := range layers {
		manifest.Layers = append(manifest.Layers, descriptor(v1.MediaTypeImageLayerGzip, l.packed))
		saved.Layers = append(saved.Layers, blob(l.packed))
		parts = append(parts, part{blob(l.packed), l.packed})
	}
	return i.list(parts, manifest, saved, reference.TagNameOnly(whole))
}

// list adds what leads to the blobs.
func (i image) list(parts []part, manifest v1.Manifest, saved savedImage, whole reference.Named) ([]part, error) {
	text, err := json.Marshal(manifest)
	if err != nil {
		return nil, fmt.Errorf("spell manifest: %w", err)
	}
	d := descriptor(manifest.MediaType, text)
	d.Platform = &v1.Platform{Architecture: i.arch, OS: "linux"}
	d.Annotations = map[string]string{containerdName: whole.String()}
	if tagged, ok := whole.(reference.Tagged); ok {
		d.Annotations[v1.AnnotationRefName] = tagged.Tag()
	}
	index, err := json.Marshal(v1.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Manifests: []v1.Descriptor{d},
	})
	if err != nil {
		return nil, fmt.Errorf("spell index: %w", err)
	}
	docker, err := json.Marshal([]savedImage{saved})
	if err != nil {
		return nil, fmt.Errorf("spell Docker's manifest: %w", err)
	}
	return append(parts, part{blob(text), text}, part{v1.ImageIndexFile, index}, part{"manifest.json", docker}), nil
}

func (i image) configuration(layers []layer) v1.Image {
	c := v1.Image{
		Platform: v1.Platform{Architecture: i.arch, OS: "linux"},
		Config: v1.ImageConfig{
			Env:        []string{"PATH=" + programsDir + ":" + path.Dir(nftPath)},
			Entrypoint: []string{programsDir + "/oneruled"},
			Labels:     map[string]string{v1.AnnotationTitle: "onerule", v1.AnnotationVersion: i.version},
		},
		RootFS:  v1.RootFS{Type: "layers"},
		History: []v1.History{{CreatedBy: "nft and what it loads"}, {CreatedBy: "onerule and oneruled"}},
	}
	for _, l := range layers {
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, l.digest)
	}
	return c
}

func descriptor(mediaType string, content []byte) v1.Descriptor {
	return v1.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content))}
}

// blob names a part of the archive by what it holds.
func blob(content []byte) string {
	d := digest.FromBytes(content)
	return v1.ImageBlobsDir + "/" + d.Algorithm().String() + "/" + d.Encoded()
}

// pack makes a layer of those files that are of the base, or that are not.
func pack(files []file, base bool) (layer, error) {
	var plain, packed bytes.Buffer
	t := tar.NewWriter(&plain)
	made := map[string]bool{"/": true}
	for _, f := range files {
		if f.base != base {
			continue
		}
		b, err := os.ReadFile(f.from)
		if err != nil {
			return layer{}, fmt.Errorf("pack %s: %w", f.path, err)
		}
		if err := folders(t, made, path.Dir(f.path)); err != nil {
			return layer{}, err
		}
		if err := add(t, strings.TrimPrefix(f.path, "/"), b, f.mode); err != nil {
			return layer{}, err
		}
	}
	if err := t.Close(); err != nil {
		return layer{}, fmt.Errorf("pack layer: %w", err)
	}
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(plain.Bytes()); err != nil {
		return layer{}, fmt.Errorf("pack layer: %w", err)
	}
	if err := z.Close(); err != nil {
		return layer{}, fmt.Errorf("pack layer: %w", err)
	}
	return layer{packed: packed.Bytes(), digest: digest.FromBytes(plain.Bytes())}, nil
}

// folders adds a folder, and those that it is in, unless they were made.
func folders(t *tar.Writer, made map[string]bool, dir string) error {
	var missing []string
	for ; !made[dir]; dir = path.Dir(dir) {
		made[dir] = true
		missing = append(missing, dir)
	}
	for _, d := range slices.Backward(missing) {
		h := tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimPrefix(d, "/") + "/", Mode: 0o755, Format: tar.FormatUSTAR}
		if err := t.WriteHeader(&h); err != nil {
			return fmt.Errorf("pack %s: %w", d, err)
		}
	}
	return nil
}

func add(t *tar.Writer, name string, content []byte, mode fs.FileMode) error {
	h := tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(mode), Size: int64(len(content)), Format: tar.FormatUSTAR}
	if err := t.WriteHeader(&h); err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	if _, err := t.Write(content); err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	return nil
}
