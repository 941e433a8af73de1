package config

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// unbracket takes the brackets off an IPv6 address without a port.
func unbracket(text string) string {
	inner, ok := strings.CutPrefix(text, "[")
	if !ok || !strings.HasSuffix(inner, "]") || !strings.Contains(inner, ":") {
		return text
	}
	return strings.TrimSuffix(inner, "]")
}

// withPort gives a lone address a port, which may be one that no address can have: it
// is refused later. It leaves everything else as it is.
func withPort(text string, port int32) string {
	bare := unbracket(text)
	if _, err := parseAddr(bare); err != nil {
		return text
	}
	return net.JoinHostPort(bare, strconv.Itoa(int(port)))
}

// parseServer takes an address with a port or, the default one then, without.
func parseServer(text string, port int32) (netip.AddrPort, error) {
	wrong := fmt.Errorf("%q is not an address, with or without a port, like 0.0.0.0:%d", text, port)
	host, digits, err := net.SplitHostPort(withPort(text, port))
	if err != nil {
		return netip.AddrPort{}, wrong
	}
	if strings.HasPrefix(text, "[") && !strings.Contains(host, ":") {
		return netip.AddrPort{}, wrong // an IPv4 address in brackets
	}
	a, err := parseAddr(host)
	n, badPort := strconv.ParseUint(digits, 10, 16)
	if err != nil || badPort != nil || n == 0 {
		return netip.AddrPort{}, wrong
	}
	return netip.AddrPortFrom(a, uint16(n)), nil
}
