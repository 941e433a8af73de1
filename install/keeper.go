package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
)

// The kinds of changes by others that are put right.
const (
	KindBinary = "binary"
	KindList   = "conflist"
)

const (
	// settle is how long after a change the files are looked at: changes come in groups.
	settle = 200 * time.Millisecond
	// lookEvery is how often they are looked at without a sign of a change.
	lookEvery = 15 * time.Second
)

// A Keeper keeps a plugin, and its list once there is one, where runtimes look for them.
type Keeper struct {
	Places Places
	Plugin string // the file that becomes the node's
	// Exclusive sets lists of others aside, also those that come later.
	Exclusive bool
	// Foreign counts a change by others that is put right. Others is given lists that come
	// before ours, whenever there are others. They are called by Run, and must not wait.
	Foreign func(kind, note string)
	Others  func([]Other)
	Log     logr.Logger

	mu     sync.Mutex
	wanted *List
	whole  bool          // the list was published
	fault  error         // of the last pass
	wake   chan struct{} // holds one
	once   sync.Once

	// What follows is Run's.
	placed, published string // what our files were as we left them; empty: not yet
	told              []string
}

// Publish says what the list has to hold from now on. Before it is called there is none of
// this process.
func (k *Keeper) Publish(l List) {
	k.mu.Lock()
	k.wanted = &l
	k.mu.Unlock()
	select {
	case k.signs() <- struct{}{}:
	default:
	}
}

func (k *Keeper) signs() chan struct{} {
	k.once.Do(func() { k.wake = make(chan struct{}, 1) })
	return k.wake
}

// Run works until ctx ends. What it placed stays.
func (k *Keeper) Run(ctx context.Context) {
	watcher := k.watch()
	if watcher != nil {
		defer watcher.Close()
	}
	every := time.NewTicker(lookEvery)
	defer every.Stop()
	for {
		k.follow(watcher)
		k.tell(errors.Join(k.pass(ctx), k.unmanaged()))
		select {
		case <-ctx.Done():
			return
		case <-k.signs():
		case <-every.C:
		}
		k.quiet(ctx)
	}
}

// watch wakes Run when something happens in the directories; nil if the kernel does not tell:
// they are looked at from time to time then.
func (k *Keeper) watch() *fsnotify.Watcher {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		k.Log.Error(err, "changes of CNI files are not told, looking at them from time to time", "every", lookEvery)
		return nil
	}
	go func() { // ends when the watcher is closed
		for {
			select {
			case _, open := <-w.Events:
				if !open {
					return
				}
			case _, open := <-w.Errors: // such as lost events
				if !open {
					return
				}
			}
			select {
			case k.signs() <- struct{}{}:
			default:
			}
		}
	}()
	return w
}

// follow watches the directories, again after one was replaced. One that is not there is made
// by what is placed in it.
func (k *Keeper) follow(w *fsnotify.Watcher) {
	if w == nil {
		return
	}
	for _, dir := range []string{k.Places.Binaries, k.Places.Lists} {
		if err := os.MkdirAll(dir, 0o755); err == nil {
			_ = w.Add(dir) // one that is watched already stays so
		}
	}
}

// quiet waits for the rest of a change.
func (k *Keeper) quiet(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(settle):
	}
}

// tell takes in what went wrong, and logs it once.
func (k *Keeper) tell(err error) {
	k.mu.Lock()
	before := k.fault
	k.fault, k.whole = err, k.published != ""
	k.mu.Unlock()
	if err != nil && (before == nil || before.Error() != err.Error()) {
		k.Log.Error(err, "the CNI plugin is not installed as it should be, trying again", "after", lookEvery)
	}
}

// State says whether the list was published, and what went wrong when the files were looked
// at last. It may be called from any goroutine.
func (k *Keeper) State() (published bool, fault error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.whole, k.fault
}

// pass makes everything as it should be: the binary before the list that names it, and lists
// of others only when there is ours.
func (k *Keeper) pass(ctx context.Context) error {
	if err := k.binary(ctx); err != nil {
		return err
	}
	k.mu.Lock()
	wanted := k.wanted
	k.mu.Unlock()
	if wanted == nil {
		return nil
	}
	if err := k.list(*wanted); err != nil {
		return err
	}
	return k.others()
}

func (k *Keeper) binary(ctx context.Context) error {
	path := k.Places.Binary()
	if k.placed != "" && k.placed == fingerprint(path) {
		return nil
	}
	changed, err := k.Places.PlaceBinary(ctx, k.Plugin)
	if err != nil {
		return err
	}
	k.changed(changed, KindBinary, path, k.placed != "")
	k.placed = fingerprint(path)
	return nil
}

// unmanaged keeps what tells others to leave links of pods alone. Pods can begin without it.
func (k *Keeper) unmanaged() error {
	written, err := k.Places.PlaceUnmanaged()
	for _, path := range written {
		k.Log.Info("written for who manages the network of the machine", "file", path)
	}
	return err
}

func (k *Keeper) list(wanted List) error {
	path := k.Places.List()
	if wanted.Adopt == "" {
		adopt, err := k.Places.Adoptable(wanted.Ranges)
		if err != nil {
			return err
		}
		wanted.Adopt = adopt
	}
	foreign := k.published != "" && k.published != fingerprint(path)
	changed, err := k.Places.Publish(wanted)
	if err != nil {
		return err
	}
	k.changed(changed, KindList, path, foreign)
	k.published = fingerprint(path)
	return nil
}

// changed tells of a file that was written.
func (k *Keeper) changed(changed bool, kind, path string, foreign bool) {
	if !changed {
		return
	}
	if !foreign {
		k.Log.Info("written for the container runtime", "file", path)
		return
	}
	k.Log.Info("others changed a file of the CNI plugin, it is put right", "file", path)
	if k.Foreign != nil {
		k.Foreign(kind, path+" was changed or removed")
	}
}

// others sets lists of others aside, or tells of them.
func (k *Keeper) others() error {
	if k.Exclusive {
		done, err := k.Places.SetAside()
		for _, name := range done {
			k.Log.Info("a list of plugins of others is set aside", "file", name, "until", "oneruled uninstall")
		}
		if err != nil {
			return err
		}
	}
	list, err := k.Places.Others()
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(o Other) bool { return !o.First })
	var now []string
	for _, o := range list {
		now = append(now, o.String())
	}
	if slices.Equal(now, k.told) {
		return nil
	}
	for _, text := range now {
		if !slices.Contains(k.told, text) {
			k.Log.Info("the container runtime does not use our list of plugins", "because", text)
		}
	}
	k.told = now
	if k.Others != nil {
		k.Others(list)
	}
	return nil
}

// fingerprint tells a file from what others make of it, without reading it; empty: there is
// none.
func fingerprint(path string) string {
	info, err := os.Lstat(path)
	if err != nil {
		return ""
	}
	return fmt.Sprint(info.Mode(), info.Size(), info.ModTime().UnixNano(), inode(info))
}
