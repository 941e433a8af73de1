package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"onerule/nft/dump"
)

const (
	// eventBuffer holds the events of a full load whole, should nobody read meanwhile:
	// 100,000 elements are 13 to 19 MB of them, 300,000 are below what the kernel makes
	// of this figure, which is twice as much.
	eventBuffer = 64 << 20
	// datagram is more than the kernel puts into one datagram of events.
	datagram = 64 << 10
)

// A Monitor tells what others do to our tables, in both families, from what the kernel
// tells of each commit in this network namespace. Commits of ours are known by the port
// ID of the socket that they came through, see Own; those of an nft that we run by when
// they were made, see Expect.
type Monitor struct {
	events    *netlink.Conn
	asks      *netlink.Conn
	suspect   chan struct{}
	elsewhere chan struct{}

	buffer int    // for events
	opened uint32 // the generation when it was

	mu        sync.Mutex
	listening bool
	journal   journal
}

// OpenMonitor prepares to watch the commits in the caller's network namespace: those to the
// table of Services, and to more tables of ours. Nothing is seen before Listen is called.
func OpenMonitor(more ...string) (*Monitor, error) { return openMonitor(eventBuffer, more) }

func openMonitor(buffer int, more []string) (*Monitor, error) {
	m := &Monitor{
		suspect: make(chan struct{}, 1), elsewhere: make(chan struct{}, 1),
		journal: newJournal(0, more...), buffer: buffer,
	}
	var err error
	if m.events, err = openEvents(buffer); err != nil {
		return nil, err
	}
	if m.asks, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
		_ = m.events.Close()
		return nil, fmt.Errorf("open netlink socket for generations of nftables: %w", err)
	}
	if m.opened, err = m.generation(); err != nil {
		_ = m.Close()
		return nil, err
	}
	return m, nil
}

func openEvents(buffer int) (*netlink.Conn, error) {
	events, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket for events of nftables: %w", err)
	}
	// It tries the FORCE variant first, which CAP_NET_ADMIN allows.
	if err := events.SetReadBuffer(buffer); err != nil {
		_ = events.Close()
		return nil, fmt.Errorf("set receive buffer for events of nftables: %w", err)
	}
	return events, nil
}

// Listen sees every commit from now on. alone says that there was none since the monitor
// was opened but ours, which were so many: otherwise others may have changed anything.
//
// Until somebody listens the kernel spares itself to spell out every element: a load of
// 10,000 Services takes a third less time (6.18).
func (m *Monitor) Listen(ours int) (alone bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.listening {
		return true, nil
	}
	if err := join(m.events); err != nil {
		return false, err
	}
	// What is in the buffer by now was before our time.
	gen, err := m.generation()
	if err != nil {
		return false, err
	}
	m.listening, m.journal.gen = true, gen
	return gen-m.opened == uint32(ours), nil
}

func join(events *netlink.Conn) error {
	if err := events.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return fmt.Errorf("join group of events of nftables: %w", err)
	}
	return nil
}

// Reopen has Run, which has failed, go on with another socket of the caller's network
// namespace. What was done meanwhile is told as lost.
func (m *Monitor) Reopen() error {
	events, err := openEvents(m.buffer)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.listening {
		if err := join(events); err != nil {
			_ = events.Close()
			return err
		}
		m.journal.drained()
		m.tell()
	}
	_ = m.events.Close() // that it fails, too, is no news
	m.events = events
	return nil
}

// Close lets the sockets go, once Run has ended.
func (m *Monitor) Close() error { return errors.Join(m.events.Close(), m.asks.Close()) }

// Suspect gives a value when Take has something to tell.
func (m *Monitor) Suspect() <-chan struct{} { return m.suspect }

// Elsewhere gives a value when others may have changed chains or rules of tables that are
// not ours.
func (m *Monitor) Elsewhere() <-chan struct{} { return m.elsewhere }

// Take gives what others did since the last call, one entry for each table, family and kind,
// in order.
func (m *Monitor) Take() []Foreign {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.journal.take()
}

// Own says that what is committed through the socket with this port ID is ours, until
// the returned function is called: when the socket is closed, another process may get
// its number.
func (m *Monitor) Own(port uint32) (closed func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.journal.own(port)
	return func() { m.atGeneration(func(gen uint32) { m.journal.disown(port, gen) }) }
}

// Expect says that nft is about to be run by us for the table of Services, and the
// returned function, which must be called, that it has ended and whether it has committed
// something. If the table saw more commits meanwhile than this one, all are told as those
// of others.
func (m *Monitor) Expect(family Family) (ended func(committed bool)) {
	return m.expect(target{family: family})
}

// A TableMonitor is the monitor as one of its further tables sees it.
type TableMonitor struct {
	*Monitor
	table uint8
}

// Of gives the monitor for a table that it was opened with.
func (m *Monitor) Of(table string) TableMonitor {
	return TableMonitor{m, uint8(max(0, slices.Index(m.journal.tables, table)))}
}

// Expect is Monitor.Expect for this table.
func (t TableMonitor) Expect(family Family) (ended func(committed bool)) {
	return t.expect(target{t.table, family})
}

func (m *Monitor) expect(at target) (ended func(committed bool)) {
	m.mu.Lock()
	listening := m.listening
	m.mu.Unlock()
	if !listening {
		return func(bool) {}
	}
	var w *window
	m.atGeneration(func(gen uint32) { w = m.journal.open(at, gen) })
	return func(committed bool) {
		m.atGeneration(func(gen uint32) { m.journal.close(w, gen, committed) })
	}
}

// atGeneration calls f with the generation of the tables. If the kernel does not say it,
// all that was made so far may have been made by others.
func (m *Monitor) atGeneration(f func(gen uint32)) {
	gen, err := m.generation()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.journal.lose()
		gen = m.journal.gen
	}
	f(gen)
	m.tell()
}

// tell wakes those who wait for Suspect and Elsewhere.
func (m *Monitor) tell() {
	if len(m.journal.found) > 0 {
		poke(m.suspect)
	}
	if m.journal.elsewhere {
		m.journal.elsewhere = false
		poke(m.elsewhere)
	}
}

func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // not yet seen the last one
	}
}

// generation asks for the number of the last commit to any table.
func (m *Monitor) generation() (uint32, error) {
	answers, err := m.asks.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return 0, fmt.Errorf("ask for the generation of nftables: %w", err)
	}
	for _, a := range answers {
		if len(a.Data) < dump.HeaderSize {
			continue
		}
		if g, ok := parseGeneration(a.Data[dump.HeaderSize:]); ok {
			return g.id, nil
		}
	}
	return 0, errors.New("ask for the generation of nftables: the kernel did not say")
}

// Run reads events until ctx is done. If it fails, nothing is seen until Reopen and another
// Run.
func (m *Monitor) Run(ctx context.Context) error {
	raw, err := m.events.SyscallConn()
	if err != nil {
		return fmt.Errorf("read events of nftables: %w", err)
	}
	wake := func() { _ = m.events.SetReadDeadline(time.Unix(1, 0)) } // fails on a closed socket only
	defer context.AfterFunc(ctx, wake)()
	r := eventReader{raw: raw, buf: make([]byte, datagram)}
	for {
		b, err := r.next()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, errDrained) {
			return fmt.Errorf("read events of nftables: %w", err)
		}
		m.mu.Lock()
		switch {
		case errors.Is(err, errDrained):
			m.journal.drained()
		case err != nil:
			m.journal.lose()
		default:
			m.journal.read(b)
		}
		m.tell()
		m.mu.Unlock()
	}
}
