package fabric

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"onerule/daemon/fabric/layout"
)

// applyDevice makes, changes or deletes the VXLAN device.
func (k *kernel) applyDevice(c layout.Change) error {
	link, err := k.handle.LinkByName(layout.DeviceName)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing) && c.Delete:
		k.device = 0
		return nil
	case errors.As(err, &missing):
		return k.addDevice(c.Device)
	case err != nil:
		return err
	}
	if _, ok := link.(*netlink.Vxlan); !ok {
		return fmt.Errorf("a device of this name is there and is no VXLAN device (%s): it is another's", link.Type())
	}
	if c.Delete {
		k.device, k.former = 0, link.Attrs().Index
		return unlessGone(k.handle.LinkDel(link))
	}
	k.device = link.Attrs().Index
	return k.adjustDevice(link, c.Device)
}

func (k *kernel) addDevice(d layout.Device) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = layout.DeviceName
	attrs.MTU = d.MTU
	attrs.HardwareAddr = net.HardwareAddr(d.MAC[:])
	err := k.handle.LinkAdd(&netlink.Vxlan{
		LinkAttrs: attrs,
		VxlanId:   d.VNI,
		Port:      d.Port,
		SrcAddr:   d.Local.AsSlice(),
		// The kernel's default, and what lets receivers join packets before the inner
		// checksum is looked at.
		UDPCSum: true,
	})
	if errors.Is(err, unix.EEXIST) {
		return k.occupied(d, err)
	}
	if err != nil {
		return err
	}
	link, err := k.handle.LinkByName(layout.DeviceName)
	if err != nil {
		return err
	}
	k.device = link.Attrs().Index
	k.quiet()
	return k.adjustDevice(link, d)
}

// occupied names the device that has the number and the port.
func (k *kernel) occupied(d layout.Device, err error) error {
	links, listErr := k.handle.LinkList() //nolint:forbidigo // all that could be in the way, only when something is
	if listErr != nil && !errors.Is(listErr, netlink.ErrDumpInterrupted) {
		return errors.Join(err, listErr)
	}
	for _, l := range links {
		if v, ok := l.(*netlink.Vxlan); ok && v.VxlanId == d.VNI && v.Port == d.Port {
			return fmt.Errorf("device %s has VNI %d and port %d already: choose others, on all nodes: %w", v.Name, d.VNI, d.Port, err)
		}
	}
	return err
}

// quiet runs before the device is up: it makes no link-local address, and so sends
// nothing by itself. Only permanent entries say who is where.
func (k *kernel) quiet() {
	// Without IPv6 there is no such file.
	_ = k.writeSysctl(filepath.Join("ipv6/conf", layout.DeviceName, "addr_gen_mode"), "1")
	_ = k.writeSysctl(filepath.Join("ipv6/conf", layout.DeviceName, "accept_ra"), "0")
}

// adjustDevice changes what can be changed in a device that is there.
func (k *kernel) adjustDevice(link netlink.Link, d layout.Device) error {
	at := link.Attrs()
	if !bytes.Equal(at.HardwareAddr, d.MAC[:]) {
		if err := k.handle.LinkSetHardwareAddr(link, net.HardwareAddr(d.MAC[:])); err != nil {
			return fmt.Errorf("mac: %w", err)
		}
	}
	if at.MTU != d.MTU {
		if err := k.handle.LinkSetMTU(link, d.MTU); err != nil {
			return fmt.Errorf("mtu: %w", err)
		}
	}
	if now, err := checksumOffload(at.Name); err != nil || now != d.ChecksumOffload {
		if err := errors.Join(err, setChecksumOffload(at.Name, d.ChecksumOffload)); err != nil {
			return err
		}
	}
	if at.Flags&unix.IFF_UP != 0 {
		return nil
	}
	err := k.handle.LinkSetUp(link)
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("UDP port %d is another program's: %w", d.Port, err)
	}
	return err
}

// ethtoolValue is struct ethtool_value of linux/ethtool.h.
type ethtoolValue struct{ cmd, data uint32 }

// checksumOffload says whether checksums of what a device sends are left to the network
// card.
func checksumOffload(dev string) (bool, error) {
	v := ethtoolValue{cmd: unix.ETHTOOL_GTXCSUM}
	if err := ethtool(dev, &v); err != nil {
		return false, fmt.Errorf("ask for checksum offload of %s: %w", dev, err)
	}
	return v.data != 0, nil
}

func setChecksumOffload(dev string, on bool) error {
	v := ethtoolValue{cmd: unix.ETHTOOL_STXCSUM}
	if on {
		v.data = 1
	}
	if err := ethtool(dev, &v); err != nil {
		return fmt.Errorf("set checksum offload of %s: %w", dev, err)
	}
	return nil
}

// ethtool speaks the old interface, which every kernel has: one word is asked for.
func ethtool(dev string, v *ethtoolValue) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	var req struct {
		name [unix.IFNAMSIZ]byte
		data *ethtoolValue
		_    [16]byte // the union in struct ifreq is longer than a pointer
	}
	copy(req.name[:unix.IFNAMSIZ-1], dev)
	req.data = v
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	if errno != 0 {
		return errno
	}
	return nil
}
