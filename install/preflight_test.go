package install_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"onerule/install"
)

// healthy gives a machine that lacks nothing.
func healthy(t *testing.T) install.Machine {
	t.Helper()
	m := install.Machine{
		Proc: filepath.Join(t.TempDir(), "proc"), Places: places(t), Plugin: plugin(t),
		Now:          func() time.Time { return time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC) },
		Synchronized: func() (bool, error) { return true, nil },
	}
	for name, content := range map[string]string{
		"sys/kernel/osrelease":                  "6.12.1-generic\n",
		"sys/net/ipv4/ip_forward":               "1\n",
		"sys/net/ipv6/conf/all/forwarding":      "1\n",
		"sys/net/netfilter/nf_conntrack_count":  "10\n",
		"sys/net/netfilter/nf_conntrack_max":    "1000\n",
		"sys/net/ipv4/neigh/default/gc_thresh3": "1024\n",
		"net/stat/arp_cache":                    "entries  allocs destroys\n00000010  00000001 00000002\n00000010  00000003 00000004\n",
		"sys/kernel/random/boot_id":             "1b002018-1bc3-48b1-a0cf-5afe21d6ca65\n",
		"1/comm":                                "systemd\n",
	} {
		write(t, filepath.Join(m.Proc, name), content)
	}
	return m
}

// verdicts gives those that are not OK, by name.
func verdicts(t *testing.T, m install.Machine) map[string]install.Verdict {
	t.Helper()
	found := map[string]install.Verdict{}
	for _, c := range m.Look(t.Context()) {
		if c.Found == "" || c.Verdict != install.OK && c.Remedy == "" {
			t.Errorf("%s: found %q, remedy %q", c.Name, c.Found, c.Remedy)
		}
		if c.Verdict != install.OK {
			found[c.Name] = c.Verdict
		}
	}
	return found
}

func TestWhatANodeLacks(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(m *install.Machine)
		want  map[string]install.Verdict
	}{
		"nothing":       {func(*install.Machine) {}, nil},
		"an old kernel": {func(m *install.Machine) { write(t, m.Proc+"/sys/kernel/osrelease", "5.10.0\n") }, map[string]install.Verdict{"kernel": install.Fail}},
		"an odd kernel": {func(m *install.Machine) { write(t, m.Proc+"/sys/kernel/osrelease", "Linux\n") }, map[string]install.Verdict{"kernel": install.Fail}},
		"forwarding, which the first pod turns on": {func(m *install.Machine) { write(t, m.Proc+"/sys/net/ipv4/ip_forward", "0\n") }, nil},
		"a way to turn forwarding on": {func(m *install.Machine) {
			write(t, m.Proc+"/sys/net/ipv4/ip_forward", "0\n")
			m.Sysctls = "/proc/none"
		}, map[string]install.Verdict{"forward IPv4": install.Fail}},
		"IPv6":             {func(m *install.Machine) { gone(t, m.Proc+"/sys/net/ipv6") }, map[string]install.Verdict{"forward IPv6": install.Warn}},
		"conntrack":        {func(m *install.Machine) { gone(t, m.Proc+"/sys/net/netfilter") }, map[string]install.Verdict{"conntrack": install.Warn}},
		"conntrack's room": {func(m *install.Machine) { write(t, m.Proc+"/sys/net/netfilter/nf_conntrack_count", "900\n") }, map[string]install.Verdict{"conntrack": install.Warn}},
		"room for neighbours": {func(m *install.Machine) {
			write(t, m.Proc+"/net/stat/arp_cache", "entries  allocs\n000003f0  00000001\n")
		}, map[string]install.Verdict{"neighbours": install.Warn}},
		"a directory": {func(m *install.Machine) { write(t, filepath.Dir(m.Places.Lists), "a file") }, map[string]install.Verdict{"lists": install.Fail, "other lists": install.Fail}},
		"directories that can be written": {func(m *install.Machine) { m.Places.Binaries, m.Places.State = "/proc/none/bin", "/proc/none" },
			map[string]install.Verdict{"binaries": install.Fail, "state": install.Fail}},
		"the plugin":               {func(m *install.Machine) { m.Plugin = "/bin/false" }, map[string]install.Verdict{"plugin": install.Fail}},
		"D42 the first place":      {func(m *install.Machine) { write(t, m.Places.Lists+"/05-other.conflist", bridge) }, map[string]install.Verdict{"other lists": install.Warn}},
		"NetworkManager's consent": {func(m *install.Machine) { managed(t, m.Places, "NetworkManager/conf.d") }, map[string]install.Verdict{"NetworkManager": install.Warn}},
		"D11 systemd-networkd's consent": {func(m *install.Machine) {
			managed(t, m.Places, "systemd/network")
			write(t, m.Proc+"/78/comm", "systemd-network\n")
		}, map[string]install.Verdict{"networkd": install.Warn}},
		"nothing, where systemd-networkd does not run": {func(m *install.Machine) { managed(t, m.Places, "systemd/network") }, nil},
		"nothing, where everybody is told": {func(m *install.Machine) {
			managed(t, m.Places, "systemd/network", "NetworkManager/conf.d")
			write(t, m.Proc+"/78/comm", "systemd-network\n")
			if _, err := m.Places.PlaceUnmanaged(); err != nil {
				t.Fatal(err)
			}
		}, nil},
		"to be alone":                     {func(m *install.Machine) { write(t, m.Proc+"/77/comm", "kube-proxy\n") }, map[string]install.Verdict{"other agents": install.Warn}},
		"a boot ID":                       {func(m *install.Machine) { write(t, m.Proc+"/sys/kernel/random/boot_id", "none\n") }, map[string]install.Verdict{"boot ID": install.Fail}},
		"the time":                        {func(m *install.Machine) { m.Now = func() time.Time { return time.Unix(0, 0) } }, map[string]install.Verdict{"clock": install.Fail}},
		"somebody to keep the time":       {func(m *install.Machine) { m.Synchronized = func() (bool, error) { return false, nil } }, map[string]install.Verdict{"clock": install.Warn}},
		"a kernel that knows who does so": {func(m *install.Machine) { m.Synchronized = func() (bool, error) { return true, errors.New("x") } }, map[string]install.Verdict{"clock": install.Warn}},
	} {
		t.Run(name, func(t *testing.T) {
			m := healthy(t)
			c.spoil(&m)
			if got := verdicts(t, m); !maps.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func gone(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

func TestLookingChangesNothing(t *testing.T) {
	m := healthy(t)
	m.Look(t.Context())
	if got := names(t, filepath.Dir(m.Places.State)); len(got) > 0 {
		t.Errorf("there is %q", got)
	}
}

func TestAReportInWordsAndForPrograms(t *testing.T) {
	r := install.Report{{Name: "kernel", Verdict: install.Fail, Found: "5.10.0", Remedy: "a <newer> one"}, {Name: "clock", Verdict: install.OK, Found: "right"}}
	var text, forPrograms bytes.Buffer
	if err := errors.Join(r.WriteText(&text), r.WriteJSON(&forPrograms)); err != nil {
		t.Fatal(err)
	}
	want := "FAIL  kernel          5.10.0\n                      -> a <newer> one\nOK    clock           right\n"
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	var got struct {
		Failed int
		Checks install.Report
	}
	if err := json.Unmarshal(forPrograms.Bytes(), &got); err != nil || got.Failed != 1 || !cmp.Equal(got.Checks, r) || !strings.Contains(forPrograms.String(), "<newer>") {
		t.Errorf("JSON %s: %v", forPrograms.String(), err)
	}
}
