package sysctl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"onerule/test/netns"
)

// files are those of a kernel, by their names below the roots.
const (
	limit       = "proc/net/netfilter/nf_conntrack_max"
	hashsize    = "sys/module/nf_conntrack/parameters/hashsize"
	buckets     = "proc/net/netfilter/nf_conntrack_buckets"
	online      = "sys/devices/system/cpu/online"
	established = "proc/net/netfilter/nf_conntrack_tcp_timeout_established"
	closeWait   = "proc/net/netfilter/nf_conntrack_tcp_timeout_close_wait"
	udp         = "proc/net/netfilter/nf_conntrack_udp_timeout"
	udpStream   = "proc/net/netfilter/nf_conntrack_udp_timeout_stream"
	liberal     = "proc/net/netfilter/nf_conntrack_tcp_be_liberal"
)

func kernel() map[string]string {
	return map[string]string{
		limit: "262144", hashsize: "65536", online: "0-3", established: "432000", closeWait: "60",
		udp: "30", udpStream: "120", liberal: "0",
	}
}

// write puts files into a folder, with the newline that the kernel gives.
func write(t *testing.T, files map[string]string) (dir string, r Roots) {
	t.Helper()
	dir = t.TempDir()
	for name, value := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(value+"\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir, Roots{Proc: filepath.Join(dir, "proc"), Sys: filepath.Join(dir, "sys")}
}

// changed gives the files that are not as they were.
func changed(t *testing.T, dir string, were map[string]string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for name, old := range were {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if now := strings.TrimSpace(string(b)); now != old {
			found[name] = now
		}
	}
	return found
}

func TestSettingsReachTheKernel(t *testing.T) {
	type values = map[string]string
	defaults := Settings{MaxPerCore: 32768, Min: 131072, TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour}
	for _, c := range []struct {
		name     string
		settings Settings
		kernel   values // where it differs
		want     values // what is written
	}{
		{"A12.7: nothing is wanted", Settings{}, nil, nil},
		{"A12.7: the defaults, on 4 CPUs", defaults, values{limit: "65536", hashsize: "16384"},
			values{limit: "131072", hashsize: "32768", established: "86400", closeWait: "3600"}},
		{"A12.7: all has its value", defaults, values{limit: "131072", hashsize: "32768", established: "86400", closeWait: "3600"}, nil},
		{"A12.7: the limit is never lowered, nor the table", Settings{MaxPerCore: 10, Min: 20}, nil, nil},
		{"A12.7: the table is raised where the limit need not be", Settings{MaxPerCore: 65536}, values{hashsize: "100"}, values{hashsize: "65536"}},
		{"A12.7: the limit is left, also the least", Settings{MaxPerCore: 0, Min: 1 << 20}, nil, nil},
		{"A12.7: the table of a container, which sees /sys read-only", Settings{MaxPerCore: 32768}, values{buckets: "100"}, values{buckets: "32768"}},
		{"A12.7: the least", Settings{MaxPerCore: 1, Min: 400000}, nil, values{limit: "400000", hashsize: "100000"}},
		{"A12.7: many CPUs", Settings{MaxPerCore: 32768}, values{online: "0-127"}, values{limit: "1048576", hashsize: "262144"}},
		{"A12.8: CPUs with gaps", Settings{MaxPerCore: 100000}, values{online: "0-1,4,6-7"}, values{limit: "500000", hashsize: "125000"}},
		{"A12.7: timeouts, also lowered", Settings{UDP: 10 * time.Second, UDPStream: 3 * time.Minute, TCPEstablished: time.Second}, nil,
			values{udp: "10", udpStream: "180", established: "1"}},
		{"A12.7: less than a second is one", Settings{UDP: time.Millisecond, UDPStream: 1500 * time.Millisecond}, nil, values{udp: "1", udpStream: "2"}},
		{"A12.9: segments out of the window", Settings{BeLiberal: true}, nil, values{liberal: "1"}},
		{"A12.9: it is set only", Settings{BeLiberal: false}, values{liberal: "1"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			have := kernel()
			for name, value := range c.kernel {
				have[name] = value
			}
			dir, roots := write(t, have)
			out := Apply(roots, c.settings)
			if !out.Complete() {
				t.Errorf("missing %v, failures %v", out.Missing, out.Failures)
			}
			want := c.want
			if want == nil {
				want = values{}
			}
			if diff := cmp.Diff(want, changed(t, dir, have)); diff != "" {
				t.Errorf("files (-want +got): %s", diff)
			}
			said := values{}
			for _, ch := range out.Changes {
				name, _ := filepath.Rel(dir, ch.File)
				said[name] = fmt.Sprint(ch.To)
				if fmt.Sprint(ch.From) != have[name] {
					t.Errorf("%s, and it was %s", ch, have[name])
				}
			}
			if diff := cmp.Diff(want, said); diff != "" {
				t.Errorf("changes (-want +got): %s", diff)
			}
			if again := Apply(roots, c.settings); len(again.Changes) != 0 {
				t.Errorf("a second time: %v", again.Changes)
			}
		})
	}
}

// A limit that belongs to the machine is left to it, though root could write the file.
func TestA12_7TheMachinesLimitsAreLeftToIt(t *testing.T) {
	files := kernel()
	dir, roots := write(t, files)
	if err := os.Chmod(filepath.Join(dir, limit), 0o444); err != nil {
		t.Fatal(err)
	}
	out := Apply(roots, Settings{MaxPerCore: 1 << 18, UDP: time.Hour})
	if diff := cmp.Diff(map[string]string{udp: "3600"}, changed(t, dir, files)); diff != "" {
		t.Errorf("files (-want +got): %s", diff)
	}
	want := Outcome{
		Changes: []Change{{filepath.Join(dir, udp), 30, 3600}},
		Kept:    []Change{{filepath.Join(dir, limit), 262144, 1 << 20}},
	}
	if diff := cmp.Diff(want, out); diff != "" || !out.Complete() {
		t.Errorf("outcome (-want +got): %s", diff)
	}
	if out := Apply(roots, Settings{MaxPerCore: 1}); len(out.Kept) != 0 {
		t.Errorf("a limit that is high enough is said to be kept: %v", out.Kept)
	}
}

// What has its value is not even opened for writing: it may be read-only.
func TestWhatHasItsValueIsNotWritten(t *testing.T) {
	dir, roots := write(t, kernel())
	path := filepath.Join(dir, udp)
	old := time.Unix(1000, 0)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	Apply(roots, Settings{UDP: 30 * time.Second})
	info, err := os.Stat(path)
	if err != nil || !info.ModTime().Equal(old) {
		t.Errorf("written at %v (%v)", info.ModTime(), err)
	}
}

// A file that is missing or says nonsense is named, and all others are set.
func TestOneFileStopsNoOther(t *testing.T) {
	all := Settings{MaxPerCore: 100000, TCPEstablished: time.Hour, TCPCloseWait: time.Hour, UDP: time.Hour, UDPStream: time.Hour, BeLiberal: true}
	files := kernel()
	delete(files, established)
	delete(files, hashsize)
	files[closeWait] = "soon"
	dir, roots := write(t, files)
	out := Apply(roots, all)
	at := func(name string) string { return filepath.Join(dir, name) }
	if diff := cmp.Diff([]string{at(hashsize), at(established)}, out.Missing); diff != "" {
		t.Errorf("missing (-want +got): %s", diff)
	}
	if got, want := fmt.Sprint(out.Failures), fmt.Sprintf("[read what to set to 3600: %s: %q is no number]", at(closeWait), "soon"); got != want {
		t.Errorf("failures: got %s, want %s", got, want)
	}
	want := map[string]string{limit: "400000", udp: "3600", udpStream: "3600", liberal: "1"}
	if diff := cmp.Diff(want, changed(t, dir, files)); diff != "" {
		t.Errorf("files (-want +got): %s", diff)
	}
	if _, err := os.Stat(at(established)); err == nil {
		t.Error("a file was made that the kernel does not have")
	}
}

func TestCPUsThatCannotBeCountedLeaveTheLimit(t *testing.T) {
	for name, c := range map[string]struct {
		list    string
		missing bool
	}{"no file": {"", true}, "nonsense": {"many", false}} {
		files := kernel()
		files[online] = c.list
		if c.missing {
			delete(files, online)
		}
		dir, roots := write(t, files)
		out := Apply(roots, Settings{MaxPerCore: 1 << 19, UDP: time.Hour})
		if c.missing != (len(out.Missing) == 1) || c.missing != (len(out.Failures) == 0) {
			t.Errorf("%s: missing %v, failures %v", name, out.Missing, out.Failures)
		}
		if diff := cmp.Diff(map[string]string{udp: "3600"}, changed(t, dir, files)); diff != "" {
			t.Errorf("%s: files (-want +got): %s", name, diff)
		}
	}
}

func TestTheLimitOfEntries(t *testing.T) {
	for _, c := range []struct{ perCore, least, cpus, want int }{
		{0, 131072, 8, 0},
		{-1, 131072, 8, 0},
		{32768, 131072, 1, 131072},
		{32768, 131072, 4, 131072},
		{32768, 131072, 5, 163840},
		{32768, 0, 2, 65536},
		{32768, 131072, 32, 1 << 20},
		{32768, 131072, 33, 1 << 20},
		{32768, 2 << 20, 4, 2 << 20},
		{32768, 2 << 20, 33, 1 << 20},
	} {
		if got := Max(c.perCore, c.least, c.cpus); got != c.want {
			t.Errorf("%d for each of %d CPUs, at least %d: got %d, want %d", c.perCore, c.cpus, c.least, got, c.want)
		}
	}
}

func TestListsOfCPUs(t *testing.T) {
	for list, want := range map[string]int{
		"0": 1, "0-1": 2, "0-3,8": 5, "2,4-5": 3,
		"": -1, "a": -1, "3-1": -1, "-1": -1, "1-": -1, "0,": -1, "0-99999999999999": -1,
	} {
		got, err := countCPUs(list)
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("%q: got %d (%v), want %d", list, got, err, want)
		}
	}
}

