package source

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink"
)

// Pauses of HostAddrs: changes that come together are read together, and what failed is
// tried again.
const (
	gatherAddrs   = 20 * time.Millisecond
	reopenAddrsIn = time.Second
)

// HostAddrs is the source of the addresses that this network namespace has.
type HostAddrs struct{ Log logr.Logger }

// Run gives all addresses but loopback ones, sorted and distinct: once at the start and
// whenever they change, until ctx ends. Tentative, deprecated and link-local ones are
// among them. It must be called in the namespace.
func (h HostAddrs) Run(ctx context.Context, changed func([]netip.Addr)) error {
	var last []netip.Addr
	given := false
	for ctx.Err() == nil {
		pause := gatherAddrs
		err := h.listen(ctx, func() error {
			now, err := hostAddrs()
			if err != nil || given && slices.Equal(now, last) {
				return err
			}
			given, last = true, now
			changed(slices.Clone(now))
			return nil
		})
		switch {
		case err == nil: // ctx ended
			return nil
		case errors.Is(err, errLost):
			// They are all read again: nothing is missed, so nobody has to know.
			h.Log.V(1).Info("messages about changed addresses were lost, reading them all", "reason", err.Error())
		default:
			h.Log.Error(err, "cannot follow the addresses of the node, trying again", "after", reopenAddrsIn)
			pause = reopenAddrsIn
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// A lost error says that the kernel dropped messages, as it does when changes come
// faster than they are read.
type lost string

const errLost lost = "messages are lost"

func (l lost) Error() string { return string(l) }

// listen calls read at the beginning and soon after each change. It returns nil when ctx
// ends, and errLost when changes may have been missed.
func (h HostAddrs) listen(ctx context.Context, read func() error) error {
	done := make(chan struct{})
	updates := make(chan netlink.AddrUpdate)
	broken := make(chan error, 1)
	err := netlink.AddrSubscribeWithOptions(updates, done, netlink.AddrSubscribeOptions{ErrorCallback: func(err error) {
		select {
		case broken <- err:
		default:
		}
	}})
	if err != nil {
		return fmt.Errorf("listen for changes of addresses: %w", err)
	}
	defer func() {
		close(done)
		for range updates { // who sends them may be about to, and ends then
		}
	}()
	pending := (<-chan netlink.AddrUpdate)(updates)
	for due := time.After(0); ; {
		select {
		case <-ctx.Done():
			return nil
		case _, open := <-pending:
			if !open {
				pending = nil // broken says why
			} else if due == nil {
				due = time.After(gatherAddrs)
			}
		case err := <-broken:
			return fmt.Errorf("%w: %w", errLost, err)
		case <-due:
			due = nil
			if err := read(); err != nil {
				return err
			}
		}
	}
}

// hostAddrs reads the addresses.
func hostAddrs() ([]netip.Addr, error) {
	var list []netlink.Addr
	var err error
	for range 5 {
		list, err = netlink.AddrList(nil, netlink.FAMILY_ALL) //nolint:forbidigo // all of them are what is wanted
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	// What interrupts a dump for the fifth time is a change that is told, and read, next.
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("read the addresses of the node: %w", err)
	}
	addrs := make([]netip.Addr, 0, len(list))
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok && !addr.Unmap().IsLoopback() {
			addrs = append(addrs, addr.Unmap())
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), nil
}
