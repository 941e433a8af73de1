// Package rtnl holds what the kernel tells about links, addresses, routes, neighbours and
// their settings until somebody looks at it.
package rtnl

import (
	"errors"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Journal holds what the kernel told and nobody has looked at. Beyond its room it
// only knows that something was lost.
type Journal struct {
	socket *nl.NetlinkSocket
	wake   chan struct{} // holds one

	mu     sync.Mutex
	events []Message
	lost   bool
	err    error
}

// A Message is what the kernel told: its type, and what follows the netlink header.
type Message struct {
	Kind uint16
	Data []byte
}

const room = 4096

// Listen opens a socket, in the network namespace of the calling thread, for what is told
// to some multicast groups. What comes is put into the journal until it is closed.
func Listen(groups ...uint) (*Journal, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, groups...)
	if err != nil {
		return nil, fmt.Errorf("listen for changes of routes and links: %w", err)
	}
	// Not all of them need to fit: what is lost is read. This is only cheaper.
	_ = s.SetReceiveBufferSize(1<<20, true)
	j := &Journal{socket: s, wake: make(chan struct{}, 1)}
	go j.receive() // ends when the socket is closed
	return j, nil
}

// Close ends the journal.
func (j *Journal) Close() { j.socket.Close() }

// Wake gives what is sent to when there is something to take.
func (j *Journal) Wake() <-chan struct{} { return j.wake }

// Take gives what came since the last time, and whether some of it is missing. After an
// error nothing will come any more.
func (j *Journal) Take() (events []Message, lost bool, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	events, lost, err = j.events, j.lost, j.err
	j.events, j.lost = nil, false
	return events, lost, err
}

func (j *Journal) receive() {
	for {
		msgs, from, err := j.socket.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS):
			j.change(func() { j.lost = true })
			continue
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			j.change(func() { j.err = fmt.Errorf("receive changes of routes and links: %w", err) })
			return
		case from.Pid != 0:
			continue // not from the kernel
		}
		for _, m := range msgs {
			j.put(Message{m.Header.Type, m.Data})
		}
	}
}

func (j *Journal) put(m Message) {
	j.change(func() {
		if len(j.events) < room {
			j.events = append(j.events, m)
		} else {
			j.lost = true
		}
	})
}

func (j *Journal) change(f func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f()
	select {
	case j.wake <- struct{}{}:
	default:
	}
}