func FuzzCPUs(f *testing.F) {
	f.Add("0-3,6")
	f.Fuzz(func(t *testing.T, list string) {
		if n, err := countCPUs(list); err == nil && n < 1 {
			t.Errorf("%q: %d CPUs", list, n)
		}
	})
}

// More CPUs are online than this process may run on, and all count.
func TestA12_8CPUsOfTheNodeAreCounted(t *testing.T) {
	n, err := OnlineCPUs(Host())
	if err != nil || n < 1 {
		t.Fatalf("got %d CPUs (%v)", n, err)
	}
	ns := netns.New(t, "node") // for a thread of its own
	err = ns.Do(func() error {
		var one unix.CPUSet
		one.Set(0)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			return err
		}
		bound, err := OnlineCPUs(Host())
		if bound != n {
			t.Errorf("bound to one CPU: got %d, want %d", bound, n)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The files of a real kernel, as a namespace has them; and where /proc/sys is read-only,
// as in a container, each failure is said and nothing ends.
func TestA12_7R37ARealKernel(t *testing.T) {
	ns := netns.New(t, "node")
	ns.Run(t, "nft", "table inet others { chain seen { type filter hook prerouting priority 0; ct state new counter; }; }")
	want := Settings{TCPEstablished: time.Hour, TCPCloseWait: 7 * time.Minute, UDP: 41 * time.Second, UDPStream: 171 * time.Second, BeLiberal: true}
	err := ns.Do(func() error {
		out := Apply(Host(), want)
		if len(out.Changes) != 5 || !out.Complete() {
			t.Errorf("got %+v", out)
		}
		if again := Apply(Host(), want); len(again.Changes) != 0 || !again.Complete() {
			t.Errorf("a second time: got %+v", again)
		}
		return readOnly(t)
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(ns.Run(t, "cat", "/proc/sys/net/netfilter/nf_conntrack_udp_timeout")); got != "41" {
		t.Errorf("the kernel has a timeout of %s seconds, want 41", got)
	}
}

// readOnly applies settings where /proc/sys is read-only.
func readOnly(t *testing.T) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	const sys = "/proc/sys"
	for _, m := range []struct {
		source, target string
		flags          uintptr
	}{
		{"", "/", unix.MS_REC | unix.MS_PRIVATE},
		{sys, sys, unix.MS_BIND},
		{"", sys, unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY},
	} {
		if err := unix.Mount(m.source, m.target, "", m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	out := Apply(Host(), Settings{TCPEstablished: 2 * time.Hour, TCPCloseWait: 7 * time.Minute, UDP: 42 * time.Second, BeLiberal: true})
	if len(out.Changes) != 0 || len(out.Missing) != 0 || len(out.Failures) != 2 {
		t.Errorf("read-only: got %+v; want 2 failures, for what differs", out)
	}
	for _, err := range out.Failures {
		if !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), "/proc/sys/net/netfilter/nf_conntrack_") {
			t.Errorf("got %q, want it to name the file and EROFS", err)
		}
	}
	return nil
}
