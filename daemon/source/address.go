package source

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// parseAddr reads an IP address as the API accepts it: also with leading zeros,
// which netip refuses and which objects stored by old API servers still have. They
// are decimal, never octal. An IPv4 address written as IPv6 is an IPv4 address.
func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		a, err = netip.ParseAddr(withoutLeadingZeros(s))
	}
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%s is not an IP address", quote(s))
	}
	if a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%s has a zone", quote(s))
	}
	return a.Unmap(), nil
}

// parsePrefix reads a CIDR as parseAddr reads an address, and drops the bits behind
// its length.
func parsePrefix(s string) (netip.Prefix, error) {
	bad := fmt.Errorf("%s is not a CIDR", quote(s))
	text, length, found := strings.Cut(s, "/")
	if !found {
		return netip.Prefix{}, bad
	}
	a, err := netip.ParseAddr(withoutLeadingZeros(text))
	if err != nil || a.Zone() != "" {
		return netip.Prefix{}, bad
	}
	bits, err := parseLength(length)
	if err != nil || bits > a.BitLen() {
		return netip.Prefix{}, bad
	}
	if a.Is4In6() {
		if bits < 96 {
			return netip.Prefix{}, fmt.Errorf("%s is neither an IPv4 nor an IPv6 range", quote(s))
		}
		a, bits = a.Unmap(), bits-96
	}
	return netip.PrefixFrom(a, bits).Masked(), nil
}

// parseLength reads digits only: strconv would take a sign.
func parseLength(s string) (int, error) {
	n := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' || n > 128 {
			return 0, errors.New("not a prefix length")
		}
		n = 10*n + int(s[i]-'0')
	}
	if s == "" {
		return 0, errors.New("no prefix length")
	}
	return n, nil
}

// withoutLeadingZeros drops the leading zeros of every number between dots and
// colons, and leaves everything else to the parser behind it.
func withoutLeadingZeros(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for start := true; s != ""; s = s[1:] {
		separator := s[0] == '.' || s[0] == ':'
		if start && s[0] == '0' && len(s) > 1 && isHex(s[1]) {
			continue
		}
		start = separator
		b.WriteByte(s[0])
	}
	return b.String()
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// quote shows text from outside in a message: printable and of bounded length.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		return fmt.Sprintf("%.*q...", most, s)
	}
	return fmt.Sprintf("%q", s)
}
