package source

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink"
)

// Pauses of HostAddrs: changes that come together are read together, and a listener
// that broke off is opened again.
const (
	gatherAddrs   = 20 * time.Millisecond
	reopenAddrsIn = time.Second
)

// HostAddrs is the source of the addresses that this network namespace has.
type HostAddrs struct{ Log logr.Logger }

// Run gives all addresses but loopback ones, sorted and distinct: once at the start and
// whenever they change, until ctx ends.
func (h HostAddrs) Run(ctx context.Context, changed func([]netip.Addr)) error {
	var last []netip.Addr
	first := true
	for ctx.Err() == nil {
		err := h.listen(ctx, func() error {
			now, err := hostAddrs()
			if err != nil || !first && slices.Equal(now, last) {
				return err
			}
			first, last = false, now
			changed(now)
			return nil
		})
		if err == nil {
			continue
		}
		h.Log.Error(err, "cannot follow the addresses of the node, trying again", "after", reopenAddrsIn)
		select {
		case <-ctx.Done():
		case <-time.After(reopenAddrsIn):
		}
	}
	return nil
}

// listen calls read at the beginning, and behind each burst of changes, until ctx ends or
// the kernel drops messages.
func (h HostAddrs) listen(ctx context.Context, read func() error) error {
	done := make(chan struct{})
	defer close(done)
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
	for due := time.After(0); ; {
		select {
		case <-ctx.Done():
			return nil
		case _, open := <-updates:
			if !open {
				return nil // what was lost is read when it is opened again
			}
			due = time.After(gatherAddrs)
		case <-broken:
			return nil
		case <-due:
			if err := read(); err != nil {
				return err
			}
		}
	}
}

func hostAddrs() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("read the addresses of the node: %w", err)
	}
	var addrs []netip.Addr
	for _, a := range list {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil {
			return nil, fmt.Errorf("read the addresses of the node: %w", err)
		}
		if addr := prefix.Addr().Unmap(); !addr.IsLoopback() {
			addrs = append(addrs, addr)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), nil
}
