package install

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

//go:embed networkmanager.conf
var unmanaged []byte

// unmanagedName is that of our file among those of NetworkManager.
const unmanagedName = "90-onerule.conf"

// PlaceUnmanaged tells NetworkManager to leave links of pods alone, if the node has one. It
// reads this when it is told to reload.
func (p Places) PlaceUnmanaged() (changed bool, err error) {
	if !p.managed() {
		return false, nil
	}
	return place(filepath.Join(p.NetworkManager, unmanagedName), unmanaged, 0o644, nil)
}

// managed says whether the node has NetworkManager.
func (p Places) managed() bool {
	if p.NetworkManager == "" {
		return false
	}
	info, err := os.Stat(p.NetworkManager)
	return err == nil && info.IsDir()
}

func (p Places) removeUnmanaged() error {
	if !p.managed() {
		return nil
	}
	path := filepath.Join(p.NetworkManager, unmanagedName)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove: %w", err)
	}
	return nil
}
