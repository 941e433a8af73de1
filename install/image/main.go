// Command image makes the image of a container out of what stands on the machine: the two
// programs of bin/, nft with the libraries that it loads, and the certificates of authorities.
// No Docker, no registry and no network take part.
//
// The archive is an OCI layout, which containerd, podman and Docker read, with the manifest.json
// of docker save over the same blobs for a Docker before 25. OCI's own types and Docker's rules of
// names come from their modules. A library that makes whole images would bring registries,
// credentials and daemons, which nothing here needs: an image is two tar files and some JSON.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string, w io.Writer) error {
	fs := flag.NewFlagSet("image", flag.ContinueOnError)
	name := fs.String("name", "onerule:dev", "`NAME:TAG` of the image")
	version := fs.String("version", "unknown", "`version` that its label tells")
	programs := fs.String("bin", "bin", "`folder` of onerule and oneruled")
	tarFile := fs.String("o", "", "`file` to write the image to")
	root := fs.String("root", "", "`folder` to write only the image's files to, for a Dockerfile")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if (*tarFile == "") == (*root == "") || fs.NArg() > 0 {
		return fmt.Errorf("give either -o or -root, and nothing else")
	}
	list, err := machine("/").contents(*programs)
	if err != nil {
		return err
	}
	if *root != "" {
		return place(*root, list)
	}
	i := image{name: *name, version: *version, arch: runtime.GOARCH, files: list}
	if err := writeBeside(*tarFile, i.write); err != nil {
		return err
	}
	return i.describe(w, *tarFile)
}

// writeBeside lets a file be written under another name, so that nobody reads half of it.
func writeBeside(path string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".image-*.tmp")
	if err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }() // there only after a failure
	err = write(f)
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Chmod(f.Name(), 0o644)
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	return nil
}

// place writes files below a folder as they are in the image.
func place(root string, list []file) error {
	for _, f := range list {
		b, err := os.ReadFile(f.from)
		if err != nil {
			return fmt.Errorf("place %s: %w", f.path, err)
		}
		to := filepath.Join(root, f.path)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return fmt.Errorf("place %s: %w", f.path, err)
		}
		if err := os.WriteFile(to, b, f.mode); err != nil {
			return fmt.Errorf("place %s: %w", f.path, err)
		}
	}
	return nil
}

// describe says what is inside, and how large.
func (i image) describe(w io.Writer, path string) error {
	for _, f := range i.files {
		s, err := os.Stat(f.from)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%10d  %s\n", s.Size(), f.path)
	}
	s, err := os.Stat(path)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s: %s for %s, %d files, %.1f MB\n", path, i.name, i.arch, len(i.files), float64(s.Size())/1e6)
	return nil
}
