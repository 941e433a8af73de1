package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// A store is the directory of one network: records, reservations, one lock file.
type store struct {
	network string
	dir     string
	base    base
	lock    *os.File
}

// openStore opens the store and makes it when it is not there.
func openStore(b base) (*store, error) {
	dir := filepath.Join(b.dataDir, b.network)
	for _, sub := range []string{"attachments", "addresses", "quarantine"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("make the state directory: %w", err)
		}
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	return &store{network: b.network, dir: dir, base: b, lock: f}, nil
}

// findStore opens the store for a removal, which must not need a free block: it
// makes nothing, and gives nil when there never was a store.
func findStore(b base) (*store, error) {
	dir := filepath.Join(b.dataDir, b.network)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0); err == nil {
		return &store{network: b.network, dir: dir, base: b, lock: f}, nil
	}
	return openStore(b)
}

func (s *store) close() { _ = s.lock.Close() }

// writeDurable replaces a file by a new one beside it and a rename. After it
// returns, the content survives a loss of power.
func writeDurable(path string, content []byte) error {
	beside := besidePath(path)
	if err := writeSynced(beside, content); err != nil {
		_ = os.Remove(beside)
		return err
	}
	if err := os.Rename(beside, path); err != nil {
		_ = os.Remove(beside)
		return err
	}
	return syncDir(filepath.Dir(path))
}

// besidePath gives the name that a new version of a file is written under. It is
// the same each time, so that a killed writer leaves at most one.
func besidePath(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
}

func writeSynced(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

// syncDir makes the names in a directory durable: additions and removals. A
// directory that is gone holds no names.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = errors.Join(f.Sync(), f.Close())
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
