package install_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// A child has all files open that its parent has, until it runs its own program. So no
// process is started while the plugin is being written: else it could not be run for a
// moment ("text file busy"), which a runtime waits out for seconds. Whoever holds the lock
// for starting processes finds no file that is being written.
func TestC17D7NoProcessIsStartedWhileThePluginIsWritten(t *testing.T) {
	p := places(t)
	if err := os.MkdirAll(p.Binaries, 0o755); err != nil {
		t.Fatal(err)
	}
	var builds []string
	var size int64
	for i := range 2 { // programs may have more behind them, and are longer in writing then
		content := read(t, plugin(t)) + strings.Repeat(fmt.Sprint(i), 8<<20)
		size = int64(len(content))
		builds = append(builds, filepath.Join(t.TempDir(), "onerule"))
		write(t, builds[i], content)
	}
	during, stop := context.WithCancel(t.Context())
	var looking sync.WaitGroup
	looks := 0
	looking.Go(func() {
		for ; during.Err() == nil; looks++ {
			if err := halfWritten(p.Binaries, size); err != nil {
				t.Errorf("look %d: %v", looks, err)
				return
			}
		}
	})
	for i := range 6 {
		if changed, err := p.PlaceBinary(t.Context(), builds[i%2]); err != nil || !changed {
			t.Errorf("changed %v, %v", changed, err)
		}
	}
	stop()
	looking.Wait()
	if looks < 20 {
		t.Errorf("it was looked %d times only: this shows nothing", looks)
	}
}

// halfWritten looks for files that are shorter than they will be, while no process can be
// started.
func halfWritten(dir string, size int64) error {
	syscall.ForkLock.Lock()
	defer syscall.ForkLock.Unlock()
	list, err := filepath.Glob(filepath.Join(dir, ".onerule-*.tmp"))
	if err != nil {
		return err
	}
	for _, path := range list {
		info, err := os.Stat(path)
		if err == nil && info.Size() < size {
			return fmt.Errorf("%s holds %d of %d bytes", path, info.Size(), size)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
