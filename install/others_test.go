package install_test

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/install"
)

const bridge = `{"cniVersion": "1.0.0", "name": "old", "plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}, {"type": "portmap"}]}`

func TestD42ListsOfOthers(t *testing.T) {
	p := published(t)
	at := func(name string) string { return filepath.Join(p.Lists, name) }
	write(t, at("05-other.conflist"), bridge)
	write(t, at("87-single.conf"), `{"name": "one", "type": "ptp"}`)
	write(t, at("01-broken.json"), `{`)
	write(t, at("00-README"), "no list")
	t.Run("D42 those before ours are told", func(t *testing.T) {
		others, err := p.Others()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, o := range others {
			got = append(got, o.String())
		}
		want := []string{
			"01-broken.json (it can't be read: unexpected end of JSON input) comes before 10-onerule.conflist: pods get its network, not ours",
			"05-other.conflist (network old of bridge, portmap) comes before 10-onerule.conflist: pods get its network, not ours",
			"87-single.conf (network one of ptp) comes after 10-onerule.conflist",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("D42 they are set aside, also one that comes again with other content", func(t *testing.T) {
		done, err := p.SetAside()
		if want := []string{"01-broken.json", "05-other.conflist", "87-single.conf"}; err != nil || !cmp.Equal(done, want) {
			t.Errorf("got %q, %v", done, err)
		}
		for range 2 { // the same content takes no second name
			write(t, at("05-other.conflist"), bridge+"\n")
			if _, err := p.SetAside(); err != nil {
				t.Fatal(err)
			}
		}
		want := []string{
			"00-README", "01-broken.json.onerule.bak", "05-other.conflist.1.onerule.bak", "05-other.conflist.onerule.bak",
			install.ListName, "87-single.conf.onerule.bak",
		}
		if diff := cmp.Diff(want, names(t, p.Lists)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if read(t, at("05-other.conflist.onerule.bak")) != bridge {
			t.Error("the first one is changed")
		}
	})
	t.Run("D42 uninstall brings them back, and never over one that is there", func(t *testing.T) {
		write(t, at("87-single.conf"), "newer")
		removed, err := p.Uninstall(func() error { return nil })
		if want := []string{"01-broken.json", "05-other.conflist"}; err != nil || !cmp.Equal(removed.Restored, want) {
			t.Errorf("got %+v, %v", removed, err)
		}
		if read(t, at("05-other.conflist")) != bridge+"\n" || read(t, at("87-single.conf")) != "newer" {
			t.Error("they hold something else")
		}
		want := []string{"00-README", "01-broken.json", "05-other.conflist", "05-other.conflist.onerule.bak", "87-single.conf", "87-single.conf.onerule.bak"}
		if diff := cmp.Diff(want, names(t, p.Lists)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestReservationsOfHostLocalAreFound(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("10.1.1.0/24")}
	for name, c := range map[string]struct {
		files map[string]string // below the directory of lists or of reservations
		want  string
	}{
		"nothing":                      {nil, ""},
		"by a list":                    {map[string]string{"L/05-other.conflist": bridge, "R/old/10.1.1.2": "a\r\neth0", "R/a/10.1.1.3": "b"}, "R/old"},
		"by a list that was set aside": {map[string]string{"L/05-other.conflist.onerule.bak": bridge, "R/old/10.1.1.2": "a", "R/a/10.1.1.3": "b"}, "R/old"},
		"without a list":               {map[string]string{"R/cbr0/10.1.1.9": "a"}, "R/cbr0"},
		"of other ranges":              {map[string]string{"R/cbr0/10.1.2.9": "a", "R/cbr0/last_reserved_ip.0": "10.1.1.9"}, ""},
		"of another directory":         {map[string]string{"L/1.conf": `{"name": "n", "type": "ptp", "ipam": {"type": "host-local", "dataDir": "ROOT/D"}}`, "ROOT/D/n/10.1.1.2": "a"}, "ROOT/D/n"},
	} {
		t.Run(name, func(t *testing.T) {
			p := places(t)
			root := filepath.Dir(p.State)
			spell := func(s string) string {
				for _, r := range [][2]string{{"L/", p.Lists + "/"}, {"R/", p.Reservations + "/"}, {"ROOT/", root + "/"}} {
					if len(s) >= len(r[0]) && s[:len(r[0])] == r[0] {
						return r[1] + s[len(r[0]):]
					}
				}
				return s
			}
			for path, content := range c.files {
				if name == "of another directory" && path == "L/1.conf" {
					content = fmt.Sprintf(`{"name": "n", "type": "ptp", "ipam": {"type": "host-local", "dataDir": %q}}`, root+"/D")
				}
				write(t, spell(path), content)
			}
			if got, err := p.Adoptable(ranges); err != nil || got != spell(c.want) {
				t.Errorf("got %q, %v, want %q", got, err, spell(c.want))
			}
		})
	}
	t.Run("what our list names stays", func(t *testing.T) {
		p := published(t)
		l := list()
		l.Adopt = "/somewhere/old"
		if _, err := p.Publish(l); err != nil {
			t.Fatal(err)
		}
		if got, err := p.Adoptable(ranges); err != nil || got != l.Adopt {
			t.Errorf("got %q, %v", got, err)
		}
	})
}

func TestUninstallInTheSafeOrder(t *testing.T) {
	p := published(t)
	managed(t, p, "NetworkManager/conf.d", "systemd/network")
	if _, err := p.PlaceUnmanaged(); err != nil {
		t.Error(err)
	}
	record := filepath.Join(p.State, "pods", "attachments", "a:eth0.json")
	refused := func() error { t.Error("it was cleaned"); return nil }
	t.Run("D6 as long as pods are attached only the list goes", func(t *testing.T) {
		write(t, record, `{"hostLink": "lo"}`)
		write(t, filepath.Join(p.State, "pods", "attachments", "b:eth0.json"), `{`)
		r, err := p.Uninstall(refused)
		if err != nil || r.Attached != 2 {
			t.Errorf("got %+v, %v", r, err)
		}
		if got := names(t, p.Lists); len(got) > 0 {
			t.Errorf("lists: %q", got)
		}
		if err := version(p.Binary()); err != nil {
			t.Error(err)
		}
	})
	write(t, record, `{"hostLink": "onedead00000000"}`) // its pod is gone
	write(t, filepath.Join(p.State, "pods", "attachments", "b:eth0.json"), `{"hostLink": "onedead00000001"}`)
	t.Run("the binary stays if cleaning fails", func(t *testing.T) {
		if _, err := p.Uninstall(func() error { return errors.New("busy") }); err == nil {
			t.Error("no error")
		}
		if err := version(p.Binary()); err != nil {
			t.Error(err)
		}
	})
	t.Run("then all of it goes, as often as one likes", func(t *testing.T) {
		for range 2 {
			cleaned := false
			r, err := p.Uninstall(func() error { cleaned = true; return version(p.Binary()) })
			if err != nil && cleaned && r.Attached == 0 {
				err = nil // the second time there is no binary to call
			}
			if err != nil || !cleaned {
				t.Errorf("got %+v, %v", r, err)
			}
		}
		if got := append(names(t, p.Binaries), below(t, p.Etc)...); len(got) > 0 {
			t.Errorf("left: %q", got)
		}
	})
}
