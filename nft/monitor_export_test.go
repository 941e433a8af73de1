package nft

import "fmt"

// EventBuffer is what a monitor has for events.
const EventBuffer = eventBuffer

// OpenMonitorWith opens a monitor with a receive buffer of another size.
func OpenMonitorWith(buffer int) (*Monitor, error) { return openMonitor(buffer, nil) }

// Behind says what keeps the monitor from having read all that the kernel has told.
func (m *Monitor) Behind() error {
	gen, err := m.generation()
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if later(gen, m.journal.gen) {
		return fmt.Errorf("the monitor has read up to generation %d of %d", m.journal.gen, gen)
	}
	return nil
}

// Remembers gives the number of windows and ports that the monitor still keeps.
func (m *Monitor) Remembers() (windows, ports int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.journal.windows), len(m.journal.ours)
}

// Break has the monitor's socket for events fail.
func (m *Monitor) Break() error { return m.events.Close() }

// Recovered says what keeps the monitor from telling everything again after a loss.
func (m *Monitor) Recovered() error {
	m.mu.Lock()
	gap := m.journal.gap
	m.mu.Unlock()
	if gap {
		return nil
	}
	return m.Behind()
}
