package source

import (
	"net/netip"
	"testing"
)

func TestAddressesAreReadAndNormalised(t *testing.T) { // A1.18
	for _, c := range []struct{ in, want string }{
		{"10.0.0.1", "10.0.0.1"},
		{"172.30.0.041", "172.30.0.41"},
		{"010.000.0000.00000009", "10.0.0.9"},
		{"0.0.0.0", "0.0.0.0"},
		{"000.00.0.0", "0.0.0.0"},
		{"fd00::1", "fd00::1"},
		{"FD00:0000::0a", "fd00::a"},
		{"00fd0::00001", "fd0::1"},
		{"::", "::"},
		{"::ffff:10.0.0.1", "10.0.0.1"},
		{"::ffff:010.0.0.01", "10.0.0.1"},
		{"::ffff:a00:1", "10.0.0.1"},
	} {
		t.Run(c.in, func(t *testing.T) {
			got, err := parseAddr(c.in)
			if err != nil || got != netip.MustParseAddr(c.want) {
				t.Errorf("got %v, %v, want %s", got, err, c.want)
			}
		})
	}
	for _, in := range []string{
		"", "10.0.0", "10.0.0.256", "10.0.0.0256", "10.0.0.1.1", "10.0.0.1/32", " 10.0.0.1", "10.0.0.1 ", "0x0a.0.0.1",
		"-1.0.0.1", "10..0.1", "fe80::1%eth0", "fd00:::1", "12345::", "g::", "None", "example.org", "[::1]", "10,0,0,1",
		"١٠.0.0.1", "10.0.0.1\n", "0", "00",
	} {
		t.Run("refused "+in, func(t *testing.T) {
			if got, err := parseAddr(in); err == nil {
				t.Errorf("got %v, want an error", got)
			}
		})
	}
}

func TestCIDRsAreReadAndNormalised(t *testing.T) { // A1.18
	for _, c := range []struct{ in, want string }{
		{"10.0.0.0/8", "10.0.0.0/8"},
		{"10.1.2.3/8", "10.0.0.0/8"},
		{"203.0.113.000/025", "203.0.113.0/25"},
		{"0.0.0.0/0", "0.0.0.0/0"},
		{"10.0.0.1/00032", "10.0.0.1/32"},
		{"fd00:0::/064", "fd00::/64"},
		{"::/0", "::/0"},
		{"::ffff:10.0.0.0/104", "10.0.0.0/8"},
	} {
		t.Run(c.in, func(t *testing.T) {
			got, err := parsePrefix(c.in)
			if err != nil || got != netip.MustParsePrefix(c.want) {
				t.Errorf("got %v, %v, want %s", got, err, c.want)
			}
		})
	}
	for _, in := range []string{
		"", "/", "10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/+8", "10.0.0.0/-1", "10.0.0.0/8/8", "10.0.0.0/ 8",
		"fd00::/129", "fd00::/99999999999999999999", "fe80::%eth0/64", "::ffff:10.0.0.0/8", "10.0.0/8", "10.0.0.0/0x8",
	} {
		t.Run("refused "+in, func(t *testing.T) {
			if got, err := parsePrefix(in); err == nil {
				t.Errorf("got %v, want an error", got)
			}
		})
	}
}

// FuzzAddress holds the parser against the standard library's: what that accepts
// must give the same, and what we give must be written back as it was meant.
func FuzzAddress(f *testing.F) {
	for _, seed := range []string{
		"10.0.0.1", "172.30.0.041", "::ffff:010.0.0.1", "fd00::1", "fe80::1%eth0", "", "0", ".", ":", "00000", "1.2.3.4.5",
		"10.0.0.256", "203.0.113.000/025", "fd00::/064", "::ffff:10.0.0.0/104", "1/1", "/", "00:00::00/00",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseAddr(s)
		strict, strictErr := netip.ParseAddr(s)
		if strictErr == nil && strict.Zone() == "" && (err != nil || got != strict.Unmap()) {
			t.Errorf("%q: got %v, %v, want %v", s, got, err, strict.Unmap())
		}
		if err == nil {
			if again, err := parseAddr(got.String()); err != nil || again != got || got.Is4In6() || got.Zone() != "" {
				t.Errorf("%q: %v is read back as %v, %v", s, got, again, err)
			}
		}
		prefix, err := parsePrefix(s)
		if err == nil {
			if again, err := parsePrefix(prefix.String()); err != nil || again != prefix || prefix != prefix.Masked() {
				t.Errorf("%q: %v is read back as %v, %v", s, prefix, again, err)
			}
		}
	})
}
