package fabric

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"onerule/daemon/fabric/layout"
)

// readSettings reads the sysctls that are wanted. One that is not there belongs to a
// device that went, or that does not speak the family: nothing is to be set.
func (k *kernel) readSettings(s layout.State, wanted map[string]string) error {
	for path, value := range wanted {
		got, err := k.readSysctl(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			s.Settings[path] = value
		case err != nil:
			return fmt.Errorf("read sysctl: %w", err)
		default:
			s.Settings[path] = got
		}
	}
	return nil
}

func (k *kernel) readSysctl(path string) (string, error) {
	b, err := os.ReadFile(filepath.Join(k.sysctls, path))
	return strings.TrimSpace(string(b)), err
}

// setSetting writes only what is not so already: /proc/sys may be read-only, and right
// all the same.
func (k *kernel) setSetting(path, value string) error {
	got, err := k.readSysctl(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && got == value {
		return nil
	}
	if err != nil {
		return err
	}
	k.counts.Settings++
	return k.writeSysctl(path, value)
}

func (k *kernel) writeSysctl(path, value string) error {
	return os.WriteFile(filepath.Join(k.sysctls, path), []byte(value), 0o644)
}

// devicesOf lists the devices that have settings of a family.
func (k *kernel) devicesOf(family string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(k.sysctls, family, "conf"))
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}
