package conntrack

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"onerule/nft"
)

// Kernels before 5.17 list translated flows too: they must be told apart here.
func TestFlowsAreToldApartByTheirStatus(t *testing.T) {
	client, dst := netip.MustParseAddrPort("198.51.100.1:40000"), netip.AddrPortFrom(vip, 53)
	for status, want := range map[byte]bool{0: false, 8: false, statusDstNAT: true, statusDstNAT | 8: true} {
		f, err := parseFlow(slices.Concat(
			attr(ctaTupleOrig|unix.NLA_F_NESTED, encode(client, dst, udp)...),
			attr(ctaTupleReply|unix.NLA_F_NESTED, encode(endpointA, client, udp)...),
			attr(ctaStatus|unix.NLA_F_NET_BYTEORDER, 0, 0, 0, status), attr(ctaID, 1, 2, 3, 4), attr(ctaZone, 0, 7)))
		if err != nil || f.translated != want {
			t.Errorf("status %#x: translated %v (%v), want %v", status, f.translated, err, want)
		}
		if to := (nft.Frontend{Addr: vip, Protocol: udp, Port: 53}); f.to != to || string(f.id) != "\x01\x02\x03\x04" || string(f.zone) != "\x00\x07" {
			t.Errorf("got a flow to %v with ID %v in zone %v, want %v", f.to, f.id, f.zone, to)
		}
		if endpoint, err := f.endpoint(); endpoint != endpointA || err != nil {
			t.Errorf("answered by %v (%v), want %v", endpoint, err, endpointA)
		}
	}
}

// A listing that broke off is begun again, a few times.
func TestA12_6AListingThatBreaksOffIsBegunAgain(t *testing.T) {
	type result struct {
		whole bool
		err   error
	}
	broken := result{false, nil}
	interrupted := result{true, unix.EINTR}
	whole := result{true, nil}
	refused := result{true, unix.EPERM}
	for _, c := range []struct {
		name     string
		results  []result
		listings int
		want     error
	}{
		{"whole", []result{whole}, 1, nil},
		{"changed meanwhile", []result{broken, broken, whole}, 3, nil},
		{"interrupted", []result{interrupted, whole}, 2, nil},
		{"never whole", slices.Repeat([]result{broken}, 9), maxListings, unix.EINTR},
		{"interrupted each time", slices.Repeat([]result{interrupted}, 9), maxListings, unix.EINTR},
		{"refused", []result{broken, refused, whole}, 2, unix.EPERM},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := 0
			err := complete(t.Context(), func() (bool, error) {
				n++
				return c.results[n-1].whole, c.results[n-1].err
			})
			if n != c.listings || !errors.Is(err, c.want) {
				t.Errorf("%d listings, error %v; want %d, %v", n, err, c.listings, c.want)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	err := complete(ctx, func() (bool, error) { n++; cancel(); return false, nil })
	if n != 1 || !errors.Is(err, context.Canceled) {
		t.Errorf("at the end of the daemon: %d listings, error %v", n, err)
	}
}

// What the kernel sends is taken apart without a panic, whatever it is.
func FuzzFlow(f *testing.F) {
	client := netip.MustParseAddrPort("[2001:db8::1]:40000")
	f.Add(attr(ctaTupleOrig, encode(client, client, tcp)...))
	f.Add(slices.Concat(attr(ctaTupleReply, encode(endpointA, endpointB, udp)...), attr(ctaStatus, 0, 0, 0, 32)))
	f.Add([]byte(strings.Repeat("\x08\x00\x01\x80\x04\x00\x01\x00", 8)))
	f.Fuzz(func(_ *testing.T, b []byte) {
		if entry, err := parseFlow(b); err == nil {
			_, _ = entry.endpoint()
		}
	})
}
