package plugin_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"onerule/test/netns"
	"onerule/test/rig"
)

// An ADD may begin before a GC whose list cannot have it, and be done while the GC runs.
func TestGCSparesAnADDThatWasAtWork(t *testing.T) {
	n := newNode(t)
	unlock := n.lockPorts(t)
	c := add("c1", "eth0", netns.New(t, "pod"), n.withPorts(nil, bothProtocols(hostPort)...))
	done := make(chan answer, 1)
	go func() { done <- n.run(t, c) }()
	rig.Eventually(t, "the ADD has a record and waits for the host ports", func() error {
		if got := n.records(t); len(got) != 1 {
			return fmt.Errorf("records %q", got)
		}
		return nil
	})
	finish := n.beginGC(t, []object{})
	unlock()
	if a := <-done; a.exit != 0 {
		t.Fatalf("ADD: %+v", a)
	}
	if err := finish(); err != nil {
		t.Fatalf("GC: %v", err)
	}
	t.Run("C49, D39: it has all that it was given", func(t *testing.T) {
		n.succeed(t, n.checkOf(t, c))
	})
	t.Run("C48: the next GC without it in its list removes it", func(t *testing.T) {
		n.succeed(t, call{verb: "GC", stdin: n.config("1.1.0", object{"cni.dev/valid-attachments": []object{}})})
		n.clean(t)
	})
}

// lockPorts holds up whoever wants host ports.
func (n *node) lockPorts(t *testing.T) (unlock func()) {
	t.Helper()
	dir := filepath.Join(n.dataDir, "pods/hostports")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() { _ = f.Close() }
}

// Where a reservation has two names one of which is of a file still being written, the next
// ADD makes a file of its own.
func TestTheNextADDLeavesWhatAKilledOneReserved(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("needs strace")
	}
	n := newNode(t)
	killed := add("c1", "eth0", netns.New(t, "pod"), n.config("1.1.0", nil))
	// Where the reservation that was linked gets its second name.
	second := filepath.Join(n.dataDir, "pods/addresses/fd00:1::2")
	killed.wrap = []string{strace, "-f", "-qqq", "-o", "/dev/null", "-P", second, "-e", "trace=renameat", "-e", "inject=renameat:signal=SIGKILL:when=1"}
	if a := n.run(t, killed); a.exit != -1 {
		t.Fatalf("it was not killed: %+v", a)
	}
	killed.wrap = nil
	next := add("c2", "eth0", netns.New(t, "next"), n.config("1.1.0", nil))
	n.added(t, next)
	t.Run("C15, D2: each reservation is its owner's", func(t *testing.T) {
		dir := filepath.Join(n.dataDir, "pods/addresses")
		for name, want := range map[string]string{"10.1.0.2": "c1", "10.1.0.3": "c2", "fd00:1::2": "c2"} {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil || !strings.Contains(string(b), `"container": "`+want+`"`) {
				t.Errorf("%s: %v: got %s, want it of %s", name, err, b, want)
			}
		}
	})
	t.Run("C37: DEL of each frees its own", func(t *testing.T) {
		n.succeed(t, killed.as("DEL"))
		n.succeed(t, n.checkOf(t, next))
		if d := cmp.Diff([]string{"c2:eth0.json", "10.1.0.3", "fd00:1::2"}, n.files(t)); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		n.succeed(t, next.as("DEL"))
		n.clean(t)
	})
}

// hostLocal is a directory with its reservations.
func hostLocal(t *testing.T, reserved map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for addr, container := range reserved {
		reserveThere(t, dir, addr, container)
	}
	return dir
}

