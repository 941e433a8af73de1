package takeover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Of linux/ip_vs.h, which golang.org/x/sys does not have.
const (
	ipvsFamily  = "IPVS"
	ipvsVersion = 1
	ipvsFlush   = 17 // IPVS_CMD_FLUSH
)

// findIPVS finds the device of IPVS mode and the virtual servers.
func findIPVS(_ context.Context, l *Leftovers) error {
	return findServers("/proc/thread-self/net/ip_vs", l)
}

// findServers finds what the kernel's list of virtual servers has. Without a trace of
// kube-proxy in IPVS mode they are somebody else's.
func findServers(path string, l *Leftovers) error {
	_, err := netlink.LinkByName(ipvsDevice)
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); err != nil && !missing {
		return fmt.Errorf("find device %s: %w", ipvsDevice, err)
	}
	l.Device = err == nil
	list, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // else the kernel has no IPVS
		return fmt.Errorf("list virtual servers of IPVS: %w", err)
	}
	if slices.Contains(l.Modes(), "ipvs") {
		l.VirtualServers = virtualServers(list)
	}
	return nil
}

// virtualServers counts them in the kernel's list, where each has a line that begins
// with its protocol, and each of its endpoints one that begins with an arrow.
func virtualServers(list []byte) int {
	n := 0
	for line := range bytes.Lines(list) {
		for _, kind := range []string{"TCP ", "UDP ", "SCTP ", "FWM "} {
			if bytes.HasPrefix(line, []byte(kind)) {
				n++
			}
		}
	}
	return n
}

// flushVirtualServers removes all virtual servers, as kube-proxy in IPVS mode takes
// all for its own.
func flushVirtualServers() error {
	family, err := netlink.GenlFamilyGet(ipvsFamily)
	if err != nil {
		return fmt.Errorf("find the netlink family of IPVS: %w", err)
	}
	request := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	request.AddData(&nl.Genlmsg{Command: ipvsFlush, Version: ipvsVersion})
	if _, err := request.Execute(unix.NETLINK_GENERIC, 0); err != nil {
		return fmt.Errorf("remove virtual servers of IPVS: %w", err)
	}
	return nil
}

func removeDevice() error {
	link, err := netlink.LinkByName(ipvsDevice)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing || errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove device %s: %w", ipvsDevice, err)
	}
	return nil
}
