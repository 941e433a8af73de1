package main

import (
	"bytes"
	"fmt"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"onerule/test/netns"
)

// A monitor listens to what the kernel says of changes to a namespace's nftables,
// which it says when a transaction is in force. So any proxy is timed in the same
// way, without asking it.
type monitor struct {
	conn *netlink.Conn
	ends sync.WaitGroup

	mu   sync.Mutex
	want []byte
	seen chan time.Duration
}

func openMonitor(ns *netns.NS) (*monitor, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.Fd()})
	if err != nil {
		return nil, fmt.Errorf("open netlink socket in %s: %w", ns.Name(), err)
	}
	if err = conn.SetReadBuffer(64 << 20); err == nil {
		err = conn.JoinGroup(unix.NFNLGRP_NFTABLES)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("listen to nftables of %s: %w", ns.Name(), err)
	}
	m := &monitor{conn: conn}
	m.ends.Go(m.listen) // ends with close
	return m, nil
}

func (m *monitor) close() {
	_ = m.conn.Close()
	m.ends.Wait()
}

func (m *monitor) listen() {
	for {
		messages, err := m.conn.Receive()
		if err != nil {
			return
		}
		at := monotonic()
		for _, msg := range messages {
			m.look(msg.Data, at)
		}
	}
}

func (m *monitor) look(data []byte, at time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.want != nil && bytes.Contains(data, m.want) {
		m.seen <- at
		m.want = nil
	}
}

// expect gives a channel that says when something that holds these bytes is in the
// kernel.
func (m *monitor) expect(want []byte) <-chan time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.want, m.seen = want, make(chan time.Duration, 1)
	return m.seen
}
