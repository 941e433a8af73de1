package source

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// maxFileSize bounds what a wrong file can cost. A service with 10 endpoints is
// 2 KiB of YAML.
const maxFileSize = 256 << 20

// A directory finds out which of its manifest files have changed.
type directory struct {
	path string
	seen map[string]seenFile
}

// A seenFile is what is known of a file that was read.
type seenFile struct {
	stamp stamp
	sum   [sha256.Size]byte
	fault string // instead of a sum, if it could not be read
}

// A stamp tells without reading whether a file is as it was: the time of the last
// change of the inode sees also what keeps size and modification time.
type stamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime syscall.Timespec
}

// A reading is a file as it is now.
type reading struct {
	data []byte
	err  error // it is there and can't be read
	gone bool
}

func newDirectory(path string) *directory {
	return &directory{path: path, seen: map[string]seenFile{}}
}

// isManifest says whether a file of this name is read. Hidden files are not: editors
// and the kubelet's ..data keep there what is not meant.
func isManifest(name string) bool {
	return !strings.HasPrefix(name, ".") && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
}

// all gives the files that differ from what was read before, whether known or new.
func (d *directory) all() (map[string]reading, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, fmt.Errorf("read manifests directory: %w", err)
	}
	changed := map[string]reading{}
	there := make(map[string]struct{}, len(entries))
	for _, e := range entries {
		if isManifest(e.Name()) {
			there[e.Name()] = struct{}{}
			d.check(e.Name(), false, changed)
		}
	}
	for name := range d.seen {
		if _, ok := there[name]; !ok {
			d.check(name, false, changed)
		}
	}
	return changed, nil
}

// some gives those of the named files that differ from what was read before.
func (d *directory) some(names map[string]struct{}) map[string]reading {
	changed := map[string]reading{}
	for name := range names {
		if isManifest(name) {
			d.check(name, true, changed)
		}
	}
	return changed
}

// check adds a file to changed if it differs. A file that something is known to
// have happened to is read even if its stamp is the same.
func (d *directory) check(name string, touched bool, changed map[string]reading) {
	old, known := d.seen[name]
	path := filepath.Join(d.path, name)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir() {
		if known {
			delete(d.seen, name)
			changed[name] = reading{gone: true}
		}
		return
	}
	now := seenFile{}
	var data []byte
	if err == nil {
		now.stamp = stampOf(info)
		if known && !touched && old.fault == "" && old.stamp == now.stamp {
			return
		}
		data, err = readRegular(path)
		if errors.Is(err, fs.ErrNotExist) {
			return // just gone: an event or the next look at all files says so
		}
		now.sum = sha256.Sum256(data)
	}
	if err != nil {
		now.fault = err.Error()
	}
	same := known && old.sum == now.sum && old.fault == now.fault
	if time.Since(time.Unix(now.stamp.ctime.Unix())) < time.Second {
		// Written just now: a later write can leave the same stamp.
		now.stamp = stamp{}
	}
	d.seen[name] = now
	if !same {
		changed[name] = reading{data: data, err: err}
	}
}

func stampOf(info fs.FileInfo) stamp {
	s := stamp{size: info.Size()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.dev, s.ino, s.mtime, s.ctime = st.Dev, st.Ino, st.Mtim, st.Ctim
	}
	return s
}

// readRegular reads a regular file, following symlinks. Opening a pipe that nobody
// writes to would block.
func readRegular(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	case info.Size() > maxFileSize:
		return nil, fmt.Errorf("is larger than %d MiB", maxFileSize>>20)
	}
	return io.ReadAll(io.LimitReader(f, maxFileSize))
}
