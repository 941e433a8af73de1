package health

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// A socket is where a check is answered. Without a valid address it is at all addresses
// of both families.
type socket struct {
	addr netip.Addr
	port uint16
}

// socketsOf gives the sockets for a port at addresses, distinct. Where both families
// are wanted at all addresses one socket has both: a second one for the same port would
// only be another thing to fail.
func socketsOf(addrs []netip.Addr, port uint16) []socket {
	all := map[bool]bool{} // by whether the family is IPv4
	for _, a := range addrs {
		if a.IsUnspecified() {
			all[a.Is4()] = true
		}
	}
	if all[true] && all[false] {
		return []socket{{port: port}}
	}
	var list []socket
	for _, a := range addrs {
		// A link-local address means nothing without its link.
		if a.IsUnspecified() || !all[a.Is4()] && (!a.IsLinkLocalUnicast() || a.Is4() || a.Zone() != "") {
			list = append(list, socket{a, port})
		}
	}
	return list
}

// listen opens the socket.
func (s socket) listen(ctx context.Context) (net.Listener, error) {
	var config net.ListenConfig
	network, address := "tcp", fmt.Sprintf(":%d", s.port)
	if s.addr.IsValid() {
		address = netip.AddrPortFrom(s.addr, s.port).String()
		network = "tcp6"
		if s.addr.Is4() {
			network = "tcp4"
		}
		config.Control = bindAhead
	}
	return config.Listen(ctx, network, address)
}

// bindAhead allows to bind an address that the node is about to have: one of IPv6 can't
// be bound while it is checked for duplicates.
func bindAhead(network, _ string, c syscall.RawConn) error {
	level, option := unix.SOL_IP, unix.IP_FREEBIND
	if network == "tcp6" {
		level, option = unix.SOL_IPV6, unix.IPV6_FREEBIND
	}
	var failed error
	if err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), level, option, 1) }); err != nil {
		return err
	}
	return failed
}

// quiet is for what servers say of clients that break off, which says nothing of us.
func quiet() *log.Logger { return log.New(io.Discard, "", 0) }
