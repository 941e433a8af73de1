package install_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"onerule/install"
	"onerule/test/rig"
)

// places gives a node's directories, which are not there yet.
func places(t testing.TB) install.Places {
	root := t.TempDir()
	return install.Places{
		Binaries: filepath.Join(root, "opt/cni/bin"), Lists: filepath.Join(root, "etc/cni/net.d"),
		State: filepath.Join(root, "state"), Reservations: filepath.Join(root, "networks"),
		Etc: filepath.Join(root, "etc"),
	}
}

func plugin(t testing.TB) string { return rig.Binary(t, "onerule", "onerule/plugin/onerule") }

func list() install.List {
	return install.List{
		Ranges:  []netip.Prefix{netip.MustParsePrefix("10.1.1.0/24"), netip.MustParsePrefix("fd00:1:0:1::/112"), netip.MustParsePrefix("10.2.1.0/24")},
		DataDir: "/var/lib/cni/onerule", StatusFile: "/run/onerule/network.json",
	}
}

// published gives a node with everything.
func published(t testing.TB) install.Places {
	t.Helper()
	p := places(t)
	if _, err := p.PlaceBinary(t.Context(), plugin(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Publish(list()); err != nil {
		t.Fatal(err)
	}
	return p
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// version calls a plugin as runtimes do.
func version(path string) error {
	cmd := exec.Command(path)
	cmd.Env, cmd.Stdin = []string{"CNI_COMMAND=VERSION"}, strings.NewReader(`{"cniVersion": "1.1.0"}`)
	out, err := cmd.Output()
	if err == nil && !json.Valid(out) {
		err = fmt.Errorf("it answers %q", out)
	}
	return err
}

// soak gives the greater number where there is time.
func soak(many, few int) int {
	if os.Getenv("ONERULE_SOAK") != "" {
		return many
	}
	return few
}

func TestC17D7TheBinaryIsReplacedWhileItRunsAndNoCallFails(t *testing.T) {
	p := places(t)
	var builds []string
	for i := range 2 {
		path := filepath.Join(t.TempDir(), "onerule")
		write(t, path, read(t, plugin(t))+strings.Repeat("\x00", i)) // programs may have more behind them
		builds = append(builds, path)
	}
	if _, err := p.PlaceBinary(t.Context(), builds[1]); err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	during, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for during.Err() == nil {
				if err := version(p.Binary()); err != nil {
					t.Errorf("after %d calls: %v", calls.Load(), err)
					return
				}
				calls.Add(1)
			}
		})
	}
	for i := range soak(200, 50) {
		changed, err := p.PlaceBinary(t.Context(), builds[i%2])
		if err != nil || !changed {
			t.Fatalf("install %d: changed %v, %v", i, changed, err)
		}
	}
	stop()
	callers.Wait()
	if calls.Load() < 10 {
		t.Errorf("only %d calls were made", calls.Load())
	}
	if got := names(t, p.Binaries); !cmp.Equal(got, []string{"onerule"}) {
		t.Errorf("left behind: %q", got)
	}
}

func TestD7OnlyAPluginThatWorksReplacesOne(t *testing.T) {
	p := places(t)
	if _, err := p.PlaceBinary(t.Context(), plugin(t)); err != nil {
		t.Fatal(err)
	}
	good := read(t, p.Binary())
	for name, bad := range map[string]string{
		"truncated":       good[:len(good)/2],
		"empty":           "",
		"of another kind": "#!/bin/sh\necho '{\"supportedVersions\": [\"0.2.0\"]}'\n",
		"failing":         "#!/bin/sh\necho broken >&2; exit 1\n",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "bad")
			write(t, path, bad)
			if changed, err := p.PlaceBinary(t.Context(), path); err == nil || changed {
				t.Errorf("changed %v, %v", changed, err)
			}
			if read(t, p.Binary()) != good {
				t.Error("the one before is gone")
			}
			if got := names(t, p.Binaries); !cmp.Equal(got, []string{"onerule"}) {
				t.Errorf("left behind: %q", got)
			}
		})
	}
	t.Run("the same again is left alone", func(t *testing.T) {
		before, _ := os.Stat(p.Binary())
		changed, err := p.PlaceBinary(t.Context(), plugin(t))
		after, _ := os.Stat(p.Binary())
		if err != nil || changed || !os.SameFile(before, after) {
			t.Errorf("changed %v, %v", changed, err)
		}
		if after.Mode() != 0o755 {
			t.Errorf("mode %v", after.Mode())
		}
	})
}

func TestD8AListIsNeverHalfWritten(t *testing.T) {
	p := published(t)
	during, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	var reads atomic.Int64
	least := int64(soak(100_000, 25_000))
	readers.Go(func() {
		for during.Err() == nil || reads.Load() < least {
			b, err := os.ReadFile(p.List())
			var l struct{ Name string }
			if err == nil {
				err = json.Unmarshal(b, &l)
			}
			if err != nil || l.Name != install.Network {
				t.Errorf("read %d: %q, %v", reads.Load(), b, err)
				return
			}
			reads.Add(1)
		}
	})
	for i := range soak(1000, 250) {
		l := list()
		l.MTU = 1400 + i%2
		if changed, err := p.Publish(l); err != nil || !changed {
			t.Fatalf("write %d: changed %v, %v", i, changed, err)
		}
	}
	stop()
	readers.Wait()
}

