package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

// adoptedName is the file that says that reservations were adopted, from where and, by its
// time, when last.
const adoptedName = "adopted"

// adopt copies, once, the reservations of host-local from the directory that the
// configuration names: pods that ptp or bridge wired keep their addresses and go on
// without a restart. DEL and GC release them like others.
func (s *store) adopt() error {
	if s.base.adopt == "" || s.adoptedOnce() {
		return nil
	}
	unlock, err := s.lockAddresses()
	if err != nil {
		return err
	}
	defer unlock()
	if s.adoptedOnce() { // by another verb: what was released meanwhile is not adopted again
		return nil
	}
	return s.adoptSince(time.Time{})
}

func (s *store) adoptedOnce() bool {
	_, err := os.Lstat(s.adoptedPath())
	return err == nil
}

// adoptedPath is of the file that says, by its time, until when host-local's reservations
// were looked at.
func (s *store) adoptedPath() string { return filepath.Join(s.dir, adoptedName) }

// adoptLate looks again where an address that is about to be given has a reservation that is
// younger than the last look: an ADD of the other plugin was still at work. It runs under
// the lock.
func (s *store) adoptLate(a netip.Addr) (late bool, err error) {
	if s.base.adopt == "" {
		return false, nil
	}
	theirs, err := os.Lstat(filepath.Join(s.base.adopt, a.String()))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	last, err := os.Lstat(s.adoptedPath())
	if err != nil {
		return false, err
	}
	if theirs.ModTime().Before(last.ModTime()) {
		return false, nil // its pod has ended since
	}
	if err := s.adoptSince(last.ModTime()); err != nil {
		return false, err
	}
	ours, err := s.readReservation(a)
	return ours != nil, err
}

// adoptSince adopts what is younger, under both locks: what host-local writes after it is
// younger than the file that says so.
func (s *store) adoptSince(last time.Time) error {
	err := s.adoptUnderTheirLock(last)
	if err == nil {
		err = s.tendBridges()
	}
	if err != nil {
		return failure(types.ErrIOFailure, err, "adopt reservations of %s", s.base.adopt)
	}
	return nil
}

func (s *store) adoptUnderTheirLock(last time.Time) error {
	if statError(s.base.adopt) == nil {
		theirs, err := lockHostLocal(s.base.adopt)
		if err != nil {
			return err
		}
		defer theirs.Close()
	}
	if err := s.adoptAll(last); err != nil {
		return err
	}
	return writeWhole(s.adoptedPath(), []byte(s.base.adopt+"\n"))
}

// adoptAll leaves out what is older than the last look, or of an earlier boot.
func (s *store) adoptAll(last time.Time) error {
	names, err := fileNames(s.base.adopt)
	if err != nil {
		return err
	}
	began, err := firstTime()
	if err != nil {
		return err
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	for _, name := range names {
		a, err := netip.ParseAddr(name)
		if err != nil {
			continue // its lock, and where its round robin stands
		}
		if err := s.adoptOne(a, filepath.Join(s.base.adopt, name), last, began, boot); err != nil {
			return err
		}
	}
	return nil
}

// adoptOne never takes the place of a reservation of ours.
func (s *store) adoptOne(a netip.Addr, path string, last, began time.Time, boot string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.ModTime().Before(last) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.ModTime().Before(began) {
		s.note("not adopting %s: it is of an earlier boot", path)
		return nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	r, err := parseReservation(withInterface(content))
	if err != nil {
		s.note("not adopting %s: no reservation", path)
		return nil
	}
	if ours, err := s.readReservation(a); err == nil && ours == nil {
		r.Created, r.BootID, r.Adopted = info.ModTime(), boot, true
		s.note("adopting %s of %s/%s", a, r.Container, r.Interface)
		return s.writeReservation(a, r)
	}
	return nil
}

// dropTheirs removes what host-local has of a pod that ends before it could be adopted: it
// would be adopted later, and nobody would release it.
func (s *store) dropTheirs(k key) error {
	names, err := fileNames(s.base.adopt)
	errs := []error{err}
	for _, name := range names {
		if _, err := netip.ParseAddr(name); err != nil {
			continue
		}
		path := filepath.Join(s.base.adopt, name)
		content, err := os.ReadFile(path)
		if err == nil {
			r, bad := parseReservation(withInterface(content))
			if bad == nil && r.of(k) {
				err = os.Remove(path)
			}
		}
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// withInterface completes what old versions of host-local wrote: the container only.
func withInterface(content []byte) []byte {
	text := strings.TrimSpace(string(content))
	if !strings.Contains(text, "\r\n") {
		text += "\r\neth0"
	}
	return []byte(text)
}

// bootTime gives when this boot began, to a second, as the clock says now.
func bootTime() (time.Time, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return time.Time{}, fmt.Errorf("read the uptime: %w", err)
	}
	return time.Now().Add(-time.Duration(info.Uptime+1) * time.Second), nil
}

// firstTime gives a time that no file of this boot is older than. Where the clock was put
// right after the boot (a board without a clock that runs on), that is not when it began as
// the clock says now: what the boot made in /run, which is in memory, tells.
func firstTime() (time.Time, error) {
	began, err := bootTime()
	if err != nil {
		return began, err
	}
	if of := oldest("/run"); !of.IsZero() && of.Before(began) {
		return of, nil
	}
	return began, nil
}

// oldest gives the earliest time of a change of what is in a directory, zero if that is not
// in memory. Such times can't be set, but by the clock.
func oldest(dir string) (first time.Time) {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil || fs.Type != unix.TMPFS_MAGIC {
		return first
	}
	names, err := fileNames(dir)
	if err != nil {
		return first
	}
	for _, name := range names {
		var st unix.Stat_t
		if unix.Lstat(filepath.Join(dir, name), &st) != nil {
			continue
		}
		if at := time.Unix(st.Ctim.Unix()); first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}
