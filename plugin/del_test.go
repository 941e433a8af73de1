package plugin_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"onerule/test/netns"
)

func TestDel(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(t *testing.T, n *node, pod *netns.NS, c *call)
		// aside is what DEL puts aside.
		aside []string
	}{
		{name: "C35: everything is there", spoil: func(*testing.T, *node, *netns.NS, *call) {}},
		{name: "C36, D3: no CNI_NETNS", spoil: func(_ *testing.T, _ *node, _ *netns.NS, c *call) { c.netns = "" }},
		{name: "C36: a namespace that is gone", spoil: func(_ *testing.T, _ *node, _ *netns.NS, c *call) { c.netns = "/nowhere" }},
		{name: "C36: a path that is no namespace any more", spoil: func(_ *testing.T, _ *node, _ *netns.NS, c *call) { c.netns = "/etc/passwd" }},
		{name: "C35: the interface is gone", spoil: func(t *testing.T, _ *node, pod *netns.NS, _ *call) { pod.Run(t, "ip", "link", "del", "eth0") }},
		{name: "C37: the record is gone", spoil: func(t *testing.T, n *node, _ *netns.NS, _ *call) {
			if err := os.Remove(filepath.Join(n.dataDir, "pods/attachments/c1:eth0.json")); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "C54, D2: the record is truncated", aside: []string{"c1:eth0.json"}, spoil: func(t *testing.T, n *node, _ *netns.NS, _ *call) {
			if err := os.Truncate(filepath.Join(n.dataDir, "pods/attachments/c1:eth0.json"), 30); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "C37, C40: the whole state is gone", spoil: func(t *testing.T, n *node, _ *netns.NS, _ *call) {
			if err := os.RemoveAll(n.dataDir); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "C42: an older configuration with a broken rest", spoil: func(_ *testing.T, n *node, _ *netns.NS, c *call) {
			c.stdin = n.config("0.3.1", object{"ipam": object{"type": "gone"}, "mtu": 1})
			c.args = "no args"
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t)
			pod := netns.New(t, "pod")
			c := add("c1", "eth0", pod, n.config("1.1.0", nil))
			n.added(t, c)
			tc.spoil(t, n, pod, &c)
			n.succeed(t, c.as("DEL"))
			n.clean(t)
			if out := links(t, pod); strings.Contains(out, "eth0@") {
				t.Errorf("the pod has a link: %s", out)
			}
			n.succeed(t, c.as("DEL"))
			var aside []string
			entries, _ := os.ReadDir(filepath.Join(n.dataDir, "pods/quarantine"))
			for _, e := range entries {
				aside = append(aside, e.Name())
			}
			if d := cmp.Diff(tc.aside, aside); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestDelOfNothing(t *testing.T) {
	n := newNode(t)
	t.Run("C41: never added, and no state directory is made", func(t *testing.T) {
		n.succeed(t, call{verb: "DEL", container: "c9", ifName: "eth0", stdin: n.config("1.0.0", nil)})
		if _, err := os.Stat(n.dataDir); !os.IsNotExist(err) {
			t.Errorf("the state directory is there: %v", err)
		}
	})
	t.Run("C29: another's address stays", func(t *testing.T) {
		pod := netns.New(t, "pod")
		n.added(t, add("c1", "eth0", pod, n.config("1.1.0", nil)))
		for _, other := range []call{add("c1", "net1", pod, n.config("1.1.0", nil)), add("c", "eth0", pod, n.config("1.1.0", nil))} {
			n.succeed(t, other.as("DEL"))
		}
		if d := cmp.Diff([]string{"c1:eth0.json", firstPod4, firstPod6}, n.files(t)); d != "" {
			t.Error(d)
		}
	})
}

func TestC41DelRacesWithTheNamespace(t *testing.T) {
	n := newNode(t)
	for i := range 20 {
		pod := netns.New(t, "pod")
		c := add("c1", "eth0", pod, n.config("1.1.0", nil))
		n.added(t, c)
		gone := make(chan error, 1)
		go func() { gone <- pod.Close() }()
		n.succeed(t, c.as("DEL"))
		if err := <-gone; err != nil {
			t.Fatal(err)
		}
		n.clean(t)
		if t.Failed() {
			t.Fatalf("round %d", i)
		}
	}
}

// smallDisk puts the state on a disk of its own, which can be filled.
func (n *node) smallDisk(t *testing.T) (fill func() (filler string)) {
	t.Helper()
	if err := os.MkdirAll(n.dataDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", n.dataDir, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(n.dataDir, unix.MNT_DETACH) })
	return func() string {
		filler := filepath.Join(n.dataDir, "filler")
		_ = os.WriteFile(filler, make([]byte, 1<<20), 0o600) // until it is full
		return filler
	}
}

func TestDelWithAFullDisk(t *testing.T) {
	n := newNode(t)
	fill := n.smallDisk(t)
	c := add("c1", "eth0", netns.New(t, "pod"), n.config("1.1.0", nil))
	n.added(t, c)
	fill()
	t.Run("C47: STATUS says so", func(t *testing.T) { n.fail(t, c.as("STATUS"), 50, "full") })
	t.Run("C28: ADD fails and leaves nothing", func(t *testing.T) {
		n.fail(t, add("c2", "eth0", netns.New(t, "pod2"), c.stdin), 5, "no space")
		if d := cmp.Diff([]string{"c1:eth0.json", firstPod4, firstPod6}, n.files(t)); d != "" {
			t.Error(d)
		}
	})
	t.Run("C42: DEL works", func(t *testing.T) {
		n.succeed(t, c.as("DEL"))
		n.clean(t)
	})
}

func TestAddressGoesLast(t *testing.T) {
	n := newNode(t)
	c := add("c1", "eth0", netns.New(t, "pod"), n.config("1.1.0", nil))
	n.added(t, c)
	t.Run("C38: a release that fails is reported, and tried again by the next DEL", func(t *testing.T) {
		del := c.as("DEL")
		dir := filepath.Join(n.dataDir, "pods/addresses")
		del.wrap = []string{"unshare", "-m", "sh", "-c", "mount --bind " + dir + " " + dir + " && mount -o remount,bind,ro " + dir + ` && exec "$0"`}
		n.fail(t, del, 5, "release")
		if d := cmp.Diff([]string{firstPod4, firstPod6}, n.files(t)); d != "" {
			t.Error(d)
		}
		if out := links(t, n.NS); strings.Contains(out, ": one") {
			t.Errorf("the link is there: %s", out)
		}
		n.succeed(t, c.as("DEL"))
		n.clean(t)
	})
}

// lockFile takes the lock of every attachment and of the reservations, as a live
// process would.
func lockFile(t *testing.T, path string) (unlock func()) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	l := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l); err != nil {
		t.Fatal(err)
	}
	return func() { _ = f.Close() }
}

func TestLock(t *testing.T) {
	n := newNode(t)
	c := add("c1", "eth0", netns.New(t, "pod"), n.config("1.1.0", object{"lockTimeout": "100ms"}))
	n.added(t, c)
	unlock := lockFile(t, filepath.Join(n.dataDir, "pods/lock"))
	t.Run("C11: held by a live process: try again later", func(t *testing.T) {
		n.fail(t, c.as("DEL"), 11, "pods/c1/eth0")
		n.fail(t, add("c2", "eth0", netns.New(t, "pod2"), c.stdin), 11, "pods/c2/eth0")
	})
	t.Run("C45: CHECK and STATUS do not wait", func(t *testing.T) {
		n.succeed(t, n.checkOf(t, c))
		n.succeed(t, c.as("STATUS"))
	})
	unlock()
	n.succeed(t, c.as("DEL"))
	n.clean(t)
}

func TestReboot(t *testing.T) {
	n := newNode(t)
	c := add("c1", "eth0", netns.New(t, "pod"), n.config("1.1.0", nil))
	n.added(t, c)
	record := filepath.Join(n.dataDir, "pods/attachments/c1:eth0.json")
	n.Run(t, "sed", "-i", `s/"bootID": "[^"]*"/"bootID": "another"/`, record)
	c.netns = netns.New(t, "pod").Path()
	t.Run("C27: an attachment of another boot is swept by the next ADD", func(t *testing.T) {
		got := addresses(t, n.added(t, c))
		if files := n.files(t); len(files) != 3 || len(got) != 2 {
			t.Errorf("got files %q and addresses %v, want one record and two reservations", files, got)
		}
	})
	t.Run("parallel ADDs of one attachment: one wins", func(t *testing.T) {
		n.succeed(t, c.as("DEL"))
		var wg sync.WaitGroup
		exits := make([]int, 8)
		for i := range exits {
			wg.Go(func() { exits[i] = n.run(t, c).exit })
		}
		wg.Wait()
		won := 0
		for _, e := range exits {
			if e == 0 {
				won++
			}
		}
		if files := n.files(t); won != 1 || len(files) != 3 {
			t.Errorf("got %d winners and files %q", won, files)
		}
	})
}
