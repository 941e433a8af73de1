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

// adoptedName is the file that says that reservations were adopted, and from where.
const adoptedName = "adopted"

// adopt copies, once, the reservations of host-local from the directory that the
// configuration names: pods that ptp or bridge wired keep their addresses and go on
// without a restart. DEL and GC release them like others.
func (s *store) adopt() error {
	if s.base.adopt == "" {
		return nil
	}
	done := filepath.Join(s.dir, adoptedName)
	if _, err := os.Lstat(done); err == nil {
		return nil
	}
	unlock, err := s.lockAddresses()
	if err != nil {
		return err
	}
	defer unlock()
	err = s.adoptAll()
	if err == nil {
		err = s.tendBridges()
	}
	if err == nil {
		err = writeWhole(done, []byte(s.base.adopt+"\n"))
	}
	if err != nil {
		return failure(types.ErrIOFailure, err, "adopt reservations of %s", s.base.adopt)
	}
	return nil
}

func (s *store) adoptAll() error {
	names, err := fileNames(s.base.adopt)
	if err != nil {
		return err
	}
	began, err := bootTime()
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
		if err := s.adoptOne(a, filepath.Join(s.base.adopt, name), began, boot); err != nil {
			return err
		}
	}
	return nil
}

// adoptOne leaves out what is of an earlier boot, and never takes the place of a
// reservation of ours.
func (s *store) adoptOne(a netip.Addr, path string, began time.Time, boot string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
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

// withInterface completes what old versions of host-local wrote: the container only.
func withInterface(content []byte) []byte {
	text := strings.TrimSpace(string(content))
	if !strings.Contains(text, "\r\n") {
		text += "\r\neth0"
	}
	return []byte(text)
}

// bootTime gives when this boot began, to a second.
func bootTime() (time.Time, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return time.Time{}, fmt.Errorf("read the uptime: %w", err)
	}
	return time.Now().Add(-time.Duration(info.Uptime+1) * time.Second), nil
}
