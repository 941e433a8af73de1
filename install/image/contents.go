package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A file of the image.
type file struct {
	path string // in the image, absolute
	from string // on this machine
	mode fs.FileMode
	base bool // part of what changes with the machine's packages only
}

const (
	programsDir = "/usr/local/bin"
	nftPath     = "/usr/sbin/nft"
	// authorities are whom to believe that a server is who it says: for an API server with
	// a public certificate. A cluster's own comes with the service account.
	authorities = "/etc/ssl/certs/ca-certificates.crt"
)

// A machine is a root folder, whose files become the image's.
type machine string

// contents lists the image's files by their path. The programs come from a folder.
func (m machine) contents(programs string) ([]file, error) {
	list := []file{
		{path: programsDir + "/onerule", from: filepath.Join(programs, "onerule"), mode: 0o755},
		{path: programsDir + "/oneruled", from: filepath.Join(programs, "oneruled"), mode: 0o755},
		{path: authorities, from: m.at(authorities), mode: 0o644, base: true},
		{path: nftPath, from: m.at(nftPath), mode: 0o755, base: true},
	}
	for _, f := range list {
		if s, err := os.Stat(f.from); err != nil {
			return nil, fmt.Errorf("collect files: %w", err)
		} else if !s.Mode().IsRegular() {
			return nil, fmt.Errorf("collect files: %s is no file", f.from)
		}
	}
	for _, program := range list[:2] {
		if err := static(program.from); err != nil {
			return nil, err
		}
	}
	libraries, err := m.libraries(nftPath)
	if err != nil {
		return nil, err
	}
	list = append(list, libraries...)
	slices.SortFunc(list, func(a, b file) int { return strings.Compare(a.path, b.path) })
	return list, nil
}

func (m machine) at(path string) string { return filepath.Join(string(m), path) }

// static refuses a program that loads libraries: the plugin is copied to nodes that may have
// none of them.
func static(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	defer func() { _ = f.Close() }()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return fmt.Errorf("%s is not static: build it with CGO_ENABLED=0", path)
	}
	return nil
}

// libraries lists all that a program loads: its loader, and its libraries with theirs.
func (m machine) libraries(program string) ([]file, error) {
	found := map[string]file{}
	for todo := []string{program}; len(todo) > 0; todo = todo[1:] {
		needs, err := m.needs(todo[0])
		if err != nil {
			return nil, err
		}
		for _, path := range needs {
			if _, known := found[path]; !known {
				found[path] = file{path: path, from: m.at(path), mode: 0o755, base: true}
				todo = append(todo, path)
			}
		}
	}
	list := make([]file, 0, len(found))
	for _, f := range found {
		list = append(list, f)
	}
	return list, nil
}

// needs lists what the file at a path names itself.
func (m machine) needs(path string) ([]string, error) {
	f, err := elf.Open(m.at(path))
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", path, err)
	}
	defer func() { _ = f.Close() }()
	names, err := f.ImportedLibraries()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return nil, fmt.Errorf("libraries of %s: %w", path, err)
	}
	var list []string
	if loader, err := interpreter(f); err != nil {
		return nil, fmt.Errorf("loader of %s: %w", path, err)
	} else if loader != "" {
		list = append(list, loader)
	}
	for _, name := range names {
		if strings.HasPrefix(name, "ld-linux") {
			continue // the loader, which the program names by its path
		}
		library, err := m.library(name)
		if err != nil {
			return nil, fmt.Errorf("libraries of %s: %w", path, err)
		}
		list = append(list, library)
	}
	return list, nil
}

// interpreter gives the path of the loader that a program names; empty: none.
func interpreter(f *elf.File) (string, error) {
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b := make([]byte, p.Filesz)
			_, err := p.ReadAt(b, 0)
			return strings.TrimRight(string(b), "\x00"), err
		}
	}
	return "", nil
}

// library looks for one where the loader does so without a cache: in Debian's folder for
// the architecture, and in those that others have.
func (m machine) library(name string) (string, error) {
	for _, dir := range []string{"/usr/lib/*-linux-gnu*", "/lib/*-linux-gnu*", "/usr/lib64", "/lib64", "/usr/lib", "/lib"} {
		found, err := filepath.Glob(m.at(filepath.Join(dir, name)))
		if err != nil {
			return "", err
		}
		if len(found) > 0 {
			return "/" + strings.TrimPrefix(strings.TrimPrefix(found[0], strings.TrimSuffix(string(m), "/")), "/"), nil
		}
	}
	return "", fmt.Errorf("%s is not on this machine", name)
}
