package daemon

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	"onerule/daemon/config"
	"onerule/daemon/model"
	"onerule/nft"
)

// A mailbox takes what sources say, from any goroutine and without waiting, and
// holds it for the loop. Of several changes to one object the last one counts.
type mailbox struct {
	mu      sync.Mutex
	letters letters
	inHand  time.Time                  // since when a change that the loop took has been waiting
	hand    map[model.Key]model.Change // what the loop took last, until it is written
	failed  map[model.Key]bool         // what it took before, and could not write
	pins    []pinsRead                 // readings that have ended
	asked   func()                     // is called for all that asks for a sync; nil: nothing is
	// later takes out, and gives, what is not to be taken at once; nil: all is.
	later  func(*letters) map[model.Key]model.Change
	synced bool
	hosted bool          // HostAddrs was called
	wake   chan struct{} // holds one token while there is something to take
}

// letters are what came in since the last take.
type letters struct {
	changes map[model.Key]model.Change
	noted   map[string][]model.Note
	since   time.Time // when the first change came
	// settings are others now; nil: they are not. host are the node's addresses, if
	// hasHost.
	settings *config.Settings
	host     []netip.Addr
	hasHost  bool
	found    []nft.Foreign // what others did to our tables
}

func newMailbox() *mailbox {
	return &mailbox{letters: newLetters(), wake: make(chan struct{}, 1)}
}

func newLetters() letters {
	return letters{changes: map[model.Key]model.Change{}, noted: map[string][]model.Note{}}
}

// Changed takes a change of an object in.
func (m *mailbox) Changed(c model.Change) {
	m.put(func() {
		if len(m.letters.changes) == 0 {
			m.letters.since = time.Now()
		}
		m.letters.changes[c.Key] = c
	})
}

// Noted takes in what is wrong with an object now; no notes: nothing.
func (m *mailbox) Noted(object string, notes []model.Note) {
	m.put(func() { m.letters.noted[object] = notes })
}

// Configured takes other settings in.
func (m *mailbox) Configured(s config.Settings) {
	m.put(func() { m.letters.settings = &s })
}

// HostAddrs takes in which addresses the node has now.
func (m *mailbox) HostAddrs(list []netip.Addr) {
	m.put(func() { m.letters.host, m.letters.hasHost, m.hosted = list, true, true })
}

// foreign takes in what others did to our tables.
func (m *mailbox) foreign(found []nft.Foreign) {
	m.put(func() { m.letters.found = append(m.letters.found, found...) })
}

// Synced says that everything has been delivered once.
func (m *mailbox) Synced() {
	m.put(func() { m.synced = true })
}

func (m *mailbox) put(f func()) {
	m.mu.Lock()
	f()
	m.mu.Unlock()
	if m.asked != nil {
		m.asked()
	}
	m.poke()
}

// poke wakes the loop.
func (m *mailbox) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// take gives what came in, once everything has been delivered once, and the node's
// addresses; before that it
// gives false. The changes go on waiting until done.
func (m *mailbox) take() (letters, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.synced || !m.hosted {
		return letters{}, false
	}
	l := m.letters
	m.letters = newLetters()
	if m.later != nil {
		if rest := m.later(&l); len(rest) > 0 {
			m.letters.changes, m.letters.since = rest, l.since
			m.poke()
		}
	}
	m.inHand = l.since
	m.hand = l.changes
	return l, true
}

// done says that what was taken is in the kernel, or known to have failed: then health
// knows since when.
func (m *mailbox) done() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inHand = time.Time{}
}

// waiting says since when a change has been waiting, the zero time if none is.
func (m *mailbox) waiting() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.inHand.IsZero() {
		return m.inHand
	}
	return m.letters.since
}

// written says whether what was taken, by now, is in the kernel.
func (m *mailbox) written(all bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if all {
		m.hand, m.failed = nil, nil
		return
	}
	if m.failed == nil && len(m.hand) > 0 {
		m.failed = map[model.Key]bool{}
	}
	for key := range m.hand {
		m.failed[key] = true
	}
	m.hand = nil
}

// unwritten counts the objects whose last change is not in the kernel.
func (m *mailbox) unwritten() (slices, services int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := maps.Clone(m.failed)
	if all == nil {
		all = map[model.Key]bool{}
	}
	for _, changes := range []map[model.Key]model.Change{m.hand, m.letters.changes} {
		for key := range changes {
			all[key] = true
		}
	}
	for key := range all {
		switch key.Kind {
		case model.KindEndpointSlice:
			slices++
		case model.KindService:
			services++
		}
	}
	return slices, services
}

// pinsRead takes in that pins were read.
func (m *mailbox) pinsRead(r pinsRead) {
	m.mu.Lock()
	m.pins = append(m.pins, r)
	m.mu.Unlock()
	m.poke()
}

func (m *mailbox) takePins() []pinsRead {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := m.pins
	m.pins = nil
	return list
}
