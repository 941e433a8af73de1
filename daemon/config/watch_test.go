package config

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
)

// A watched file is looked after by a Watch.
type watched struct {
	t       *testing.T
	file    string
	changed chan string // OOM score and fields of each change
	ready   chan struct{}

	mu    sync.Mutex
	lines []string
}

// watch begins to look after a file that holds an OOM score. Signs of changes come
// from the kernel alone unless polled.
func watch(t *testing.T, file string, poll time.Duration) *watched {
	t.Helper()
	w := &watched{t: t, file: file, changed: make(chan string, 100), ready: make(chan struct{})}
	f := parse(t, "--config", file, "--hostname-override=n")
	s, err := f.Settings()
	if err != nil {
		t.Fatal(err)
	}
	s.OOMScoreAdj = 1000 // so that the first look reports what is there, when watching has begun
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		(&Watch{
			Flags: f, Current: s, Quiet: 20 * time.Millisecond, Poll: poll,
			Changed: func(s Settings, c Changes) { w.changed <- fmt.Sprint(s.OOMScoreAdj, " ", c) },
			Log:     logr.New(funcr.New(func(_, line string) { w.note(line) }, funcr.Options{}).GetSink()),
		}).Run(ctx)
	}()
	t.Cleanup(func() { stop(); <-ended })
	w.gets("1 oomScoreAdj")
	return w
}

func (w *watched) note(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, line)
}

func (w *watched) gets(want string) {
	w.t.Helper()
	select {
	case got := <-w.changed:
		if got != want {
			w.t.Fatalf("got change %q, want %q", got, want)
		}
	case <-time.After(10 * time.Second):
		w.t.Fatalf("change %q is not noticed", want)
	}
}

// logs waits until a line has been logged, and gives how many have it.
func (w *watched) logs(part string) int {
	w.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); <-tick.C {
		w.mu.Lock()
		n := strings.Count(strings.Join(w.lines, "\n"), part)
		w.mu.Unlock()
		if n > 0 {
			return n
		}
	}
	w.t.Fatalf("nothing is logged of %q", part)
	return 0
}

func score(n int) string { return head + fmt.Sprintf("mode: nftables\noomScoreAdj: %d\n", n) }

const rarely = time.Hour // longer than any test: only events count

func TestA14_8ChangesOfAFileAreNoticed(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, file string, n int){
		"written": func(t *testing.T, file string, n int) { write(t, file, score(n)) },
		"renamed over": func(t *testing.T, file string, n int) {
			write(t, file+".new", score(n))
			rename(t, file+".new", file)
		},
		"removed and written": func(t *testing.T, file string, n int) {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			write(t, file, score(n))
		},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "config.conf")
			write(t, file, score(1))
			w := watch(t, file, rarely)
			for n := 2; n < 5; n++ {
				change(t, file, n)
				w.gets(fmt.Sprint(n, " oomScoreAdj"))
			}
		})
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// link makes or exchanges a symlink at once.
func link(t *testing.T, to, at string) {
	t.Helper()
	if err := os.Symlink(to, at+".new"); err != nil {
		t.Fatal(err)
	}
	rename(t, at+".new", at)
}

// The kubelet puts a new version beside the old one, exchanges ..data, and
// removes the old one. The file that is named never changes.
func TestR38SwapOfAConfigMapIsNoticed(t *testing.T) {
	for name, of := range map[string]func(t *testing.T, volume string) string{
		"in the volume": func(_ *testing.T, volume string) string { return filepath.Join(volume, "config.conf") },
		"by a symlink elsewhere": func(t *testing.T, volume string) string {
			at := filepath.Join(t.TempDir(), "kube-proxy.conf")
			link(t, filepath.Join(volume, "config.conf"), at)
			return at
		},
		"by a symlinked folder": func(t *testing.T, volume string) string {
			at := filepath.Join(t.TempDir(), "etc")
			link(t, volume, at)
			return filepath.Join(at, "config.conf")
		},
	} {
		t.Run(name, func(t *testing.T) {
			volume := t.TempDir()
			version(t, volume, 1)
			if err := os.Symlink("..data/config.conf", filepath.Join(volume, "config.conf")); err != nil {
				t.Fatal(err)
			}
			w := watch(t, of(t, volume), rarely)
			for n := 2; n < 5; n++ {
				version(t, volume, n)
				if err := os.RemoveAll(filepath.Join(volume, fmt.Sprint("..v", n-1))); err != nil {
					t.Fatal(err)
				}
				w.gets(fmt.Sprint(n, " oomScoreAdj"))
			}
		})
	}
}

