package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The golden files are what kube-proxy 1.37 writes for the same flags, but for
// the periods of modes that are not asked for: it leaves them out, and fills them in
// when it reads the file.
func TestA14_9TheConfigurationIsWritten(t *testing.T) {
	for golden, args := range map[string][]string{
		"defaults.yaml": {"--proxy-mode=nftables"},
		"flags.yaml": {
			"--proxy-mode=nftables", "--masquerade-all", "--iptables-sync-period=1m", "--iptables-min-sync-period=5s",
			"--cluster-cidr=10.0.0.0/8,fd00::/64", "--nodeport-addresses=primary,localhost", "--hostname-override= NODE1 ",
			"--healthz-bind-address=[::1]:10256", "-v=4", "--vmodule=a=3", "--log-flush-frequency=3s", "--conntrack-min=0",
			"--feature-gates=NFTablesNetlink=false", "--oom-score-adj=5", "--kubeconfig=/x", "--bind-address=fd00::1",
			"--ipvs-sync-period=3s", "--iptables-masquerade-bit=3", "--ipvs-exclude-cidrs=10.0.0.0/8",
		},
	} {
		t.Run(golden, func(t *testing.T) {
			s := settings(t, args...)
			file := filepath.Join(t.TempDir(), "written")
			if err := s.Write(file); err != nil {
				t.Fatal(err)
			}
			got, want := read(t, file), read(t, filepath.Join("testdata", golden))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			back := settings(t, append([]string{"--config", file}, hostname(args)...)...)
			if c := Compare(s, back); !c.Empty() {
				t.Errorf("what is read again differs in %s", c)
			}
			if len(back.Warnings) > 0 {
				t.Errorf("what is read again has warnings: %q", back.Warnings)
			}
		})
	}
}

// hostname keeps the flag that a file does not stand for.
func hostname(args []string) []string {
	var kept []string
	for _, arg := range args {
		if strings.HasPrefix(arg, "--hostname-override") {
			kept = append(kept, arg)
		}
	}
	return kept
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestWhereTheConfigurationIsWrittenTo(t *testing.T) {
	s := settings(t, "--proxy-mode=nftables")
	dir := t.TempDir()
	t.Run("over a file, by a symlink", func(t *testing.T) {
		write(t, filepath.Join(dir, "old"), "old")
		link(t, "old", filepath.Join(dir, "link"))
		if err := s.Write(filepath.Join(dir, "link")); err != nil {
			t.Fatal(err)
		}
		if got := read(t, filepath.Join(dir, "old")); !strings.HasPrefix(got, "apiVersion: ") {
			t.Errorf("got %q", got)
		}
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 2 {
			t.Errorf("got %v, %v, want the file and the link only", entries, err)
		}
	})
	t.Run("to a device", func(t *testing.T) {
		if err := s.Write("/dev/null"); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat("/dev/null"); err != nil || info.Mode().IsRegular() {
			t.Errorf("got %v, %v, want the device to be there", info, err)
		}
	})
	t.Run("to where nothing can be written", func(t *testing.T) {
		file := filepath.Join(dir, "none", "file")
		if err := s.Write(file); err == nil || !strings.HasPrefix(err.Error(), "write config file "+file+": ") {
			t.Errorf("got error %v", err)
		}
	})
}