func reserveThere(t *testing.T, dir, addr, container string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, addr), []byte(container+"\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// An ADD that the runtime began with the former list ends after reservations were adopted.
func TestAdoptWhatComesLate(t *testing.T) {
	n := newNode(t)
	theirs := hostLocal(t, map[string]string{"10.1.0.2": "old"})
	stdin := n.config("1.1.0", object{"adopt": theirs, "quarantine": "0s"})
	n.succeed(t, call{verb: "DEL", container: "another", ifName: "eth0", stdin: stdin})
	for i := 3; i < 8; i++ {
		reserveThere(t, theirs, fmt.Sprint("10.1.0.", i), fmt.Sprint("late", i))
	}
	t.Run("D2: no pod of ours gets its address", func(t *testing.T) {
		for i := range 2 {
			got := addresses(t, n.added(t, add(fmt.Sprint("new", i), "eth0", netns.New(t, "new"), stdin)))
			if want := fmt.Sprint("10.1.0.", 8+i); got[0].String() != want {
				t.Errorf("got %s, want %s", got[0], want)
			}
		}
	})
	t.Run("C37: DEL releases it, for good", func(t *testing.T) {
		n.succeed(t, call{verb: "DEL", container: "late5", ifName: "eth0", stdin: stdin})
		wants := n.config("1.1.0", object{"adopt": theirs, "quarantine": "0s", "runtimeConfig": object{"ips": []string{"10.1.0.5"}}})
		if got := addresses(t, n.added(t, add("again", "eth0", netns.New(t, "again"), wants))); got[0].String() != "10.1.0.5" {
			t.Errorf("got %s", got[0])
		}
	})
	t.Run("an address that is asked for and was given late is refused", func(t *testing.T) {
		reserveThere(t, theirs, "10.1.0.77", "later")
		wants := n.config("1.1.0", object{"adopt": theirs, "runtimeConfig": object{"ips": []string{"10.1.0.77"}}})
		n.fail(t, add("wants", "eth0", netns.New(t, "wants"), wants), 101, "10.1.0.77 is taken")
	})
}

// The pod of an ADD that came late may end before an ADD of ours meets its address.
func TestAdoptNothingOfAPodThatHasEnded(t *testing.T) {
	n := newNode(t)
	theirs := hostLocal(t, map[string]string{"10.1.0.2": "old"})
	stdin := n.config("1.1.0", object{"adopt": theirs, "quarantine": "0s"})
	n.succeed(t, call{verb: "DEL", container: "another", ifName: "eth0", stdin: stdin})
	reserveThere(t, theirs, "10.1.0.3", "late")
	n.succeed(t, call{verb: "DEL", container: "late", ifName: "eth0", stdin: stdin})
	if got := addresses(t, n.added(t, add("new", "eth0", netns.New(t, "new"), stdin))); got[0].String() != "10.1.0.3" {
		t.Errorf("C37: got %s, want the address that is free again", got[0])
	}
	if d := cmp.Diff([]string{"new:eth0.json", "10.1.0.2", "10.1.0.3", "fd00:1::2"}, n.files(t)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Such an ADD may also ask host-local after one of ours was given an address.
func TestAdoptWhileTheFormerPluginIsAtWork(t *testing.T) {
	dir := build(t, mains+"main/ptp", mains+"ipam/host-local")
	n, networks := newNode(t), t.TempDir()
	theirs := filepath.Join(networks, "pods")
	if err := os.MkdirAll(theirs, 0o755); err != nil {
		t.Fatal(err)
	}
	reserveThere(t, theirs, "10.1.0.2", "before")
	if err := os.WriteFile(filepath.Join(theirs, "last_reserved_ip.0"), []byte("10.1.0.2"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := add("new", "eth0", netns.New(t, "new"), n.config("1.1.0", object{"adopt": theirs, "quarantine": "0s"}))
	ours := addresses(t, n.added(t, c))
	old := oldPods(t, n, dir, networks, 1)
	if ours[0] == old[0].addr {
		t.Errorf("D2: both pods have %s", ours[0])
	}
	n.succeed(t, n.checkOf(t, c))
	n.succeed(t, c.as("DEL"))
	if d := cmp.Diff(map[string]string{"10.1.0.2": "before", old[0].addr.String(): "old0"}, reserved(t, theirs)); d != "" {
		t.Errorf("C37: host-local has (-want +got):\n%s", d)
	}
	late := addresses(t, n.added(t, c))
	if late[0] == old[0].addr {
		t.Errorf("D2: both pods have %s", late[0])
	}
}

// A host-local that hangs does not stop pods for longer than the lock's time.
func TestAdoptDoesNotWaitForEver(t *testing.T) {
	n := newNode(t)
	theirs := hostLocal(t, map[string]string{"10.1.0.2": "old", "10.1.0.3": "other"})
	f, err := os.Create(filepath.Join(theirs, "lock"))
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	stdin := n.config("1.1.0", object{"adopt": theirs, "lockTimeout": "100ms"})
	n.fail(t, add("new", "eth0", netns.New(t, "new"), stdin), 11, "still held by another process")
	n.succeed(t, call{verb: "DEL", container: "old", ifName: "eth0", stdin: stdin})
	if d := cmp.Diff(map[string]string{"10.1.0.3": "other"}, reserved(t, theirs)); d != "" {
		t.Errorf("C42: host-local has (-want +got):\n%s", d)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	n.added(t, add("new", "eth0", netns.New(t, "new"), stdin))
}

// Two verbs may both find that nothing was adopted. The one that gets the lock later adopts
// nothing that has been released since.
func TestAdoptOnce(t *testing.T) {
	n := newNode(t)
	theirs := hostLocal(t, map[string]string{"10.1.0.2": "c1", "10.1.0.3": "c2"})
	stdin := n.config("1.1.0", object{"adopt": theirs})
	n.succeed(t, call{verb: "DEL", container: "c1", ifName: "eth0", stdin: stdin})
	marker := filepath.Join(n.dataDir, "pods/adopted")
	if err := os.Rename(marker, marker+".hidden"); err != nil {
		t.Fatal(err)
	}
	unlock := lockFile(t, filepath.Join(n.dataDir, "pods/lock"))
	done := make(chan answer, 1)
	go func() { done <- n.run(t, call{verb: "DEL", container: "c9", ifName: "eth0", stdin: stdin}) }()
	rig.Eventually(t, "the second DEL waits for the lock", func() error {
		locks, err := os.ReadFile("/proc/locks")
		if err == nil && !slices.ContainsFunc(strings.Split(string(locks), "\n"), func(l string) bool {
			return strings.Contains(l, "-> OFDLCK") && strings.HasSuffix(l, "0 0")
		}) {
			err = errors.New("nobody waits")
		}
		return err
	})
	if err := os.Rename(marker+".hidden", marker); err != nil {
		t.Fatal(err)
	}
	unlock()
	if a := <-done; a.exit != 0 {
		t.Fatalf("DEL: %+v", a)
	}
	if d := cmp.Diff([]string{"10.1.0.3"}, n.files(t)); d != "" {
		t.Errorf("C37: (-want +got):\n%s", d)
	}
}

// On a full disk nothing can be adopted.
func TestAdoptWithAFullDisk(t *testing.T) {
	n := newNode(t)
	fill := n.smallDisk(t)
	n.added(t, add("c1", "eth0", netns.New(t, "pod"), n.config("1.1.0", nil)))
	theirs := hostLocal(t, map[string]string{"10.1.0.20": "old0", "10.1.0.21": "old1"})
	stdin := n.config("1.1.0", object{"adopt": theirs})

	filler := fill()
	t.Run("C42: DEL of an old pod leaves nothing to adopt", func(t *testing.T) {
		n.succeed(t, call{verb: "DEL", container: "old0", ifName: "eth0", stdin: stdin})
		if d := cmp.Diff(map[string]string{"10.1.0.21": "old1"}, reserved(t, theirs)); d != "" {
			t.Errorf("host-local has (-want +got):\n%s", d)
		}
	})
	t.Run("C48: GC does what it can, and says what it could not", func(t *testing.T) {
		gc := call{verb: "GC", stdin: n.config("1.1.0", object{"adopt": theirs, "cni.dev/valid-attachments": []object{attachment("old1")}})}
		a := n.run(t, gc)
		if slices.Contains(n.files(t), "c1:eth0.json") {
			t.Errorf("the pod that is not wanted is there: %+v", a)
		}
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		n.succeed(t, gc)
		if d := cmp.Diff([]string{"10.1.0.21"}, n.files(t)); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	})
}

// The clock of a board may be put right after its pods began: their reservations are of this
// boot all the same.
func TestAdoptWhereTheClockWasPutRight(t *testing.T) {
	n := newNode(t)
	theirs := hostLocal(t, map[string]string{"10.1.0.200": "stale"})
	n.Run(t, "touch", "-d", "2020-01-01", filepath.Join(theirs, "10.1.0.200"))
	c := add("c1", "eth0", netns.New(t, "pod"), n.config("1.1.0", object{"adopt": theirs}))
	// A boot that seems to be younger than what it has made.
	c.wrap = []string{"unshare", "-m", "sh", "-c", `mount -t tmpfs tmpfs /run && mkdir /run/early && printf 'old\r\neth0' >` + theirs + `/10.1.0.2 &&
		sleep 3 && exec unshare -T --boottime -$(cut -d. -f1 /proc/uptime) "$0"`}
	if got := addresses(t, n.added(t, c)); got[0].String() == "10.1.0.2" {
		t.Errorf("D2: the address of a pod that lives was given again")
	}
	if d := cmp.Diff([]string{"c1:eth0.json", "10.1.0.2", "10.1.0.3", "fd00:1::2"}, n.files(t)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
