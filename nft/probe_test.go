package nft

import (
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
		d := &dump{seq: 1}
		_, _, _ = d.messages(b, func(body []byte) error {
			_, err := parseFlow(body)
			return err
		})
		_ = eachElement(b, func(e rawElement) error {
			s := NewState()
			for _, set := range []string{"service-ips", "endpoints-tcp", "hairpins", "lb-udp-2", NoEndpoints} {
				_ = s.take(IPv4, set, e)
				_ = s.take(IPv6, set, e)
			}
			return nil
		})
	})
}
