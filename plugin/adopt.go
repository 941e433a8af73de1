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
		return adopting(err, s.base.adopt)
	}
	return nil
}

func adopting(err error, from string) error {
	if errors.Is(err, errStillHeld) {
		return failure(types.ErrTryAgainLater, err, "adopt reservations of %s", from)
	}
	return failure(types.ErrIOFailure, err, "adopt reservations of %s", from)
}

func (s *store) adoptUnderTheirLock(last time.Time) error {
	unlock, err := s.lockTheirs()
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.adoptAll(last); err != nil {
		return err
	}
	return writeWhole(s.adoptedPath(), []byte(s.base.adopt+"\n"))
}

// lockTheirs keeps host-local from giving addresses, if it ever did, and if it is not kept
// from it already.
func (s *store) lockTheirs() (unlock func(), err error) {
	if s.theirs || statError(s.base.adopt) != nil {
		return func() {}, nil
	}
	lock, err := lockHostLocal(s.base.adopt, s.base.lockTimeout)
	if err != nil {
		return nil, err
	}
	s.theirs = true
	return func() { s.theirs = false; _ = lock.Close() }, nil
}

// besideTheirs is for how long after a look at host-local's reservations an ADD that began
// before may still ask it for an address: runtimes give up earlier.
const besideTheirs = 10 * time.Minute

// beside keeps host-local out while an address is chosen, as long as one of its ADDs may be at
// work, and says when the last look was.
func (s *store) beside(now time.Time) (last time.Time, unlock func(), err error) {
	if s.base.adopt == "" {
		return last, func() {}, nil
	}
	info, err := os.Lstat(s.adoptedPath())
	if err != nil {
		return last, nil, failure(types.ErrIOFailure, err, "address store")
	}
	if now.Sub(info.ModTime()).Abs() > besideTheirs {
		return last, func() {}, nil
	}
	if unlock, err = s.lockTheirs(); err != nil {
		return last, nil, adopting(err, s.base.adopt)
	}
	return info.ModTime(), unlock, nil
}

// claimTheirs has host-local pass over addresses that are given here. Its files are older than
// the last look, so that they are never taken for pods of its own.
func (s *store) claimTheirs(rec *record, last time.Time) error {
	if !s.theirs {
		return nil
	}
	for _, a := range rec.Addresses {
		path := filepath.Join(s.base.adopt, a.String())
		err := writeTheirs(path, rec.reservation())
		if err == nil {
			err = os.Chtimes(path, last.Add(-time.Second), last.Add(-time.Second))
		}
		if err != nil {
			return fmt.Errorf("keep %s from host-local: %w", a, err)
		}
	}
	return nil
}

// adoptAll leaves out what is older than the last look, or of an earlier boot.
func (s *store) adoptAll(last time.Time) error {
	addrs, err := addressFiles(s.base.adopt)
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
	for _, a := range addrs {
		if err := s.adoptOne(a, filepath.Join(s.base.adopt, a.String()), last, began, boot); err != nil {
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
	r, err := readTheirs(path)
	switch {
	case errors.Is(err, errBadRecord):
		s.note("not adopting %s: no reservation", path)
		return nil
	case err != nil || r == nil:
		return err
	}
	if ours, err := s.readReservation(a); err == nil && ours == nil {
		r.Created, r.BootID, r.Adopted = info.ModTime(), boot, true
		s.note("adopting %s of %s/%s", a, r.Container, r.Interface)
		return s.writeReservation(a, r)
	}
	return nil
}

// dropTheirs removes what host-local has of a pod that ends: of one that it wired, or to which
// we gave an address while it still worked. Otherwise it would be adopted later, when nobody
// releases it. Of a pod that nothing is known of, all is looked at.
func (s *store) dropTheirs(k key, rec *record, released []netip.Addr) error {
	if s.base.adopt == "" {
		return nil
	}
	var err error
	switch {
	case rec != nil:
		released = append(released, rec.Addresses...)
	case len(released) == 0:
		released, err = addressFiles(s.base.adopt)
	}
	errs := []error{err}
	for _, a := range released {
		path := filepath.Join(s.base.adopt, a.String())
		r, err := readTheirs(path)
		if r != nil && r.of(k) {
			err = os.Remove(path)
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errBadRecord) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// readTheirs reads a reservation of host-local's: nil where there is none, errBadRecord for a
// file that is no reservation.
func readTheirs(path string) (*reservation, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseReservation(withInterface(content))
}

// writeTheirs writes one as host-local does.
func writeTheirs(path string, r *reservation) error {
	if err := writeWhole(path, []byte(r.Container+"\r\n"+r.Interface)); err != nil {
		return fmt.Errorf("write a reservation of host-local: %w", err)
	}
	return nil
}

// addressFiles gives the addresses that files of a directory are named after. Others are
// host-local's lock, and where its round robin stands.
func addressFiles(dir string) (list []netip.Addr, err error) {
	names, err := fileNames(dir)
	for _, name := range names {
		if a, err := netip.ParseAddr(name); err == nil {
			list = append(list, a)
		}
	}
	return list, err
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
