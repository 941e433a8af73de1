package daemon

import (
	"sync"
	"time"

	"onerule/daemon/inspect"
	"onerule/nft"
)

// A history remembers what the loop did, for people who ask: also while the loop is busy.
type history struct {
	began time.Time

	mu         sync.Mutex
	running    bool // the lock of the network namespace was had
	first      *time.Time
	loads      map[nft.Family]inspect.Load
	lastChange *inspect.Change
	failed     error // of the last sync, and since when syncs have failed
	since      time.Time
}

func newHistory() *history {
	return &history{began: time.Now(), loads: map[nft.Family]inspect.Load{}}
}

// runs takes note of the loop's beginning.
func (h *history) runs() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running = true
}

func (h *history) isRunning() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.running
}

func (h *history) loaded(family nft.Family, took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.loads[family] = inspect.Load{At: time.Now(), Seconds: took.Seconds()}
}

func (h *history) changed(objects int, took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastChange = &inspect.Change{At: time.Now(), Objects: objects, Seconds: took.Seconds()}
}

// ended takes note of how a sync ended, and whether all tables are loaded by then.
func (h *history) ended(err error, loaded bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if loaded && h.first == nil {
		h.first = &now
	}
	if err != nil && h.failed == nil {
		h.since = now
	}
	h.failed = err
}

// into tells what is remembered.
func (h *history) into(s *inspect.Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.Started, s.Loaded, s.LastChange = h.began, h.first, h.lastChange
	if !h.running {
		s.Degraded = append(s.Degraded, errWaiting.Error())
	}
	if h.failed != nil {
		s.Degraded = append(s.Degraded, "the tables are not as they should be, since "+h.since.Format(time.RFC3339)+": "+h.failed.Error())
	}
}

func (h *history) load(family nft.Family) *inspect.Load {
	h.mu.Lock()
	defer h.mu.Unlock()
	l, ok := h.loads[family]
	if !ok {
		return nil
	}
	return &l
}
