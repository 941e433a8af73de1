package hostport

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"onerule/nft/inspect"
)

// The table of Services and the maps of it that say which ports it takes. They are said
// here again since the package of that table needs nft; a test holds both together.
const (
	servicesTable    = "onerule"
	serviceIPs       = "service-ips"       // address . protocol . port
	serviceNodePorts = "service-nodeports" // protocol . port
)

// freeOfServices says whether a Service takes what comes for the port: its table is asked
// first, so the pod would wait in vain.
func freeOfServices(c Claim) error {
	r, err := inspect.Open()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	port := appendPort([]byte{byte(c.Protocol), 0, 0, 0}, c.HostPort)
	keys := map[string][]byte{serviceNodePorts: port}
	if c.HostIP.IsValid() {
		keys[serviceIPs] = append(appendAddr(nil, c.HostIP), port...)
	}
	services := inspect.Table{Family: byte(familyOf(c).number), Name: servicesTable}
	for set, key := range keys {
		_, taken, err := r.Element(services, set, key)
		if err != nil {
			return err
		}
		if taken {
			return &TakenError{Claim: c, By: "a Service"}
		}
	}
	return nil
}

// freeOfProcesses says whether a process listens there: nobody would reach it any more. It
// binds and lets go again, which asks nobody else. Only if that fails is it looked for who is
// in the way, and whether they really are.
func freeOfProcesses(c Claim) error {
	at := c.HostIP
	if !at.IsValid() {
		at = netip.IPv4Unspecified()
		if c.is6() {
			at = netip.IPv6Unspecified()
		}
	}
	if used, err := c.used(at); err != nil || !used {
		return err
	}
	s, holds, err := holder(c)
	if err != nil || !holds {
		return err
	}
	hasGone := !s.local.IsValid() && c.Protocol != SCTP // since the kernel was asked; SCTP is not looked for
	return &TakenError{Claim: c, By: s.process(), passing: hasGone || c.Protocol == TCP && s.local.IsLoopback()}
}

// holder gives the socket for which the port can't be bound, the zero value if it can't be
// found, and says whether it is in the way of the claim.
func holder(c Claim) (s socket, holds bool, err error) {
	all := socketsOf(c)
	for _, s := range all {
		if c.clashes(s.local) {
			return s, true, nil
		}
	}
	// Nobody uses the pod's address but who has all. One of IPv6 may have those of IPv4 too,
	// which no list shows.
	if used, err := c.used(c.Pod.Addr()); err != nil || used {
		return atAllOfIPv6(all), used, err
	}
	if c.HostIP.IsValid() || len(all) == 0 {
		return socket{}, true, nil
	}
	// All that are seen are in nobody's way. One of TCP that does not listen yet is not seen.
	if proxy, ok := c.Loopback(); ok {
		holds, err = c.used(proxy.Addr())
	}
	return socket{}, holds, err
}

func atAllOfIPv6(all []socket) socket {
	for _, s := range all {
		if s.local == netip.IPv6Unspecified() {
			return s
		}
	}
	return socket{}
}

// used says whether the kernel refuses to bind the port at an address since somebody has.
func (c Claim) used(at netip.Addr) (bool, error) {
	err := tryBind(c.Protocol, netip.AddrPortFrom(at, c.HostPort), at == c.Pod.Addr())
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return true, nil
	case errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.ESOCKTNOSUPPORT):
		return false, nil // no such address yet, or a node that does not speak it: nobody listens
	case err != nil:
		return false, fmt.Errorf("look whether %s is free: %w", c, err)
	}
	return false, nil
}

// patiently claims until nobody is in the way who may be a proxy of the pod before: it
// learns of that pod's end a moment later. The lock is free meanwhile.
func patiently(ctx context.Context, claim func() error) error {
	const patience, pause = 2 * time.Second, 100 * time.Millisecond
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; {
		err := claim()
		var taken *TakenError
		if !errors.As(err, &taken) || !taken.passing || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// tryBind binds a socket, also to an address that is not the node's if it is foreign.
func tryBind(p Protocol, at netip.AddrPort, foreign bool) error {
	kind := unix.SOCK_STREAM
	if p == UDP {
		kind = unix.SOCK_DGRAM
	}
	domain, sockaddr := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(at.Port()), Addr: as4(at.Addr())})
	if at.Addr().Is6() {
		domain, sockaddr = unix.AF_INET6, &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, int(p))
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	for _, o := range options(p, at.Addr().Is6(), foreign) {
		if err := unix.SetsockoptInt(fd, o.level, o.name, 1); err != nil {
			return fmt.Errorf("prepare socket: %w", err)
		}
	}
	if err := unix.Bind(fd, sockaddr); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	return nil
}

type option struct{ level, name int }

func options(p Protocol, is6, foreign bool) (list []option) {
	if p == TCP { // connections that are closing are in nobody's way
		list = append(list, option{unix.SOL_SOCKET, unix.SO_REUSEADDR})
	}
	if is6 { // what listens for IPv4 only takes nothing away
		list = append(list, option{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY})
	}
	switch {
	case foreign && is6:
		list = append(list, option{unix.IPPROTO_IPV6, unix.IPV6_FREEBIND})
	case foreign:
		list = append(list, option{unix.IPPROTO_IP, unix.IP_FREEBIND})
	}
	return list
}

func as4(a netip.Addr) (b [4]byte) {
	if a.Is4() {
		b = a.As4()
	}
	return b
}
