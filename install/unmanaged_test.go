package install_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/install"
)

// managed makes the folders of those who manage the network of a machine.
func managed(t *testing.T, p install.Places, folders ...string) {
	t.Helper()
	for _, f := range folders {
		if err := os.MkdirAll(filepath.Join(p.Etc, f), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// below gives the files below a folder.
func below(t *testing.T, dir string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files = append(files, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return files
}

func TestD12_WhoManagesTheMachineIsToldToLeaveLinksOfPodsAlone(t *testing.T) {
	networkd := []string{"systemd/network/00-onerule.link", "systemd/network/00-onerule.network", "systemd/networkd.conf.d/90-onerule.conf"}
	for _, c := range []struct {
		name   string
		there  []string
		placed []string
	}{
		{"nobody", nil, nil},
		{"a machine with systemd's user part alone", []string{"systemd/user"}, nil},
		{"D11 systemd-networkd", []string{"systemd/network"}, networkd},
		{"NetworkManager", []string{"NetworkManager/conf.d"}, []string{"NetworkManager/conf.d/90-onerule.conf"}},
		{"both", []string{"systemd/network", "NetworkManager/conf.d"}, append([]string{"NetworkManager/conf.d/90-onerule.conf"}, networkd...)},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := places(t)
			managed(t, p, c.there...)
			p.Dry = true
			told(t, p, len(c.placed))
			if got := below(t, p.Etc); len(got) > 0 {
				t.Errorf("who only asks writes %q", got)
			}
			p.Dry = false
			told(t, p, len(c.placed))
			if diff := cmp.Diff(c.placed, below(t, p.Etc)); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			told(t, p, 0)
			if len(c.placed) > 0 {
				write(t, filepath.Join(p.Etc, c.placed[0]), "others'")
				told(t, p, 1)
			}
		})
	}
	t.Run("nobody is told where that is not wanted", func(t *testing.T) {
		p := places(t)
		managed(t, p, "systemd/network", "NetworkManager/conf.d")
		etc := p.Etc
		p.Etc = ""
		told(t, p, 0)
		if got := below(t, etc); len(got) > 0 {
			t.Errorf("it writes %q", got)
		}
	})
}

// told has everybody told, and wants so many files to be written.
func told(t *testing.T, p install.Places, want int) {
	t.Helper()
	written, err := p.PlaceUnmanaged()
	if err != nil || len(written) != want {
		t.Errorf("written are %q, %v, want %d", written, err, want)
	}
}