// watch gives what inotify saw in directories while f ran, as "NAME EVENT".
func watch(t *testing.T, f func(), dirs ...string) []string {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	for _, dir := range dirs {
		if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MODIFY|unix.IN_MOVED_TO|unix.IN_MOVED_FROM|unix.IN_DELETE); err != nil {
			t.Fatal(err)
		}
	}
	f()
	words := map[uint32]string{unix.IN_CREATE: "created", unix.IN_MODIFY: "modified", unix.IN_MOVED_TO: "landed", unix.IN_MOVED_FROM: "moved", unix.IN_DELETE: "deleted"}
	var seen []string
	buf := make([]byte, 1<<16)
	for {
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EAGAIN) {
			return seen
		}
		if err != nil {
			t.Fatal(err)
		}
		for b := buf[:n]; len(b) > 0; {
			e := (*unix.InotifyEvent)(unsafe.Pointer(&b[0]))
			name := string(bytes.TrimRight(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+e.Len], "\x00"))
			seen = append(seen, name+" "+words[e.Mask&^unix.IN_ISDIR])
			b = b[unix.SizeofInotifyEvent+e.Len:]
		}
	}
}

func TestC55D6WhatLandsInWhichOrder(t *testing.T) {
	p := places(t)
	if err := errors.Join(os.MkdirAll(p.Binaries, 0o755), os.MkdirAll(p.Lists, 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Run("D6 without its plugin there is no list", func(t *testing.T) {
		if changed, err := p.Publish(list()); err == nil || changed {
			t.Errorf("changed %v, %v", changed, err)
		}
		write(t, p.Binary(), "no program") // it can't be run
		if changed, err := p.Publish(list()); err == nil || changed {
			t.Errorf("changed %v, %v", changed, err)
		}
		if got := names(t, p.Lists); len(got) > 0 {
			t.Errorf("there is %q", got)
		}
	})
	seen := watch(t, func() {
		_, err := p.PlaceBinary(t.Context(), plugin(t))
		_, publish := p.Publish(list())
		if err := errors.Join(err, publish); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Uninstall(func() error { return nil }); err != nil {
			t.Fatal(err)
		}
	}, p.Binaries, p.Lists)
	var ours []string
	for _, event := range seen {
		name, _, _ := strings.Cut(event, " ")
		if strings.HasPrefix(name, ".onerule-") && filepath.Ext(name) == ".tmp" {
			continue // read by no runtime
		}
		ours = append(ours, event)
	}
	want := []string{"onerule landed", "10-onerule.conflist landed", "10-onerule.conflist deleted", "onerule deleted"}
	if diff := cmp.Diff(want, ours); diff != "" {
		t.Errorf("events (-want +got):\n%s\nall: %q", diff, seen)
	}
}

func TestC56TheListAsRuntimesReadIt(t *testing.T) {
	p := published(t)
	if got := names(t, p.Lists); !cmp.Equal(got, []string{install.ListName}) {
		t.Errorf("there is %q", got)
	}
	info, err := os.Stat(p.List())
	if err != nil || info.Mode() != fs.FileMode(0o600) {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	t.Run("C56 a folder of the network's name adds no plugins", func(t *testing.T) {
		write(t, filepath.Join(p.Lists, install.Network, "99-more.conf"), `{"type": "portmap", "name": "pods", "cniVersion": "1.0.0"}`)
		l, err := libcni.NetworkConfFromFile(p.List())
		if err != nil {
			t.Fatal(err)
		}
		if len(l.Plugins) != 1 || l.CNIVersion != "1.1.0" || l.Name != install.Network {
			t.Errorf("libcni reads %+v", l)
		}
	})
	t.Run("C22 every version is valid", func(t *testing.T) {
		l, err := libcni.ConfListFromFile(p.List())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := libcni.NewCNIConfig([]string{p.Binaries}, nil).ValidateNetworkList(t.Context(), l); err != nil {
			t.Error(err)
		}
	})
	t.Run("one set of ranges for each family", func(t *testing.T) {
		var got struct {
			CNIVersion string
			Plugins    []struct {
				IPAM struct {
					Ranges [][]struct{ Subnet string }
				}
			}
		}
		if err := json.Unmarshal([]byte(read(t, p.List())), &got); err != nil {
			t.Fatal(err)
		}
		if want := "[[{10.1.1.0/24} {10.2.1.0/24}] [{fd00:1:0:1::/112}]]"; fmt.Sprint(got.Plugins[0].IPAM.Ranges) != want || got.CNIVersion != "1.0.0" {
			t.Errorf("got %+v, want ranges %s", got, want)
		}
	})
	t.Run("without ranges there is none", func(t *testing.T) {
		if _, err := places(t).Publish(install.List{}); err == nil {
			t.Error("it was published")
		}
	})
}
