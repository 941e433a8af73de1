// Package neighbours looks after the kernel's tables of neighbours. A machine has one of each
// family, whose limit all its network namespaces share: when it is reached, who is not known
// yet can't be reached.
package neighbours

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Family is one of the two.
type Family uint8

// The families.
const (
	IPv4 Family = iota
	IPv6
)

// Families gives both.
func Families() []Family { return []Family{IPv4, IPv6} }

func (f Family) String() string {
	if f == IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// sysctls gives the folder of its settings.
func (f Family) sysctls() string { return strings.ToLower(f.String()) }

func (f Family) stats() string {
	if f == IPv6 {
		return "ndisc_cache"
	}
	return "arp_cache"
}

// Roots are where the kernel's files are.
type Roots struct {
	Sysctls string // /proc/sys/net
	Stats   string // /proc/net/stat
}

// A Table is how full one is. All figures are those of the whole machine.
type Table struct {
	// Entries are all there are. Permanent ones do not count towards the limit (since Linux
	// 5.0), but are among them.
	Entries int
	Limit   int    // 0: it shows in the machine's first network namespace only
	Refused uint64 // entries that found no room, since the machine started
}

// Read looks at the table of a family. Its error is fs.ErrNotExist where there is none, and
// in other network namespaces than the machine's first.
func Read(r Roots, f Family) (Table, error) {
	b, err := os.ReadFile(filepath.Join(r.Stats, f.stats()))
	if err != nil {
		return Table{}, fmt.Errorf("read how many neighbours there are: %w", err)
	}
	t, err := parseStats(string(b))
	if err != nil {
		return Table{}, fmt.Errorf("%s: %w", filepath.Join(r.Stats, f.stats()), err)
	}
	t.Limit, err = number(r.threshold(f, 3))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Table{}, err
	}
	return t, nil
}

// parseStats reads a line of names and one of hexadecimal values for each CPU, of which the
// first value is the same in all.
func parseStats(text string) (Table, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	names := strings.Fields(lines[0])
	entries, refused := slices.Index(names, "entries"), slices.Index(names, "table_fulls")
	if entries < 0 || refused < 0 || len(lines) < 2 {
		return Table{}, errors.New("no statistics of neighbours")
	}
	var t Table
	for _, line := range lines[1:] {
		values := strings.Fields(line)
		if len(values) != len(names) {
			return Table{}, fmt.Errorf("%d values for %d names", len(values), len(names))
		}
		n, err := strconv.ParseUint(values[entries], 16, 32)
		full, fullErr := strconv.ParseUint(values[refused], 16, 64)
		if err := errors.Join(err, fullErr); err != nil {
			return Table{}, err
		}
		t.Entries, t.Refused = int(n), t.Refused+full
	}
	return t, nil
}

func (r Roots) threshold(f Family, n int) string {
	return filepath.Join(r.Sysctls, f.sysctls(), "neigh/default", fmt.Sprintf("gc_thresh%d", n))
}

func number(path string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("read a limit of neighbours: %w", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

// Raise raises the limits of a family, and lowers none: the kernel's own are for one host on
// one network. It gives what was changed. Where they do not show, they are somebody else's.
func Raise(r Roots, f Family) (changed []string, err error) {
	// Below the first nothing is dropped; above the second, what was not used for some
	// seconds; the third is the limit. An entry takes half a KiB.
	wanted := []int{1024, 4096, 8192}
	for n := len(wanted); n > 0; n-- { // the highest first: they may not cross
		path := r.threshold(f, n)
		have, err := number(path)
		if errors.Is(err, fs.ErrNotExist) {
			return changed, nil
		}
		if err != nil {
			return changed, err
		}
		want := wanted[n-1]
		if have >= want {
			continue
		}
		if err := os.WriteFile(path, []byte(strconv.Itoa(want)), 0o644); err != nil {
			return changed, fmt.Errorf("raise a limit of neighbours from %d to %d: %w", have, want, err)
		}
		changed = append(changed, fmt.Sprintf("%s: %d to %d", path, have, want))
	}
	return changed, nil
}

// Permanent counts the entries of this network namespace that do not count towards the
// limit, and those that pods have for them: one at the other end of each link. links begins
// the names of pods' links.
func Permanent(f Family, links string) (int, error) {
	family := unix.AF_INET
	if f == IPv6 {
		family = unix.AF_INET6
	}
	list, err := netlink.NeighList(0, family) //nolint:forbidigo // only when the table seems to be nearly full
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return 0, fmt.Errorf("list permanent neighbours: %w", err)
	}
	names, n := map[int]string{}, 0
	for _, e := range list {
		if e.State&netlink.NUD_PERMANENT == 0 {
			continue
		}
		if _, known := names[e.LinkIndex]; !known {
			names[e.LinkIndex] = nameOf(e.LinkIndex)
		}
		n++
		if strings.HasPrefix(names[e.LinkIndex], links) {
			n++
		}
	}
	return n, nil
}

func nameOf(index int) string {
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return "" // gone meanwhile
	}
	return link.Attrs().Name
}
