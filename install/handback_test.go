package install_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The plugin itself hands addresses back: its own tests say how.
func TestAddressesAreHandedBackToHostLocal(t *testing.T) {
	p := published(t)
	reservation := filepath.Join(p.State, "pods/addresses/10.244.1.2")
	write(t, reservation, "c1\r\neth0")
	theirs := filepath.Join(p.Reservations, "old", "10.244.1.2")
	hand := func(t *testing.T, want int) {
		t.Helper()
		if n, err := p.HandBack(t.Context()); err != nil || n != want {
			t.Errorf("got %d, %v, want %d", n, err, want)
		}
	}
	t.Run("not where no list of others uses it", func(t *testing.T) {
		write(t, filepath.Join(p.Lists, "20-macvlan.conf"), `{"name": "m", "type": "macvlan", "ipam": {"type": "dhcp"}}`)
		hand(t, 0)
		if _, err := os.Stat(reservation); err != nil {
			t.Error(err)
		}
	})
	t.Run("not with settings that are not where it is told", func(t *testing.T) {
		write(t, filepath.Join(p.Lists, "05-other.conflist.onerule.bak"), bridge)
		p.Sysctls = "/nowhere"
		if n, err := p.HandBack(t.Context()); err == nil || !strings.Contains(err.Error(), "ONERULE_SYSCTL_DIR: stat /nowhere/net/ipv4: no such file or directory") {
			t.Errorf("got %d, %v", n, err)
		}
		p.Sysctls = "/proc/sys"
	})
	t.Run("also where that list was set aside", func(t *testing.T) {
		write(t, filepath.Join(p.Lists, "05-other.conflist.onerule.bak"), bridge)
		hand(t, 1)
		if got := read(t, theirs); got != "c1\r\neth0" {
			t.Errorf("%s holds %q", theirs, got)
		}
		hand(t, 0)
	})
	t.Run("never over what another pod has", func(t *testing.T) {
		write(t, reservation, "c2\r\neth0")
		if n, err := p.HandBack(t.Context()); err == nil || !strings.Contains(err.Error(), "holds it for another pod than c2/eth0") {
			t.Errorf("got %d, %v", n, err)
		}
		if got := read(t, theirs); got != "c1\r\neth0" {
			t.Errorf("%s holds %q", theirs, got)
		}
	})
	t.Run("not any more without the plugin, which goes last", func(t *testing.T) {
		if _, err := p.RemoveBinary(); err != nil {
			t.Fatal(err)
		}
		hand(t, 0)
	})
}
