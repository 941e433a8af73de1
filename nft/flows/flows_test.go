package flows

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"onerule/nft/dump"
)

// encode gives a tuple as attributes.
func encode(src, dst netip.AddrPort, number uint8) []byte {
	from, to := uint16(sourceIPv4), uint16(destIPv4)
	if dst.Addr().Is6() {
		from, to = sourceIPv6, destIPv6
	}
	be := func(port uint16) []byte { return binary.BigEndian.AppendUint16(nil, port) }
	return slices.Concat(
		dump.Nest(tupleIP, slices.Concat(dump.Attr(from, src.Addr().AsSlice()), dump.Attr(to, dst.Addr().AsSlice()))),
		dump.Nest(tupleProtocol, slices.Concat(dump.Attr(protocol, []byte{number}), dump.Attr(sourcePort, be(src.Port())), dump.Attr(destPort, be(dst.Port())))))
}

// Kernels before 5.17 list translated flows too: they must be told apart here.
func TestFlowsAreToldApartByTheirStatus(t *testing.T) {
	for _, c := range []struct{ client, to, answers string }{
		{"198.51.100.1:40000", "10.96.0.1:53", "10.0.0.1:8080"},
		{"[2001:db8::1]:40000", "[fd00::1]:53", "[fd01::1]:8080"},
	} {
		client, to, answers := netip.MustParseAddrPort(c.client), netip.MustParseAddrPort(c.to), netip.MustParseAddrPort(c.answers)
		for status, want := range map[byte]bool{0: false, 8: false, statusDstNAT: true, statusDstNAT | 8: true} {
			f, err := parseFlow(dump.Request(unix.NFPROTO_IPV4,
				dump.Nest(tupleOriginal, encode(client, to, unix.IPPROTO_UDP)), dump.Nest(tupleReply, encode(answers, client, unix.IPPROTO_UDP)),
				dump.Attr(ctStatus|unix.NLA_F_NET_BYTEORDER, []byte{0, 0, 0, status}), dump.Attr(ctID, []byte{1, 2, 3, 4}), dump.Attr(ctZone, []byte{0, 7})))
			if err != nil || f.Translated != want {
				t.Errorf("status %#x: translated %v (%v), want %v", status, f.Translated, err, want)
			}
			if f.To != to || f.Protocol != unix.IPPROTO_UDP || string(f.ID) != "\x01\x02\x03\x04" || string(f.Zone) != "\x00\x07" {
				t.Errorf("got a flow of protocol %d to %v with ID %v in zone %v, want %v", f.Protocol, f.To, f.ID, f.Zone, to)
			}
			if from, err := f.Answer(); from != answers || err != nil {
				t.Errorf("answered by %v (%v), want %v", from, err, answers)
			}
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
			err := complete(func() (bool, error) {
				n++
				return c.results[n-1].whole, c.results[n-1].err
			})
			if n != c.listings || !errors.Is(err, c.want) {
				t.Errorf("%d listings, error %v; want %d, %v", n, err, c.listings, c.want)
			}
		})
	}
}

// Kernels before 6.4 let no entry go that a flowtable has. All others go all the same.
func TestAnEntryThatIsBusyKeepsNoOther(t *testing.T) {
	entries := []Flow{{Protocol: 1}, {Protocol: 2, Translated: true}, {Protocol: 3}, {Protocol: 4, Translated: true}, {Protocol: 5}}
	for _, c := range []struct {
		name   string
		fails  map[uint8]error // by what tells the entries apart
		whole  []bool          // of each listing
		want   Swept
		failed error
	}{
		{"none", nil, []bool{true}, Swept{Listings: 1, Read: 5, Translated: 2, Untranslated: 2}, nil},
		{"one is busy", map[uint8]error{1: unix.EBUSY}, []bool{true}, Swept{Listings: 1, Read: 5, Translated: 2, Untranslated: 1, Busy: 1}, nil},
		{"busy in a listing that broke off, too", map[uint8]error{2: unix.EBUSY}, []bool{false, true}, Swept{Listings: 2, Read: 7, Translated: 1, Untranslated: 2, Busy: 1}, nil},
		{"one has ended by itself", map[uint8]error{4: unix.ENOENT}, []bool{true}, Swept{Listings: 1, Read: 5, Translated: 1, Untranslated: 2}, nil},
		{"refused", map[uint8]error{1: unix.EPERM}, []bool{true}, Swept{Listings: 1, Read: 1}, unix.EPERM},
	} {
		t.Run(c.name, func(t *testing.T) {
			left, listings := slices.Clone(entries), 0
			got, err := sweep(func(f Flow) (bool, error) { return f.Protocol != 5, nil },
				func(each func(Flow) error) (bool, error) {
					listings++
					for _, f := range slices.Clone(left) {
						if err := each(f); err != nil {
							return false, err
						}
					}
					return c.whole[listings-1], nil
				},
				func(f Flow) error {
					if err := c.fails[f.Protocol]; err != nil {
						return err
					}
					left = slices.DeleteFunc(left, func(l Flow) bool { return l.Protocol == f.Protocol })
					return nil
				})
			if got != c.want || !errors.Is(err, c.failed) {
				t.Errorf("got %+v, %v; want %+v, %v", got, err, c.want, c.failed)
			}
		})
	}
}

// What the kernel sends is taken apart without a panic, whatever it is.
func FuzzFlow(f *testing.F) {
	client, answers := netip.MustParseAddrPort("[2001:db8::1]:40000"), netip.MustParseAddrPort("10.0.0.1:8080")
	f.Add(dump.Request(10, dump.Attr(tupleOriginal, encode(client, client, unix.IPPROTO_TCP))))
	f.Add(dump.Request(2, dump.Attr(tupleReply, encode(answers, answers, unix.IPPROTO_UDP)), dump.Attr(ctStatus, []byte{0, 0, 0, 32})))
	f.Add([]byte("\x02\x00\x00\x00" + strings.Repeat("\x08\x00\x01\x80\x04\x00\x01\x00", 8)))
	f.Fuzz(func(_ *testing.T, b []byte) {
		if flow, err := parseFlow(b); err == nil {
			_, _ = flow.Answer()
		}
	})
}