// version puts a version of a ConfigMap into a volume.
func version(t *testing.T, volume string, n int) {
	t.Helper()
	folder := filepath.Join(volume, fmt.Sprint("..v", n))
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(folder, "config.conf"), score(n))
	link(t, fmt.Sprint("..v", n), filepath.Join(volume, "..data"))
}

// A symlink further off, to another folder.
func TestSwapOfASymlinkToAFolderIsNoticed(t *testing.T) {
	etc, one, two := t.TempDir(), t.TempDir(), t.TempDir()
	write(t, filepath.Join(one, "config.conf"), score(1))
	write(t, filepath.Join(two, "config.conf"), score(2))
	link(t, one, filepath.Join(etc, "current"))
	w := watch(t, filepath.Join(etc, "current", "config.conf"), rarely)
	link(t, two, filepath.Join(etc, "current"))
	w.gets("2 oomScoreAdj")
	write(t, filepath.Join(two, "config.conf"), score(3))
	w.gets("3 oomScoreAdj")
}

func TestAFileThatIsWrongChangesNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.conf")
	write(t, file, score(1))
	w := watch(t, file, 10*time.Millisecond) // looked at often, and said once
	write(t, file, score(5000))
	w.logs("oomScoreAdj: 5000 is not within -1000 to 1000")
	write(t, file, score(2))
	w.gets("2 oomScoreAdj")
	if n := w.logs("5000 is not within"); n != 1 {
		t.Errorf("it is said %d times what is wrong, want once", n)
	}
	if n := w.logs("the config file is right again"); n != 1 {
		t.Errorf("it is said %d times that the file is right again, want once", n)
	}
}

func TestAFileThatIsGoneChangesNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.conf")
	write(t, file, score(1))
	w := watch(t, file, 10*time.Millisecond)
	rename(t, file, file+".old")
	w.logs("it is gone")
	rename(t, file+".old", file)
	w.logs("the config file is right again")
	write(t, file, score(2))
	w.gets("2 oomScoreAdj") // and nothing before: the settings never changed
}

// Where the kernel tells nothing of a change, as on network file systems.
func TestAFileIsPolledToo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.conf")
	write(t, file, score(1))
	f := parse(t, "--config", file, "--hostname-override=n")
	s, err := f.Settings()
	if err != nil {
		t.Fatal(err)
	}
	w := &Watch{Flags: f, Current: s, Changed: func(Settings, Changes) { t.Error("nothing has changed") }}
	w.look()
	w.look()
	var got []string
	w.Changed = func(s Settings, c Changes) { got = append(got, fmt.Sprint(s.OOMScoreAdj, " ", c)) }
	write(t, file, score(2))
	w.look()
	w.look()
	if len(got) != 1 || got[0] != "2 oomScoreAdj" {
		t.Errorf("got changes %q, want one", got)
	}
}

// What differs only in its text is no change.
func TestACommentIsNoChange(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.conf")
	write(t, file, score(1))
	w := watch(t, file, rarely)
	write(t, file, score(1)+"# a comment\nwinkernel: {enableDSR: true}\n")
	write(t, file+".new", score(2))
	rename(t, file+".new", file)
	w.gets("2 oomScoreAdj")
}

func TestFoldersOfAPath(t *testing.T) {
	root := t.TempDir()
	for _, folder := range []string{"volume/..v1", "etc"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(root, "volume/..v1/c"), "")
	link(t, "..v1", filepath.Join(root, "volume/..data"))
	link(t, "..data/c", filepath.Join(root, "volume/c"))
	link(t, "../volume/c", filepath.Join(root, "etc/c"))
	link(t, "loop", filepath.Join(root, "loop"))
	for path, want := range map[string]string{
		"volume/..v1/c": "/volume/..v1",
		"etc/c":         "/etc /volume /volume/..v1",
		"none/c":        "/none",
		"loop":          "",
	} {
		var got []string
		for _, folder := range folders(filepath.Join(root, path)) {
			got = append(got, strings.TrimPrefix(folder, root))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %q, want %s", path, got, want)
		}
	}
}
