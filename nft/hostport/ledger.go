package hostport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A ledger is a folder with a file for each owner, and a lock.
type ledger struct {
	dir  string
	boot string // ID of this boot: nothing of another one is in the kernel
}

// A record is what a file holds.
type record struct {
	Boot   string  `json:"boot"`
	Owner  string  `json:"owner"`
	Claims []Claim `json:"claims"`
}

const (
	suffix   = ".json"
	lockFile = "lock"
	// unfinished begins the names of files that are being written.
	unfinished = ".new-"
	// longestName is that of an owner, in bytes: a file system takes 255 with what is
	// put around it.
	longestName = 240
)

// path gives the file of an owner, which must be usable as a name.
func (l ledger) path(owner string) (string, error) {
	if owner == "" || strings.HasPrefix(owner, ".") || strings.ContainsAny(owner, "/\x00") || len(owner) > longestName {
		return "", fmt.Errorf("owner %q is no name of a file", owner)
	}
	return filepath.Join(l.dir, owner+suffix), nil
}

// lock makes the folder if it is missing, and waits until nobody else has the lock. It
// goes with the process that holds it. Who unlocks an empty folder removes it, so a lock
// counts only as long as its file is the folder's.
func (l ledger) lock(ctx context.Context) (unlock func(), err error) {
	for {
		f, err := l.openLock(ctx)
		if err != nil {
			return nil, err
		}
		if err := waitFor(ctx, f); err != nil {
			_ = f.Close()
			return nil, err
		}
		if l.isLock(f) {
			return func() {
				l.removeEmpty()
				_ = f.Close() // which unlocks
			}, nil
		}
		_ = f.Close()
	}
}

// openLock makes the folder anew if it is removed in between.
func (l ledger) openLock(ctx context.Context) (*os.File, error) {
	for {
		if err := os.MkdirAll(l.dir, 0o700); err != nil {
			return nil, fmt.Errorf("make folder for host ports: %w", err)
		}
		f, err := os.OpenFile(filepath.Join(l.dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, fs.ErrNotExist) || ctx.Err() != nil {
			return nil, fmt.Errorf("open lock of host ports: %w", err)
		}
	}
}

func waitFor(ctx context.Context, f *os.File) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock host ports: %w", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the lock of host ports: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

func (l ledger) isLock(f *os.File) bool {
	ours, err := f.Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(filepath.Join(l.dir, lockFile))
	return err == nil && os.SameFile(ours, now)
}

// removeEmpty removes a folder that holds nothing but the lock: whoever counts folders
// would take it for that of a network with host ports. The lock is held, and after its file
// is gone nothing more may be written.
func (l ledger) removeEmpty() {
	entries, err := os.ReadDir(l.dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != lockFile {
		return
	}
	if os.Remove(filepath.Join(l.dir, lockFile)) == nil {
		_ = os.Remove(l.dir) // another one may have a lock there already
	}
}

// read gives all records of this boot. What can't be read is in broken, by its owner, and
// what is of another boot in old.
func (l ledger) read() (records []record, broken, old []string, err error) {
	entries, err := os.ReadDir(l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil, nil
	}
	if err != nil {
		return nil, nil, nil, fmt.Errorf("list host ports: %w", err)
	}
	for _, e := range entries {
		owner, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok || strings.HasPrefix(owner, ".") {
			continue
		}
		r, err := l.get(owner)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			broken = append(broken, owner)
		case r.Boot != l.boot:
			old = append(old, owner)
		default:
			records = append(records, r)
		}
	}
	return records, broken, old, nil
}

func (l ledger) get(owner string) (r record, err error) {
	path, err := l.path(owner)
	if err != nil {
		return r, err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return r, fmt.Errorf("read host ports: %w", err)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("decode host ports of %s: %w", owner, err)
	}
	if r.Owner != owner {
		return r, fmt.Errorf("decode host ports of %s: the file is of %q", owner, r.Owner)
	}
	for _, c := range r.Claims {
		if err := c.check(); err != nil {
			return r, fmt.Errorf("decode host ports of %s: %w", owner, err)
		}
	}
	return r, nil
}

// beside gives the name that the file of an owner is written under.
func (l ledger) beside(owner string) string { return filepath.Join(l.dir, unfinished+owner) }

// killed gives the owners whose writer was killed before it renamed. The lock is held.
func (l ledger) killed() (owners []string, err error) {
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return nil, fmt.Errorf("list host ports: %w", err)
	}
	for _, e := range entries {
		if owner, ok := strings.CutPrefix(e.Name(), unfinished); ok {
			owners = append(owners, owner)
		}
	}
	return owners, nil
}

// put writes the file of an owner beside, and renames it.
func (l ledger) put(r record) error {
	path, err := l.path(r.Owner)
	if err != nil {
		return err
	}
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode host ports of %s: %w", r.Owner, err)
	}
	beside := l.beside(r.Owner)
	if err := writeSynced(beside, b); err != nil {
		_ = os.Remove(beside)
		return fmt.Errorf("write host ports of %s: %w", r.Owner, err)
	}
	if err := os.Rename(beside, path); err != nil {
		return fmt.Errorf("write host ports of %s: %w", r.Owner, err)
	}
	return l.sync()
}

func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// remove deletes the file of an owner, which may be gone, and what a killed writer left
// beside it.
func (l ledger) remove(owner string) error {
	path, err := l.path(owner)
	if err != nil {
		return err
	}
	for _, p := range []string{path, l.beside(owner)} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove host ports of %s: %w", owner, err)
		}
	}
	return l.sync()
}

// sync makes names in the folder last.
func (l ledger) sync() error {
	d, err := os.Open(l.dir)
	if err != nil {
		return fmt.Errorf("sync host ports: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync host ports: %w", err)
	}
	return nil
}
