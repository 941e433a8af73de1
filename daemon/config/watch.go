package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
)

// A Watch looks after the configuration file of a running daemon.
type Watch struct {
	// Flags are those that the daemon was started with. They name the file.
	Flags *Flags
	// Current are the settings that the daemon was started with.
	Current Settings
	// Changed is called with new settings and what has changed. It is called by Run,
	// one at a time.
	Changed func(Settings, Changes)
	Log     logr.Logger
	// Quiet is how long nothing is to happen before the file is read, so that it is
	// read when it is written to its end; 0: 100 ms.
	Quiet time.Duration
	// Poll is after what time the file is looked at without any sign of a change: not
	// all file systems give one; 0: 30 s.
	Poll time.Duration

	seen    []byte // what was read last
	fault   string // what was wrong then
	folders []string
}

// Run calls Changed for each change of the file until ctx ends: when it is written,
// when another file is renamed over it, and when a symlink on the way to it is
// exchanged, as the kubelet does for ConfigMaps. A file that is wrong, or gone, is
// logged, and the settings before stay.
func (w *Watch) Run(ctx context.Context) {
	if w.Flags.ConfigFile == "" {
		<-ctx.Done()
		return
	}
	if w.Quiet == 0 {
		w.Quiet = 100 * time.Millisecond
	}
	if w.Poll == 0 {
		w.Poll = 30 * time.Second
	}
	watcher, events := w.open()
	if watcher != nil {
		defer watcher.Close()
	}
	poll := time.NewTicker(w.Poll)
	defer poll.Stop()
	for {
		w.follow(watcher)
		w.look()
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		case <-events:
			w.settle(ctx, events)
		}
	}
}

// open gives a watcher and what it sends a sign to for each event; nothing if the
// kernel gives none: the file is polled then.
func (w *Watch) open() (*fsnotify.Watcher, <-chan struct{}) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		w.Log.Error(err, "cannot watch the config file, looking at it from time to time", "file", w.Flags.ConfigFile, "every", w.Poll)
		return nil, nil
	}
	signs := make(chan struct{}, 1)
	sign := func() {
		select {
		case signs <- struct{}{}:
		default:
		}
	}
	go func() { // ends when the watcher is closed
		for range watcher.Events {
			sign()
		}
	}()
	go func() { // ends when the watcher is closed
		for range watcher.Errors { // events were lost
			sign()
		}
	}()
	return watcher, signs
}

// settle waits until nothing has happened for a while. Ten times as long is enough.
func (w *Watch) settle(ctx context.Context, events <-chan struct{}) {
	enough := time.NewTimer(10 * w.Quiet)
	defer enough.Stop()
	quiet := time.NewTimer(w.Quiet)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-enough.C:
			return
		case <-quiet.C:
			return
		case <-events:
			quiet.Reset(w.Quiet)
		}
	}
}

// follow watches the folders on the way to the file, which may be others now.
func (w *Watch) follow(watcher *fsnotify.Watcher) {
	if watcher == nil {
		return
	}
	now := folders(w.Flags.ConfigFile)
	for _, gone := range w.folders {
		if !slices.Contains(now, gone) {
			_ = watcher.Remove(gone) // it may be gone altogether
		}
	}
	// Adding a folder again is nothing, unless it was exchanged for another of its name.
	w.folders = slices.DeleteFunc(now, func(folder string) bool { return watcher.Add(folder) != nil })
}

// folders gives where a change can mean another file: those that hold the file, and
// those that hold a symlink on the way to it.
func folders(file string) []string {
	const most = 40 // symlinks that the kernel follows
	file, err := filepath.Abs(file)
	if err != nil {
		return nil
	}
	found := []string{filepath.Dir(file)}
	for links := 0; links < most; links++ {
		at, to, rest := firstLink(file)
		if at == "" {
			break
		}
		found = append(found, filepath.Dir(at))
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(at), to)
		}
		file = filepath.Join(to, rest)
	}
	found = append(found, filepath.Dir(file))
	slices.Sort(found)
	return slices.Compact(found)
}

// firstLink finds the first symlink in a path, where it leads, and the rest of the
// path; at is empty if there is none.
func firstLink(path string) (at, to, rest string) {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for i := range parts {
		at := "/" + filepath.Join(parts[:i+1]...)
		if to, err := os.Readlink(at); err == nil {
			return at, to, filepath.Join(parts[i+1:]...)
		}
	}
	return "", "", ""
}

// look reads the file, and takes it if it has other settings.
func (w *Watch) look() {
	file := w.Flags.ConfigFile
	data, err := os.ReadFile(file)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.New("it is gone")
		}
		w.keep(fmt.Errorf("config file %s: %w", file, err))
		return
	}
	if w.seen != nil && bytes.Equal(data, w.seen) && w.fault == "" {
		return
	}
	s, err := w.Flags.Settings()
	w.seen = data
	if err != nil {
		w.keep(err)
		return
	}
	if w.fault != "" {
		w.fault = ""
		w.Log.Info("the config file is right again", "file", file)
	}
	changes := Compare(w.Current, s)
	w.Current = s
	if !changes.Empty() {
		w.Changed(s, changes)
	}
}

// keep says once why the settings stay as they are.
func (w *Watch) keep(err error) {
	if err.Error() == w.fault {
		return
	}
	w.fault = err.Error()
	w.Log.Error(err, "the config file can't be used, the settings stay as they were")
}
