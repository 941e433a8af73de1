package install

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// defaultReservations is where host-local keeps them.
const defaultReservations = "/var/lib/cni/networks"

// Adoptable gives the directory of host-local's reservations whose pods our plugin has to
// know, or "": one that our list names already, that of another list (also of one that was
// set aside), or any other that holds addresses of these ranges.
func (p Places) Adoptable(ranges []netip.Prefix) (string, error) {
	if dir := p.adopted(); dir != "" {
		return dir, nil
	}
	lists, err := p.lists(func(name string) bool { return name != ListName })
	if err != nil {
		return "", err
	}
	var dirs []string
	for _, o := range lists {
		for _, r := range o.reservations {
			if dir := p.directory(r); dir != "" {
				dirs = append(dirs, dir)
			}
		}
	}
	more, err := filepath.Glob(filepath.Join(p.usualReservations(), "*"))
	if err != nil {
		return "", err
	}
	for _, dir := range append(dirs, more...) {
		if reserves(dir, ranges) {
			return dir, nil
		}
	}
	return "", nil
}

// adopted gives what our own list names.
func (p Places) adopted() string {
	b, err := os.ReadFile(p.List())
	if err != nil {
		return ""
	}
	var f file
	if json.Unmarshal(b, &f) != nil || len(f.Plugins) == 0 {
		return ""
	}
	return f.Plugins[0].Adopt
}

// reserves says whether a directory holds an address of some ranges. What can't be read holds
// none.
func reserves(dir string, ranges []netip.Prefix) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		a, err := netip.ParseAddr(strings.TrimSpace(e.Name()))
		return err == nil && slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
	})
}
