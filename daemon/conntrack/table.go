package conntrack

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"onerule/nft"
	"onerule/nft/flows"
)

// sweep makes a pass over the table of a family in the network namespace of the calling
// thread: it deletes the entries that are stale. The kernel is asked for those only that are
// looked for.
func sweep(ctx context.Context, family nft.Family, which flows.Which, stale func(flows.Flow) (bool, error)) (Pass, error) {
	number := uint8(unix.NFPROTO_IPV4)
	if family == nft.IPv6 {
		number = unix.NFPROTO_IPV6
	}
	done, err := flows.Sweep(number, which, func(f flows.Flow) (bool, error) {
		gone, err := stale(f)
		return gone, errors.Join(err, ctx.Err())
	})
	if err != nil {
		err = fmt.Errorf("delete stale conntrack entries of family %s: %w", family, err)
	}
	return Pass{Untranslated: done.Untranslated, Stale: done.Translated, Busy: done.Busy, Read: done.Read, Listings: done.Listings}, err
}

// frontendOf gives what a flow was sent to, always with an address.
func frontendOf(f flows.Flow) nft.Frontend {
	return nft.Frontend{Addr: f.To.Addr(), Protocol: f.Protocol, Port: f.To.Port()}
}
