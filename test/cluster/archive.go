package cluster

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// An image is what a container starts from.
type image struct {
	names               []string
	layers              []string // folders, the lowest first
	entrypoint, command []string
}

// A layer is a folder in an archive.
type layer struct{ file, digest string }

// writeArchive writes images in the form of docker save: containerd reads it, layers
// that images share are in it once, and it takes no library. Temporary files go to tmp.
func writeArchive(file, tmp string, images []image) error {
	f, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("write image archive: %w", err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	layers := map[string]layer{}
	for _, i := range images {
		for _, root := range i.layers {
			if _, done := layers[root]; done {
				continue
			}
			l, err := packLayer(root, filepath.Join(tmp, fmt.Sprintf("layer-%d", len(layers))))
			if err != nil {
				return err
			}
			layers[root] = l
			if err := addFile(w, l.digest+"/layer.tar", l.file); err != nil {
				return fmt.Errorf("write image archive: %w", err)
			}
		}
	}
	var manifest []map[string]any
	for _, i := range images {
		entry, err := i.describe(w, layers)
		if err != nil {
			return fmt.Errorf("write image archive: %w", err)
		}
		manifest = append(manifest, entry)
	}
	text, err := json.Marshal(manifest)
	if err == nil {
		err = addText(w, "manifest.json", text)
	}
	if err := errors.Join(err, w.Close(), f.Close()); err != nil {
		return fmt.Errorf("write image archive: %w", err)
	}
	return nil
}

// describe writes an image's configuration and gives its line of the manifest.
func (i image) describe(w *tar.Writer, layers map[string]layer) (map[string]any, error) {
	var files []string
	for _, root := range i.layers {
		files = append(files, layers[root].digest+"/layer.tar")
	}
	text, err := i.configuration(layers)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%x.json", sha256.Sum256(text))
	return map[string]any{"Config": name, "RepoTags": i.names, "Layers": files}, addText(w, name, text)
}

// configuration says how a container is started from an image.
func (i image) configuration(layers map[string]layer) ([]byte, error) {
	var digests []string
	for _, root := range i.layers {
		digests = append(digests, "sha256:"+layers[root].digest)
	}
	return json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{
			"Env":        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			"Entrypoint": i.entrypoint, "Cmd": i.command, "WorkingDir": "/",
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": digests},
	})
}

// packLayer writes a folder as a layer, all of it root's, and gives its digest.
func packLayer(root, file string) (layer, error) {
	f, err := os.Create(file)
	if err != nil {
		return layer{}, fmt.Errorf("pack layer: %w", err)
	}
	defer f.Close()
	digest := sha256.New()
	w := tar.NewWriter(io.MultiWriter(f, digest))
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		return addEntry(w, root, p, d)
	})
	if err := errors.Join(err, w.Close(), f.Close()); err != nil {
		return layer{}, fmt.Errorf("pack layer: %w", err)
	}
	return layer{file, fmt.Sprintf("%x", digest.Sum(nil))}, nil
}

func addEntry(w *tar.Writer, root, file string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	link := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if link, err = os.Readlink(file); err != nil {
			return err
		}
	}
	header, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	if header.Name, err = filepath.Rel(root, file); err != nil {
		return err
	}
	header.Uid, header.Gid, header.Uname, header.Gname = 0, 0, "", ""
	if err := w.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
		return err
	}
	return copyInto(w, file)
}

func copyInto(w io.Writer, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

func addFile(w *tar.Writer, name, file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: info.Size()}); err != nil {
		return err
	}
	return copyInto(w, file)
}

func addText(w *tar.Writer, name string, text []byte) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
		return err
	}
	_, err := w.Write(text)
	return err
}
