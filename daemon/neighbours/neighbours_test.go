package neighbours_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/daemon/neighbours"
	"onerule/test/netns"
)

// roots makes files as the kernel has them.
func roots(t *testing.T, files map[string]string) neighbours.Roots {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return neighbours.Roots{Sysctls: filepath.Join(dir, "sys"), Stats: filepath.Join(dir, "stat")}
}

const stats = `entries  allocs   destroys hash_grows table_fulls
000003e8 00000007 00000002 00000001 00000003
000003e8 00000007 00000002 00000001 0000000a
`

func TestD38_HowFullATableIs(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  neighbours.Table
		fails bool
	}{
		{"of all CPUs", map[string]string{"stat/arp_cache": stats, "sys/ipv4/neigh/default/gc_thresh3": "1024\n"}, neighbours.Table{Entries: 1000, Limit: 1024, Refused: 13}, false},
		{"where the limit does not show", map[string]string{"stat/arp_cache": stats}, neighbours.Table{Entries: 1000, Refused: 13}, false},
		{"without statistics", nil, neighbours.Table{}, true},
		{"with statistics of something else", map[string]string{"stat/arp_cache": "a b\n1 2\n"}, neighbours.Table{}, true},
		{"with no values", map[string]string{"stat/arp_cache": strings.SplitAfter(stats, "\n")[0]}, neighbours.Table{}, true},
		{"with too few values", map[string]string{"stat/arp_cache": strings.SplitAfter(stats, "\n")[0] + "1 2\n"}, neighbours.Table{}, true},
		{"with no numbers", map[string]string{"stat/arp_cache": strings.SplitAfter(stats, "\n")[0] + "x 2 3 4 5\n"}, neighbours.Table{}, true},
		{"with a limit that is no number", map[string]string{"stat/arp_cache": stats, "sys/ipv4/neigh/default/gc_thresh3": "x"}, neighbours.Table{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := neighbours.Read(roots(t, c.files), neighbours.IPv4)
			if c.fails != (err != nil) || !c.fails && got != c.want {
				t.Errorf("got %+v, %v, want %+v", got, err, c.want)
			}
		})
	}
	t.Run("of a family that there is not", func(t *testing.T) {
		if _, err := neighbours.Read(roots(t, map[string]string{"stat/arp_cache": stats}), neighbours.IPv6); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("as this kernel says it", func(t *testing.T) {
		for _, f := range neighbours.Families() {
			if _, err := neighbours.Read(neighbours.Roots{Sysctls: "/proc/sys/net", Stats: "/proc/net/stat"}, f); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		}
	})
}

func TestD38_LimitsAreRaisedAndNeverLowered(t *testing.T) {
	const folder = "sys/ipv6/neigh/default/gc_thresh"
	for _, c := range []struct {
		name    string
		have    [3]string
		want    [3]string
		changes int
	}{
		{"the kernel's own", [3]string{"128\n", "512\n", "1024\n"}, [3]string{"1024", "4096", "8192"}, 3},
		{"somebody's", [3]string{"80000\n", "90000\n", "100000\n"}, [3]string{"80000\n", "90000\n", "100000\n"}, 0},
		{"some of them", [3]string{"0\n", "4096\n", "100000\n"}, [3]string{"1024", "4096\n", "100000\n"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := map[string]string{}
			for i, value := range c.have {
				files[fmt.Sprint(folder, i+1)] = value
			}
			r := roots(t, files)
			changed, err := neighbours.Raise(r, neighbours.IPv6)
			if err != nil || len(changed) != c.changes {
				t.Errorf("changed %q, %v, want %d", changed, err, c.changes)
			}
			var got [3]string
			for i := range got {
				b, err := os.ReadFile(filepath.Join(r.Sysctls, strings.TrimPrefix(fmt.Sprint(folder, i+1), "sys/")))
				if err != nil {
					t.Fatal(err)
				}
				got[i] = string(b)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	t.Run("where they do not show", func(t *testing.T) {
		if changed, err := neighbours.Raise(roots(t, nil), neighbours.IPv4); err != nil || len(changed) != 0 {
			t.Errorf("changed %q, %v", changed, err)
		}
	})
	t.Run("that can't be read", func(t *testing.T) {
		if _, err := neighbours.Raise(roots(t, map[string]string{"sys/ipv4/neigh/default/gc_thresh3": "x"}), neighbours.IPv4); err == nil {
			t.Error("no error")
		}
	})
}

// More permanent entries than the kernel's own limit of 1024 find room, in a namespace that
// shares it with all others: they are not among those that are limited.
func TestD38_PermanentEntriesDoNotFillTheTable(t *testing.T) {
	ns := netns.New(t, "node")
	const pods, others = 550, 600
	netns.Wire(t, ns, "one000000000001", netns.New(t, "pod"), "eth0")
	netns.Wire(t, ns, "eth0", netns.New(t, "other"), "eth0")
	var batch strings.Builder
	for i := range pods {
		fmt.Fprintf(&batch, "neigh add 10.1.%d.%d lladdr 02:00:00:00:00:01 dev one000000000001 nud permanent\n", i/250, 1+i%250)
	}
	for i := range others {
		fmt.Fprintf(&batch, "neigh add 10.2.%d.%d lladdr 02:00:00:00:00:01 dev eth0 nud permanent\n", i/250, 1+i%250)
	}
	path := filepath.Join(t.TempDir(), "batch")
	if err := os.WriteFile(path, []byte(batch.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	ns.Run(t, "ip", "-batch", path)
	err := ns.Do(func() error {
		n, err := neighbours.Permanent(neighbours.IPv4, "one")
		if err == nil && n != 2*pods+others {
			err = fmt.Errorf("%d are permanent, want %d, both ends of links of pods among them", n, 2*pods+others)
		}
		six, sixErr := neighbours.Permanent(neighbours.IPv6, "one")
		if six != 0 {
			t.Errorf("%d of IPv6 are permanent, want none", six)
		}
		return errors.Join(err, sixErr)
	})
	if err != nil {
		t.Error(err)
	}
}
