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
	theirs  bool   // host-local's lock is held
	sysctls string // below which the node's settings are written; empty: /proc/sys
	// warn tells people on stderr, note also in the network's journal.
	warn, note func(format string, args ...any)
}

// openStore opens the store and makes it when it is not there.
func (p Process) openStore(b base) (*store, error) {
	dir := filepath.Join(b.dataDir, b.network)
	for _, sub := range []string{"attachments", "addresses", "released", "quarantine"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("make the state directory: %w", err)
		}
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	return p.newStore(b, dir, f), nil
}

func (p Process) newStore(b base, dir string, lock *os.File) *store {
	return &store{network: b.network, dir: dir, base: b, lock: lock, sysctls: p.sysctls, warn: p.warn, note: p.noteIn(filepath.Join(dir, "journal"))}
}

// findStore opens the store for a removal, which must not need a free block: it
// makes nothing, and gives nil when there never was a store, unless there is something
// to adopt.
func (p Process) findStore(b base) (*store, error) {
	dir := filepath.Join(b.dataDir, b.network)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if b.adopt != "" && statError(b.adopt) == nil {
			return p.openStore(b)
		}
		return nil, nil
	}
	if f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0); err == nil {
		return p.newStore(b, dir, f), nil
	}
	return p.openStore(b)
}

func (s *store) close() { _ = s.lock.Close() }

// writeWhole replaces a file by a new one beside it and a rename: whoever reads gets
// one version or the other, also when the writer is killed. Nothing is synced. What a
// loss of power can spoil is of a boot that is over, and void with it; a file that
// can't be read afterwards is put aside.
func writeWhole(path string, content []byte) error {
	beside := besidePath(path)
	err := writeNew(beside, content)
	if err == nil {
		err = os.Rename(beside, path)
	}
	if err != nil {
		_ = os.Remove(beside)
	}
	return err
}

// writeNew makes a file. One that a killed writer left by that name goes first: nothing is
// written into it, since it may have a second name that counts (writeReservations).
func writeNew(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		if err = os.Remove(path); err == nil {
			f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		}
	}
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}

// besidePath gives the name that a new version of a file is written under. It is
// the same each time, so that a killed writer leaves at most one.
func besidePath(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+besideSuffix)
}

const besideSuffix = ".new"
