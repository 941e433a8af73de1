package guard

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// RouteLocalnet names the devices that let packets to loopback addresses in, and all if
// every device does. We never set it; the guard drops such packets all the same, but a
// kernel without our table would not.
func RouteLocalnet() ([]string, error) {
	const dir = "/proc/sys/net/ipv4/conf"
	devices, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	var list []string
	for _, d := range devices {
		v, err := os.ReadFile(filepath.Join(dir, d.Name(), "route_localnet"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // gone meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("read route_localnet: %w", err)
		}
		if d.Name() != "lo" && !bytes.Equal(bytes.TrimSpace(v), []byte("0")) {
			list = append(list, d.Name())
		}
	}
	slices.Sort(list)
	return list, nil
}
