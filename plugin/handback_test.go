package plugin_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"onerule/plugin"
	"onerule/test/netns"
)

// handBack runs the plugin as oneruled uninstall does.
func (n *node) handBack(t *testing.T, to string) (got plugin.HandedBack, stderr string, exit int) {
	t.Helper()
	return told[plugin.HandedBack](t, n.NS, "hand-back", n.dataDir, to)
}

// reserved gives the addresses that host-local holds, with the containers that have them.
func reserved(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range entries {
		if _, err := netip.ParseAddr(e.Name()); err != nil {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		container, ifName, _ := strings.Cut(string(content), "\r\n")
		if ifName != "eth0" {
			t.Errorf("%s holds %q", e.Name(), content)
		}
		got[e.Name()] = container
	}
	return got
}

// A node moves from this plugin to ptp and host-local under its running pods, after it
// had come from there.
func TestHandBack(t *testing.T) {
	dir := build(t, mains+"main/ptp", mains+"ipam/host-local")
	n := newNode(t)
	networks := t.TempDir()
	theirs := filepath.Join(networks, "pods")
	old := oldPods(t, n, dir, networks, 3)
	stdin := n.config("1.1.0", object{"adopt": theirs, "quarantine": "0s"})
	next, dying := netns.New(t, "next"), netns.New(t, "dying")
	want := map[string]string{old[1].addr.String(): "old1", old[2].addr.String(): "old2"}
	for _, a := range addresses(t, n.added(t, add("next", "eth0", next, stdin))) {
		want[a.String()] = "next"
	}
	gone := add("gone", "eth0", dying, stdin)
	n.added(t, gone)
	n.dies(t, dying, gone)
	n.succeed(t, call{verb: "DEL", container: "old0", ifName: "eth0", netns: old[0].ns.Path(), stdin: stdin})

	t.Run("host-local holds the addresses of pods that live, and no others", func(t *testing.T) {
		got, stderr, exit := n.handBack(t, theirs)
		// What it held for the pod that died unseen, in both families.
		if d := cmp.Diff(plugin.HandedBack{Addresses: len(want), Dropped: 2}, got); d != "" || exit != 0 {
			t.Errorf("exit %d: %s (-want +got):\n%s", exit, stderr, d)
		}
		if d := cmp.Diff(want, reserved(t, theirs)); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	})
	t.Run("once more is no more", func(t *testing.T) {
		got, stderr, exit := n.handBack(t, theirs)
		if d := cmp.Diff(plugin.HandedBack{}, got); d != "" || exit != 0 {
			t.Errorf("exit %d: %s (-want +got):\n%s", exit, stderr, d)
		}
		if d := cmp.Diff(want, reserved(t, theirs)); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	})
	t.Run("host-local gives a new pod an address that no other has", func(t *testing.T) {
		a := oldPods(t, n, dir, networks, 1)[0].addr.String()
		if who := want[a]; who != "" {
			t.Errorf("%s was given twice, %s has it", a, who)
		}
		want[a] = "old0"
	})
	t.Run("and so do we, when the node comes again", func(t *testing.T) {
		got := addresses(t, n.added(t, add("again", "eth0", netns.New(t, "again"), stdin)))
		if who := want[got[0].String()]; who != "" {
			t.Errorf("%s was given twice, %s has it", got[0], who)
		}
		files := n.files(t)
		for a, who := range want {
			if !slices.Contains(files, a) {
				t.Errorf("%s of %s is not adopted: %q", a, who, files)
			}
		}
	})
}

func TestHandBackRefusesWhatTwoPodsWouldHave(t *testing.T) {
	n := newNode(t)
	var last string
	for i := range 4 {
		c := add(fmt.Sprint("ours", i), "eth0", netns.New(t, "pod"), n.config("1.1.0", nil))
		last = addresses(t, n.added(t, c))[0].String()
	}
	before := n.files(t)
	theirs := hostLocal(t, map[string]string{last: "other"})
	_, stderr, exit := n.handBack(t, theirs)
	if exit != 1 || !strings.Contains(stderr, last+" holds it for another pod than ours3/eth0") {
		t.Errorf("exit %d: %s", exit, stderr)
	}
	if d := cmp.Diff(map[string]string{last: "other"}, reserved(t, theirs)); d != "" {
		t.Errorf("host-local has (-want +got):\n%s", d)
	}
	if d := cmp.Diff(before, n.files(t)); d != "" {
		t.Errorf("we have (-want +got):\n%s", d)
	}
}
