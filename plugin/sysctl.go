package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Sysctls are those of the namespace that the calling thread is in.
const sysctlRoot = "/proc/sys"

func sysctlPath(parts ...string) string {
	return filepath.Join(append([]string{sysctlRoot, "net"}, parts...)...)
}

func readSysctl(path string) (string, error) {
	fd, err := openSysctl(path, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }()
	return valueOf(fd, path)
}

// openSysctl goes past the library, which has the runtime wait for changes of the file
// and so wakes a thread for each.
func openSysctl(path string, flags int) (int, error) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open sysctl %s: %w", path, err)
	}
	return fd, nil
}

func valueOf(fd int, path string) (string, error) {
	b := make([]byte, 128)
	n, err := unix.Pread(fd, b, 0)
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", path, err)
	}
	return strings.TrimSpace(string(b[:n])), nil
}

// setSysctl writes only what is not so already: /proc/sys may be read-only, and
// right all the same. It reads back, since a write can be without effect.
func setSysctl(path, value string) error {
	fd, err := openSysctl(path, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	got, err := valueOf(fd, path)
	if err != nil || got == value {
		return err
	}
	if err := writeSysctl(path, value); err != nil {
		return err
	}
	if got, err = valueOf(fd, path); err == nil && got != value {
		err = fmt.Errorf("sysctl %s is %s after %s was written", path, got, value)
	}
	return err
}

// setSysctl does it where it can be written.
func (s *store) setSysctl(path, value string) error {
	if s.sysctls != "" {
		path = filepath.Join(s.sysctls, strings.TrimPrefix(path, sysctlRoot))
	}
	return setSysctl(path, value)
}

func writeSysctl(path, value string) error {
	fd, err := openSysctl(path, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return fmt.Errorf("set sysctl %s to %s: %w", path, value, err)
	}
	return nil
}

// speaksIPv6 is false where IPv6 is not built in, with ipv6.disable=1, and for a
// device whose MTU is too small for it.
func speaksIPv6(dev string) bool {
	_, err := os.Stat(sysctlPath("ipv6/conf", dev))
	return err == nil
}

// quietIPv6 must run before the link is up. Neither end takes addresses or routes
// from a router advertisement, which a pod with NET_RAW could send to its node;
// and neither makes a link-local address of its own, which would be tentative for
// a second or more. Ours are added explicitly, without duplicate detection.
func quietIPv6(dev string, use bool) error {
	if !use && !speaksIPv6(dev) {
		return nil
	}
	settings := [][2]string{{"accept_ra", "0"}, {"addr_gen_mode", "1"}}
	if use {
		// Runtimes turn IPv6 off in namespaces that they think have none.
		settings = append(settings, [2]string{"disable_ipv6", "0"})
	}
	for _, s := range settings {
		if err := setSysctl(sysctlPath("ipv6/conf", dev, s[0]), s[1]); err != nil {
			return err
		}
	}
	return nil
}

// forwardingPaths gives the sysctls that must all be 1 for packets of a family to
// be forwarded from and to a device.
func forwardingPaths(f family, dev string) []string {
	if f == ipv4 {
		return []string{forwardingPath(f), sysctlPath("ipv4/conf", dev, "forwarding")}
	}
	return []string{forwardingPath(f), sysctlPath("ipv6/conf", dev, "forwarding")}
}

// forwardingPath gives the one for the whole node.
func forwardingPath(f family) string {
	if f == ipv4 {
		return sysctlPath("ipv4/ip_forward")
	}
	return sysctlPath("ipv6/conf/all/forwarding")
}

// enableForwarding makes the node a router for a family, the new link included: it
// got conf/default, which may differ.
func enableForwarding(f family, dev string, warn func(string, ...any)) error {
	for i, path := range forwardingPaths(f, dev) {
		if i == 0 && f == ipv6 {
			if err := keepRouterAdvertisements(path, warn); err != nil {
				return err
			}
		}
		if err := setSysctl(path, "1"); err != nil {
			return err
		}
	}
	return nil
}

// keepRouterAdvertisements runs before IPv6 forwarding is turned on: that makes the
// kernel drop the default routes that it learned from advertisements, and ignore
// further ones, on every device whose accept_ra is 1. With 2 they stay.
func keepRouterAdvertisements(forwarding string, warn func(string, ...any)) error {
	if on, err := readSysctl(forwarding); err != nil || on == "1" {
		return err
	}
	devs, err := os.ReadDir(sysctlPath("ipv6/conf"))
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	for _, dev := range devs {
		path := sysctlPath("ipv6/conf", dev.Name(), "accept_ra")
		if v, err := readSysctl(path); err != nil || v != "1" || !hasRADefaultRoute(dev.Name()) {
			continue // also a device that went meanwhile
		}
		if err := setSysctl(path, "2"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		warn("accept_ra of %s is 2 now: its default route would go when IPv6 forwarding is turned on", dev.Name())
	}
	return nil
}

func hasRADefaultRoute(dev string) bool {
	link, err := netlink.LinkByName(dev)
	if err != nil {
		return false // "all" and "default" are no devices
	}
	r, ok := defaultRoute(eachTime(), ipv6, lookupOptions{link: link.Attrs().Index})
	return ok && r.Protocol == protocolRA
}
