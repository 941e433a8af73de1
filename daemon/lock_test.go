package daemon

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"golang.org/x/sys/unix"

	"onerule/test/netns"
)

// lockIn takes the lock in a namespace, within 10 s.
func lockIn(ctx context.Context, ns *netns.NS, log logr.Logger) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = ns.Do(func() (err error) {
		release, err = (&Daemon{cfg: Config{Log: log}}).takeLock(ctx)
		return err
	})
	return release, err
}

func mustLock(t *testing.T, ns *netns.NS, log logr.Logger) (release func()) {
	t.Helper()
	release, err := lockIn(t.Context(), ns, log)
	if err != nil {
		t.Fatal(err)
	}
	return release
}

func TestEachNetworkNamespaceHasOneLock(t *testing.T) {
	a, b := netns.New(t, "a"), netns.New(t, "b")
	defer mustLock(t, b, logr.Discard())()
	release := mustLock(t, a, logr.Discard())
	said := make(chan string, 8)
	log := funcr.New(func(_, args string) { said <- args }, funcr.Options{})
	second := make(chan error, 1)
	go func() {
		release, err := lockIn(t.Context(), a, log)
		if err == nil {
			release()
		}
		second <- err
	}()
	select {
	case line := <-said:
		if !strings.Contains(line, "another oneruled") {
			t.Errorf("got %q, want a line that says who is waited for", line)
		}
	case err := <-second:
		t.Fatalf("the second did not wait, and ended with error %v", err)
	}
	release()
	if err := <-second; err != nil {
		t.Fatalf("the second did not take over: %v", err)
	}
	close(said)
	if line := <-said; !strings.Contains(line, "taking over") || len(said) > 0 {
		t.Errorf("got %q and %d more lines, want one that says that the wait is over", line, len(said))
	}
}

// A pod that can't reach the API server must not keep the one that can from taking its place.
// Who asked once and is gone, and who cannot be a daemon, gets no place.
func TestADaemonThatHasLoadedNothingGivesWay(t *testing.T) {
	for name, c := range map[string]struct {
		loaded, asked, waits, stranger, ends bool
	}{
		"it has loaded nothing, and another one waits": {waits: true, ends: true},
		"nobody waits": {},
		"it has loaded its tables, and another one waits": {loaded: true, waits: true},
		"one that asked is gone":                          {asked: true},
		"another user's process asks":                     {stranger: true},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netns.New(t, "node")
			d := &Daemon{cfg: Config{Log: logr.Discard()}, waited: make(chan struct{}), loaded: make(chan struct{}), fatal: make(chan error, 1)}
			if err := ns.Do(func() error {
				release, err := d.takeLock(t.Context())
				if err == nil {
					t.Cleanup(release)
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if c.loaded {
				close(d.loaded)
			}
			if c.asked {
				ask(t, ns)
			}
			limit := 100 * time.Millisecond
			if c.ends {
				limit = 10 * time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			var beside sync.WaitGroup
			defer beside.Wait()
			switch {
			case c.waits:
				beside.Go(func() { _, _ = lockIn(ctx, ns, logr.Discard()) }) // ends with ctx
			case c.stranger:
				beside.Go(func() { // ends with ctx
					for ctx.Err() == nil {
						askAs(t, ns, nobodyElse)
					}
				})
			}
			d.giveWay(ctx, 0)
			cancel()
			if ended := len(d.fatal) > 0; ended != c.ends {
				t.Errorf("it ends: got %t, want %t", ended, c.ends)
			}
		})
	}
}

// nobodyElse is a user that no daemon is of.
const nobodyElse = 65534

// ask connects to the lock of a namespace, and waits until its holder has taken note.
func ask(t *testing.T, ns *netns.NS) { askAs(t, ns, os.Geteuid()) }

func askAs(t *testing.T, ns *netns.NS, uid int) {
	t.Helper()
	err := ns.Do(func() error { // its thread ends with it, and its user with the thread
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			return os.NewSyscallError("setresuid", errno)
		}
		c, err := net.Dial("unix", lockName)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_, err = io.ReadAll(c)
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestWaitingForTheLockEndsWithTheContext(t *testing.T) {
	ns := netns.New(t, "node")
	defer mustLock(t, ns, logr.Discard())()
	ctx, cancel := context.WithCancel(t.Context())
	log := funcr.New(func(_, _ string) { cancel() }, funcr.Options{})
	err := ns.Do(func() error {
		release, err := (&Daemon{cfg: Config{Log: log}}).takeLock(ctx)
		if release != nil {
			t.Error("the lock is taken twice")
		}
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want that of the context", err)
	}
}

// Any process of the node's network namespace can take an abstract name: a pod on the
// host's network must not keep the node without Services.
func TestAnotherUserCannotHoldTheLock(t *testing.T) {
	ns := netns.New(t, "node")
	var squatter net.Listener
	err := ns.Do(func() (err error) { // its thread ends with it, and its user with the thread
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobodyElse, nobodyElse, nobodyElse); errno != 0 {
			return os.NewSyscallError("setresuid", errno)
		}
		squatter, err = net.Listen("unix", lockName)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = squatter.Close() }()
	var lines []string
	log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	mustLock(t, ns, log)()
	if len(lines) != 1 || !strings.Contains(lines[0], `"uid"=65534`) {
		t.Errorf("got %q, want one line that names the user", lines)
	}
}
