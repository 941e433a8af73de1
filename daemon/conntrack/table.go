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
// thread: it deletes the entries that are stale. The kernel is asked for what is looked for
// only.
func sweep(ctx context.Context, family nft.Family, l look, stale func(flows.Flow) (bool, error)) (p Pass, err error) {
	number := uint8(unix.NFPROTO_IPV4)
	if family == nft.IPv6 {
		number = unix.NFPROTO_IPV6
	}
	for _, which := range l.listings() {
		done, err := flows.Sweep(number, which, func(f flows.Flow) (bool, error) {
			gone, err := stale(f)
			return gone, errors.Join(err, ctx.Err())
		})
		p.Untranslated, p.Stale = p.Untranslated+done.Untranslated, p.Stale+done.Translated
		p.Read, p.Listings = p.Read+done.Read, p.Listings+done.Listings
		if err != nil {
			return p, fmt.Errorf("delete stale conntrack entries of family %s: %w", family, err)
		}
	}
	return p, nil
}

// frontendOf gives what a flow was sent to, always with an address.
func frontendOf(f flows.Flow) nft.Frontend {
	return nft.Frontend{Addr: f.To.Addr(), Protocol: f.Protocol, Port: f.To.Port()}
}
