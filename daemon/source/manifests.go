package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
)

const (
	// An editor or a copy makes several events of one change: they are waited for,
	// but a file that is written to all the time is read all the same.
	settleTime    = 20 * time.Millisecond
	maxSettleTime = 200 * time.Millisecond

	// Events get lost (a full queue, a file behind a symlink to elsewhere), so every
	// file is looked at now and then.
	rescanTime = 10 * time.Second
)

// Manifests is the source that reads YAML and JSON files of a directory.
type Manifests struct {
	Dir string
	// Node is the name of this node: of all Nodes, only it counts, unless AllNodes.
	Node     string
	AllNodes bool
	Log      logr.Logger

	rescan time.Duration // for tests; 0: rescanTime
}

// Run delivers the objects of the directory's files and their changes until ctx
// ends. A directory that can't be read at the start is an error; later it is logged,
// and everything stays as it was.
func (m Manifests) Run(ctx context.Context, sink Sink) error {
	r := &manifestRun{
		Manifests: m,
		dir:       newDirectory(m.Dir),
		parser:    parser{node: m.Node, allNodes: m.AllNodes, convert: converter{strings: newInterner()}},
		holdings:  newHoldings(sink),
	}
	// The watch comes before the first look, so that no change falls between.
	if err := r.watch(); err != nil {
		return err
	}
	defer r.unwatch()
	readings, err := r.dir.all()
	if err != nil {
		return err
	}
	r.apply(readings)
	sink.Synced()
	return r.loop(ctx)
}

// A manifestRun is a running source; one goroutine owns it.
type manifestRun struct {
	Manifests
	dir      *directory
	parser   parser
	holdings *holdings

	watcher *fsnotify.Watcher // nil if this machine has no watches to give
	watched os.FileInfo       // the directory that the watch is on
	lost    bool              // the directory can't be read, which was logged
}

// pending is what events named and was not read yet.
type pending struct {
	names map[string]struct{}
	all   bool      // something happened that names no file of ours
	since time.Time // the first event
}

// loop reads what events name, and everything now and then, until ctx ends.
func (r *manifestRun) loop(ctx context.Context) error {
	every := r.rescan
	if every == 0 {
		every = rescanTime
	}
	rescan := time.NewTicker(every)
	defer rescan.Stop()
	settled := time.NewTimer(time.Hour)
	settled.Stop()
	events, failures := r.channels()
	p := pending{names: map[string]struct{}{}}
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-events:
			p.add(r.Dir, e)
			settled.Reset(p.settle())
		case err := <-failures:
			r.Log.Error(err, "Lost events of manifests, reading all", "directory", r.Dir)
			p.all = true
			settled.Reset(settleTime)
		case <-rescan.C:
			r.rescanAll()
		case <-settled.C:
			if p.all {
				r.rescanAll()
			} else {
				r.apply(r.dir.some(p.names))
			}
			p = pending{names: map[string]struct{}{}}
		}
	}
}

// channels gives the watcher's channels; nil ones, which never deliver, without it.
func (r *manifestRun) channels() (<-chan fsnotify.Event, <-chan error) {
	if r.watcher == nil {
		return nil, nil
	}
	return r.watcher.Events, r.watcher.Errors
}

// add notes what an event is about. What is hidden, such as the kubelet's ..data,
// can be what visible files point to.
func (p *pending) add(dir string, e fsnotify.Event) {
	if p.since.IsZero() {
		p.since = time.Now()
	}
	name := filepath.Base(e.Name)
	switch {
	case filepath.Clean(e.Name) == filepath.Clean(dir), name[0] == '.':
		p.all = true
	default:
		p.names[name] = struct{}{}
	}
}

// settle gives how long to wait for more.
func (p *pending) settle() time.Duration {
	return max(0, min(settleTime, maxSettleTime-time.Since(p.since)))
}

// rescanAll reads every file that differs.
func (r *manifestRun) rescanAll() {
	err := r.rewatch()
	if err == nil {
		var readings map[string]reading
		if readings, err = r.dir.all(); err == nil {
			r.apply(readings)
		}
	}
	if err != nil && !r.lost {
		r.Log.Error(err, "Failed to read manifests, keeping what they said", "directory", r.Dir)
	}
	r.lost = err != nil
}

// apply parses what was read and passes it on.
func (r *manifestRun) apply(readings map[string]reading) {
	contents := make(map[string]*content, len(readings))
	for name, read := range readings {
		switch {
		case read.gone:
			contents[name] = nil
		case read.err != nil:
			c := &content{}
			c.fail(read.err.Error())
			contents[name] = c
		default:
			contents[name] = r.parser.parse(name, read.data, r.holdings.parsed(name))
		}
	}
	r.holdings.set(contents)
}

// watch starts to watch the directory. Where the machine has no watches left, the
// files are still read now and then.
func (r *manifestRun) watch() error {
	info, err := os.Stat(r.Dir)
	if err != nil {
		return fmt.Errorf("read manifests directory: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("read manifests directory: %s is not a directory", r.Dir)
	}
	w, err := fsnotify.NewWatcher()
	if err == nil {
		if err = w.Add(r.Dir); err != nil {
			err = errors.Join(err, w.Close())
		}
	}
	if err != nil {
		r.Log.Error(err, "Failed to watch manifests, only looking at them now and then", "directory", r.Dir, "interval", rescanTime)
		return nil
	}
	r.watcher, r.watched = w, info
	return nil
}

// rewatch moves the watch when another directory has taken the name.
func (r *manifestRun) rewatch() error {
	info, err := os.Stat(r.Dir)
	if err != nil {
		// The name is free: whatever takes it is another directory, even if it gets
		// the same inode.
		r.watched = nil
		return fmt.Errorf("read manifests directory: %w", err)
	}
	if r.watcher == nil || r.watched != nil && os.SameFile(r.watched, info) {
		return nil
	}
	// Fails if the watch went with its directory.
	_ = r.watcher.Remove(r.Dir)
	if err := r.watcher.Add(r.Dir); err != nil {
		return fmt.Errorf("watch manifests directory: %w", err)
	}
	r.watched = info
	return nil
}

func (r *manifestRun) unwatch() {
	if r.watcher != nil {
		_ = r.watcher.Close() // the source ends: nothing depends on it
	}
}
