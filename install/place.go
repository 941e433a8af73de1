package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// beside is how files are named until they are whole: runtimes read what ends with
	// .conflist, .conf or .json, also with a dot before it.
	beside = ".onerule-*.tmp"
	// abandoned is after what time such a file is that of a process that was killed.
	abandoned = time.Hour
)

// place makes a file hold something, by one rename within its directory, which is made. A
// file that holds it already is left alone. check, which may be nil, looks at what is to
// become the file.
func place(path string, content []byte, mode fs.FileMode, check func(path string) error) (changed bool, err error) {
	if holds(path, content, mode) {
		return false, nil
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, fmt.Errorf("make the directory of %s: %w", path, err)
	}
	sweep(dir)
	temp, err := write(dir, content, mode)
	if err == nil && check != nil {
		err = check(temp)
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		if temp != "" {
			err = errors.Join(err, os.Remove(temp))
		}
		return false, fmt.Errorf("write %s: %w", path, err)
	}
	if err := syncFile(dir); err != nil {
		return true, fmt.Errorf("write %s: sync its directory: %w", path, err)
	}
	return true, nil
}

// place makes a file hold something, or says whether it would have to.
func (p Places) place(path string, content []byte, mode fs.FileMode) (changed bool, err error) {
	if p.Dry {
		return !holds(path, content, mode), nil
	}
	return place(path, content, mode, nil)
}

// holds says whether a file is there as it should be.
func holds(path string, content []byte, mode fs.FileMode) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != mode || info.Size() != int64(len(content)) {
		return false
	}
	got, err := os.ReadFile(path)
	return err == nil && bytes.Equal(got, content)
}

// write makes a file of a name of its own, and brings it to the disk. What it names is there
// also if there is an error.
func write(dir string, content []byte, mode fs.FileMode) (path string, err error) {
	path, err = writeAlone(dir, content, mode)
	if err != nil {
		return path, err
	}
	return path, syncFile(path)
}

// writeAlone lets this process start no other one while the file is open for writing: a
// child would have it open too, until it runs its own program, and as long as that lasts
// nobody can run the file ("text file busy").
func writeAlone(dir string, content []byte, mode fs.FileMode) (path string, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	f, err := os.CreateTemp(dir, beside)
	if err != nil {
		return "", err
	}
	_, err = f.Write(content)
	return f.Name(), errors.Join(err, f.Chmod(mode), f.Close())
}

// syncFile brings a file or a directory to the disk.
func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// sweep removes what killed processes left. What can't be removed does no harm.
func sweep(dir string) {
	list, err := filepath.Glob(filepath.Join(dir, beside))
	if err != nil {
		return
	}
	for _, path := range list {
		if info, err := os.Lstat(path); err == nil && time.Since(info.ModTime()) > abandoned {
			_ = os.Remove(path)
		}
	}
}

func inode(info fs.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ino
	}
	return 0
}
