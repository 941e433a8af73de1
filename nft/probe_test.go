package nft

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestVersionsBelowTheMinimumAreNamed(t *testing.T) {
	kernel, nft := minima()
	for _, c := range []struct {
		what, version string
		least         [3]int
		want          string
	}{
		{"kernel", "5.12.19-amd64", kernel, "kernel 5.12.19-amd64 is too old: 5.13.0 or later is needed"},
		{"kernel", "4.19.0", kernel, "kernel 4.19.0 is too old: 5.13.0 or later is needed"},
		{"kernel", "5.13.0-rc1", kernel, ""},
		{"kernel", "6.1.0-57-cloud-amd64", kernel, ""},
		{"kernel", "6.18", kernel, ""},
		{"nft", "v1.0.2 (Lester Gooch)", nft, "nft v1.0.2 (Lester Gooch) is too old: 1.0.6 or later is needed"},
		{"nft", "v0.9.8 (E.D.S.)", nft, "nft v0.9.8 (E.D.S.) is too old: 1.0.6 or later is needed"},
		{"nft", "v1.0.6 (Lester Gooch #5)", nft, ""},
		{"nft", "v1.1.3 (Commodore Bullmoose #4)", nft, ""},
		{"nft", "2.0", nft, ""},
		{"nft", "what?", nft, `cannot read the version of nft from "what?"`},
	} {
		got := ""
		if err := atLeast(c.what, c.version, c.least); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s %q: got %q, want %q", c.what, c.version, got, c.want)
		}
	}
}

// What the kernel sends is taken apart without a panic, whatever it is.
func FuzzMessages(f *testing.F) {
	f.Add([]byte{20, 0, 0, 0, 3, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte(strings.Repeat("\x08\x00\x01\x80\x04\x00\x01\x00", 8)))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = parseFlow(b)
		_ = eachElement(b, func(e rawElement) error {
			s := NewState()
			for _, set := range []string{"service-ips", "endpoints-tcp", "hairpins", "lb-udp-2", Endpoints.EmptySet()} {
				_ = s.take(IPv4, set, e)
				_ = s.take(IPv6, set, e)
			}
			return nil
		})
	})
}

// Kernels before 5.17 list translated flows too: they must be told apart here.
func TestFlowsAreToldApartByTheirStatus(t *testing.T) {
	attr := func(kind uint16, value ...byte) []byte {
		b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
		b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
		return b
	}
	tuple := attr(ctaTupleOrig, slices.Concat(
		attr(ctaTupleIP, attr(ctaIPv4Dst, 10, 96, 0, 1)...),
		attr(ctaTupleProto, slices.Concat(attr(ctaProtoNum, 17), attr(ctaProtoDst, 0, 53))...))...)
	for status, want := range map[byte]bool{0: false, 8: false, statusDstNAT: true, statusDstNAT | 8: true} {
		f, err := parseFlow(slices.Concat(tuple, attr(ctaStatus, 0, 0, 0, status), attr(ctaID, 1, 2, 3, 4)))
		if err != nil || f.Translated != want {
			t.Errorf("status %#x: translated %v (%v), want %v", status, f.Translated, err, want)
		}
		if to := (Frontend{netip.MustParseAddr("10.96.0.1"), 17, 53}); f.To != to || string(f.id) != "\x01\x02\x03\x04" {
			t.Errorf("got a flow to %v with ID %v, want %v", f.To, f.id, to)
		}
	}
}
