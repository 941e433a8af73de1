package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// HandedBack says what HandBack did.
type HandedBack struct {
	Addresses int `json:"addresses"` // that host-local holds now
	Dropped   int `json:"dropped"`   // reservations of host-local whose pods have ended
}

// HandBack gives the reservations of all networks of a state directory to host-local, which
// has its own in dir: the opposite of adopt, for a node whose pods go on while new ones get
// their addresses there. What host-local reserved before we took over, and what has been
// released since, it may give again. It prints a HandedBack, and gives the exit code.
//
// What is handed back counts as released just now, so that an ADD which is still at work
// takes another address.
func (p Process) HandBack(dataDir, dir string) int {
	p.began, p.verb = p.Now(), "HAND-BACK"
	done, err := p.handBackAll(filepath.Clean(dataDir), dir)
	if err := errors.Join(err, p.print(done)); err != nil {
		p.warn("%v", err)
		return 1
	}
	return 0
}

func (p Process) handBackAll(dataDir, dir string) (HandedBack, error) {
	var all HandedBack
	boot, err := bootID()
	if err != nil {
		return all, err
	}
	folders, err := filepath.Glob(filepath.Join(dataDir, "*", "addresses"))
	if err != nil {
		return all, fmt.Errorf("look for networks: %w", err)
	}
	for _, folder := range folders {
		network := filepath.Base(filepath.Dir(folder))
		b := base{network: network, dataDir: dataDir, lockTimeout: 10 * time.Second}
		// No daemon does it any more, and no DEL comes for our pods: their ports of the
		// node would lead to where nobody is.
		if _, err := p.sweepNetwork(b, boot, map[string]bool{}); err != nil {
			return all, fmt.Errorf("network %s: %w", network, err)
		}
		s, err := p.findStore(b)
		if err != nil || s == nil {
			return all, err
		}
		done, err := s.handBack(dir, boot, p.began)
		s.close()
		all.Addresses, all.Dropped = all.Addresses+done.Addresses, all.Dropped+done.Dropped
		if err != nil {
			return all, fmt.Errorf("hand addresses of network %s back to %s: %w", network, dir, err)
		}
	}
	return all, nil
}

// handBack does it under both locks.
func (s *store) handBack(dir, boot string, now time.Time) (done HandedBack, err error) {
	unlock, err := s.lockAddresses()
	if err != nil {
		return done, err
	}
	defer unlock()
	theirs, err := lockHostLocal(dir, s.base.lockTimeout)
	if err != nil {
		return done, err
	}
	defer theirs.Close()
	reserved, _, err := s.reservations()
	if err != nil {
		return done, err
	}
	// One of a pod that has just gone is for the next sweep.
	maps.DeleteFunc(reserved, func(_ netip.Addr, r *reservation) bool { return s.void(r, boot) })
	if err := reserveAllAtHostLocal(dir, reserved); err != nil {
		return done, err
	}
	done.Addresses = len(reserved)
	ours := map[netip.Addr]bool{}
	for a := range reserved {
		ours[a] = true
	}
	b, err := s.readBridges()
	if err == nil {
		err = s.leaveBridges(b, slices.Collect(maps.Keys(ours)))
	}
	if err != nil {
		return done, err
	}
	if done.Dropped, err = s.dropFormer(dir, ours); err != nil {
		return done, err
	}
	for a := range ours {
		s.note("handing %s back to %s", a, dir)
		err = errors.Join(err, s.free(a, now))
	}
	return done, err
}

// lockHostLocal takes the lock under which host-local works, and makes the directory if it
// never did. It waits no longer than that: a host-local that hangs must not stop all pods. The
// lock goes with the file.
func lockHostLocal(dir string, within time.Duration) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of host-local: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of host-local: %w", err)
	}
	late := time.After(within)
	again := time.NewTicker(lockAgain)
	defer again.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
		select {
		case <-again.C:
		case <-late:
			return nil, errors.Join(fmt.Errorf("lock %s: %w after %s", f.Name(), errStillHeld, within), f.Close())
		}
	}
}

// lockAgain is how often host-local's lock is asked for: who waits for one by flock can't
// give up.
const lockAgain = 20 * time.Millisecond

var errStillHeld = errors.New("still held by another process")

// reserveAllAtHostLocal writes all reservations, or none where host-local holds one of the
// addresses for another pod: both would use it.
func reserveAllAtHostLocal(dir string, reserved map[netip.Addr]*reservation) error {
	var missing []netip.Addr
	var errs []error
	for _, a := range slices.SortedFunc(maps.Keys(reserved), netip.Addr.Compare) {
		there, err := heldByHostLocal(filepath.Join(dir, a.String()), reserved[a])
		if err == nil && !there {
			missing = append(missing, a)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, a := range missing {
		if err := writeTheirs(filepath.Join(dir, a.String()), reserved[a]); err != nil {
			return err
		}
	}
	return nil
}

// heldByHostLocal says whether host-local has a reservation for the same pod. One for
// another pod is an error.
func heldByHostLocal(path string, r *reservation) (bool, error) {
	there, err := readTheirs(path)
	switch {
	case errors.Is(err, errBadRecord), there != nil && !there.of(key{container: r.Container, ifName: r.Interface}):
		return false, fmt.Errorf("%s holds it for another pod than %s/%s", path, r.Container, r.Interface)
	case err != nil:
		return false, fmt.Errorf("read a reservation of host-local: %w", err)
	}
	return there != nil, nil
}

// dropFormer removes host-local's reservations that are from before we took over and not
// among ours: their pods ended with us. After it, host-local's are adopted anew should we
// come back.
func (s *store) dropFormer(dir string, ours map[netip.Addr]bool) (int, error) {
	marker := s.adoptedPath()
	taken, err := os.ReadFile(marker)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read what was adopted: %w", err)
	}
	info, err := os.Stat(marker)
	if err != nil {
		return 0, fmt.Errorf("read what was adopted: %w", err)
	}
	dropped := 0
	if filepath.Clean(strings.TrimSpace(string(taken))) == filepath.Clean(dir) {
		if dropped, err = dropOlder(dir, info.ModTime(), ours); err != nil {
			return dropped, err
		}
	}
	if err := os.Remove(marker); err != nil {
		return dropped, fmt.Errorf("forget what was adopted: %w", err)
	}
	return dropped, nil
}

func dropOlder(dir string, than time.Time, but map[netip.Addr]bool) (dropped int, err error) {
	names, err := fileNames(dir)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		a, err := netip.ParseAddr(name)
		if err != nil || but[a] {
			continue
		}
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err != nil || !info.ModTime().Before(than) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return dropped, fmt.Errorf("remove a reservation of host-local: %w", err)
		}
		dropped++
	}
	return dropped, nil
}
