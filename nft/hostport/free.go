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
// binds and lets go again, which asks nobody else.
func freeOfProcesses(c Claim) error {
	at := c.HostIP
	if !at.IsValid() {
		at = netip.IPv4Unspecified()
		if c.is6() {
			at = netip.IPv6Unspecified()
		}
	}
	err := tryBind(c.Protocol, netip.AddrPortFrom(at, c.HostPort))
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		s := socketOf(c)
		hasGone := !s.local.IsValid() && c.Protocol != SCTP // since the kernel was asked; SCTP is not looked for
		return &TakenError{Claim: c, By: s.process(), passing: hasGone || c.Protocol == TCP && s.local.IsLoopback()}
	case errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.ESOCKTNOSUPPORT):
		return nil // no such address yet, or a node that does not speak it: nobody listens
	case err != nil:
		return fmt.Errorf("look whether %s is free: %w", c, err)
	}
	return nil
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

func tryBind(p Protocol, at netip.AddrPort) error {
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
	if p == TCP { // connections that are closing are in nobody's way
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return fmt.Errorf("prepare socket: %w", err)
		}
	}
	if at.Addr().Is6() { // what listens for IPv4 only takes nothing away
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return fmt.Errorf("prepare socket: %w", err)
		}
	}
	if err := unix.Bind(fd, sockaddr); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	return nil
}

func as4(a netip.Addr) (b [4]byte) {
	if a.Is4() {
		b = a.As4()
	}
	return b
}
