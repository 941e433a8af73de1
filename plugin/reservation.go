package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A reservation is what counts of the content of addresses/ADDRESS: whose the address is,
// and since when. All of an earlier boot are void, since their pods are gone.
type reservation struct {
	Container string    `json:"container"`
	Interface string    `json:"interface"`
	BootID    string    `json:"bootID"`
	Node      uint64    `json:"node,omitempty"`
	Created   time.Time `json:"created"`
	// Adopted says that another plugin wired the pod: we do not know its link.
	Adopted bool `json:"adopted,omitempty"`
}

// void says that nobody uses the address: the boot is over, or the link is gone. Of one
// in host-local's format neither is known.
func (s *store) void(r *reservation, boot string) bool {
	return r.BootID != "" && (r.BootID != boot || !r.Adopted && linkGone(s.recordOf(r).HostLink))
}

func (r *reservation) of(k key) bool { return r.Container == k.container && r.Interface == k.ifName }

// parseReservation also reads host-local's format, the container and the interface
// on a line each.
func parseReservation(content []byte) (*reservation, error) {
	r := new(reservation)
	if len(content) == 0 || content[0] != '{' {
		container, ifName, ok := strings.Cut(string(content), "\r\n")
		r.Container, r.Interface = container, ifName
		if !ok {
			return nil, errBadRecord
		}
	} else if json.Unmarshal(content, r) != nil {
		return nil, errBadRecord
	}
	if validateContainer(r.Container) != nil || validateIfName(r.Interface) != nil {
		return nil, errBadRecord
	}
	return r, nil
}

func (s *store) reservationPath(a netip.Addr) string {
	return filepath.Join(s.addressDir(), a.String())
}

func (s *store) addressDir() string { return filepath.Join(s.dir, "addresses") }

func (s *store) releasedDir() string { return filepath.Join(s.dir, "released") }

func (s *store) writeReservation(a netip.Addr, r *reservation) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode the reservation of %s: %w", a, err)
	}
	if err := writeWhole(s.reservationPath(a), append(b, '\n')); err != nil {
		return fmt.Errorf("reserve %s: %w", a, err)
	}
	return nil
}

// writeReservations makes one file of several names: to make a file is most of the work,
// and what one pod has begins and ends together. Where a file can have one name only, each
// gets its own.
func (s *store) writeReservations(addrs []netip.Addr, content []byte) error {
	beside := besidePath(s.reservationPath(addrs[len(addrs)-1]))
	err := writeNew(beside, content)
	for i, a := range addrs {
		path := s.reservationPath(a)
		switch {
		case err != nil:
		case i == len(addrs)-1:
			err = os.Rename(beside, path)
		default:
			if os.Link(beside, path) != nil {
				err = writeWhole(path, content)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("reserve %v: %w", addrs, err)
	}
	return nil
}

// readReservation gives nil for an address that nobody has, and errBadRecord for a
// file that is no reservation.
func (s *store) readReservation(a netip.Addr) (*reservation, error) {
	b, err := os.ReadFile(s.reservationPath(a))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the reservation of %s: %w", a, err)
	}
	r, err := parseReservation(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.reservationPath(a), err)
	}
	return r, nil
}

// takenAddresses lists the addresses that have a reservation, and the names that a
// killed writer left.
func (s *store) takenAddresses() (taken []netip.Addr, halfWritten []string, err error) {
	names, err := fileNames(s.addressDir())
	for _, name := range names {
		if a, err := netip.ParseAddr(name); err == nil {
			taken = append(taken, a)
		} else if name[0] == '.' {
			halfWritten = append(halfWritten, name)
		}
	}
	return taken, halfWritten, err
}

// reservations reads all reservations; bad are the addresses whose file is none.
func (s *store) reservations() (all map[netip.Addr]*reservation, bad []netip.Addr, err error) {
	taken, _, err := s.takenAddresses()
	all = make(map[netip.Addr]*reservation, len(taken))
	for _, a := range taken {
		r, readErr := s.readReservation(a)
		switch {
		case errors.Is(readErr, errBadRecord):
			bad = append(bad, a)
		case readErr != nil:
			err = errors.Join(err, readErr)
		case r != nil:
			all[a] = r
		}
	}
	return all, bad, err
}

// rememberedReleases is how many released addresses of a network are remembered. An
// older one counts as never given.
const rememberedReleases = 512

// releasedName puts the time first, so that names sort by it.
func releasedName(a netip.Addr, at time.Time) string {
	return fmt.Sprintf("%019d-%s", max(at.UnixNano(), 0), a)
}

func parseReleasedName(name string) (formerLease, bool) {
	digits, text, _ := strings.Cut(name, "-")
	a, err := netip.ParseAddr(text)
	nanos, timeErr := strconv.ParseInt(digits, 10, 64)
	if err != nil || timeErr != nil || len(digits) != 19 {
		return formerLease{}, false
	}
	return formerLease{a, time.Unix(0, nanos)}, true
}

// formerLeases lists what was released, the oldest first and each address once, and
// forgets what is too much. It runs under the lock.
func (s *store) formerLeases() ([]formerLease, error) {
	names, err := fileNames(s.releasedDir())
	slices.Sort(names)
	seen := map[netip.Addr]bool{}
	var all []formerLease
	for _, name := range slices.Backward(names) {
		former, ok := parseReleasedName(name)
		if !ok || seen[former.addr] || len(all) == rememberedReleases {
			_ = os.Remove(filepath.Join(s.releasedDir(), name))
			continue
		}
		seen[former.addr] = true
		all = append(all, former)
	}
	slices.Reverse(all)
	return all, err
}

// free ends a reservation: its file becomes the note of when that was. Where there
// is no room for the note the file goes all the same.
func (s *store) free(a netip.Addr, at time.Time) error {
	err := os.Rename(s.reservationPath(a), filepath.Join(s.releasedDir(), releasedName(a, at)))
	if err != nil {
		err = os.Remove(s.reservationPath(a))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release %s: %w", a, err)
	}
	return nil
}

// release frees the addresses of an attachment. Files that can't be read are its
// own where rec, which may be nil, says so.
func (s *store) release(k key, rec *record, at time.Time) error {
	unlock, err := s.lockAddresses()
	if err != nil {
		return err
	}
	defer unlock()
	released, err := s.releaseLocked(k, rec, at)
	if err != nil {
		return fmt.Errorf("release the addresses of %s: %w", k, err)
	}
	if err := s.dropTheirs(k, rec, released); err != nil {
		s.note("host-local keeps addresses of %s: %v", k, err)
	}
	return nil
}

func (s *store) releaseLocked(k key, rec *record, at time.Time) (released []netip.Addr, err error) {
	all, bad, err := s.reservations()
	for a, r := range all {
		if r.of(k) {
			released = append(released, a)
			err = errors.Join(err, s.free(a, at))
		}
	}
	for _, a := range bad {
		if rec != nil && slices.Contains(rec.Addresses, a) {
			err = errors.Join(err, s.free(a, at))
		}
	}
	return released, errors.Join(err, s.removeHalfWritten())
}

// removeHalfWritten removes what a killed writer left. Whoever holds the lock knows
// that nobody is writing.
func (s *store) removeHalfWritten() error {
	_, names, err := s.takenAddresses()
	for _, name := range names {
		err = errors.Join(err, os.Remove(filepath.Join(s.addressDir(), name)))
	}
	return err
}

// fileNames lists a directory, unsorted. One that is not there has none.
func fileNames(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}
